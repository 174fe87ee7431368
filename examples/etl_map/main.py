"""A durable map over 20,000 records, killed half way and started again."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from stepfast import Stepfast

RECORDS = 20_000
RUN_ID = "etl-customers"


def work(folder: Path) -> None:
    """The job itself. It is the same code in every life."""
    calls = os.open(folder / "calls.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def enrich(record: dict[str, int]) -> dict[str, int]:
        os.write(calls, f"{record['id']}\n".encode())
        return {**record, "score": record["id"] * 7919 % 1000}

    with Stepfast(f"sqlite:///{folder}/etl.db") as sf, sf.run(RUN_ID) as run:
        records = [{"id": number} for number in range(RECORDS)]
        total = 0
        for done, row in enumerate(run.map(enrich, records, progress=False), 1):
            total += row["score"]
            if done % 1000 == 0:
                print(done, flush=True)
        run.complete({"rows": len(records), "total": total})


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="stepfast-etl-") as name:
        folder = Path(name)
        command = [sys.executable, __file__, "work", name]

        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
            assert first.stdout is not None
            for line in first.stdout:
                if int(line) >= RECORDS // 2:
                    first.kill()
                    break
        before = len((folder / "calls.txt").read_text().splitlines())
        print(f"first life:  killed after {before:,} calls")

        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        calls = Counter((folder / "calls.txt").read_text().splitlines())
        again = sum(calls.values()) - RECORDS
        print(f"second life: {sum(calls.values()) - before:,} calls")

        with Stepfast(f"sqlite:///{folder}/etl.db") as sf:
            result = sf.wait_for(RUN_ID)["result"]
            commits = sum(step["kind"] == "items" for step in sf.steps(RUN_ID))
        print(f"result:      {result}")
        print(f"repeated:    {again} of {RECORDS:,} records (run before the kill, not yet recorded)")
        print(f"commits:     {commits} for {RECORDS:,} records")

        expected = {"rows": RECORDS, "total": sum(number * 7919 % 1000 for number in range(RECORDS))}
        all_seen = len(calls) == RECORDS and max(calls.values()) <= 2
        return 0 if result == expected and all_seen and sum(calls.values()) - before < RECORDS else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(Path(sys.argv[2]))
    else:
        sys.exit(main())

"""A refund agent is killed just after the money moved, started again, and does not move it twice."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from stepfast import Stepfast

AGENT = Path(__file__).with_name("agent.py")
RUN = "refund-4711"


def start(folder: str, *words: str) -> tuple[int, str]:
    ended = subprocess.run([sys.executable, AGENT, folder, *words], check=False, capture_output=True, text=True)
    return ended.returncode, ended.stdout.strip() or ended.stderr.strip()


def counts(folder: str) -> Counter[str]:
    return Counter(Path(folder, "world.txt").read_text().splitlines())


def decide(folder: str) -> None:
    """What a person does, from wherever they are: look at the question, find out, answer."""
    with Stepfast(f"sqlite:///{folder}/runs.db") as sf:
        for asked in sf.decisions(RUN):
            print(f"a person:    {asked['question']} The card's statement says: yes.")
            sf.answer(RUN, "done", asked["key"], value="refunded 4200", actor="ada")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="stepfast-refund-") as folder:
        killed, _ = start(folder, "die")
        print(f"first life:  exit code {killed} in the refund; so far: {dict(counts(folder))}")
        _, said = start(folder)
        print(f"second life: {said}")
        if said.startswith("waits"):
            decide(folder)
            print(f"third life:  {start(folder)[1]}")
        happened = counts(folder)
        for what, times in happened.items():
            print(f"  {times} x {what}")
        return 0 if killed != 0 and len(happened) == 7 and set(happened.values()) == {1} else 1


if __name__ == "__main__":
    sys.exit(main())

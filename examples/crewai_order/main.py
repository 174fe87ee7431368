"""Kills the crew and the flow once, starts them again, and counts what happened in the world."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

EXPECTED = {"model call 1": 1, "model call 2": 1, "model call 3": 2, "price looked up": 1, "card charged": 1}


def life(folder: Path, *arguments: str) -> tuple[int, str]:
    program = Path(__file__).with_name("order.py")
    command = [sys.executable, "-W", "ignore", str(program), str(folder), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [line for line in ended.stdout.splitlines() if line.startswith("answer:")]
    return ended.returncode, said[-1] if said else ended.stderr[-2000:]


def main() -> int:
    right = True
    for kind in ("crew", "flow"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            code, _ = life(folder, kind, "die")
            print(f"{kind}, first life:  ended with {code}")
            code, said = life(folder, kind)
            print(f"{kind}, second life: {said}")
            happened = Counter((folder / "world.txt").read_text().splitlines())
            for line, count in happened.items():
                print(f"  {count} x {line}")
            expected = EXPECTED if kind == "crew" else {**EXPECTED, "flow begun": 1}
            right = right and code == 0 and happened == expected
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())

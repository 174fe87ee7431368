"""Kills the team once, starts it again, and counts what happened in the world."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

EXPECTED = {
    "model call of clerk, 0 results seen": 1,
    "model call of clerk, 1 results seen": 1,
    "model call of clerk, 2 results seen": 2,  # the one that the kill cut short, and its repetition
    "model call of reviewer, 0 results seen": 1,
    "order looked up": 1,
    "refunded": 1,
}


def life(folder: Path, *arguments: str) -> tuple[int, str]:
    program = Path(__file__).with_name("team.py")
    command = [sys.executable, "-W", "ignore", str(program), str(folder), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [line for line in ended.stdout.splitlines() if line.startswith("answer:")]
    return ended.returncode, said[-1] if said else ended.stderr[-2000:]


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code, _ = life(folder, "die")
        print(f"first life:  ended with {code}")
        code, said = life(folder)
        print(f"second life: {said}")
        third, again = life(folder)
        print(f"third life:  {again}")
        happened = Counter((folder / "world.txt").read_text().splitlines())
        for line, count in happened.items():
            print(f"  {count} x {line}")
    return 0 if (code, third, said) == (0, 0, again) and happened == EXPECTED else 1


if __name__ == "__main__":
    sys.exit(main())

"""The recovery that the README shows, played."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_recovery_in_the_readme_can_be_watched(tmp_path: Path) -> None:
    (script,) = [b for b in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "SIGKILL" in b]
    (tmp_path / "refund.py").write_text(script)

    def play() -> tuple[int, list[str]]:
        done = subprocess.run([sys.executable, "refund.py"], cwd=tmp_path, capture_output=True, text=True, timeout=90)
        return done.returncode, [line.strip() for line in done.stdout.splitlines()]

    code, said = play()
    assert code == -signal.SIGKILL
    assert said == ["model call 1", "looking up", "model call 2", "refunding", "killed"]
    assert play() == (0, ["model call 3", "Refunded order 4711."])
    assert play() == (0, ["Refunded order 4711."])

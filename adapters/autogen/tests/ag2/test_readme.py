"""The recovery that the README shows, played."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.timeout(900)
def test_the_recovery_in_the_readme_can_be_watched(tmp_path: Path) -> None:
    section = README.read_text().partition("\n## AG2 1.x\n")[2].partition("\n## ")[0]
    (script,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "refund.py").write_text(script)

    def play() -> tuple[int, list[str]]:
        done = subprocess.run(
            [sys.executable, "-u", "refund.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        return done.returncode, done.stdout.splitlines()

    assert play() == (-signal.SIGKILL, ["model call", "refunding 4711", "model call"])
    assert play() == (0, ["model call", "Refunded."])
    assert play() == (0, ["Refunded."])

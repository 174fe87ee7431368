"""The example and the README do what they say, and would notice if they did not."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(300)
def test_the_team_killed_in_the_middle_goes_on_and_refunds_once() -> None:
    story = ROOT / "examples" / "autogen_team" / "main.py"
    told = subprocess.run([sys.executable, str(story)], capture_output=True, text=True, timeout=290, check=False)
    said = told.stdout + told.stderr

    assert told.returncode == 0, said
    assert "first life:  ended with -9" in said
    assert "second life: answer: order 4711: a lamp, 42; refunded 42 · APPROVE" in said
    assert "1 x refunded" in said


@pytest.mark.timeout(300)
def test_the_recovery_in_the_readme_can_be_watched(tmp_path: Path) -> None:
    section = (ROOT / "adapters" / "autogen" / "README.md").read_text().partition("\n## AgentChat\n")[2]
    script = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)[0]
    (tmp_path / "refund.py").write_text(script)

    def play() -> tuple[int, list[str]]:
        command = [sys.executable, "-u", "-W", "ignore", "refund.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
        return done.returncode, done.stdout.splitlines()

    assert play() == (-signal.SIGKILL, ["looking up", "refunding 42"])
    assert play() == (0, ["Refunded."])
    assert play() == (0, ["Refunded."])

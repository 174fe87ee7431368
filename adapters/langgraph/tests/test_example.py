"""The example does what it says, and would notice if it did not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STORY = ROOT / "examples" / "langgraph_agent" / "main.py"


def told(script: Path) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env={**os.environ}, timeout=90
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_the_agent_killed_in_its_third_tool_repeats_neither_the_model_nor_the_other_two() -> None:
    code, said = told(STORY)

    assert code == 0, said
    assert "answer: charged 4711; wrote to ada; courier at noon" in said
    for line in ("1 x model call: plan", "1 x card charged", "1 x mail sent", "1 x courier booked"):
        assert line in said


@pytest.mark.chaos
def test_without_durable_tools_the_same_story_fails(tmp_path: Path) -> None:
    whole = STORY.read_text()
    broken = whole.replace("durable_tool(charge_card, once=True)", "charge_card")
    assert broken != whole
    script = tmp_path / "main.py"
    script.write_text(broken)

    code, said = told(script)

    assert code == 1, said
    assert "2 x card charged" in said

"""The example does what it says, and would notice if it did not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STORY = ROOT / "examples" / "openai_agents_refund"


def told(story: Path) -> tuple[int, str]:
    ended = subprocess.run([sys.executable, str(story / "main.py")], capture_output=True, text=True, timeout=110)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.timeout(120)
def test_the_agent_killed_in_its_refund_waits_for_a_person_and_moves_the_money_once() -> None:
    code, said = told(STORY)

    assert code == 0, said
    assert "second life: waits" in said
    assert "third life:  answer: order 4711: a lamp for 42.00; refunded 4200; wrote to ada" in said
    for line in ("1 x model call 2", "1 x order looked up", "1 x money moved", "1 x mail written"):
        assert line in said


@pytest.mark.timeout(120)
@pytest.mark.chaos
def test_with_a_refund_that_may_be_repeated_the_same_story_fails(tmp_path: Path) -> None:
    shutil.copy(STORY / "main.py", tmp_path)
    whole = (STORY / "agent.py").read_text()
    broken = whole.replace('policies={"refund_card": "once"}', 'policies={"refund_card": "retry"}')
    assert broken != whole
    (tmp_path / "agent.py").write_text(broken)

    code, said = told(tmp_path)

    assert code == 1, said
    assert "2 x money moved" in said

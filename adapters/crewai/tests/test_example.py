"""The example does what it says, and would notice if it did not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

STORY = Path(__file__).parents[3] / "examples" / "crewai_order"


@pytest.mark.timeout(900)
def test_the_crew_and_the_flow_killed_in_the_middle_go_on_and_charge_once() -> None:
    told = subprocess.run([sys.executable, str(STORY / "main.py")], capture_output=True, text=True, timeout=890)
    said = told.stdout + told.stderr
    assert told.returncode == 0, said
    for kind in ("crew", "flow"):
        assert f"{kind}, first life:  ended with -9" in said
        assert f"{kind}, second life: answer: lamp: 42; charged 42" in said
    assert said.count("1 x card charged") == 2

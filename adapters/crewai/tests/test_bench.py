"""The benchmark of crews runs, beside CrewAI's own checkpoints, and judges what it found. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench import agents, crews, run

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]


def test_every_contender_is_measured_and_the_targets_are_judged(tmp_path: Path) -> None:
    written = tmp_path / "figures.json"
    only = [word for name in crews.CREW_SECTIONS for word in ("--only", name)]
    places = ["--store", "SQLite", "--medium", "disk", "--folder", str(tmp_path)]

    assert run.main([*only, *places, "--smoke", "--no-dbos", "--json", str(written)]) == 0

    found = json.loads(written.read_text())
    names = {figure["contender"].partition(",")[0] for figure in found["figures"] if figure["section"] == "crew"}
    assert names == {crews.BARE, agents.OURS, crews.THEIRS}
    assert {figure["section"] for figure in found["figures"]} == {"crew", "crew_added", "crew_stored", "crew_kills"}
    judged = {target["target"]: target for target in found["targets"] if target["value"] is not None}
    assert len(judged) == 6
    assert judged["CrewAI, finished calls made again over all kills, SQLite"]["met"]
    assert judged["CrewAI, tools that ran twice over all kills, SQLite"]["met"]
    assert judged["CrewAI, stored for two small tasks: its checkpoints take"]["met"]

"""The benchmark of teams runs beside bare AutoGen, and judges what it found. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench import agents, run, teams

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]


def test_every_contender_is_measured_and_the_targets_are_judged(tmp_path: Path) -> None:
    written = tmp_path / "figures.json"
    only = [word for name in teams.TEAM_SECTIONS for word in ("--only", name)]
    places = ["--store", "SQLite", "--medium", "disk", "--folder", str(tmp_path)]

    assert run.main([*only, *places, "--smoke", "--no-dbos", "--json", str(written)]) == 0

    found = json.loads(written.read_text())
    names = {figure["contender"].partition(",")[0] for figure in found["figures"] if figure["section"] == "team"}
    assert names == {teams.BARE, agents.OURS}
    assert {figure["section"] for figure in found["figures"]} == {"team", "team_added", "team_replay"}
    assert sum(target["value"] is not None for target in found["targets"]) == 4

"""The benchmark of the checkpointers runs, with every rival, and judges what it found. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench import run, savers


@pytest.mark.parametrize("store", ["SQLite", "PostgreSQL"])
def test_every_rival_is_measured_and_the_targets_are_judged(store: str, tmp_path: Path) -> None:
    written = tmp_path / "figures.json"
    only = [word for name in savers.SAVER_SECTIONS for word in ("--only", name)]
    places = ["--store", store, "--medium", "disk", "--folder", str(tmp_path)]

    assert run.main([*only, *places, "--smoke", "--no-dbos", "--json", str(written)]) == 0

    found = json.loads(written.read_text())
    rivals = {figure["contender"].partition(",")[0] for figure in found["figures"] if figure["section"] == "chat"}
    assert {savers.OURS, savers.MEMORY} < rivals
    assert len(rivals) == (3 if store == "SQLite" else 4) + savers.has_delta()
    sections = {figure["section"] for figure in found["figures"]}
    assert sections == {"chat", "chat_bytes", "chat_read", "chat_history", "small", "pair"}
    judged = [target for target in found["targets"] if "LangGraph" in target["target"] and target["value"] is not None]
    assert len(judged) >= 5

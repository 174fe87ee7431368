"""Memory, knowledge, planning, MCP and streams: what they did is not done again after a kill or an error."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.crewai.tests import scenes_parts
from stepfast.testing import crash_matrix

SCENES: dict[str, tuple[str, dict[str, Any]]] = {
    "memory": ("remembered", {}),
    "memory, akickoff": ("remembered", {"way": "akickoff"}),
    "stream": ("streamed", {}),
    "stream, akickoff": ("streamed", {"way": "akickoff"}),
    "persisted flow": ("persisted", {}),
}
each_scene = pytest.mark.parametrize("name", SCENES)


def kill(name: str, **options: Any) -> None:
    scene, chosen = SCENES[name]
    report = crash_matrix(getattr(scenes_parts, scene), options=chosen, **options)
    print(report)
    report.assert_clean()


@pytest.mark.xdist_group("kill")
@pytest.mark.timeout(600)
@each_scene
def test_a_run_killed_at_a_boundary_goes_on_and_repeats_nothing(name: str) -> None:
    kill(name, points=3)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@each_scene
def test_a_run_killed_at_any_boundary_goes_on_and_repeats_nothing(name: str) -> None:
    kill(name)

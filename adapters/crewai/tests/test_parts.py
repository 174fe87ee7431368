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
IN_SHORT = ("memory", "stream")
in_short = pytest.mark.parametrize("name", IN_SHORT)
the_others = pytest.mark.parametrize("name", [name for name in SCENES if name not in IN_SHORT])


def kill(name: str, **options: Any) -> None:
    scene, chosen = SCENES[name]
    report = crash_matrix(getattr(scenes_parts, scene), options=chosen, **options)
    print(report)
    report.assert_clean()


@pytest.mark.xdist_group("kill")
@pytest.mark.timeout(600)
@in_short
def test_a_run_killed_at_a_boundary_goes_on_and_repeats_nothing(name: str) -> None:
    kill(name, points=2)


@pytest.mark.thorough
@pytest.mark.xdist_group("kill")
@pytest.mark.timeout(600)
@the_others
def test_the_same_holds_for_other_ways(name: str) -> None:
    kill(name, points=2)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@each_scene
def test_a_run_killed_at_any_boundary_goes_on_and_repeats_nothing(name: str) -> None:
    kill(name)

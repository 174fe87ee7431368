"""Real SIGKILL at the boundaries of a run: the same result, nothing recorded done again, one-shot effects once."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.crewai.tests import scenes
from stepfast.testing import crash_matrix

pytestmark = [pytest.mark.xdist_group("kill"), pytest.mark.timeout(600)]

SCENES: dict[str, tuple[str, dict[str, Any]]] = {
    "sequential": ("order", {}),
    "react": ("order", {"react": True}),
    "kickoff_async": ("order", {"way": "kickoff_async"}),
    "akickoff": ("order", {"way": "akickoff"}),
    "asynchronous tasks": ("side_by_side", {}),
    "asynchronous tasks, akickoff": ("side_by_side", {"way": "akickoff"}),
    "hierarchical": ("hierarchy", {}),
    "guardrail, pydantic, callbacks": ("guarded", {}),
    "for each": ("each", {}),
    "for each, akickoff": ("each", {"way": "akickoff_for_each"}),
    "human input": ("reviewed", {}),
    "human input, akickoff": ("reviewed", {"way": "akickoff"}),
    "flow with router, loop, crew and join": ("journey", {}),
    "flow, kickoff_async": ("journey", {"way": "kickoff_async"}),
    "feedback and questions of a flow": ("asked", {}),
}
each_scene = pytest.mark.parametrize("name", SCENES)
not_sqlite = pytest.mark.parametrize("store", ["postgres", "http"])


def kill(name: str, store: str, request: pytest.FixtureRequest, **options: Any) -> None:
    url = request.getfixturevalue("postgres_url") if store == "postgres" else store
    scene, chosen = SCENES[name]
    report = crash_matrix(getattr(scenes, scene), store=url, options=chosen, **options)
    print(report)
    report.assert_clean()


@each_scene
def test_a_run_killed_at_a_boundary_goes_on_and_repeats_nothing(name: str, request: pytest.FixtureRequest) -> None:
    kill(name, "sqlite", request, points=3)


@not_sqlite
@pytest.mark.parametrize("name", ["sequential", "flow with router, loop, crew and join"])
def test_the_same_holds_on_the_other_stores(name: str, store: str, request: pytest.FixtureRequest) -> None:
    kill(name, store, request, points=3)


@pytest.mark.chaos
@each_scene
def test_a_run_killed_at_any_boundary_goes_on_and_repeats_nothing(name: str, request: pytest.FixtureRequest) -> None:
    kill(name, "sqlite", request, moments=10)


@pytest.mark.chaos
@not_sqlite
@each_scene
def test_any_boundary_on_the_other_stores(name: str, store: str, request: pytest.FixtureRequest) -> None:
    kill(name, store, request)


@pytest.mark.chaos
@each_scene
def test_a_run_killed_twice_goes_on_and_repeats_nothing(name: str, request: pytest.FixtureRequest) -> None:
    kill(name, "sqlite", request, kills=2, seed=1, points=20)

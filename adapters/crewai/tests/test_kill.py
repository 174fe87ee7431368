"""Real SIGKILL at the boundaries of a run: the same result, nothing recorded done again, one-shot effects once."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.crewai.tests import scenes
from stepfast.testing import crash_matrix

pytestmark = [pytest.mark.xdist_group("kill"), pytest.mark.timeout(600)]

SCENES: dict[str, tuple[str, dict[str, Any]]] = {
    "sequential, parallel tools": ("order", {}),
    "hierarchical, delegation": ("hierarchy", {}),
    "flow with router, loop, crew and join": ("journey", {}),
    "feedback and questions of a flow": ("asked", {}),
    "asynchronous tasks": ("side_by_side", {}),
    "worker": ("delivered", {}),
    # further variants
    "four calls at once": ("parallel", {}),
    "react": ("order", {"react": True}),
    "kickoff_async": ("order", {"way": "kickoff_async"}),
    "akickoff": ("order", {"way": "akickoff"}),
    "four calls at once, akickoff": ("parallel", {"way": "akickoff"}),
    "asynchronous tasks, akickoff": ("side_by_side", {"way": "akickoff"}),
    "guardrail, pydantic, callbacks": ("guarded", {}),
    "for each": ("each", {}),
    "for each, akickoff": ("each", {"way": "akickoff_for_each"}),
    "human input": ("reviewed", {}),
    "human input, akickoff": ("reviewed", {"way": "akickoff"}),
    "flow, kickoff_async": ("journey", {"way": "kickoff_async"}),
}
MAIN = list(SCENES)[:6]
each_scene = pytest.mark.parametrize("name", SCENES)
main_scene = pytest.mark.parametrize("name", MAIN)
variant = pytest.mark.parametrize("name", list(SCENES)[6:])
not_sqlite = pytest.mark.parametrize("store", ["postgres", "http"])


def kill(name: str, store: str, request: pytest.FixtureRequest, **options: Any) -> None:
    url = request.getfixturevalue("postgres_url") if store == "postgres" else store
    scene, chosen = SCENES[name]
    report = crash_matrix(getattr(scenes, scene), store=url, options=chosen, **options)
    print(report)
    report.assert_clean()


@main_scene
def test_a_run_killed_at_a_boundary_goes_on_and_repeats_nothing(name: str, request: pytest.FixtureRequest) -> None:
    kill(name, "sqlite", request, points=2)


def test_a_crew_that_is_not_durable_is_found_out() -> None:
    """Else nothing would be proved by a matrix that finds nothing."""
    report = crash_matrix(scenes.bare)
    assert report.of("doubled one-shot"), report
    assert report.of("repeated model call"), report


@not_sqlite
@pytest.mark.parametrize("name", MAIN[:3:2])
def test_the_same_holds_on_the_other_stores(name: str, store: str, request: pytest.FixtureRequest) -> None:
    kill(name, store, request, points=2)


@pytest.mark.thorough
@variant
def test_the_same_holds_for_every_way_to_start_a_crew(name: str, request: pytest.FixtureRequest) -> None:
    kill(name, "sqlite", request, points=3, seed=1)


@pytest.mark.thorough
@not_sqlite
@main_scene
def test_all_of_them_on_the_other_stores(name: str, store: str, request: pytest.FixtureRequest) -> None:
    kill(name, store, request, points=3, seed=2)


@pytest.mark.thorough
@main_scene
def test_a_run_killed_again_while_it_resumes_goes_on(name: str, request: pytest.FixtureRequest) -> None:
    kill(name, "sqlite", request, points=3, kills=2, seed=3)


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
    kill(name, "sqlite", request, kills=2, seed=1, points=40)

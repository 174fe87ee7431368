"""The scenes of `crash_scenes` survive being killed anywhere, on every kind of store."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.langgraph.tests import crash_scenes
from stepfast.testing import crash_matrix

pytestmark = [pytest.mark.xdist_group("crash"), pytest.mark.timeout(600)]
each_scene = pytest.mark.parametrize(
    "scene", [crash_scenes.agent, crash_scenes.asking, crash_scenes.silent], ids=lambda scene: scene.name
)
not_sqlite = pytest.mark.parametrize("store", ["postgres", "http"])
LINES = {"packages": ["stepfast_langgraph"]}


def kill(scene: Any, request: pytest.FixtureRequest, store: str = "sqlite", **options: Any) -> None:
    url = request.getfixturevalue("postgres_url") if store == "postgres" else store
    report = crash_matrix(scene, store=url, **options)
    print(report)
    report.assert_clean()


@each_scene
def test_nothing_finished_is_done_again_wherever_it_is_killed(scene: Any, request: pytest.FixtureRequest) -> None:
    kill(scene, request, points=7, moments=2, lines=2, **LINES)


@not_sqlite
def test_the_same_holds_on_the_other_stores(store: str, request: pytest.FixtureRequest) -> None:
    kill(crash_scenes.agent, request, store, points=3)


def test_without_sync_durability_nothing_stored_is_done_again(request: pytest.FixtureRequest) -> None:
    kill(crash_scenes.not_sync, request, points=3, options={"durability": "async"})


@pytest.mark.chaos
@each_scene
def test_every_boundary_random_moments_and_lines(scene: Any, request: pytest.FixtureRequest) -> None:
    kill(scene, request, moments=50, lines=300, **LINES)


@pytest.mark.chaos
@each_scene
def test_the_process_that_resumes_is_killed_too(scene: Any, request: pytest.FixtureRequest) -> None:
    kill(scene, request, kills=2, seed=1)


@pytest.mark.chaos
@not_sqlite
@each_scene
def test_every_boundary_on_the_other_stores(scene: Any, store: str, request: pytest.FixtureRequest) -> None:
    kill(scene, request, store)


@pytest.mark.chaos
def test_every_boundary_without_sync_durability(request: pytest.FixtureRequest) -> None:
    kill(crash_scenes.not_sync, request, options={"durability": "async"})
    kill(crash_scenes.at_exit, request, options={"durability": "exit"})

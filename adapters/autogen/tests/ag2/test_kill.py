"""Real SIGKILL at the boundaries of a conversation: the same result, nothing recorded done again, one-shots once."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.autogen.tests.ag2 import scenes
from stepfast.testing import crash_matrix

pytestmark = [pytest.mark.xdist_group("kill"), pytest.mark.timeout(3600)]

SCENES = ["order", "delegation", "people", "watched", "delivered"]
each_scene = pytest.mark.parametrize("name", SCENES)
not_sqlite = pytest.mark.parametrize("store", ["postgres", "http"])


def kill(name: str, store: str, request: pytest.FixtureRequest, **options: Any) -> None:
    url = request.getfixturevalue("postgres_url") if store == "postgres" else store
    report = crash_matrix(getattr(scenes, name), store=url, **options)
    print(report)
    report.assert_clean()


@each_scene
def test_a_conversation_killed_at_a_boundary_goes_on_and_repeats_nothing(
    name: str, request: pytest.FixtureRequest
) -> None:
    kill(name, "sqlite", request, points=3)


@not_sqlite
@pytest.mark.parametrize("name", ["order", "people"])
def test_the_same_holds_on_the_other_stores(name: str, store: str, request: pytest.FixtureRequest) -> None:
    kill(name, store, request, points=2)


@pytest.mark.chaos
@each_scene
def test_a_conversation_killed_at_any_boundary_goes_on_and_repeats_nothing(
    name: str, request: pytest.FixtureRequest
) -> None:
    kill(name, "sqlite", request, moments=10)


@pytest.mark.chaos
@not_sqlite
@each_scene
def test_any_boundary_on_the_other_stores(name: str, store: str, request: pytest.FixtureRequest) -> None:
    kill(name, store, request)


@pytest.mark.chaos
@each_scene
def test_a_conversation_killed_twice_goes_on_and_repeats_nothing(name: str, request: pytest.FixtureRequest) -> None:
    kill(name, "sqlite", request, kills=2, seed=1, points=20)

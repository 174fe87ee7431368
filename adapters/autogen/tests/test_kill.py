"""Real SIGKILL at every boundary of a conversation: the same result, nothing recorded done again, one-shots once."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.autogen.tests.scenes import TEAMS, conversation
from stepfast.testing import crash_matrix

pytestmark = [pytest.mark.xdist_group("kill"), pytest.mark.timeout(600)]

each_team = pytest.mark.parametrize("team", TEAMS)
not_sqlite = pytest.mark.parametrize("store", ["postgres", "http"])


def kill(team: str, store: str, request: pytest.FixtureRequest, *, again: bool = False, **options: Any) -> None:
    url = request.getfixturevalue("postgres_url") if store == "postgres" else store
    report = crash_matrix(conversation, store=url, options={"team": team, "again": again}, **options)
    print(report)
    report.assert_clean()


@each_team
def test_a_team_killed_at_a_boundary_goes_on_and_repeats_nothing(team: str, request: pytest.FixtureRequest) -> None:
    kill(team, "sqlite", request, points=2)


@each_team
@pytest.mark.thorough
def test_a_conversation_of_two_runs_goes_on_and_repeats_nothing(team: str, request: pytest.FixtureRequest) -> None:
    kill(team, "sqlite", request, again=True, points=3)


@not_sqlite
def test_the_same_holds_on_the_other_stores(store: str, request: pytest.FixtureRequest) -> None:
    kill("nested", store, request, again=True, points=2)


@pytest.mark.chaos
@each_team
def test_a_team_killed_at_any_boundary_goes_on_and_repeats_nothing(team: str, request: pytest.FixtureRequest) -> None:
    kill(team, "sqlite", request, again=True, moments=10, lines=20, packages=["stepfast_autogen"])


@pytest.mark.chaos
@pytest.mark.parametrize("team", ["round_robin", "nested", "people"])
def test_a_team_killed_twice_goes_on_and_repeats_nothing(team: str, request: pytest.FixtureRequest) -> None:
    kill(team, "sqlite", request, kills=2, seed=1)


@pytest.mark.chaos
@not_sqlite
@pytest.mark.parametrize("team", ["round_robin", "graph", "nested", "people"])
def test_every_boundary_on_the_other_stores(team: str, store: str, request: pytest.FixtureRequest) -> None:
    kill(team, store, request)

"""Real SIGKILL at every boundary of a run: the same output, nothing recorded done again, one-shot effects once."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.openai_agents.tests.scenes import order
from stepfast.testing import crash_matrix

pytestmark = [pytest.mark.xdist_group("kill"), pytest.mark.timeout(600)]

MODES: dict[str, dict[str, Any]] = {
    "run": {},
    "approval": {"approval": True},
    "guardrail": {"guardrail": True},
    "session": {"session": "stepfast"},
    "session approval": {"session": "stepfast", "approval": True},
    "sqlite session": {"session": "sqlite", "guardrail": True},
    "streamed": {"streamed": True},
    "streamed approval": {"streamed": True, "approval": True},
    "streamed session": {"streamed": True, "session": "stepfast", "guardrail": True, "approval": True},
}
each_mode = pytest.mark.parametrize("mode", MODES)
not_sqlite = pytest.mark.parametrize("store", ["postgres", "http"])


def kill(mode: str, store: str, request: pytest.FixtureRequest, **options: Any) -> None:
    url = request.getfixturevalue("postgres_url") if store == "postgres" else store
    report = crash_matrix(order, store=url, options=MODES[mode], **options)
    print(report)
    report.assert_clean()


@each_mode
def test_a_run_killed_at_a_boundary_goes_on_and_repeats_nothing(mode: str, request: pytest.FixtureRequest) -> None:
    kill(mode, "sqlite", request, points=4, moments=int(mode == "run"))


@not_sqlite
def test_the_same_holds_on_the_other_stores(store: str, request: pytest.FixtureRequest) -> None:
    kill("session approval", store, request, points=3)


@pytest.mark.chaos
@each_mode
def test_a_run_killed_at_any_boundary_goes_on_and_repeats_nothing(mode: str, request: pytest.FixtureRequest) -> None:
    kill(mode, "sqlite", request, moments=20, lines=30, packages=["stepfast_openai_agents"])


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["run", "streamed session"])
def test_a_run_killed_twice_goes_on_and_repeats_nothing(mode: str, request: pytest.FixtureRequest) -> None:
    kill(mode, "sqlite", request, kills=2, seed=1)


@pytest.mark.chaos
@not_sqlite
@pytest.mark.parametrize("mode", ["run", "streamed session"])
def test_every_boundary_on_the_other_stores(mode: str, store: str, request: pytest.FixtureRequest) -> None:
    kill(mode, store, request)

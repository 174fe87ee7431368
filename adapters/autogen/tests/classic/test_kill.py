"""Real SIGKILL at the boundaries of a run: the same transcript, nothing recorded done again, one-shot effects once."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.autogen.tests.classic import scenes
from stepfast.testing import crash_matrix

pytestmark = [pytest.mark.xdist_group("kill"), pytest.mark.timeout(600)]

SCENES: dict[str, tuple[str, dict[str, Any]]] = {
    "two agents with tools": ("order", {}),
    "two agents, a_initiate_chat": ("order", {"way": "a_initiate_chat"}),
    "two agents, function_call": ("order", {"older": True}),
    "group, round robin": ("group", {"by": "round_robin"}),
    "group, auto": ("group", {"by": "auto"}),
    "group, auto, a_initiate_chat": ("group", {"by": "auto", "way": "a_initiate_chat"}),
    "group, manual": ("group", {"by": "manual"}),
    "nested chats": ("nested", {}),
    "human input, ALWAYS": ("reviewed", {"mode": "ALWAYS"}),
    "human input, TERMINATE": ("reviewed", {"mode": "TERMINATE"}),
    "human input, a_initiate_chat": ("reviewed", {"mode": "ALWAYS", "way": "a_initiate_chat"}),
    "code execution": ("coded", {}),
    "code execution, the older way": ("coded", {"older": True}),
    "hooks and reply functions": ("called_back", {}),
    "hooks and reply functions, a_initiate_chat": ("called_back", {"way": "a_initiate_chat"}),
    "several chats": ("queue", {"way": "initiate_chats"}),
    "several chats side by side": ("queue", {"way": "a_initiate_chats"}),
    "delivered to a worker": ("delivered", {}),
}
SAMPLE = (
    "two agents with tools",
    "group, auto, a_initiate_chat",
    "nested chats",
    "human input, ALWAYS",
    "code execution",
)
each_scene = pytest.mark.parametrize("name", SCENES)
sampled = pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.thorough) for name in SCENES]
)
not_sqlite = pytest.mark.parametrize("store", ["postgres", "http"])


def kill(name: str, store: str, request: pytest.FixtureRequest, **options: Any) -> None:
    url = request.getfixturevalue("postgres_url") if store == "postgres" else store
    scene, chosen = SCENES[name]
    report = crash_matrix(getattr(scenes, scene), store=url, options=chosen, **options)
    print(report)
    report.assert_clean()


@sampled
def test_a_run_killed_at_a_boundary_goes_on_and_repeats_nothing(name: str, request: pytest.FixtureRequest) -> None:
    kill(name, "sqlite", request, points=3)


@not_sqlite
@pytest.mark.parametrize(
    "name",
    [
        "two agents, a_initiate_chat",
        "hooks and reply functions",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in SAMPLE),
    ],
)
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

"""The public surface: documented, and the same for blocking and async callers."""

from __future__ import annotations

import inspect
import re
import types
from typing import Any

import pytest

import stepfast
from stepfast import AsyncRun, AsyncScope, AsyncStepCalls, AsyncStepfast, Run, Scope, StepCalls, Stepfast

TWINS = [(Stepfast, AsyncStepfast), (Run, AsyncRun), (Scope, AsyncScope), (StepCalls, AsyncStepCalls)]
PAIRS = pytest.mark.parametrize(("blocking", "waiting"), TWINS, ids=lambda kind: kind.__name__)
DUNDERS = {"__enter__": "__aenter__", "__exit__": "__aexit__"}


def members(kind: type) -> dict[str, Any]:
    """What callers may use: public names and the way in and out of a context."""
    return {
        name: inspect.getattr_static(kind, name)
        for name in dir(kind)
        if not name.startswith("_") or name in {*DUNDERS, *DUNDERS.values()}
    }


def as_blocking(annotation: str) -> str:
    """An annotation of the async side as its twin would write it."""
    text = annotation
    for _ in range(3):
        text = re.sub(r"\bCoroutine\[Any, Any, (.*)\]", r"\1", text)
    text = text.replace("_Opening", "Run").replace("AsyncIterator", "Iterator")
    text = re.sub(r"\bAsync(Stepfast|Run|Scope|StepCalls|Worker)\b", r"\1", text)
    text = re.sub(r" \| AsyncIterable\[\w+\]", "", text)
    # What a function gives may itself be awaitable there, so its type is not followed.
    return re.sub(r"Callable\[(.*), T\]", r"Callable[\1, Any]", text)


def parameters(function: Any) -> list[tuple[str, Any, Any, str]]:
    return [
        (p.name, p.kind, p.default, as_blocking(str(p.annotation)))
        for p in inspect.signature(function).parameters.values()
    ]


def methods(*, without: frozenset[str] = frozenset()) -> list[Any]:
    return [
        pytest.param(blocking, waiting, name, id=f"{blocking.__name__}.{name}")
        for blocking, waiting in TWINS
        for name, member in members(blocking).items()
        if isinstance(member, types.FunctionType) and name not in without
    ]


@PAIRS
def test_the_twins_have_the_same_members(blocking: type, waiting: type) -> None:
    assert {DUNDERS.get(name, name) for name in members(blocking)} == set(members(waiting))


@PAIRS
def test_the_twins_have_members_of_the_same_kind(blocking: type, waiting: type) -> None:
    theirs = members(waiting)
    for name, member in members(blocking).items():
        assert type(theirs[DUNDERS.get(name, name)]) is type(member), name


@PAIRS
def test_the_twins_are_made_with_the_same_parameters(blocking: type, waiting: type) -> None:
    given = [p for p in parameters(waiting) if p[0] not in ("store", "scope")]
    assert given == [p for p in parameters(blocking) if p[0] not in ("store", "scope")]


@pytest.mark.parametrize(("blocking", "waiting", "name"), methods())
def test_a_method_takes_the_same_parameters(blocking: type, waiting: type, name: str) -> None:
    ours, theirs = getattr(blocking, name), getattr(waiting, DUNDERS.get(name, name))
    assert parameters(theirs) == parameters(ours)


# Where the types differ by nature: what a function gives may itself be awaitable there.
LOOSER = frozenset({"step", "once", "map"})


@pytest.mark.parametrize(("blocking", "waiting", "name"), methods(without=LOOSER))
def test_a_method_gives_the_same(blocking: type, waiting: type, name: str) -> None:
    ours = inspect.signature(getattr(blocking, name)).return_annotation
    theirs = inspect.signature(getattr(waiting, DUNDERS.get(name, name))).return_annotation
    assert as_blocking(str(theirs)) == str(ours)


@pytest.mark.parametrize(("blocking", "waiting", "name"), methods())
def test_a_method_is_awaited_or_is_not_for_a_reason(blocking: type, waiting: type, name: str) -> None:
    """Everything that touches the store is awaited; what does not is plain on both sides."""
    method = getattr(waiting, DUNDERS.get(name, name))
    gives = str(inspect.signature(method).return_annotation)
    awaited = (
        inspect.iscoroutinefunction(method)
        or inspect.isasyncgenfunction(method)
        or gives.startswith(("Coroutine", "AsyncIterator", "_Opening"))
    )
    looks = {"steps", "recorded", "generation", "full_key", "journal"}
    flows = {"performing", "posing", "asking", "reading", "settling", "voiding", "reporting", "noting"}
    of_a_run = looks | flows | {"complete", "poison", "scope", "options"}
    plain = {"worker"} if blocking is Stepfast else of_a_run
    assert awaited != (name in plain)


@pytest.mark.parametrize(("blocking", "waiting", "name"), methods())
def test_a_method_says_the_same_in_its_docstring(blocking: type, waiting: type, name: str) -> None:
    if name not in {"scope", *DUNDERS}:  # a scope is for threads on one side and for tasks on the other
        assert getattr(waiting, name).__doc__ == getattr(blocking, name).__doc__


# Documented


def public_names() -> list[str]:
    return [name for name in stepfast.__all__ if not name.startswith("__")]


def test_all_is_what_is_there() -> None:
    there = {
        name
        for name, value in vars(stepfast).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert there == set(public_names())
    assert list(stepfast.__all__) == sorted(stepfast.__all__, key=_as_ruff_sorts)


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("name", public_names())
def test_every_public_name_has_a_docstring(name: str) -> None:
    value = getattr(stepfast, name)
    if isinstance(value, type | types.FunctionType):
        doc = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
        assert doc, f"stepfast.{name} says nothing"
        assert doc.strip()


@pytest.mark.parametrize("kind", [kind for twins in TWINS for kind in twins], ids=lambda kind: kind.__name__)
def test_every_public_method_has_a_docstring(kind: type) -> None:
    silent = [
        name
        for name, member in members(kind).items()
        if not name.startswith("__")
        and isinstance(member, types.FunctionType | property)
        and not (member.__doc__ or "").strip()
    ]
    assert silent == []


@pytest.mark.parametrize("name", [n for n in public_names() if isinstance(getattr(stepfast, n), type)])
def test_an_error_has_a_code_and_a_default_message(name: str) -> None:
    kind = getattr(stepfast, name)
    if issubclass(kind, stepfast.StepfastError):
        error = kind()
        assert str(error)
        assert re.fullmatch(r"[a-z_]+", error.code)
        assert error.details == {}

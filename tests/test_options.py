"""Every option of every public call is checked at the call: a wrong value names its field, and nothing is written.

The walk goes over the signatures themselves: a new parameter must be given a wrong value here, or be listed among those
that take anything.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stepfast
from stepfast import AsyncStepfast, InvalidInput, Run, Scope, StepCalls, Stepfast, durable, once, open_store, step
from stepfast.core import Retention
from stepfast.stores.postgres import PostgresStore
from stepfast.stores.remote import RemoteStore
from stepfast.stores.sqlite import SqliteStore

# What is wrong for a parameter of this name, whatever the call.
WRONG: dict[str, Any] = {
    "actor": 5,
    "address": "",
    "after": 5,
    "api_key": 5,
    "before": 5,
    "by": "chance",
    "checks": {"name": "no function"},
    "clock": "noon",
    "code_version": 5,
    "codec": "json",
    "comment": 5,
    "comment_required": "yes",
    "commit_timeout": 0,
    "concurrency": 0,
    "connect_timeout": "long",
    "count": 0,
    "deadline_at": "tomorrow",
    "default": "neither",
    "doing": 5,
    "drain_seconds": -1,
    "durability": "none",
    "event_type": "progress",
    "every": "often",
    "expires_in": 0,
    "function": "no function",
    "idempotency_key": "",
    "include_once": "yes",
    "intent": "an intent",
    "intent_id": "",
    "intent_type": "",
    "keep": 0,
    "keep_latest": -1,
    "key": 5,
    "kind": "once-more",
    "labels": {"name": 5},
    "lease_seconds": 0.5,
    "limit": 0,
    "listen_url": "",
    "max_delivery_attempts": 0,
    "name": "",
    "older_than": 30,
    "notes": "all",
    "on_drift": "acept",
    "on_error": "explode",
    "on_failed": "forget",
    "on_in_doubt": "maybe",
    "on_wait": "suspended",
    "ordered": "yes",
    "outcome": "",
    "outcomes": "approved",
    "pending": "yes",  # of a checkpoint: names
    "pin": "",
    "policy": "all",
    "pool_size": 0,
    "prepare": "yes",
    "progress": "yes",
    "question": "",
    "reason": 5,
    "record_errors": "yes",
    "renamed_from": "",
    "resources": [5],
    "retention": "for ever",
    "retry": "often",
    "retry_max_seconds": -1,
    "retry_on": ("Boom",),
    "retry_seconds": "soon",
    "return_exceptions": "yes",
    "run_id": "",
    "schema": "",
    "shared": "yes",
    "since": -1,
    "status": "GONE",
    "statuses": ("GONE",),
    "step": -1,
    "suspended": "r",
    "store": "sqlite:///file.db",
    "timeout": "long",
    "to_agent": "",
    "total": -1,
    "total_steps": 0,
    "ttl_seconds": 0,
    "url": 5,
    "verify": "no",
    "wait": "long",
    "which": 1.5,
}
# The same name with another meaning.
WRONG_HERE: dict[tuple[str, str], Any] = {
    ("list_intents", "to_agent"): 5,
    ("list_intents", "intent_type"): 5,
    ("checkpoint", "pending"): [5],
    ("resolve_intent", "status"): "WAITING",
    ("scope", "name"): 5,
    ("durable", "run_id"): 5,
    ("durable", "client"): "a client",
    ("rewind", "step"): 5,
    ("performing", "once"): "yes",
}
ANYTHING = {"payload", "value", "result", "evidence", "state", "inputs", "items", "also", "error", "args", "kwargs"}
# Flows, and what frameworks' adapters hand over as it is.
NOT_OPTIONS = {
    ("drive", "flow"),
    ("performing", "options"),
    ("posing", "options"),
    ("asking", "options"),
    ("reading", "step"),
}


def parameters(function: Any) -> list[str]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in inspect.signature(function).parameters.values() if p.name != "self" and p.kind not in kinds]


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        if isinstance(member, types.FunctionType) and not name.startswith("_"):
            yield name, member


# Calls that are right but for the one value.
def fine(_item: Any = None) -> None:
    """A function that a call may be given."""


RIGHT: dict[str, dict[str, Any]] = {
    "restore": {},
    "run": {"run_id": "r2"},
    "claim": {"to_agent": "agent://nobody"},
    "worker": {"address": "agent://nobody"},
    "send_intent": {"intent": {"intent_type": "t", "to_agent": "a"}},
    "get_intent": {"intent_id": "r"},
    "wait_for": {"intent_id": "r"},
    "observe": {"intent_id": "r"},
    "events": {"intent_id": "r"},
    "resolve_intent": {"intent_id": "r", "status": "CANCELED"},
    "cancel": {"intent_id": "r"},
    "revive": {"intent_id": "r"},
    "rewind": {"run_id": "r", "step": "a#1"},
    "set_max_delivery_attempts": {"intent_type": "t", "count": 3},
    "answer": {"intent_id": "r", "outcome": "approved"},
    "describe": {"intent_id": "r"},
    "steps": {"intent_id": "r"},
    "checkpoints": {"intent_id": "r"},
    "prune": {"policy": Retention(keep_latest=5)},
    "record": {"value": 1, "key": "k"},
    "map": {"function": fine, "items": [1]},
    "ask": {"question": "Go on?"},
    "pose": {"question": "Go on?"},
    "checkpoint": {"state": 1},
    "scope": {"name": "s"},
    "report": {"doing": "work"},
    "patched": {"name": "p"},
    "performing": {"function": fine},
    "posing": {"question": "Go on?"},
    "asking": {"question": "Go on?"},
    "recorded": {"key": "k"},
    "reporting": {"doing": "work"},
    "noting": {"event_type": "intent.note", "notes": [{}]},
    "full_key": {"key": "k"},
    "settling": {"key": "k"},
    "voiding": {"key": "k", "reason": "again"},
}


def cases(kind: type) -> list[Any]:
    found = []
    for name, method in methods(kind):
        for parameter in parameters(method):
            if parameter in ANYTHING or (name, parameter) in NOT_OPTIONS:
                continue
            found.append(pytest.param(name, parameter, id=f"{kind.__name__}.{name}-{parameter}"))
    return found


def wrong(call: str, parameter: str) -> Any:
    if (call, parameter) in WRONG_HERE:
        return WRONG_HERE[(call, parameter)]
    assert parameter in WRONG, f"{call}({parameter}=…): give it a wrong value in WRONG, or list it in ANYTHING"
    return WRONG[parameter]


def refuse(call: Callable[..., Any], name: str, parameter: str) -> None:
    given = {**RIGHT.get(name, {}), parameter: wrong(name, parameter)}
    method = inspect.signature(call)
    positional = [p for p, about in method.parameters.items() if about.kind is about.POSITIONAL_ONLY and p in given]
    args = [given.pop(p) for p in positional]
    with pytest.raises(InvalidInput, match=rf"^{parameter}\b") as caught:
        _finish(call(*args, **given))
    assert len(str(caught.value)) > len(parameter) + 10  # it says what is allowed


def _finish(told: Any) -> None:
    """Take the first step of what is lazy."""
    if isinstance(told, Iterator):
        next(told)
    elif isinstance(told, types.CoroutineType):
        asyncio.run(told)


@pytest.fixture(scope="module")
def sf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stepfast]:
    with Stepfast(tmp_path_factory.mktemp("options") / "s.db", durability="process") as opened:
        with opened.run("r") as run:
            run.step(fine)
        yield opened


def state(sf: Stepfast) -> Any:
    return [(i["intent_id"], i["seq"], i["status"]) for i in sf.list_intents()], sf.steps("r"), sf.decisions()


@pytest.mark.parametrize(("name", "parameter"), cases(Stepfast))
def test_of_a_client(sf: Stepfast, name: str, parameter: str) -> None:
    before = state(sf)
    refuse(getattr(sf, name), name, parameter)
    assert state(sf) == before


@pytest.mark.parametrize(("name", "parameter"), cases(Stepfast))
def test_of_an_async_client(sf: Stepfast, name: str, parameter: str) -> None:
    before = state(sf)
    opened = AsyncStepfast(store=sf.store)

    def call(*args: Any, **kwargs: Any) -> Any:
        told = getattr(opened, name)(*args, **kwargs)
        if inspect.isasyncgen(told):
            return anext(told).__await__()
        return told

    call.__signature__ = inspect.signature(getattr(opened, name))  # type: ignore[attr-defined]
    refuse(call, name, parameter)
    assert state(sf) == before


@pytest.mark.parametrize(("name", "parameter"), [*cases(Run), *cases(StepCalls)])
def test_of_a_run(sf: Stepfast, name: str, parameter: str) -> None:
    run = sf.run(f"open-{name}-{parameter}")
    try:
        target: Any = run.options() if name in ("step", "once") else run
        if name == "rewind":  # a run's own, not the client's
            call: Any = functools.partial(run.rewind)
            with pytest.raises(InvalidInput, match=rf"^{parameter}: "):
                call(**{parameter: wrong(name, parameter)})
        else:
            refuse(getattr(target, name), name, parameter)
        assert run.steps() == []
    finally:
        run.__exit__(InvalidInput, InvalidInput("over"), None)


@pytest.mark.parametrize("kind", [Stepfast, AsyncStepfast, SqliteStore, PostgresStore, RemoteStore, Retention])
def test_of_what_is_made(kind: Any, tmp_path: Path) -> None:
    """Whatever is wrong is said before anything is opened."""
    where = {PostgresStore: "postgresql://nowhere.invalid/x", RemoteStore: "http://nowhere.invalid"}
    for parameter in parameters(kind):
        if parameter in ANYTHING or (
            kind in (SqliteStore, PostgresStore, RemoteStore) and parameter in ("path", "url")
        ):
            continue
        given = {parameter: wrong(kind.__name__, parameter)}
        if parameter not in ("url", "store") and kind is not Retention:
            first = [where.get(kind, tmp_path / "new.db")]
        else:
            first = []
        if kind in (SqliteStore, PostgresStore, RemoteStore) and parameter == "clock":
            continue  # open_store, the public way, checks it
        with pytest.raises(InvalidInput, match=rf"^{parameter}\b"):
            kind(*first, **given)


def test_of_a_store_by_its_url(tmp_path: Path) -> None:
    for parameter in ("api_key", "clock"):
        with pytest.raises(InvalidInput, match=rf"^{parameter}: "):
            open_store(tmp_path / "s.db", **{parameter: WRONG[parameter]})
    with pytest.raises(InvalidInput, match=r"^durabilty: not an option of SqliteStore"):
        open_store(tmp_path / "s.db", durabilty="power")
    with pytest.raises(InvalidInput, match=r"^durabilty: "):
        Stepfast(f"sqlite:///{tmp_path / 's.db'}?durabilty=power")
    assert not (tmp_path / "s.db").exists()


@pytest.mark.parametrize("decorator", [step, once], ids=["step", "once"])
def test_of_the_decorators(decorator: Any) -> None:
    for option in parameters(Scope.options):
        if option not in ANYTHING:
            with pytest.raises(InvalidInput, match=rf"^{option}: "):
                decorator(**{option: wrong("options", option)})(fine)
    with pytest.raises(InvalidInput, match=r"^colour: "):
        decorator(colour="red")(fine)


def test_of_durable() -> None:
    for option in ("run_id", "client"):
        with pytest.raises(InvalidInput, match=rf"^{option}: "):
            durable(**{option: wrong("durable", option)})(fine)
    for option in ("on_drift", "on_error", "on_wait", "on_failed", "wait", "labels", "total_steps", "ttl_seconds"):
        with pytest.raises(InvalidInput, match=rf"^{option}\b"):
            durable(**{option: wrong("run", option)})(fine)
    with pytest.raises(InvalidInput, match=r"^colour: "):
        durable(colour="red")(fine)


def test_every_public_function_is_walked() -> None:
    """Functions of the package that take options, beside those above."""
    known = {"current_run", "durable", "idempotency_key", "once", "open_store", "register", "step"}
    found = {name for name in stepfast.__all__ if isinstance(getattr(stepfast, name), types.FunctionType)}
    assert found == known

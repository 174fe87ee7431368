"""A walk over the parameters of an adapter's public call: a wrong value is refused, by the name of its parameter.

A new parameter must be given a wrong value, here or in the adapter's test, or be listed among those that take anything.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any

import pytest

from stepfast import InvalidInput

WRONG: dict[str, Any] = {
    "address": "",
    "api_key": 5,
    "codec": "json",
    "concurrency": 0,
    "durable": "options",
    "include_once": "yes",
    "keyring": "a key",
    "labels": {"name": 5},
    "max_delivery_attempts": 0,
    "on_drift": "acept",
    "on_error": "explode",
    "on_in_doubt": "maybe",
    "on_wait": "suspended",
    "policies": {"search_*": "sometimes"},
    "prices": {"a-model": "dear"},
    "replay_events": "yes",
    "run_id": 5,
    "step": 5,
    "store": 5,
    "wait": "long",
}


# What every adapter offers under the same name; docs/adapters.md describes it once for all.
WORDS = {"composite", "current_run", "durable", "idempotency_key", "idempotent", "once"}
OPTIONS = {"run_id", "store", "on_in_doubt", "policies", "on_drift", "on_wait", "labels"}


def offers_the_shared_words(adapter: ModuleType) -> None:
    """Check that an adapter has the names that all adapters share, and its ``durable`` their options."""
    assert set(adapter.__all__) >= WORDS
    assert set(inspect.signature(adapter.durable).parameters) >= OPTIONS


def refuses_wrong_options(
    call: Callable[..., Any],
    right: Mapping[str, Any],
    *,
    wrong: Mapping[str, Any] | None = None,
    anything: Collection[str] = (),
) -> None:
    """Make the call once for each of its parameters, with arguments that are ``right`` but for that one."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    signature = inspect.signature(call)
    for name, parameter in signature.parameters.items():
        if parameter.kind in kinds or name in anything:
            continue
        values = {**WRONG, **(wrong or {})}
        assert name in values, (
            f"{call.__name__}({name}=…): give it a wrong value, or list it among those that take anything"
        )
        given = {**right, name: values[name]}
        first = [
            given.pop(each)
            for each, about in signature.parameters.items()
            if about.kind is about.POSITIONAL_ONLY and each in given
        ]
        with pytest.raises(InvalidInput, match=rf"^{name}\b") as caught:
            _make(call, first, given)
        assert len(str(caught.value)) > len(name) + 10, "it says what is allowed"


def _make(call: Callable[..., Any], args: list[Any], options: dict[str, Any]) -> None:
    told = call(*args, **options)
    if inspect.iscoroutine(told):
        asyncio.run(told)

"""The small words of a run's vocabulary: how to call, how to retry, what an answer is."""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import msgspec

from stepfast.errors import InvalidInput, StepFailed, StepfastError

OnDrift = Literal["raise", "warn", "accept", "rerun"]
OnInDoubt = Literal["ask", "retry", "fail"] | Callable[..., Any]


class Retry(msgspec.Struct, frozen=True):
    """Try a flaky step again within the same attempt; this is not recovery and is not recorded."""

    attempts: int = 3
    delay: float = 0.5
    factor: float = 2.0
    max_delay: float = 30.0
    jitter: float = 0.1
    on: tuple[type[Exception], ...] = (Exception,)

    def pause_after(self, failures: int) -> float:
        base = min(self.delay * self.factor ** (failures - 1), self.max_delay)
        return base * (1 + self.jitter * (2 * random.random() - 1))  # noqa: S311 - spreads load, guards nothing


def as_retry(retry: Retry | int | None) -> Retry | None:
    if retry is None or isinstance(retry, Retry):
        chosen = retry
    else:
        chosen = Retry(attempts=retry)
    if chosen is not None and chosen.attempts < 1:
        raise InvalidInput(f"retry: attempts must be at least 1, not {chosen.attempts}.")
    return chosen


class Answer(msgspec.Struct, frozen=True):
    """What a person said. It is true if the outcome is the first of the allowed ones."""

    outcome: str
    value: Any = None
    comment: str | None = None
    actor: str | None = None
    positive: bool = False

    def __bool__(self) -> bool:
        return self.positive


class Happened(msgspec.Struct, frozen=True):
    """A probe's answer: the effect took place, with this result."""

    result: Any = None


class _DidNotHappen:
    def __repr__(self) -> str:
        return "DID_NOT_HAPPEN"


DID_NOT_HAPPEN = _DidNotHappen()
"""A probe's answer: the effect did not take place, so it is safe to do it now."""


def name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    name: str = getattr(function, "__name__", None) or type(function).__name__
    return "lambda" if name == "<lambda>" else name


def bound_arguments(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """All that decides what a call does: a partial's arguments count as the call's own."""
    while isinstance(function, partial):
        args = (*function.args, *function.keywords.items(), *args)
        function = function.func
    return args


def describe_error(error: BaseException) -> dict[str, Any]:
    """An exception as plain data: enough to show it, and to raise its like again."""
    kind = type(error)
    return {
        "type": f"{kind.__module__}:{kind.__qualname__}",
        "message": str(error)[:10_000],
        "args": [arg for arg in error.args if isinstance(arg, str | int | float | bool | bytes | None)],
        "traceback": "".join(traceback.format_exception(error))[-20_000:],
    }


def rebuild_error(recorded: dict[str, Any], key: str) -> Exception:
    """The recorded error, as its own class where that is loaded, without running the class's code."""
    module, _, name = recorded["type"].partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, Exception)) or issubclass(found, StepfastError):
        return StepFailed(
            f"step {key} failed in an earlier attempt with {name}: {recorded['message']}",
            key=key,
            error=recorded,
        )
    error: Exception = found.__new__(found)
    error.args = tuple(recorded["args"]) or (recorded["message"],)
    error.add_note(f"recorded by step {key} in an earlier attempt; it was not run again")
    return error

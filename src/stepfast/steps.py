"""The small words of a run's vocabulary: how to call, how to retry, what an answer is."""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from stepfast import inputs as check
from stepfast.errors import InvalidInput, StepFailed, StepfastError

OnDrift = Literal["raise", "warn", "accept", "rerun"]
OnInDoubt = Literal["ask", "retry", "fail"] | Callable[..., Any]
Order = Literal["order", "input"]

ON_DRIFT = ("raise", "warn", "accept", "rerun")
ON_IN_DOUBT = ("ask", "retry", "fail")


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


def as_retry(retry: Any) -> Retry | None:
    if retry is None:
        return None
    chosen = Retry(attempts=retry) if type(retry) is int else retry
    if not isinstance(chosen, Retry):
        raise InvalidInput(f"retry: must be a number of attempts or a Retry, not {retry!r}.")
    if chosen.attempts < 1:
        raise InvalidInput(f"retry: attempts must be at least 1, not {chosen.attempts}.")
    return chosen


class StepOptions(NamedTuple):
    """How one call is kept; made by `step_options`, which checks it."""

    key: str | None = None
    name: str | None = None
    kind: str = "step"
    by: Order | None = None
    inputs: Any = None
    retry: Retry | None = None
    record_errors: tuple[type[Exception], ...] = ()
    on_drift: OnDrift | None = None
    on_in_doubt: OnInDoubt = "ask"
    retry_on: tuple[type[Exception], ...] = ()
    renamed_from: str | None = None

    def for_step(self) -> StepOptions:
        """Return these options if a plain step takes them."""
        self._refuse("step", "once", ("on_in_doubt", "retry_on"))
        return self

    def for_once(self) -> StepOptions:
        """Return these options if a one-shot step takes them."""
        self._refuse("once", "step", ("kind", "retry", "record_errors"))
        return self

    def _refuse(self, method: str, other: str, fields: tuple[str, ...]) -> None:
        for field in fields:
            if getattr(self, field) != getattr(PLAIN, field):
                raise InvalidInput(f"{field}: is an option of run.{other}, not of run.{method}; leave it out.")


PLAIN = StepOptions()


def step_options(
    *,
    key: str | None = None,
    name: str | None = None,
    kind: str = "step",
    by: Order | None = None,
    inputs: Any = None,
    retry: Retry | int | None = None,
    record_errors: bool | tuple[type[Exception], ...] = False,
    on_drift: OnDrift | None = None,
    on_in_doubt: OnInDoubt = "ask",
    retry_on: tuple[type[Exception], ...] = (),
    renamed_from: str | None = None,
) -> StepOptions:
    """Return checked options; `InvalidInput` names the first that is wrong."""
    check.text("key", key)
    check.text("name", name, empty=False)
    check.text("kind", kind, empty=False, optional=False)
    check.text("renamed_from", renamed_from, empty=False)
    if kind.startswith("once"):
        raise InvalidInput("kind: names that start with 'once' are for run.once().")
    if by is not None:
        check.choice("by", by, ("order", "input"))
    if on_drift is not None:
        check.choice("on_drift", on_drift, ON_DRIFT)
    if not callable(on_in_doubt):
        check.choice("on_in_doubt", on_in_doubt, ON_IN_DOUBT, also="a probe")
    if key is not None and renamed_from is not None:
        raise InvalidInput("renamed_from: a step with a key keeps its record whatever it is called; leave it out.")
    return StepOptions(
        key,
        name,
        kind,
        by,
        inputs,
        as_retry(retry),
        check.exceptions("record_errors", record_errors, flags=True),
        on_drift,
        on_in_doubt,
        check.exceptions("retry_on", retry_on),
        renamed_from,
    )


class Answer(msgspec.Struct, frozen=True):
    """What a person said. It is true if the outcome is the first of the allowed ones."""

    outcome: str
    value: Any = None
    comment: str | None = None
    actor: str | None = None
    positive: bool = False

    def __bool__(self) -> bool:
        return self.positive


class Waiting(msgspec.Struct, frozen=True):
    """What a call with ``on_wait="return"`` returns while its run waits for a person. It is false.

    ``decisions`` are the open questions, as ``sf.decisions(run_id)`` lists them.
    """

    run_id: str
    intent_id: str
    decisions: list[dict[str, Any]]

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        # Asked for what the finished call would have returned.
        keys = ", ".join(d["key"] for d in self.decisions)
        raise AttributeError(
            f"run {self.run_id} waits for {keys or 'something'} and has no {name!r} yet; answer first."
        )


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

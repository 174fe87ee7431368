"""Callbacks, before- and after-kickoff functions and guardrails as steps of the run, so that they are not repeated."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel

from stepfast import Unencodable
from stepfast.adapters import then
from stepfast.flow import Flow

from ._outputs import models_of, pack_value, unpack_value
from ._place import Place, here, standing

_WRAPPED = "_stepfast_step"


def stepped(function: Any, kind: str, models: dict[str, type[BaseModel]], *, keep: bool) -> Any:
    """Return a function that is a step of the run it is called in; without a run it is called as it is.

    ``keep``: what it returns matters, and is answered from the journal; otherwise CrewAI does not look at it.
    """
    if function is None or hasattr(function, _WRAPPED):
        return function
    name = getattr(function, "__name__", type(function).__name__)

    def perform(place: Place, call: Callable[[], Any]) -> Flow[Any]:
        def packed(value: Any) -> dict[str, Any]:
            try:
                return place.attempt.redacted(pack_value(place.attempt.run.codec, value))  # type: ignore[no-any-return]
            except Unencodable:
                if keep:
                    raise
                return {"value": None}

        place.attempt.check()
        key = place.occurrences.key(kind, name)
        with place.attempt.guarded():
            found = yield from place.scope.performing(
                lambda: then(call(), packed), key=key, name=name, kind="callback", inputs=name
            )
            return unpack_value(found, models)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def step_async(*args: Any, **kwargs: Any) -> Any:
            place = here()
            if place is None:
                return await function(*args, **kwargs)

            async def call() -> Any:
                with standing.standing(None):
                    return await function(*args, **kwargs)

            with place.attempt.flying():
                return await place.adrive(perform(place, call))

        setattr(step_async, _WRAPPED, function)
        return step_async

    @functools.wraps(function)
    def step(*args: Any, **kwargs: Any) -> Any:
        place = here()
        if place is None:
            return function(*args, **kwargs)

        def call() -> Any:
            with standing.standing(None):
                return function(*args, **kwargs)

        with place.attempt.flying():
            return place.drive(perform(place, call))

    setattr(step, _WRAPPED, function)
    return step


@contextmanager
def callbacks_as_steps(crew: Any) -> Iterator[None]:
    """Put steps in place of a crew's callbacks for the length of a ``with`` block."""
    models = models_of(crew.tasks)
    made: dict[int, Any] = {}

    def once(function: Any, kind: str) -> Any:
        # One wrapper for each function: CrewAI compares callbacks to see whether two are the same.
        if function is not None and id(function) not in made:
            made[id(function)] = stepped(function, kind, models, keep=False)
        return None if function is None else made[id(function)]

    before: list[tuple[Any, str, Any]] = []
    for owner, names in [(crew, ("task_callback", "step_callback")), *((task, ("callback",)) for task in crew.tasks)]:
        before += [(owner, name, getattr(owner, name)) for name in names]
    before += [(agent, "step_callback", agent.step_callback) for agent in crew.agents]
    lists = [(name, list(getattr(crew, name))) for name in ("before_kickoff_callbacks", "after_kickoff_callbacks")]
    try:
        for owner, name, function in before:
            setattr(owner, name, once(function, "callback"))
        for name, functions in lists:
            setattr(crew, name, [stepped(each, "callback", models, keep=True) for each in functions])
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)
        for name, functions in lists:
            setattr(crew, name, functions)


def guardrail(place: Place, original: Any, task: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of ``Task._invoke_guardrail_function``, blocking and awaited: its function is a step."""
    function = kwargs.get("guardrail")
    # An object that calls a model makes a step of that call by itself.
    if inspect.isfunction(function) or inspect.ismethod(function):
        kwargs["guardrail"] = stepped(function, "guardrail", models_of([task]), keep=True)
    return original(task, *args, **kwargs)


async def guardrail_async(place: Place, original: Any, task: Any, *args: Any, **kwargs: Any) -> Any:
    return await guardrail(place, original, task, *args, **kwargs)

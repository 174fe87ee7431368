"""The seams around flows: a finished method is answered from the journal, with the state as it left it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from stepfast.adapters import digest, plain
from stepfast.faces import awaited

from ._outputs import pack_value, unpack_value
from ._people import asking
from ._place import OUTPUT, Place, standing


def models_of_flow(flow: Any) -> dict[str, type[BaseModel]]:
    """Return the classes that the values of a flow may have: those its methods are annotated with."""
    found: dict[str, type[BaseModel]] = {}
    for method in flow._methods.values():
        hints = getattr(method, "__annotations__", {})
        for hint in hints.values():
            if isinstance(hint, type) and issubclass(hint, BaseModel):
                found[hint.__qualname__] = hint
    return found


async def kickoff_async(
    place: Place, original: Callable[..., Any], flow: Any, inputs: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Take the place of ``Flow.kickoff_async``, through which all ways to start a flow go.

    CrewAI's agents and memory are made of flows, too: these are left alone. A stream comes back here without one.
    """
    if flow.stream or type(flow).__module__.partition(".")[0] == "crewai":
        return await original(flow, inputs, *args, **kwargs)
    place.attempt.check()
    name = place.occurrences.key("flow", type(flow).__name__, digest(place.attempt.redacted(plain(inputs or {}))))
    inner = place.inner(name, flow=flow)
    with place.attempt.guarded():
        # The id of the state is in what users and persistence keep, so it stays the same.
        flow._stamp_state_id(await awaited(inner.scope).record(flow.flow_id, key="state"))
    try:
        with standing.standing(inner):
            return await original(flow, inputs, *args, **kwargs)
    except BaseException as error:
        if place.ends_thread(error):
            return None
        raise


async def execute_method(
    place: Place, original: Callable[..., Any], flow: Any, name: Any, method: Callable[..., Any], *args: Any, **kw: Any
) -> Any:
    """Take the place of ``Flow._execute_method``: the method is replaced, what follows it is CrewAI's own."""
    if place.flow is not flow:
        return await original(flow, name, method, *args, **kw)
    place.attempt.check()
    inner = place.inner(place.occurrences.key("method", str(name)))
    models = models_of_flow(flow)
    scope = awaited(inner.scope)
    if inner.finished(OUTPUT):
        with place.attempt.guarded():
            recorded = await inner.adrive(inner.recalling(OUTPUT))

        async def recall(*_args: Any, **_kwargs: Any) -> Any:
            if recorded["number"] > place.snapshot:  # methods side by side: the newest state counts
                place.snapshot = recorded["number"]
                flow._restore_state(recorded["state"])
            return unpack_value(recorded, models)

        with standing.standing(inner):
            return await original(flow, name, recall, *args, **kw)

    @functools.wraps(method)
    async def perform(*given: Any, **named: Any) -> Any:
        if asyncio.iscoroutinefunction(method):
            output = await method(*given, **named)
        else:
            output = await asyncio.to_thread(method, *given, **named)
            if asyncio.iscoroutine(output):
                output = await output
        if inner.saves:
            await asyncio.to_thread(inner.saved)
        with place.attempt.flying(), place.attempt.guarded():
            packed = pack_value(place.attempt.run.codec, output)
            state = plain(flow._copy_and_serialize_state())
            place.snapshot += 1
            packed |= {"state": state, "number": place.snapshot}
            await scope.record(place.attempt.redacted(packed), key=OUTPUT, name=str(name), kind="method")
        return output

    inner.task = f"method {name}"
    with standing.standing(inner):
        await inner.adrive(place.attempt.reporting("", ""))
        return await original(flow, name, perform, *args, **kw)


# --- people ------------------------------------------------------------------------------------------


def request_feedback(place: Place, original: Callable[..., Any], flow: Any, *args: Any, **kwargs: Any) -> str:
    """Take the place of ``Flow._request_human_feedback``, which asks in the terminal."""
    named = dict(zip(("message", "output", "metadata", "emit", "method_name"), args, strict=False)) | kwargs
    outcomes = tuple(map(str, named.get("emit") or ("approved", "rejected")))
    evidence = {"method": named.get("method_name"), "output": plain(named.get("output"))}
    answer = place.drive(asking(place, "human_feedback", str(named.get("message")), evidence, outcomes))
    said = answer.value if isinstance(answer.value, str) else answer.comment
    place.chosen[said or answer.outcome] = answer.outcome
    return said or answer.outcome


def collapse(place: Place, original: Callable[..., Any], flow: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of ``Flow._collapse_to_outcome``: a person who chose an outcome needs no model to find it."""
    named = dict(zip(("feedback", "outcomes", "llm"), args, strict=False)) | kwargs
    chosen = place.chosen.get(named.get("feedback", ""))
    return chosen if chosen in list(named.get("outcomes") or ()) else original(flow, *args, **kwargs)


def ask(place: Place, original: Callable[..., Any], flow: Any, message: str, *args: Any, **kwargs: Any) -> Any:
    """Take the place of ``Flow.ask``: a question whose answer is its value or comment."""
    evidence = {"metadata": plain(kwargs.get("metadata"))}
    answer = place.drive(asking(place, "ask", str(message), evidence, ("answered", "declined")))
    if answer.outcome == "declined":
        return None
    return answer.value if isinstance(answer.value, str) else answer.comment

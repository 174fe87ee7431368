"""What a run of a graph does, decided in generators that do nothing themselves, and the two dull drivers of these."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from stepfast.stored_names import GRAPH_RUN_MARK

T = TypeVar("T")


class Go(NamedTuple):
    """Run the graph with this input; the answer is whether it stopped before its end."""

    input: Any
    config: Mapping[str, Any]


class Ask(NamedTuple):
    """Call a method; on an event loop, its twin. The answer is what it gives."""

    whom: Literal["client", "run", "graph", "saver"]
    method: str
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = {}


class HasMark(NamedTuple):
    """The answer is whether the thread has a checkpoint with this mark."""

    config: Mapping[str, Any]
    mark: str


Step = Go | Ask | HasMark
Course = Generator[Step, Any, T]


def do(step: Ask | HasMark, whom: Mapping[str, Any]) -> Any:
    """One step, blocking."""
    if isinstance(step, HasMark):
        place = {"configurable": {**step.config["configurable"], "checkpoint_ns": ""}}
        return any(True for _ in whom["saver"].list(place, filter={GRAPH_RUN_MARK: step.mark}, limit=1))
    return getattr(whom[step.whom], step.method)(*step.args, **step.options)


async def ado(step: Ask | HasMark, whom: Mapping[str, Any]) -> Any:
    """One step on an event loop, where LangGraph's methods have another name."""
    if isinstance(step, HasMark):
        place = {"configurable": {**step.config["configurable"], "checkpoint_ns": ""}}
        async for _ in whom["saver"].alist(place, filter={GRAPH_RUN_MARK: step.mark}, limit=1):
            return True
        return False
    name = f"a{step.method}" if step.whom in ("graph", "saver") else step.method
    return await getattr(whom[step.whom], name)(*step.args, **step.options)


def drive(course: Course[T], whom: Mapping[str, Any]) -> T:
    """A course in which the graph does not run, blocking."""
    try:
        step: Any = course.send(None)
        while True:
            try:
                answer = do(step, whom)
            except BaseException as error:
                step = course.throw(error)
            else:
                step = course.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def adrive(course: Course[T], whom: Mapping[str, Any]) -> T:
    """The same on an event loop."""
    try:
        step: Any = course.send(None)
        while True:
            try:
                answer = await ado(step, whom)
            except BaseException as error:
                step = course.throw(error)
            else:
                step = course.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]

"""Decisions without waiting: what a run does is written once, as generators that yield commands.

Two dull drivers do the waiting, one blocking and one on an event loop, so that `Stepfast` and
`AsyncStepfast` cannot disagree.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Generator, Sequence
from types import CoroutineType
from typing import Any, NamedTuple, TypeVar

from stepfast.errors import InvalidInput
from stepfast.ops import Op
from stepfast.stores.base import AsyncStore, Store

T = TypeVar("T")
R = TypeVar("R")


class Do(NamedTuple):
    """Execute a batch; the answer is its results."""

    ops: Sequence[Op[Any]]


class Call(NamedTuple):
    """Call the user's function; the answer is what it returns, or its exception is raised here."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Sleep(NamedTuple):
    seconds: float


class Until(NamedTuple):
    """Wait for a change on a topic, then ask again; the answer is that of the last question.

    ``ready`` judges the results of ``ops``; it is asked at once, after each wake-up and each second.
    """

    topics: tuple[str, ...]
    ops: Sequence[Op[Any]]
    ready: Callable[[list[Any]], bool]
    timeout: float | None = None


Command = Do | Call | Sleep | Until
Flow = Generator[Command, Any, T]
_LOOK_AGAIN = 1.0


def do(op: Op[R]) -> Flow[R]:
    results = yield Do((op,))
    return results[0]  # type: ignore[no-any-return]


def drive(flow: Flow[T], store: Store, tenant: str) -> T:
    """Run a flow, blocking."""
    try:
        command = flow.send(None)
        while True:
            try:
                if type(command) is Call:
                    answer: Any = command.function(*command.args, **command.kwargs)
                    if type(answer) is CoroutineType:
                        _refuse_coroutine(command, answer)
                elif type(command) is Do:
                    answer = store.execute(command.ops, tenant=tenant)
                else:
                    answer = _wait(command, store, tenant)
            except BaseException as error:
                command = flow.throw(error)
            else:
                command = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def _refuse_coroutine(command: Call, answer: CoroutineType[Any, Any, Any]) -> None:
    answer.close()
    name = getattr(command.function, "__qualname__", repr(command.function))
    raise InvalidInput(f"{name} is a coroutine function; run it with AsyncStepfast.")


def _wait(command: Command, store: Store, tenant: str) -> Any:
    if isinstance(command, Sleep):
        time.sleep(command.seconds)
        return None
    assert isinstance(command, Until)  # noqa: S101
    ends = None if command.timeout is None else time.monotonic() + command.timeout
    with store.watch(*command.topics, tenant=tenant) as watch:
        while True:
            results = store.execute(command.ops, tenant=tenant)
            left = None if ends is None else ends - time.monotonic()
            if command.ready(results) or (left is not None and left <= 0):
                return results
            watch.wait(_LOOK_AGAIN if left is None else min(left, _LOOK_AGAIN))


async def drive_async(flow: Flow[T], store: AsyncStore, tenant: str) -> T:
    """Run a flow on the event loop.

    A batch that is on its way is not abandoned when the task is cancelled: the flow gets its answer,
    so that the journal in memory stays true, and is cancelled at its next command.
    """
    import asyncio

    cancelled: asyncio.CancelledError | None = None
    try:
        command = flow.send(None)
        while True:
            try:
                if cancelled is not None:
                    raise cancelled
                if type(command) is Do:
                    batch = store.start(command.ops, tenant=tenant)
                    try:
                        answer: Any = await batch
                    except asyncio.CancelledError as error:
                        cancelled = error
                        answer = batch.result()
                elif type(command) is Call:
                    answer = command.function(*command.args, **command.kwargs)
                    if type(answer) is CoroutineType or inspect.isawaitable(answer):
                        answer = await answer
                else:
                    answer = await _wait_async(command, store, tenant)
            except BaseException as error:
                command = flow.throw(error)
            else:
                command = flow.send(answer)
    except StopIteration as stop:
        if cancelled is not None:
            raise cancelled from None
        return stop.value  # type: ignore[no-any-return]


async def _wait_async(command: Command, store: AsyncStore, tenant: str) -> Any:
    if isinstance(command, Sleep):
        from asyncio import sleep

        await sleep(command.seconds)
        return None
    assert isinstance(command, Until)  # noqa: S101
    ends = None if command.timeout is None else time.monotonic() + command.timeout
    with store.watch(*command.topics, tenant=tenant) as watch:
        while True:
            results = await store.execute(command.ops, tenant=tenant)
            left = None if ends is None else ends - time.monotonic()
            if command.ready(results) or (left is not None and left <= 0):
                return results
            await watch.wait_async(_LOOK_AGAIN if left is None else min(left, _LOOK_AGAIN))

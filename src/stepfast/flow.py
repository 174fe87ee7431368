"""Decisions without waiting: what a run does is written once, as generators that yield commands.

`drive` performs the commands blocking and `drive_async` on an event loop, so that `Stepfast` and `AsyncStepfast` cannot
disagree. `stream` and `stream_async` do the same for a flow that also emits values on its way. An adapter adds commands
of its own: any object with the two methods of `Command`.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from stepfast.errors import InvalidInput
from stepfast.ops import Op
from stepfast.stores.base import AsyncStore, Store

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
R = TypeVar("R")

__all__ = [
    "END",
    "Abandoned",
    "Call",
    "Close",
    "Command",
    "Do",
    "Emit",
    "Flow",
    "Next",
    "Signal",
    "Sleep",
    "Until",
    "Wait",
    "do",
    "drive",
    "drive_async",
    "stream",
    "stream_async",
]

END: Final = object()
"""The answer to `Next` when there is no further item."""
_LOOK_AGAIN = 1.0


class Command(Protocol):
    """What a flow may yield: it knows how it is performed, blocking and awaited.

    The result is the answer that the flow gets; an exception is raised in the flow, where the command was yielded.
    """

    def perform(self, store: Store, tenant: str) -> Any: ...

    async def aperform(self, store: AsyncStore, tenant: str) -> Any: ...


class Do(NamedTuple):
    """Execute a batch; the answer is its results."""

    ops: Sequence[Op[Any]]


class Call(NamedTuple):
    """Call a function; the answer is its result, awaited on an event loop, or its exception is raised here."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012 - never changed


class Emit(NamedTuple):
    """Hand a value to the consumer of the stream; there is no answer."""

    value: Any


class Abandoned(BaseException):
    """Raised in a flow whose stream is closed by its consumer.

    It stands for GeneratorExit, after which a generator could not yield the commands that clean up.
    """


class Sleep(NamedTuple):
    seconds: float

    def perform(self, _store: Store, _tenant: str) -> None:
        time.sleep(self.seconds)

    async def aperform(self, _store: AsyncStore, _tenant: str) -> None:
        from asyncio import sleep

        await sleep(self.seconds)


class Until(NamedTuple):
    """Wait for a change on a topic, then ask again; the answer is that of the last question.

    ``ready`` judges the results of ``ops``; it is asked at once, after each wake-up and each second.
    """

    topics: tuple[str, ...]
    ops: Sequence[Op[Any]]
    ready: Callable[[list[Any]], bool]
    timeout: float | None = None

    def perform(self, store: Store, tenant: str) -> list[Any]:
        ends = None if self.timeout is None else time.monotonic() + self.timeout
        with store.watch(*self.topics, tenant=tenant) as watch:
            while True:
                results = store.execute(self.ops, tenant=tenant)
                left = None if ends is None else ends - time.monotonic()
                if self.ready(results) or (left is not None and left <= 0):
                    return results
                watch.wait(_LOOK_AGAIN if left is None else min(left, _LOOK_AGAIN))

    async def aperform(self, store: AsyncStore, tenant: str) -> list[Any]:
        ends = None if self.timeout is None else time.monotonic() + self.timeout
        with store.watch(*self.topics, tenant=tenant) as watch:
            while True:
                results = await store.execute(self.ops, tenant=tenant)
                left = None if ends is None else ends - time.monotonic()
                if self.ready(results) or (left is not None and left <= 0):
                    return results
                await watch.wait_async(_LOOK_AGAIN if left is None else min(left, _LOOK_AGAIN))


class Next(NamedTuple):
    """Take the next item of a generator, or of an async one on an event loop; the answer is `END` after the last."""

    items: Any

    def perform(self, _store: Store, _tenant: str) -> Any:
        return next(self.items, END)

    async def aperform(self, _store: AsyncStore, _tenant: str) -> Any:
        return await anext(self.items, END)


class Close(NamedTuple):
    """Close a generator, or an async one on an event loop."""

    items: Any

    def perform(self, _store: Store, _tenant: str) -> None:
        self.items.close()

    async def aperform(self, _store: AsyncStore, _tenant: str) -> None:
        await self.items.aclose()


class Wait(NamedTuple):
    """Wait for a signal, for so many seconds at most; the answer is whether it was given."""

    signal: Signal
    seconds: float | None = None

    def perform(self, _store: Store, _tenant: str) -> bool:
        return self.signal.wait(self.seconds)

    async def aperform(self, _store: AsyncStore, _tenant: str) -> bool:
        return await self.signal.wait_async(self.seconds)


class Signal:
    """Given once, from any thread; any number of callers wait for it, blocking or on event loops."""

    __slots__ = ("_event", "_lock", "_others")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event: threading.Event | None = None
        self._others: list[Callable[[], None]] | None = []  # None once it was given

    @property
    def given(self) -> bool:
        return self._others is None

    def give(self) -> None:
        with self._lock:
            others, self._others = self._others, None
            if self._event is not None:
                self._event.set()
        for wake in others or ():
            wake()

    def wait(self, seconds: float | None) -> bool:
        with self._lock:
            if self._others is None:
                return True
            if self._event is None:
                self._event = threading.Event()
        return self._event.wait(seconds)

    async def wait_async(self, seconds: float | None) -> bool:
        import asyncio

        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(_wake, woken)
            except RuntimeError:  # that loop is closed, and the caller that waited on it is gone
                return

        with self._lock:
            if self._others is None:
                return True
            self._others.append(wake)
        try:
            async with asyncio.timeout(seconds):
                await woken
        except TimeoutError:
            return self.given
        return True


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


Flow = Generator[Do | Call | Emit | Command, Any, T]


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
                    answer = command.perform(store, tenant)  # type: ignore[union-attr]  # only `stream` has Emit
            except BaseException as error:
                command = flow.throw(error)
            else:
                command = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def stream(flow: Flow[T], store: Store, tenant: str) -> Generator[Any, None, T]:
    """Run a flow, blocking, and yield what it emits. Closing the stream raises `Abandoned` in the flow."""
    try:
        command = flow.send(None)
        while True:
            try:
                if isinstance(command, Emit):
                    try:
                        yield command.value
                    except GeneratorExit:
                        raise Abandoned from None
                    answer = None
                else:
                    answer = _perform(command, store, tenant)
            except BaseException as error:
                command = flow.throw(error)
            else:
                command = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    except Abandoned:
        raise GeneratorExit from None


def _perform(command: Do | Call | Command, store: Store, tenant: str) -> Any:
    if isinstance(command, Call):
        answer = command.function(*command.args, **command.kwargs)
        if type(answer) is CoroutineType:
            _refuse_coroutine(command, answer)
        return answer
    return store.execute(command.ops, tenant=tenant) if isinstance(command, Do) else command.perform(store, tenant)


def _refuse_coroutine(command: Call, answer: CoroutineType[Any, Any, Any]) -> None:
    answer.close()
    name = getattr(command.function, "__qualname__", repr(command.function))
    raise InvalidInput(f"{name} is a coroutine function; run it with AsyncStepfast.")


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
                    answer = await command.aperform(store, tenant)  # type: ignore[union-attr]  # as in `drive`
            except BaseException as error:
                command = flow.throw(error)
            else:
                command = flow.send(answer)
    except StopIteration as stop:
        if cancelled is not None:
            raise cancelled from None
        return stop.value  # type: ignore[no-any-return]


async def _perform_async(command: Do | Call | Command, store: AsyncStore, tenant: str) -> Any:
    if isinstance(command, Call):
        answer = command.function(*command.args, **command.kwargs)
        return await answer if inspect.isawaitable(answer) else answer
    if isinstance(command, Do):
        return await store.execute(command.ops, tenant=tenant)
    return await command.aperform(store, tenant)


async def stream_async(flow: Flow[Any], store: AsyncStore, tenant: str) -> AsyncGenerator[Any, None]:
    """Run a flow on the event loop and yield what it emits; closing and cancelling are as in `stream`, `drive_async`.

    A flow that is cancelled while a batch is on its way is cancelled there, without the answer.
    """
    try:
        command = flow.send(None)
        while True:
            try:
                if isinstance(command, Emit):
                    try:
                        yield command.value
                    except GeneratorExit:
                        raise Abandoned from None
                    answer = None
                else:
                    answer = await _perform_async(command, store, tenant)
            except BaseException as error:
                command = flow.throw(error)
            else:
                command = flow.send(answer)
    except StopIteration:
        return
    except Abandoned:
        raise GeneratorExit from None

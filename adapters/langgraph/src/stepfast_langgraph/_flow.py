"""What the saver decides, written once: generators that yield commands, and two dull drivers that wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from stepfast import AsyncStore, Store
from stepfast.threads import Op

T = TypeVar("T")


class Do(NamedTuple):
    """Execute a batch in one transaction; the answer is its results."""

    ops: Sequence[Op[Any]]


class Wait(NamedTuple):
    """Wait for a signal, for so many seconds at most; the answer is whether it was given."""

    signal: Signal
    seconds: float | None = None


Flow = Generator[Do | Wait, Any, T]


class Signal:
    """Given once, from any thread; anybody may wait for it, blocking or on an event loop."""

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
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(_settle, woken)
            except RuntimeError:  # that loop is gone, and with it whoever waited
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


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def drive(flow: Flow[T], store: Store, tenant: str) -> T:
    """Run a flow, blocking."""
    try:
        command = flow.send(None)
        while True:
            try:
                if type(command) is Do:
                    answer: Any = store.execute(command.ops, tenant=tenant)
                else:
                    answer = command.signal.wait(command.seconds)  # type: ignore[union-attr]
            except BaseException as error:
                command = flow.throw(error)
            else:
                command = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def drive_async(flow: Flow[T], store: AsyncStore, tenant: str) -> T:
    """Run a flow on the event loop.

    A batch that is on its way is not abandoned when the task is cancelled: the flow learns its outcome, so that what
    the saver remembers stays true, and is cancelled at its next command.
    """
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
                else:
                    answer = await command.signal.wait_async(command.seconds)  # type: ignore[union-attr]
            except BaseException as error:
                command = flow.throw(error)
            else:
                command = flow.send(answer)
    except StopIteration as stop:
        if cancelled is not None:
            raise cancelled from None
        return stop.value  # type: ignore[no-any-return]

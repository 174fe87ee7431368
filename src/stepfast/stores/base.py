"""The port: what every store offers, and what it promises.

The contract, which `stepfast.testing.contract` checks over every store:

* ``execute`` runs a batch in one transaction, in order. It returns once the batch is durable. If it
  raises, nothing of the batch was applied, except that `OutcomeUnknown` says: it may have been.
* Every write is idempotent by its keys, so the same batch may be sent again after `OutcomeUnknown`.
* A batch of reads never waits for a writer and sees everything acknowledged before it began.
* Times are the store's clock.
* ``watch`` is a hint that something changed; nobody may rely on it for correctness.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from stepfast.clock import Clock
from stepfast.ops import CheckWritable, Op

if TYPE_CHECKING:  # importing it costs as much as all of Stepfast, and plain runs do without
    import asyncio

    from stepfast.stores.steady import Mailbox, SteadyFuture

R = TypeVar("R")
LOCAL_TENANT = "local"


class Store(ABC):
    """A durable place for intents, journals and checkpoints; safe to share between threads."""

    tenant = LOCAL_TENANT
    session = ""  # names this store among those of its process, where a server watches over it

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.url = url
        self.clock = clock or Clock()
        self.signals = Signals()

    @abstractmethod
    def execute(self, ops: Sequence[Op[Any]], *, tenant: str = LOCAL_TENANT) -> list[Any]:
        """Run a batch and wait until it is durable."""

    @abstractmethod
    def submit(
        self,
        ops: Sequence[Op[Any]],
        done: Callable[[list[Any] | BaseException], None],
        *,
        tenant: str = LOCAL_TENANT,
    ) -> None:
        """Run a batch elsewhere; ``done`` is called from another thread with the results or the error."""

    @abstractmethod
    def close(self) -> None:
        """Give back every connection, file and thread. Safe to call twice."""

    def one(self, op: Op[R], *, tenant: str = LOCAL_TENANT) -> R:
        result: R = self.execute([op], tenant=tenant)[0]
        return result

    def check(self) -> int:
        """Prove that the store is writable by a real durable write; gives the store's time."""
        return self.one(CheckWritable())

    def watch(self, *topics: str, tenant: str = LOCAL_TENANT) -> Watch:
        """Register before reading what you wait for, then wait: no change in between is missed."""
        return Watch(self.signals, topics)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncStore:
    """A store for callers on an event loop: the batch travels to another thread, never a statement."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._box: Mailbox | None = None

    def start(self, ops: Sequence[Op[Any]], *, tenant: str = LOCAL_TENANT) -> SteadyFuture:
        """Send a batch on its way; the future outlives the task that awaits it."""
        box = self._box
        if box is None or not box.is_of_this_loop():
            from stepfast.stores.steady import Mailbox

            box = self._box = Mailbox()
        future = box.future()
        self.store.submit(ops, box.answer(future), tenant=tenant)
        return future

    async def execute(self, ops: Sequence[Op[Any]], *, tenant: str = LOCAL_TENANT) -> list[Any]:
        return await self.start(ops, tenant=tenant)

    async def one(self, op: Op[R], *, tenant: str = LOCAL_TENANT) -> R:
        result: R = (await self.execute([op], tenant=tenant))[0]
        return result

    async def check(self) -> int:
        return await self.one(CheckWritable())

    def watch(self, *topics: str, tenant: str = LOCAL_TENANT) -> Watch:
        return self.store.watch(*topics, tenant=tenant)

    async def close(self) -> None:
        from asyncio import to_thread

        await to_thread(self.store.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def only_reads(ops: Sequence[Op[Any]]) -> bool:
    """Whether a batch changes nothing, so that it need not wait for a writer."""
    for op in ops:  # noqa: SIM110 - a generator would cost more than all else that is asked of a lone step here
        if not op.reads:
            return False
    return True


class Signals:
    """Who waits on which topic in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[str, set[Watch]] = {}
        self.on_first: Callable[[], None] | None = None

    def add(self, watch: Watch) -> None:
        with self._lock:
            first = not self._watches
            for topic in watch.topics:
                self._watches.setdefault(topic, set()).add(watch)
        if first and self.on_first is not None:
            self.on_first()

    def discard(self, watch: Watch) -> None:
        with self._lock:
            for topic in watch.topics:
                others = self._watches.get(topic)
                if others is not None:
                    others.discard(watch)
                    if not others:
                        del self._watches[topic]

    @property
    def watched(self) -> bool:
        return bool(self._watches)

    @property
    def topics(self) -> set[str]:
        with self._lock:
            return set(self._watches)

    def wake(self, topic: str) -> None:
        if self._watches:
            with self._lock:
                woken = list(self._watches.get(topic, ()))
            for watch in woken:
                watch.set()

    def wake_all(self) -> None:
        with self._lock:
            woken = {watch for watches in self._watches.values() for watch in watches}
        for watch in woken:
            watch.set()


class Watch:
    """Waits for a change on its topics. A wake-up may be spurious: look again after each."""

    def __init__(self, signals: Signals, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self._signals = signals
        self._event = threading.Event()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        signals.add(self)

    def set(self) -> None:
        self._event.set()
        waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            loop.call_soon_threadsafe(_settle, future)

    def wait(self, timeout: float | None = None) -> bool:
        woken = self._event.wait(timeout)
        self._event.clear()
        return woken

    async def wait_async(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.append((loop, future))
        if self._event.is_set():
            self._event.clear()
            return True
        try:
            async with asyncio.timeout(timeout):  # wait_for of Python 3.11 can swallow a cancellation
                await future
        except TimeoutError:
            return False
        self._event.clear()
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._signals.discard(self)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

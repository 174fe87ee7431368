"""Workers: take the intents of an address, call a function with each, and see every delivery to its ending.

A worker has a dispatcher, which looks for work; slots (threads or tasks), each of which carries one delivery; and
a supervisor, which waits for the word to stop and then sees to it that nothing is lost. What is decided about a
delivery is a flow, written once for `Worker` and `AsyncWorker`.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from stepfast import inputs as check
from stepfast.addresses import last_name
from stepfast.core import Core
from stepfast.errors import InvalidInput, StepfastError, StoreError
from stepfast.flow import Flow, do, drive, drive_async
from stepfast.foraging import Forager
from stepfast.handling import OUTAGE, Handling, Job, Wear, lease_of
from stepfast.intents import Intent
from stepfast.opening import RunOptions
from stepfast.ops import Lease, ReleaseIntent
from stepfast.steps import ON_DRIFT, OnDrift, Retry
from stepfast.stores.base import AsyncStore, Watch

if TYPE_CHECKING:  # importing it costs as much as all of Stepfast, and plain workers do without
    import asyncio

log = logging.getLogger("stepfast")

_LOOK_SECONDS = 0.5
_BREATH_SECONDS = 0.05
_VAIN_LOOKS = 3
_GIVE_BACK_SECONDS = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# The system may give a signal to any thread, which does not wake the main one; and only there Python handles it.
_SIGNAL_SECONDS = 0.1


def check_worker(
    address: str,
    concurrency: int,
    retry_seconds: float,
    retry_max_seconds: float,
    drain_seconds: float,
    on_drift: OnDrift,
) -> None:
    """Raise `InvalidInput` for the first option of a worker that is wrong."""
    check.name("address", address)
    check.whole("concurrency", concurrency, least=1)
    check.seconds("retry_seconds", retry_seconds, optional=False)
    check.seconds("retry_max_seconds", retry_max_seconds, optional=False)
    check.seconds("drain_seconds", drain_seconds, optional=False)
    check.choice("on_drift", on_drift, ON_DRIFT)


class WorkerBase(Handling):
    """What both workers are made of."""

    def __init__(
        self,
        core: Core,
        wear: Wear,
        address: str,
        function: Callable[..., Any],
        *,
        concurrency: int,
        retry_seconds: float,
        retry_max_seconds: float,
        drain_seconds: float,
        on_drift: OnDrift,
    ) -> None:
        if not callable(function):
            raise InvalidInput(f"@sf.worker takes a function of a run and its payload, not {function!r}.")
        check_worker(address, concurrency, retry_seconds, retry_max_seconds, drain_seconds, on_drift)
        retry = Retry(delay=retry_seconds, max_delay=retry_max_seconds, jitter=0.25)
        options = RunOptions(
            "suspend", on_drift, lease_seconds=core.lease_seconds, hand_back=False, code_version=core.code_version
        )
        super().__init__(core, wear, address, function, retry, options)
        self.concurrency = concurrency
        self.drain_seconds = drain_seconds
        self._topic = f"agent:{last_name(address)}"
        self._lock = threading.Lock()
        functools.update_wrapper(self, function, updated=())

    @property
    def running(self) -> bool:
        """Whether it looks for work, or has some."""
        raise NotImplementedError

    def _begin(self) -> None:
        if self.running:
            raise InvalidInput(f"{self!r} is running already.")
        self._forager = Forager(self._core, self.address)
        self._jobs: set[Job] = set()
        self._late: list[Intent] = []
        self._words: SimpleQueue[float | None] = SimpleQueue()
        self._stopping = False
        self._signalled: Callable[[], bool] = lambda: False
        self._dispatching = False
        self._watch: Watch | None = None

    def __call__(self, run: Any, payload: Any) -> Any:
        """The function itself."""
        return self.function(run, payload)

    def __repr__(self) -> str:
        name = getattr(self.function, "__qualname__", repr(self.function))
        return f"<{type(self).__name__} {name} for {self.address}>"

    # --- slots ------------------------------------------------------------------------------------

    def _free(self) -> int:
        with self._lock:
            return 0 if self._is_told() else self.concurrency - len(self._jobs)

    def _is_told(self) -> bool:
        """Whether this worker was told to stop, by a signal that Python has not handled yet too."""
        return self._stopping or self._signalled()

    def _admit(self, taken: Sequence[Intent]) -> list[Job]:
        """Jobs of what a claim brought; after the word to stop there are none, and it goes back."""
        with self._lock:
            if self._is_told():
                self._late += taken
                return []
            jobs = [Job(intent) for intent in taken]
            self._jobs.update(jobs)
        return jobs

    def _leave(self, job: Job) -> None:
        with self._lock:
            self._jobs.discard(job)
        self._wake()

    def _wake(self) -> None:
        """Something ended: the dispatcher may have a slot, the supervisor may be done."""
        if self._stopping:
            self._words.put(None)
        watch = self._watch
        if watch is not None:
            watch.set()

    # --- stopping ---------------------------------------------------------------------------------

    def _supervise(self) -> None:
        """Wait for the word to stop; then let handlers end, and hand back what is still at work when time is up."""
        word = None
        while word is None:
            word = self._words.get()
        with self._lock:
            self._stopping = True
        self._wake()
        self._wait_while(lambda: bool(self._jobs) or self._dispatching, word)
        self._give_back()
        # Its last call to the store: whoever asked us to stop may close that next.
        self._wait_while(lambda: self._dispatching, _GIVE_BACK_SECONDS)

    def _wait_while(self, busy: Callable[[], bool], seconds: float) -> None:
        """At most so long, and no longer than whoever asks again to stop allows."""
        ends = time.monotonic() + seconds
        while busy():
            try:
                word = self._words.get(timeout=max(0.0, ends - time.monotonic()))
            except Empty:
                return
            if word is not None:
                ends = min(ends, time.monotonic() + word)

    def _give_back(self) -> None:
        """Nobody's fault, so no delivery is lost; and a handler that is still busy stops at its next step."""
        with self._lock:
            left = list(self._jobs)
        ends = time.monotonic() + _GIVE_BACK_SECONDS
        for job in left:
            lease = job.lease
            job.poison()
            if lease is not None:
                log.info("%s of %s is handed back: the worker stops", job.name, self.address)
                self._release(lease, ends)
            if job.task is not None:
                _cancel(job.task)

    def _release(self, lease: Lease, ends: float) -> None:
        op = ReleaseIntent(lease=lease, reason="the worker was stopped")
        while True:
            try:
                self._core.store.one(op, tenant=self._core.tenant)
                return
            except StoreError as error:
                if time.monotonic() > ends:
                    log.warning("%s could not be handed back, its lease has to run out: %s", lease.intent_id, error)
                    return
            except StepfastError:  # it has ended meanwhile, or another has it
                return
            time.sleep(0.1)

    def _close(self) -> Flow[None]:
        """The dispatcher's last deed: what it claimed and nobody began goes back."""
        try:
            late = self._late + (yield from self._forager.last_answer())
            for intent in late:
                yield from do(ReleaseIntent(lease=lease_of(intent), reason="the worker was stopped"))
            yield from self._forager.leave()
        except StepfastError as error:
            log.warning("%r stopped without a word to the store: %s", self, error)


def _cancel(task: asyncio.Task[None]) -> None:
    try:
        task.get_loop().call_soon_threadsafe(task.cancel)
    except RuntimeError:  # the loop is closed, and the task with it
        pass


def prepare(workers: Sequence[WorkerBase]) -> None:
    """Make workers ready to hear, before the first signal can come."""
    if not workers:
        raise InvalidInput("this client has no worker; make one with @sf.worker(address).")
    for worker in workers:
        worker._begin()


@contextmanager
def heeding_signals(workers: Sequence[WorkerBase]) -> Iterator[None]:
    """SIGTERM and SIGINT stop the workers; a second one does not wait for their handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []

    def told(number: int, _frame: Any) -> None:
        heard.append(number)  # first of all: the next signal may interrupt this very function
        # The queue's put is safe here, where the interrupted code may hold any other lock.
        for worker in workers:
            worker._words.put(0.0 if len(heard) > 1 else worker.drain_seconds)

    with _arrivals() as has_arrived:
        for worker in workers:
            worker._signalled = lambda: bool(heard) or has_arrived()
        before = {number: signal.signal(number, told) for number in _SIGNALS}
        try:
            yield
        finally:
            for worker in workers:
                worker._signalled = lambda: bool(heard)
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def _arrivals() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether a signal to stop is pending or has arrived.

    Python handles a signal in its main thread, as soon as that has the processor and the interpreter: on a busy
    machine, another thread would take one more delivery meanwhile.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        if before != -1:  # an event loop's, which it needs
            signal.set_wakeup_fd(before)

        def has_arrived() -> bool:
            if hasattr(signal, "sigpending") and not signal.sigpending().isdisjoint(_SIGNALS):
                return True
            while True:
                try:
                    arrived = reader.recv(1, socket.MSG_PEEK)
                except BlockingIOError:
                    return False
                if arrived[0] in _SIGNALS:
                    return True
                reader.recv(1)  # another signal, which is none of ours

        try:
            yield has_arrived
        finally:
            if before == -1:
                signal.set_wakeup_fd(-1)


def _leave_signals_to_others() -> None:
    """Block the signals to stop in this thread, so that it sees those that are pending for the process."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


class Pace:
    """When a dispatcher looks again: at once while there is work, seldom while there is none."""

    def __init__(self, worker: WorkerBase) -> None:
        self._worker = worker
        self._failures = self._in_vain = 0

    def breath(self, *, found: bool) -> float:
        """A store may wake us at each of its commits; after some that were not for us we look less often."""
        self._failures = 0
        self._in_vain = 0 if found else self._in_vain + 1
        return _BREATH_SECONDS if self._in_vain > _VAIN_LOOKS else 0.0

    def after_error(self, error: Exception) -> float:
        self._failures += 1
        pause = OUTAGE.pause_after(min(self._failures, 60))
        if isinstance(error, StepfastError):
            log.warning("%r cannot look for work, trying again in %.1f s: %s", self._worker, pause, error)
        else:
            log.error("%r met an error of its own, trying again in %.1f s", self._worker, pause, exc_info=error)
        return pause


class Worker(WorkerBase):
    """A function that handles the intents of an address, in threads. Made by ``sf.worker``."""

    def __init__(self, core: Core, wear: Wear, address: str, function: Callable[..., Any], **options: Any) -> None:
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
            raise InvalidInput(f"{function!r} is a coroutine function; make it a worker of AsyncStepfast.")
        super().__init__(core, wear, address, function, **options)
        self._ended = threading.Event()
        self._ended.set()

    @property
    def running(self) -> bool:
        """Whether it looks for work, or has some."""
        return not self._ended.is_set()

    def start(self) -> None:
        """Work in the background, until ``stop``."""
        self._begin()
        self._set_to_work()

    def _set_to_work(self) -> None:
        self._ended = threading.Event()
        self._deliveries: SimpleQueue[Job | None] = SimpleQueue()
        self._dispatching = True
        slot = functools.partial(self._work, self._deliveries)
        threads: list[tuple[str, Callable[[], None]]] = [("slot", slot)] * self.concurrency
        # Daemons all: a handler that never returns must not keep the process once its intent is handed back.
        for name, body in [*threads, ("dispatcher", self._dispatch), ("supervisor", self._serve)]:
            threading.Thread(target=body, name=f"stepfast-{name}", daemon=True).start()

    def stop(self, timeout: float | None = None) -> None:
        """Claim nothing more, give handlers ``timeout`` seconds (``drain_seconds``) to end, hand back the rest."""
        if self.running:
            self._words.put(self.drain_seconds if timeout is None else timeout)
            self._ended.wait()

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or ``stop``."""
        run_together([self])

    def _serve(self) -> None:
        self._supervise()
        for _ in range(self.concurrency):
            self._deliveries.put(None)
        self._ended.set()

    def _drive(self, flow: Flow[Any]) -> Any:
        return drive(flow, self._core.store, self._core.tenant)

    def _dispatch(self) -> None:
        _leave_signals_to_others()
        pace = Pace(self)
        try:
            with self._core.store.watch(self._topic, tenant=self._core.tenant) as watch:
                self._watch = watch
                while not self._stopping:
                    free = self._free()
                    try:
                        taken: list[Intent] = self._drive(self._forager.look(free))
                    except Exception as error:
                        watch.wait(pace.after_error(error))
                        continue
                    for job in self._admit(taken):
                        self._deliveries.put(job)
                    if not taken:
                        time.sleep(pace.breath(found=not free))
                        watch.wait(_LOOK_SECONDS)
                self._drive(self._close())
        finally:
            self._watch = None
            self._dispatching = False
            self._wake()

    def _work(self, deliveries: SimpleQueue[Job | None]) -> None:
        while (job := deliveries.get()) is not None:
            try:
                contextvars.copy_context().run(self._drive, self._deliver(job))
            except BaseException:
                log.exception("%s of %s ended in an error of Stepfast's own", job.name, self.address)
            finally:
                self._leave(job)


def run_together(workers: Sequence[Worker]) -> None:
    """Run workers until SIGTERM, SIGINT, or until each was stopped."""
    prepare(workers)
    with heeding_signals(workers):
        try:
            for worker in workers:
                worker._set_to_work()
            for worker in workers:
                while not worker._ended.wait(_SIGNAL_SECONDS):
                    pass
        finally:
            for worker in workers:
                worker.stop()


class AsyncWorker(WorkerBase):
    """The same on an event loop, with a task for each delivery."""

    def __init__(self, core: Core, wear: Wear, address: str, function: Callable[..., Any], **options: Any) -> None:
        super().__init__(core, wear, address, function, **options)
        self._astore = AsyncStore(core.store)
        self._served: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether it looks for work, or has some."""
        return self._served is not None and not self._served.done()

    def start(self) -> None:
        """Work in the background, until ``stop``."""
        self._begin()
        self._set_to_work()

    def _set_to_work(self) -> None:
        import asyncio

        self._dispatching = True
        self._served = asyncio.get_running_loop().create_task(self._serve())

    async def stop(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Claim nothing more, give handlers ``timeout`` seconds (``drain_seconds``) to end, hand back the rest."""
        import asyncio

        if self._served is not None and not self._served.done():
            self._words.put(self.drain_seconds if timeout is None else timeout)
            await asyncio.wait([self._served])

    async def run(self) -> None:
        """Work until SIGTERM, SIGINT or ``stop``."""
        await run_together_async([self])

    async def _serve(self) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        def supervise() -> None:
            self._supervise()
            try:
                loop.call_soon_threadsafe(over.set)
            except RuntimeError:  # the loop did not wait for us
                pass

        # A thread, so that work is handed back in time even while a handler blocks the loop.
        threading.Thread(target=supervise, name="stepfast-supervisor", daemon=True).start()
        dispatcher = loop.create_task(self._dispatch())
        try:
            await over.wait()
        except asyncio.CancelledError:
            self._words.put(0.0)
            await over.wait()
            raise
        finally:
            # One that will not end although it was cancelled is left to the loop: its intent is handed back.
            tasks = {job.task for job in self._jobs if job.task is not None} | {dispatcher}
            await asyncio.wait(tasks, timeout=1.0)
            dispatcher.cancel()

    async def _drive(self, flow: Flow[Any]) -> Any:
        return await drive_async(flow, self._astore, self._core.tenant)

    async def _dispatch(self) -> None:
        import asyncio

        pace = Pace(self)
        try:
            with self._core.store.watch(self._topic, tenant=self._core.tenant) as watch:
                self._watch = watch
                while not self._stopping:
                    free = self._free()
                    try:
                        taken: list[Intent] = await self._drive(self._forager.look(free))
                    except Exception as error:
                        await watch.wait_async(pace.after_error(error))
                        continue
                    for job in self._admit(taken):
                        job.task = asyncio.get_running_loop().create_task(self._work(job))
                    if not taken:
                        await asyncio.sleep(pace.breath(found=not free))
                        await watch.wait_async(_LOOK_SECONDS)
                await self._drive(self._close())
        finally:
            self._watch = None
            self._dispatching = False
            self._wake()

    async def _work(self, job: Job) -> None:
        try:
            await self._drive(self._deliver(job))
        except Exception:
            log.exception("%s of %s ended in an error of Stepfast's own", job.name, self.address)
        finally:
            self._leave(job)


async def run_together_async(workers: Sequence[AsyncWorker]) -> None:
    """Run workers until SIGTERM, SIGINT, or until each was stopped."""
    import asyncio

    prepare(workers)
    with heeding_signals(workers):
        for worker in workers:
            worker._set_to_work()
        served = [worker._served for worker in workers if worker._served is not None]
        try:
            while (await asyncio.wait(served, timeout=_SIGNAL_SECONDS))[1]:
                pass
        finally:
            await asyncio.gather(*(worker.stop() for worker in workers))

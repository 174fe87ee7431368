"""The runs that tasks of graphs keep their calls in: one a task, opened at its first call and closed behind it."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from hashlib import blake2b
from typing import Any, TypeVar

from langgraph.errors import GraphInterrupt

from stepfast import Run, Stepfast, StepfastError, Store, Suspended, Suspension
from stepfast.adapters import OpenStore, StoreLike, open_any

from ._doubts import CHECKPOINT, deliver_answers, interrupt_for
from ._types import make_codec
from ._where import Task

T = TypeVar("T")
log = logging.getLogger("stepfast")

IDLE_SECONDS = 2.0
"""A node that is silent for so long gives its run back; its next call opens it again."""

_LOOK_SECONDS = 0.25
_BUSY_SECONDS = 10.0
# A graph is resumed by people and servers that have their own patience; what they resume is not to run out.
_DELIVERIES = 1_000_000


class TaskStopped(Exception):
    """The task stands still: it failed, was interrupted, or has made no call for a while."""


class Journal:
    """The run of one task, open in this process for all its threads and coroutines."""

    def __init__(self, client: Stepfast, run_id: str) -> None:
        self.client = client
        self.run_id = run_id
        self.task: Task | None = None
        self.run: Run | None = None
        self.calls = 0
        self.last = time.monotonic()
        self.broken: BaseException | None = None
        self._lock = threading.Lock()

    def open(self, task: Task) -> Run:
        """The run; a graph interrupt if it waits for somebody's word."""
        with self._lock:
            self.task = task
            if self.run is None:
                self.run = _aside(lambda: self._open(task))
            return self.run

    def known(self, task: Task) -> Run | None:
        """The run, if it is open already."""
        self.task = task
        return self.run

    def _open(self, task: Task) -> Run:
        deliver_answers(self.client, self.run_id, task)
        labels = {"langgraph.thread": task.thread, "langgraph.node": task.node, CHECKPOINT: task.checkpoint}
        while True:
            try:
                return self.client.run(
                    self.run_id,
                    labels={k: short(v) for k, v in labels.items() if v},
                    max_delivery_attempts=_DELIVERIES,
                    on_wait="suspend",
                    wait=_BUSY_SECONDS,
                )
            except Suspended:
                stop = interrupt_for(self.client, self.run_id)
                if stop.args[0]:
                    raise stop from None
                # answered just now: it can be opened

    def is_of(self, task: Task) -> bool:
        return self.task is not None and (self.task.thread, self.task.task_id) == (task.thread, task.task_id)

    def waits(self, waiting: Suspension) -> bool:
        """Whether it is this run that waits, and not one that the call opened by itself."""
        return self.run is not None and self.run.intent_id == waiting.intent_id

    def interrupt(self) -> GraphInterrupt:
        return _aside(lambda: interrupt_for(self.client, self.run_id))

    def close(self) -> None:
        """Complete the run if its node has returned, else hand it back."""
        with self._lock:
            run, self.run = self.run, None
            if run is None:
                return
            state = "failed" if self.task is None else self.task.state()
            error = self.broken or (None if state == "finished" else TaskStopped(f"the task is {state}"))
            try:
                _aside(lambda: run.__exit__(None if error is None else type(error), error, None))
            except StepfastError:
                pass  # the store is gone or the run is somebody else's: whoever opens it next sorts it out


class Journals:
    """Those open in this process. Each is closed soon after its task has ended."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._open: dict[tuple[int, str], Journal] = {}
        self._clients: dict[int, Stepfast] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def client(self, task: Task | None, store: StoreLike) -> Stepfast:
        """Where a task's calls are kept: the store that is named, the graph's own, or the default one."""
        self._own()
        if isinstance(store, Stepfast):
            return store
        place = place_of(task.saver) if store is None and task is not None else None
        place = place or open_any(store, shared=True, make_codec=make_codec)
        with self._lock:
            client = self._clients.get(id(place.store))
            if client is None or client.store is not place.store:
                client = self._clients[id(place.store)] = place.client()
                place.before_close(functools.partial(self.close, place.store))
            return client

    def enter(self, task: Task, client: Stepfast, number: int = 1) -> Journal:
        """Stand in a journal of a task until `leave`: the first, or a later one where that is complete."""
        self._own()
        name = f"langgraph/{short(task.thread or '')}/{task.task_id}" + (f"/{number}" if number > 1 else "")
        with self._lock:
            journal = self._open.get((id(client.store), name))
            if journal is None:
                journal = self._open[(id(client.store), name)] = Journal(client, name)
            journal.calls += 1
            if self._thread is None:
                atexit.register(self.close)
                self._thread = threading.Thread(target=self._tidy, name="stepfast-langgraph", daemon=True)
                self._thread.start()
        self._wake.set()
        return journal

    def leave(self, journal: Journal, error: BaseException | None = None) -> None:
        """``error``: what makes the open run unfit for further calls."""
        with self._lock:
            journal.calls -= 1
            journal.last = time.monotonic()
            journal.broken = journal.broken or error
            over = journal.broken is not None or journal.run is None
        if over:
            self._retire(journal)

    def owns(self, run: object) -> Journal | None:
        with self._lock:
            return next((j for j in self._open.values() if j.run is run), None)

    def close(self, store: Store | None = None) -> None:
        """Close what is open, on one store or on all: before the store is closed, and at the end of the process."""
        self._own()
        with self._lock:
            found = [j for j in self._open.values() if store is None or j.client.store is store]
        for journal in found:
            self._retire(journal, even_in_use=True)
        with self._lock:
            if store is not None:
                self._clients.pop(id(store), None)

    def _tidy(self) -> None:
        while True:
            if not self._open:
                self._wake.wait()
            self._wake.clear()
            time.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            with self._lock:
                idle = [j for j in self._open.values() if j.calls == 0]
            for journal in idle:
                try:
                    state = "open" if journal.task is None else journal.task.state()
                    if state != "open" or now - journal.last > IDLE_SECONDS:
                        self._retire(journal)
                except Exception:
                    log.exception("the run %s could not be closed", journal.run_id)

    def _retire(self, journal: Journal, *, even_in_use: bool = False) -> None:
        with self._lock:
            place = (id(journal.client.store), journal.run_id)
            if (journal.calls and not even_in_use) or self._open.get(place) is not journal:
                return
            del self._open[place]
        journal.close()

    def _own(self) -> None:
        """A forked child has none of its parent's runs, and no use for locks that a thread of it may hold."""
        if self._pid != os.getpid():
            self._begin()


journals = Journals()


def place_of(saver: Any) -> OpenStore | None:
    """The store of a graph's own saver, if it is one of ours: runs go where their threads are."""
    from ._carried import CarriedSaver
    from .saver import StepfastSaver  # only where a graph has a checkpointer

    if isinstance(saver, CarriedSaver):
        saver = saver.saver
    return saver._inner.opened if isinstance(saver, StepfastSaver) else None


def _aside(function: Callable[[], T]) -> T:
    """Run it so that what it makes current is not current for the caller."""
    return copy_context().run(function)


def short(text: str) -> str:
    """A name that every store takes; what is too long or odd is known by its hash."""
    if text and len(text) <= 200 and text.isprintable():
        return text
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

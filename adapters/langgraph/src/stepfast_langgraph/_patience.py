"""Whether it is worth waiting for a checkpoint, as far as the calls so far tell.

LangGraph saves writes and checkpoints from workers of one pool. Somebody else may call both in turn, from one thread or
task: then no checkpoint can come while the writes wait for it. And whoever waits holds a worker, which the checkpoint,
or a node, may need: of all workers at most half may wait.
"""

from __future__ import annotations

import os
import threading
import time
from asyncio import current_task
from collections import OrderedDict
from typing import NamedTuple
from weakref import ref

from langchain_core.runnables import RunnableConfig

_REMEMBERED = 4096
_TRIES = 2  # of waiting in vain, until it is given up
MOMENTS = 8  # while checkpoints of the thread are on their way, one of which is the one that is waited for


class Caller(NamedTuple):
    """Who calls, and how many like it may wait at the same time."""

    who: object
    room: float


def from_thread(config: RunnableConfig) -> Caller:
    workers = config.get("max_concurrency") or min(32, (os.cpu_count() or 1) + 4)  # as Python's own pools have
    return Caller(threading.current_thread(), workers // 2)


def from_task(config: RunnableConfig) -> Caller:
    limit = config.get("max_concurrency")
    return Caller(current_task(), limit // 2 if limit else float("inf"))


class _Last:
    """The last writes on a thread: when they came, from whom, and how often in a row they waited in vain."""

    __slots__ = ("at", "in_vain", "who")

    def __init__(self) -> None:
        self.at = 0.0
        self.who: ref[object] | None = None
        self.in_vain = 0


class Patience:
    """What is known of the threads that were written last. Safe to share between threads."""

    def __init__(self, moment: float) -> None:
        self.moment = moment
        self._lock = threading.Lock()
        self._last: OrderedDict[str, _Last] = OrderedDict()

    def writes_came(self, thread_id: str, caller: Caller, waiting: int) -> bool:
        """Whether they should wait, ``waiting`` calls with them on this thread."""
        with self._lock:
            last = self._last.get(thread_id)
            if last is None:
                last = self._last[thread_id] = _Last()
                if len(self._last) > _REMEMBERED:
                    self._last.popitem(last=False)
            last.at, last.who = time.monotonic(), ref(caller.who)
            return self.moment > 0 and waiting <= caller.room and last.in_vain < _TRIES

    def waited(self, thread_id: str, in_vain: bool) -> None:
        with self._lock:
            last = self._last.get(thread_id)
            if last is not None:
                last.in_vain = last.in_vain + 1 if in_vain else 0

    def checkpoint_came(self, thread_id: str, caller: Caller) -> None:
        """From elsewhere and soon after writes: waiting for it would have been right."""
        last = self._last.get(thread_id)
        if last is not None and last.in_vain and last.who is not None:
            with self._lock:
                if last.who() is not caller.who and time.monotonic() - last.at <= self.moment * MOMENTS:
                    last.in_vain = 0

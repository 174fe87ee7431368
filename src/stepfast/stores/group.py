"""Group commit: concurrent callers share one transaction and one flush.

Whoever finds nobody leading becomes the leader: it takes all that is queued, commits it once and
answers everybody. A lone caller therefore commits in its own thread with no hand-over and no
waiting timer; callers that arrive during a commit form the next group. After one group the leader
hands the lead to the first caller in the queue, so nobody works for others for long.

Where the last group had several callers they are about to be back with their next request. The
leader then lets other threads run for as long as that brings in more of them: otherwise callers
fall into two halves that commit in turn, twice as many commits, each as dear as a full one.
"""

from __future__ import annotations

import threading
import time
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from stepfast.errors import StoreUnavailable
from stepfast.ops import Op

Done = Callable[[list[Any] | BaseException], None]

MAX_GROUP = 256
_CLOSED = "the store is closed."


class Request:
    """One caller's batch on its way; ``outcome`` is the results or the error, once it is settled."""

    __slots__ = ("done", "gate", "leads", "ops", "outcome", "tenant")

    def __init__(self, ops: Sequence[Op[Any]], tenant: str, done: Done | None) -> None:
        self.ops = ops
        self.tenant = tenant
        self.done = done
        self.outcome: list[Any] | BaseException | None = None
        self.leads = False
        self.gate: LockType | None = None


class GroupCommitter:
    """``commit(group)`` must give every request of the group its outcome, or raise and give none."""

    def __init__(self, commit: Callable[[list[Request]], None], name: str = "stepfast-writer") -> None:
        self._commit = commit
        self._name = name
        self._mutex = allocate_lock()
        self._queue: deque[Request] = deque()
        self._led = False
        self._shared = False
        self._closed = False
        self._ended = False
        self._thread: threading.Thread | None = None
        self._work: SimpleQueue[None] = SimpleQueue()  # one item for each turn of the thread; it is all C

    def execute(self, ops: Sequence[Op[Any]], tenant: str) -> list[Any]:
        request = Request(ops, tenant, None)
        with self._mutex:
            if self._ended:
                raise StoreUnavailable(_CLOSED)
            leads = not self._led
            self._led = True
            if not leads:
                request.gate = allocate_lock()
                request.gate.acquire()
            self._queue.append(request)
        if request.gate is not None:
            request.gate.acquire()  # opened by the leader: with our outcome, or with the lead
            leads = request.leads
        if leads:
            self._lead(request)
        outcome = request.outcome
        if isinstance(outcome, BaseException):
            raise outcome
        assert outcome is not None  # noqa: S101 - the leader settles before it opens the gate
        return outcome

    def submit(self, ops: Sequence[Op[Any]], tenant: str, done: Done) -> None:
        with self._mutex:
            if self._ended:
                done(StoreUnavailable(_CLOSED))
                return
            self._queue.append(Request(ops, tenant, done))
            leads = not self._led
            self._led = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
        if leads:
            self._work.put(None)

    def close(self) -> None:
        thread = self._thread
        if thread is threading.current_thread():
            return  # from the answer to a batch: it leads, and cannot wait for itself
        if thread is not None:
            self._closed = True
            self._work.put(None)
            thread.join()
        # Whoever is in the middle of a commit comes to its end before the connections under it are closed.
        while not self._ended:
            with self._mutex:
                self._ended = not self._led
            if not self._ended:
                time.sleep(0.0005)

    def _serve(self) -> None:
        while True:
            self._work.get()
            if self._queue:
                self._lead(None)
            elif self._closed:
                return

    def _lead(self, own: Request | None) -> None:
        """Commit one group, answer it, and hand on the lead."""
        group: list[Request] = []
        queue = self._queue
        try:
            if self._shared:
                seen = 0
                while seen < len(queue) < MAX_GROUP:
                    seen = len(queue)
                    time.sleep(0)
            self._shared = len(queue) > 1
            while queue and len(group) < MAX_GROUP:
                group.append(queue.popleft())
            self._commit(group)
        except Exception as error:
            for request in group:
                request.outcome = request.outcome or error
        except BaseException as interrupt:
            # It strikes the leader alone; the others' work goes back to the queue.
            if own is not None:
                own.outcome = own.outcome or interrupt
            queue.extendleft(r for r in reversed(group) if r.outcome is None)
            raise
        finally:
            # Answers first: whoever wakes soon enough is in the next group, and groups stay large.
            for request in group:
                if request.outcome is not None:
                    if request.done is not None:
                        request.done(request.outcome)
                    elif request.gate is not None:
                        request.gate.release()
            self._hand_on()

    def _hand_on(self) -> None:
        with self._mutex:
            if not self._queue:
                self._led = False
                return
            heir = self._queue[0]
        heir.leads = True
        if heir.gate is None:
            self._work.put(None)
        else:
            heir.gate.release()

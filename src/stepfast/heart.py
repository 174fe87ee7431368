"""The thread that keeps a client's leases alive, whatever its handlers are busy with."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from stepfast.deciding import Deciding
from stepfast.errors import AlreadyFinished, Fenced, NotFound, RunFailed, StepfastError
from stepfast.ops import RenewLease
from stepfast.stores.base import Store

log = logging.getLogger("stepfast")


_IDLE_SECONDS = 60.0


class Heart:
    """Renews every open run at a third of its lease; a run that lost its lease is poisoned, so that it stops."""

    def __init__(self, store: Store, tenant: str, chore: Callable[[], None] | None = None) -> None:
        self._store = store
        self._tenant = tenant
        self._chore = chore
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._sessions: dict[int, Deciding] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._pause = _IDLE_SECONDS
        self._stopped = False
        self._thread: threading.Thread | None = None

    def _own(self) -> None:
        """A forked child keeps only its own runs alive, and cannot use locks that a thread of its parent may hold."""
        if self._pid != os.getpid():
            self._begin()

    def add(self, session: Deciding) -> None:
        self._own()
        with self._lock:
            self._sessions[id(session)] = session
            self._start()
            hurry = session.lease_seconds / 3 < self._pause
        if hurry:
            self._wake.set()

    def discard(self, session: Deciding) -> None:
        self._own()
        with self._lock:
            self._sessions.pop(id(session), None)

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._beat, name="stepfast-heart", daemon=True)
            self._thread.start()

    def start(self) -> None:
        """Beat even with no run open, for the sake of the chore."""
        with self._lock:
            self._start()

    def stop(self) -> None:
        self._own()
        self._stopped = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._stopped:
            with self._lock:
                sessions = list(self._sessions.values())
                self._pause = min((s.lease_seconds / 3 for s in sessions), default=_IDLE_SECONDS)
            due = last + self._pause - time.monotonic()
            if due > 0:
                self._wake.wait(due)
                self._wake.clear()
                continue
            last = time.monotonic()
            for session in sessions:
                self._renew(session)
            if self._chore is not None and not self._stopped:
                try:
                    self._chore()
                except StepfastError as error:
                    log.warning("upkeep of %s failed: %s", self._store.url, error)

    def _renew(self, session: Deciding) -> None:
        lease = session.lease
        if lease is None:
            return
        try:
            # A step that takes long is shown within a third of the lease, even if it began soon after a report.
            renewal = RenewLease(lease=lease, lease_seconds=session.lease_seconds)
            if words := session.last_words():
                self._store.execute([*words, renewal], tenant=self._tenant)
            else:
                self._store.one(renewal, tenant=self._tenant)
        except (Fenced, NotFound) as error:
            if session.lease is lease:
                session.poison = error
        except AlreadyFinished as error:
            if session.lease is lease:
                session.poison = RunFailed(
                    f"run {session.intent.run_id or session.intent.intent_id} was ended from outside: {error}"
                )
        except StepfastError as error:
            log.warning("the lease of %s could not be renewed: %s", session.intent.intent_id, error)

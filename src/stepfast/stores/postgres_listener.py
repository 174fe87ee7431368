"""Wake-ups from other processes: one thread, one connection, which comes back however often it is lost.

LISTEN does nothing behind a pooler that shares connections between transactions, and nothing says
so. The listener therefore sends itself probes over another connection. As long as none has come
back, it wakes everybody about once a second; after that only now and then.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable

from stepfast.clock import new_id
from stepfast.errors import StepfastError
from stepfast.stores.base import Signals
from stepfast.stores.postgres_link import Link, Lost, Refused, Statement
from stepfast.stores.postgres_pool import Dialer

log = logging.getLogger("stepfast")

EVERYBODY = "*"
_PROBE = "?"
_POLL_SECONDS = 1.0
_PROVEN_POLL_SECONDS = 15.0
_LONGEST_PAUSE = 5.0


class Listener:
    """Starts when somebody first watches, and ends with the store."""

    def __init__(self, dialer: Dialer, listen: Statement, send: Callable[[str], None], signals: Signals) -> None:
        self._dialer = dialer
        self._listen = listen
        self._send = send
        self._signals = signals
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.proven = False  # that notifications come through
        self._bell: socket.socket | None = None

    def start(self) -> None:
        if self._thread is None:
            with self._lock:
                if not (self._closed or self._thread):
                    self._bell, self._ear = socket.socketpair()
                    self._thread = threading.Thread(target=self._serve, name="stepfast-listener", daemon=True)
                    self._thread.start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            bell, self._bell = self._bell, None
        if bell is not None and self._thread is not None:
            bell.send(b".")
            if self._thread is not threading.current_thread():
                self._thread.join()
            bell.close()
            self._ear.close()

    def _serve(self) -> None:
        pause = 0.1
        while not self._closed:
            link = None
            try:
                link = self._dialer.dial()
                link.one(self._listen, {})
                pause = 0.1
                self._hear(link)
            except (StepfastError, Lost, Refused) as error:
                log.debug("the listener lost its connection (%s) and comes back", error)
            finally:
                self.proven = False
                if link is not None:
                    link.close()
            if not self._closed:
                # What changed meanwhile went unheard.
                self._signals.wake_all()
                self._wait(None, pause)
                pause = min(_LONGEST_PAUSE, pause * 2)

    def _hear(self, link: Link) -> None:
        self._signals.wake_all()
        probe = ""
        due = time.monotonic()
        while not self._closed:
            now = time.monotonic()
            if now >= due:
                if self.proven and probe:
                    raise Lost("a probe did not come back")
                if self._signals.watched:
                    self._signals.wake_all()
                    probe = _PROBE + new_id()
                    self._send(probe)
                due = now + (_PROVEN_POLL_SECONDS if self.proven else _POLL_SECONDS)
            self._wait(link, due - now)
            for payload in link.notifications():
                if payload == probe:
                    probe = ""
                    if not self.proven:
                        self.proven = True
                        due = time.monotonic() + _PROVEN_POLL_SECONDS
                elif payload == EVERYBODY:
                    self._signals.wake_all()
                elif not payload.startswith(_PROBE):
                    self._signals.wake(payload)

    def _wait(self, link: Link | None, seconds: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._ear, selectors.EVENT_READ)
            if link is not None:
                selector.register(link.socket, selectors.EVENT_READ)
            selector.select(max(0.0, seconds))

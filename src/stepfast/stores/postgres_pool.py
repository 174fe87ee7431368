"""How connections are made, and the few that are kept for reading."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from stepfast.errors import StoreUnavailable
from stepfast.stores.postgres_link import Link, Lost


class Dialer:
    """Makes connections; ``prepare`` says whether those to come may keep prepared statements."""

    def __init__(self, conninfo: str, *, shown: str, timeout: float, prepare: bool) -> None:
        self._conninfo = conninfo
        self.shown = shown
        self.timeout = timeout
        self.prepare = prepare
        self.down = False  # nobody got through, though somebody tried for a while

    def dial(self) -> Link:
        try:
            link = Link(self._conninfo, timeout=self.timeout, prepare=self.prepare)
        except Lost as error:
            raise StoreUnavailable(f"{self.shown} cannot be reached: {error}. Nothing was written.") from None
        self.down = False
        return link


class Pool:
    """Connections for reading, made when they are needed and kept for the next reader."""

    def __init__(self, dialer: Dialer, size: int) -> None:
        self._dialer = dialer
        self._patience = dialer.timeout
        self._size = size
        self._free = threading.BoundedSemaphore(size)
        self._idle: deque[Link] = deque()
        self._closed = False

    @contextmanager
    def link(self) -> Iterator[Link]:
        """A connection of one's own for a while; one that was lost on the way does not come back here."""
        if not self._free.acquire(timeout=self._patience):
            raise StoreUnavailable(f"all {self._size} reading connections have been busy for {self._patience:g} s.")
        link = None
        try:
            link = self._take()
            yield link
        finally:
            if link is not None:
                # A transaction left open by an error is no state to hand on.
                link.rollback()
                if link.alive():
                    self._idle.append(link)
                else:
                    link.close()
                if self._closed:
                    self.close()
            self._free.release()

    def _take(self) -> Link:
        while self._idle:
            try:
                link = self._idle.pop()
            except IndexError:
                break
            if link.fit():
                link.prepare = self._dialer.prepare
                return link
            link.close()
        return self._dialer.dial()

    def close(self) -> None:
        """Idle connections go now, those in use when they come back."""
        self._closed = True
        while self._idle:
            try:
                self._idle.pop().close()
            except IndexError:
                break

"""Changes in the store, brought to the event loop: a call for each, without a task or a thread for each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from stepfast.server.state import Platform
from stepfast.stores.base import Signals, Watch

# Another process wrote to a SQLite file: then every watch is woken, whatever it waits for. Few may look at once.
_FEW = 64
_LATER_SECONDS = 0.25


class Bell(Watch):
    """A watch that calls a function on the loop. It may be called for nothing: look, then decide."""

    def __init__(self, board: Board, signals: Signals, topic: str, ring: Callable[[], None]) -> None:
        self._board = board
        self.ring = ring
        self.silent = False
        super().__init__(signals, (topic,))

    def set(self) -> None:
        self._board.note(self)

    def close(self) -> None:
        self.silent = True
        self._signals.discard(self)
        self._board.removed()


class Board:
    """All bells of an app."""

    def __init__(self, platform: Platform) -> None:
        self._store = platform.raw
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._rung: set[Bell] = set()
        self._late: set[Bell] = set()
        self._called = False
        self._count = 0
        self._keeper: Watch | None = None

    def bell(self, topic: str, ring: Callable[[], None]) -> Bell:
        if self._count == 0:
            # Through the store's own door: it starts to listen for other processes when somebody watches.
            self._keeper = self._store.watch("stepfast:board")
        self._count += 1
        return Bell(self, self._store.signals, topic, ring)

    def removed(self) -> None:
        self._count -= 1
        if self._count == 0 and self._keeper is not None:
            self._keeper.__exit__()
            self._keeper = None

    def note(self, bell: Bell) -> None:
        """From any thread; many bells in a moment cost the loop one wake-up."""
        with self._lock:
            self._rung.add(bell)
            if self._called:
                return
            self._called = True
        try:
            self._loop.call_soon_threadsafe(self._flush)
        except RuntimeError:  # the loop has ended, and with it whoever listened
            pass

    def _flush(self) -> None:
        with self._lock:
            rung, self._rung = self._rung, set()
            self._called = False
        if len(rung) <= _FEW:
            _ring(rung)
            return
        if not self._late:
            self._loop.call_later(_LATER_SECONDS, self._flush_late)
        self._late |= rung

    def _flush_late(self) -> None:
        late, self._late = self._late, set()
        _ring(late)


def _ring(bells: set[Bell]) -> None:
    for bell in bells:
        if not bell.silent:
            bell.ring()

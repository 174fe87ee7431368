"""The store's time, as near as a server can tell it without asking each time."""

from __future__ import annotations

from stepfast.server.state import Platform

_REFRESH_SECONDS = 60


class StoreTime:
    """Timers are written and read by many servers, so they run by the store's clock and not by any server's."""

    def __init__(self, platform: Platform) -> None:
        self._store = platform.store
        self._clock = platform.raw.clock
        self._skew = 0
        self._next = 0

    def now(self) -> int:
        return self._clock.now_us() + self._skew

    async def refresh(self) -> None:
        """Ask the store now and then how late it is there."""
        before = self._clock.now_us()
        if before < self._next:
            return
        theirs = await self._store.check()
        after = self._clock.now_us()
        # A store on this machine reads the same clock: what is left is the time of the question itself.
        self._skew = 0 if before <= theirs <= after else theirs - (before + after) // 2
        self._next = after + _REFRESH_SECONDS * 1_000_000

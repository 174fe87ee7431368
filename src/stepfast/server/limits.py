"""Token buckets: how often somebody may ask."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Buckets:
    """A bucket for each name, full at first, refilled at ``rate`` a second up to ``burst``."""

    def __init__(
        self, rate: float, burst: int, *, most: int = 100_000, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._most = most
        self._now = now
        self._levels: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> int:
        """Take one token; 0 if there was one, else the whole seconds after which there will be."""
        now = self._now()
        known = self._levels.get(name)
        if known is None:
            if len(self._levels) >= self._most:
                self._forget_full(now)
            level = self._burst
        else:
            level = min(self._burst, known[0] + (now - known[1]) * self._rate)
        if level >= 1.0:
            self._levels[name] = (level - 1.0, now)
            return 0
        self._levels[name] = (level, now)
        return max(1, math.ceil((1.0 - level) / self._rate))

    def _forget_full(self, now: float) -> None:
        """A full bucket need not be remembered. If all are in use, the oldest half goes: names are cheap to invent."""
        self._levels = {
            name: (level, at)
            for name, (level, at) in self._levels.items()
            if level + (now - at) * self._rate < self._burst
        }
        if len(self._levels) >= self._most:
            for name in list(self._levels)[: self._most // 2]:
                del self._levels[name]

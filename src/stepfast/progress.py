"""A progress line for people at a terminal; silent everywhere else."""

from __future__ import annotations

import sys
import time

_WIDTH = 28


class ProgressLine:
    """Redrawn at most ten times a second on standard error."""

    def __init__(self, name: str, total: int | None, *, show: bool | None = None) -> None:
        self._show = sys.stderr.isatty() if show is None else show
        self._name = name
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._fresh = 0
        self._drawn = 0.0

    def advance(self, count: int, *, replayed: bool = False) -> None:
        self._done += count
        if not replayed:
            self._fresh += count
        now = time.monotonic()
        if self._show and now - self._drawn >= 0.1:
            self._draw(now)

    def close(self) -> None:
        if self._show:
            self._draw(time.monotonic())
            sys.stderr.write("\n")
            sys.stderr.flush()

    def _draw(self, now: float) -> None:
        self._drawn = now
        rate = self._fresh / max(now - self._began, 1e-9)
        if self._total:
            part = min(self._done / self._total, 1.0)
            bar = "█" * int(part * _WIDTH) + "░" * (_WIDTH - int(part * _WIDTH))
            text = f"{self._name} {bar} {self._done:,}/{self._total:,}  {rate:,.0f}/s"
        else:
            text = f"{self._name} {self._done:,}  {rate:,.0f}/s"
        sys.stderr.write(f"\r\x1b[2K{text}")
        sys.stderr.flush()

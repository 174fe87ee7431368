"""Where time and ids come from, so that tests can move the one and name the other."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

__all__ = ["Clock", "from_micros", "new_id", "to_micros"]


class Clock:
    """The store's clock: real time plus an offset that tests (and only tests) move.

    A store on one machine reads it; PostgreSQL uses its own clock and adds the offset.
    """

    def __init__(self) -> None:
        self.offset_us = 0

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self.offset_us

    def advance(self, seconds: float) -> None:
        self.offset_us += int(seconds * 1_000_000)


_tails: list[int] = []  # randomness is drawn for many ids at a time, and never shared with a forked child
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tails.clear)


def new_id() -> str:
    """A UUIDv7: time-ordered, so that primary keys append instead of scattering."""
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    stamp = milliseconds << 12 | rest * 4096 // 1_000_000
    try:
        tail = _tails.pop()
    except IndexError:
        fresh = os.urandom(10 * 64)
        _tails.extend(int.from_bytes(fresh[n : n + 10], "big") for n in range(10, len(fresh), 10))
        tail = int.from_bytes(fresh[:10], "big")
    value = (stamp >> 12) << 80 | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62 | tail & (1 << 62) - 1
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def from_micros(micros: int | None) -> datetime | None:
    return None if micros is None else datetime.fromtimestamp(micros / 1_000_000, UTC)


def to_micros(moment: datetime) -> int:
    """Microseconds since the epoch; a naive moment is taken as UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1_000_000)

"""The history, and what keeps a store in order."""

from __future__ import annotations

from typing import Any

import msgspec

from stepfast.intents import Event, Status
from stepfast.ops.base import Lease, Op


class ReadEvents(Op[list[Event]], frozen=True, kw_only=True):
    reads = True
    intent_id: str
    since: int = 0
    limit: int = 1000


class AppendEvent(Op[int], frozen=True, kw_only=True):
    """Note something that changes no status; safe to repeat with the same ``note_id``."""

    intent_id: str
    lease: Lease | None
    note_id: str
    event_type: str
    details: dict[str, Any] = {}
    data: bytes | None = None
    actor: str = ""


class Prune(Op[int], frozen=True, kw_only=True):
    """Delete at most ``limit`` finished intents that match, with all that is theirs; gives how many went."""

    finished_before: int | None = None
    keep_latest: int | None = None
    labels: dict[str, str] = {}
    statuses: list[Status] = []
    limit: int = 100


class NextDue(Op[int | None], frozen=True, kw_only=True):
    """When the next deadline, decision or record falls due by the store's clock; None if nothing is timed."""

    reads = True


class Measures(msgspec.Struct, frozen=True):
    """What a store holds, for whoever watches over it."""

    open_by_status: dict[str, int]
    claimable: int
    size_bytes: int


class Measure(Op[Measures], frozen=True, kw_only=True):
    reads = True


class CheckWritable(Op[int], frozen=True, kw_only=True):
    """A real durable write; gives the store's clock."""

"""Checkpoints of a run's state, and values too large for a row."""

from __future__ import annotations

import msgspec

from stepfast.ops.base import Lease, Op


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    journal_id: str
    version: int
    pin: str | None
    state: bytes
    meta: bytes
    blob_id: str | None
    attempt: int
    at: int
    seal: bytes


class PutCheckpoint(Op[int], frozen=True, kw_only=True):
    """Add a version. Older ones beyond ``keep`` go, except pinned ones."""

    lease: Lease
    checkpoint: Checkpoint
    keep: int = 10


class ReadCheckpoints(Op[list[Checkpoint]], frozen=True, kw_only=True):
    """Newest first."""

    reads = True
    journal_id: str
    limit: int = 100
    version: int | None = None
    pin: str | None = None


class PutPiece(Op[None], frozen=True, kw_only=True):
    """One piece of a value too large for a row; it counts only once a row names its blob."""

    journal_id: str
    blob_id: str
    number: int
    data: bytes


class ReadPiece(Op[bytes], frozen=True, kw_only=True):
    reads = True
    journal_id: str
    blob_id: str
    number: int

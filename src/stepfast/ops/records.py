"""Small documents of the platform."""

from __future__ import annotations

import msgspec

from stepfast.ops.base import Op


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A small document of the platform (a key, a scenario's state): versioned, and perhaps due at a time."""

    kind: str
    record_id: str
    version: int
    body: bytes
    belongs_to: str = ""
    due_at: int | None = None
    created_at: int = 0
    updated_at: int = 0
    write_id: str = ""


class PutRecord(Op[Record], frozen=True, kw_only=True):
    """Write a document; safe to repeat with the same ``write_id``.

    ``expected`` is the version it must have now (0: it must not be there); another one is a Conflict. None
    overwrites whatever there is. ``belongs_to`` names an intent with which the record is pruned.
    """

    kind: str
    record_id: str
    body: bytes
    write_id: str
    expected: int | None = None
    belongs_to: str = ""
    due_at: int | None = None


class GetRecord(Op[Record | None], frozen=True, kw_only=True):
    reads = True
    kind: str
    record_id: str


class ListRecords(Op[list[Record]], frozen=True, kw_only=True):
    """By id, after ``after``: those whose id begins with ``prefix``, and those of one intent if ``belongs_to``
    is given."""

    reads = True
    kind: str
    belongs_to: str | None = None
    prefix: str = ""
    after: str = ""
    limit: int = 1000


class RecentRecords(Op[list[Record]], frozen=True, kw_only=True):
    """The last written first, of those whose id begins with ``prefix``; those of one moment by id.

    The next page begins after the ``updated_at`` and the id of the last one.
    """

    reads = True
    kind: str
    prefix: str = ""
    after_at: int | None = None
    after: str = ""
    limit: int = 1000


class DueRecords(Op[list[Record]], frozen=True, kw_only=True):
    """Those whose time has come by the store's clock, the most overdue first."""

    reads = True
    limit: int = 100


class DeleteRecord(Op[None], frozen=True, kw_only=True):
    """Delete a document, if it is there."""

    kind: str
    record_id: str


class DeleteRecords(Op[int], frozen=True, kw_only=True):
    """Delete at most ``limit`` documents whose id begins with ``prefix``, in the order of their ids; gives how
    many went."""

    kind: str
    prefix: str
    limit: int = 1000

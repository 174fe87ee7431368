"""Threads: named histories of a framework's state, stored by the change.

A thread has checkpoints in namespaces, each with a parent; the writes of tasks beside them; and *lanes*,
append-only sequences of numbered elements. A *piece* is a row that holds consecutive elements of a lane; a *span*
names elements that a checkpoint needs. So a list that grows by one costs one piece, and a checkpoint of a thousand
messages has one span. Values are bytes that the store never looks into.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stepfast.ops.base import Op


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``count`` elements of a lane, the first of which has the number ``n``."""

    lane: str
    n: int
    count: int
    data: bytes


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The elements of a lane from ``start`` up to, and without, ``end``."""

    lane: str
    start: int
    end: int


class NewCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """``meta`` is the text of a JSON object, kept plain for filters and listings; ``head`` is the saver's own."""

    ns: str
    checkpoint_id: str
    parent_id: str | None = None
    run_id: str | None = None
    meta: str = "{}"
    spans: list[Span] = []
    head: bytes


class Checkpoint(NewCheckpoint, frozen=True, kw_only=True):
    """As read: ``seq`` is its place in the thread's order, ``at`` when it was written by the store's clock."""

    seq: int
    at: int


class Write(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One write of a task; an ``idx`` below 0 is the fixed slot of a special channel."""

    idx: int
    channel: str
    value: bytes


class Writes(msgspec.Struct, frozen=True, kw_only=True):
    """What a task wrote beside a checkpoint."""

    ns: str
    checkpoint_id: str
    task_id: str
    task_path: str = ""
    writes: list[Write]


class Put(msgspec.Struct, frozen=True):
    """``seq``: the place of the checkpoint in the thread's order; 0 where none was put. ``born`` is as in View."""

    seq: int
    born: int = 0


class PutThread(Op[Put], frozen=True, kw_only=True):
    """Everything of one commit: elements, a checkpoint, writes. Safe to repeat.

    ``home`` is that of the thread as read, or a new random id for one that is not there yet; a thread of that
    name with another home is a Conflict (``stale="home"``). ``ns`` is the namespace of the pieces, which must
    follow the tip of their lane (``stale="lane"``). Unless ``fork``, the head of the checkpoint's namespace must
    be its parent (``stale="head"``); a checkpoint that is there already is replaced and moves no head. Of the
    writes of a task the first with an ``idx`` stays, of those with an ``idx`` below 0 the newest.
    ``ttl_seconds`` sets when the thread expires, from now on. A put that changes nothing leaves all as it is.
    """

    thread_id: str
    home: str
    ns: str = ""
    pieces: list[Piece] = []
    checkpoint: NewCheckpoint | None = None
    fork: bool = False
    writes: list[Writes] = []
    ttl_seconds: float | None = None


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint with all that it needs; ``tips`` has the next free number of each lane of the namespace.

    ``born`` is when the thread was begun. One of the same name and home that was deleted and begun again has another,
    and what is remembered of elements holds only for a thread with the same.
    """

    home: str
    born: int = 0
    tips: dict[str, int]
    checkpoint: Checkpoint | None
    pieces: list[Piece]
    writes: list[Writes]


class ReadThread(Op[View | None], frozen=True, kw_only=True):
    """The head of a namespace, or the checkpoint of that id; None if there is no such thread.

    ``values``: with the pieces of its spans. Writes come in the order of task path, task and idx.
    """

    reads = True
    at_once = True
    thread_id: str
    ns: str = ""
    checkpoint_id: str | None = None
    values: bool = True


class ReadPieces(Op[list[Piece]], frozen=True, kw_only=True):
    """The pieces that cover the spans, by lane and number; none for a thread that is not there."""

    reads = True
    thread_id: str
    ns: str = ""
    spans: list[Span]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint in a listing."""

    thread_id: str
    home: str
    born: int = 0
    checkpoint: Checkpoint
    writes: list[Writes]


class PagePiece(msgspec.Struct, frozen=True, array_like=True):
    """A piece, and whose it is."""

    thread_id: str
    ns: str
    piece: Piece


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """``cursor`` leads to the next page, and is empty at the end; a page may hold fewer items than its limit.

    Each piece comes once, however many items need it.
    """

    items: list[Item]
    pieces: list[PagePiece] = []
    cursor: str = ""


class ListCheckpoints(Op[Page], frozen=True, kw_only=True):
    """Newest first within a thread; one thread after the other if none is named.

    ``where`` compares top-level keys of ``meta``, None with a missing key, too. ``before``: those written before
    the checkpoint of that id or, where the thread has none such, those with a lower id.
    """

    reads = True
    at_once = True
    thread_id: str | None = None
    ns: str | None = None
    where: dict[str, Any] = {}
    checkpoint_id: str | None = None
    before: str | None = None
    limit: int = 100
    cursor: str = ""
    values: bool = True


class ReadPath(Op[list[Item]], frozen=True, kw_only=True):
    """The ancestors of a checkpoint, nearest first, its parent being the first; each with its writes."""

    reads = True
    at_once = True
    thread_id: str
    ns: str = ""
    checkpoint_id: str
    limit: int = 256


class CopyThread(Op[None], frozen=True, kw_only=True):
    """A second thread with the same past, which both share; what either writes from then on is its own.

    Nothing happens if the source is not there; a target that is there already is a Conflict, unless it is this
    very copy and neither has changed since.
    """

    source: str
    target: str


class DeleteThread(Op[bool], frozen=True, kw_only=True):
    """Delete a thread with all that is its own; whether it was there."""

    thread_id: str


class DropCheckpoints(Op[int], frozen=True, kw_only=True):
    """Delete checkpoints, each a (namespace, id), with their writes and the elements no other one needs.

    Gives how many were there. The newest that is left becomes the head; a thread with nothing left goes.
    """

    thread_id: str
    drop: list[tuple[str, str]]


class RunRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A checkpoint that a run wrote."""

    thread_id: str
    ns: str
    checkpoint_id: str
    run_id: str


class FindRuns(Op[list[RunRow]], frozen=True, kw_only=True):
    """The checkpoints that these runs wrote, in whatever threads."""

    reads = True
    run_ids: list[str]


class ThreadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """``meta`` is that of the newest checkpoint of the root namespace, ``head`` its id; ``size_bytes`` counts the
    values that the thread sees, shared ones too."""

    thread_id: str
    created_at: int
    updated_at: int
    expires_at: int | None
    checkpoints: int
    size_bytes: int
    meta: str
    head: str | None


class ThreadPage(msgspec.Struct, frozen=True, kw_only=True):
    """``cursor`` leads to the next page, and is empty at the end; a page may hold fewer items than its limit."""

    items: list[ThreadInfo]
    cursor: str = ""


class ListThreads(Op[ThreadPage], frozen=True, kw_only=True):
    """Newest activity first. All that is given must hold; ``where`` compares top-level keys of ``meta``."""

    reads = True
    where: dict[str, Any] = {}
    prefix: str = ""
    ids: list[str] = []
    updated_after: int | None = None
    updated_before: int | None = None
    limit: int = 100
    cursor: str = ""


class CountThreads(Op[int], frozen=True, kw_only=True):
    """How many threads match."""

    reads = True
    where: dict[str, Any] = {}
    prefix: str = ""


class SetThreadTtl(Op[bool], frozen=True, kw_only=True):
    """Let a thread expire so many seconds from now, or (None) never; whether it is there."""

    thread_id: str
    ttl_seconds: float | None


class ExpireThreads(Op[int], frozen=True, kw_only=True):
    """Delete at most ``limit`` expired threads, each whole; gives how many went. They read as absent before."""

    limit: int = 100

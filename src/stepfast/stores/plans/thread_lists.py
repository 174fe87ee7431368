"""Threads, listed: pages of checkpoints and of threads, the way back along the parents, and what runs wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stepfast.errors import InvalidInput
from stepfast.ops.threads import (
    Checkpoint,
    CountThreads,
    FindRuns,
    Item,
    ListCheckpoints,
    ListThreads,
    Page,
    PagePiece,
    ReadPath,
    RunRow,
    Span,
    ThreadInfo,
    ThreadPage,
)
from stepfast.stores.plans.rows import check_limit
from stepfast.stores.plans.thread_rows import (
    HOUR_US,
    SEQ_BITS,
    SEQ_MASK,
    Thread,
    Where,
    to_checkpoint,
    to_info,
    to_pieces,
    to_thread,
    to_writes,
    write_spans,
)
from stepfast.stores.plans.thread_upkeep import merge
from stepfast.stores.sql import Plan, Query, Row, fetch, fetch_one, query, together

# Rows that one call looks at before it hands out a cursor, so that a filter which fits nothing ends, too.
_LOOKED_AT = 20_000
_AT_A_TIME = 500
_END = 1 << 62


class Found:
    """What a page of checkpoints holds so far."""

    def __init__(self, op: ListCheckpoints) -> None:
        self.op = op
        self.where = Where(op.where)
        self.looked_at = 0
        self.items: list[Item] = []
        self.pieces: list[PagePiece] = []
        self.cursor = ""

    @property
    def full(self) -> bool:
        return len(self.items) >= self.op.limit or self.looked_at >= _LOOKED_AT


def list_page(op: ListCheckpoints) -> Plan[Page]:
    check_limit(op.limit)
    found = Found(op)
    name, upto = _read_cursor(op.cursor)
    if op.thread_id is not None:
        row = yield from fetch_one("thread", thread_id=op.thread_id)
        thread = None if row is None else to_thread(row)
        if thread is not None and not thread.expired:
            yield from _look_through(found, thread, upto if name == op.thread_id else SEQ_MASK + 1)
        return Page(items=found.items, pieces=found.pieces, cursor=found.cursor)
    while not found.cursor:
        rows = yield from fetch("next_threads", from_id=name, limit=50)
        for row in rows:
            thread = to_thread(row)
            if found.full:
                found.cursor = f"{SEQ_MASK + 1}:{thread.thread_id}"
            else:
                yield from _look_through(found, thread, upto if thread.thread_id == name else SEQ_MASK + 1)
            if found.cursor:
                break
        if len(rows) < 50:
            break
        if not found.cursor:
            name, upto = rows[-1][1] + "\x01", SEQ_MASK + 1
    return Page(items=found.items, pieces=found.pieces, cursor=found.cursor)


def _read_cursor(cursor: str) -> tuple[str, int]:
    seq, found, name = cursor.partition(":")
    if not cursor:
        return "", SEQ_MASK + 1
    if not found or not seq.isdecimal():
        raise InvalidInput("cursor: must be that of the page before, or empty.")
    return name, int(seq)


def _look_through(found: Found, thread: Thread, upto: int) -> Plan[None]:
    """Add the checkpoints of one thread that match, with what they need; leaves a cursor where the page is full."""
    op = found.op
    below = None
    if op.before is not None:
        row = yield from fetch_one("place_of_checkpoint", thread=thread.no, checkpoint_id=op.before, ns=op.ns)
        if row is None or row[0] is None:
            below = op.before
        else:
            upto = min(upto, int(row[0]))
    matching: list[Checkpoint] = []
    wanted = op.limit - len(found.items)
    more = True
    while more and len(matching) < wanted:
        if found.looked_at >= _LOOKED_AT:
            break
        many = min(_AT_A_TIME, wanted if not found.where else _AT_A_TIME)
        rows: list[Row] = yield _page(op, thread, upto, below, many)
        found.looked_at += len(rows)
        more = len(rows) == many
        for row in rows:
            upto = row[0] & SEQ_MASK
            if found.where.holds(row[5]):
                matching.append(to_checkpoint(row))
                if len(matching) == wanted:
                    more = True
                    break
    if more:
        found.cursor = f"{upto}:{thread.thread_id}"
    if matching:
        yield from _gather(found, thread, matching)


def _page(op: ListCheckpoints, thread: Thread, upto: int, below: str | None, limit: int) -> Query:
    params: dict[str, Any] = {"ns": op.ns, "checkpoint_id": op.checkpoint_id, "below": below, "limit": limit}
    if thread.based:
        return Query("page_of_lines", {**params, "thread": thread.no, "upto": upto})
    low = thread.line << SEQ_BITS
    return Query("page_of_line", {**params, "low": low, "high": low + upto})


def _gather(found: Found, thread: Thread, matching: Sequence[Checkpoint]) -> Plan[None]:
    keys = msgspec.json.encode([(one.ns, one.checkpoint_id) for one in matching]).decode()
    spaces: dict[str, list[Span]] = {}
    if found.op.values:
        for one in matching:
            if one.spans:
                spaces.setdefault(one.ns, []).extend(one.spans)
    rows, *several = yield from together(
        query("writes_of_keys", thread_id=thread.thread_id, keys=keys),
        *(
            query("pieces_of_spans", thread_id=thread.thread_id, ns=ns, spans=write_spans(_merged(spans)))
            for ns, spans in spaces.items()
        ),
    )
    writes = to_writes(rows)
    found.items += [
        Item(
            thread_id=thread.thread_id,
            home=thread.home,
            born=thread.created_at,
            checkpoint=one,
            writes=writes.get((one.ns, one.checkpoint_id), []),
        )
        for one in matching
    ]
    for ns, pieces in zip(spaces, several, strict=True):
        found.pieces += [PagePiece(thread.thread_id, ns, piece) for piece in to_pieces(pieces)]


def _merged(spans: Sequence[Span]) -> list[Span]:
    return [Span(lane, start, end) for lane, ranges in merge(spans).items() for start, end in ranges]


def path(op: ReadPath) -> Plan[list[Item]]:
    check_limit(op.limit)
    where = {"thread_id": op.thread_id, "ns": op.ns, "checkpoint_id": op.checkpoint_id, "limit": op.limit}
    threads, rows, beside = yield from together(
        query("thread", thread_id=op.thread_id),
        Query("path_of_checkpoint", where),
        Query("writes_of_path", where),
        last=True,
    )
    if not threads:
        return []
    thread = to_thread(threads[0])
    writes = to_writes(beside)
    items: dict[str, Item] = {}
    for row in rows:
        if row[2] not in items:  # the newest version comes first
            items[row[2]] = Item(
                thread_id=op.thread_id,
                home=thread.home,
                born=thread.created_at,
                checkpoint=to_checkpoint(row[:-1]),
                writes=writes.get((row[1], row[2]), []),
            )
    return list(items.values())


def find_runs(op: FindRuns) -> Plan[list[RunRow]]:
    names = list(dict.fromkeys(op.run_ids))
    answers = yield from together(*(query("checkpoints_of_run", run_id=name) for name in names), last=True)
    return [RunRow(*row) for rows in answers for row in rows]


def list_threads(op: ListThreads) -> Plan[ThreadPage]:
    check_limit(op.limit)
    where = Where(op.where)
    upto, no = _END if op.updated_before is None else op.updated_before, 0
    if op.cursor:
        at, found, number = op.cursor.partition(":")
        if not found or not at.isdecimal() or not number.isdecimal():
            raise InvalidInput("cursor: must be that of the page before, or empty.")
        upto, no = int(at), int(number)
    after = -1 if op.updated_after is None else op.updated_after
    if op.ids:
        return (yield from _named(op, where, upto, no, after))
    items: list[ThreadInfo] = []
    looked_at = 0
    while True:
        many = _AT_A_TIME if where else min(_AT_A_TIME, op.limit - len(items))
        rows = yield from _newest(op.prefix, upto, no, after, many)
        looked_at += len(rows)
        for row in rows:
            thread = to_thread(row)
            upto, no = thread.updated_at, thread.no
            if where.holds(thread.meta):
                items.append(to_info(thread))
                if len(items) == op.limit:
                    return ThreadPage(items=items, cursor=f"{upto}:{no}")
        if len(rows) < many:
            return ThreadPage(items=items)
        if looked_at >= _LOOKED_AT:
            return ThreadPage(items=items, cursor=f"{upto}:{no}")


def _newest(prefix: str, upto: int, no: int, after: int, limit: int) -> Plan[list[Any]]:
    return (
        yield from fetch(
            "list_threads",
            hour=upto // HOUR_US,
            upto=upto,
            no=no,
            updated_after=after,
            length=len(prefix),
            prefix=prefix,
            limit=limit,
        )
    )


def _named(op: ListThreads, where: Where, upto: int, no: int, after: int) -> Plan[ThreadPage]:
    names = list(dict.fromkeys(op.ids))
    answers = yield from together(*(query("thread", thread_id=name) for name in names), last=True)
    there = [to_thread(rows[0]) for rows in answers if rows]
    fitting = [
        thread
        for thread in there
        if not thread.expired
        and thread.thread_id.startswith(op.prefix)
        and after < thread.updated_at
        and (thread.updated_at, thread.no) < (upto, no)
        and where.holds(thread.meta)
    ]
    fitting.sort(key=lambda thread: (thread.updated_at, thread.no), reverse=True)
    page = fitting[: op.limit]
    cursor = f"{page[-1].updated_at}:{page[-1].no}" if len(fitting) > op.limit else ""
    return ThreadPage(items=[to_info(thread) for thread in page], cursor=cursor)


def count(op: CountThreads) -> Plan[int]:
    where = Where(op.where)
    if not where:
        row = yield from fetch_one("count_threads", length=len(op.prefix), prefix=op.prefix)
        return 0 if row is None else int(row[0])
    counted, upto, no = 0, _END, 0
    while True:
        rows = yield from _newest(op.prefix, upto, no, -1, _AT_A_TIME)
        threads = [to_thread(row) for row in rows]
        counted += sum(where.holds(thread.meta) for thread in threads)
        if len(rows) < _AT_A_TIME:
            return counted
        upto, no = threads[-1].updated_at, threads[-1].no

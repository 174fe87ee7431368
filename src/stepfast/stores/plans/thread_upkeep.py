"""Threads as a whole: copied, cut back, expired and deleted, down to the last line that nobody sees."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from stepfast.errors import Conflict, InvalidInput
from stepfast.ops.threads import CopyThread, DeleteThread, DropCheckpoints, ExpireThreads, SetThreadTtl, Span
from stepfast.stores.plans.rows import check_limit
from stepfast.stores.plans.thread_rows import (
    HOUR_US,
    SEQ_BITS,
    Thread,
    check_name,
    expiry,
    line_range,
    read_numbers,
    read_spans,
    to_thread,
    topic_of_thread,
    write_numbers,
)
from stepfast.stores.sql import Notify, Plan, Query, Row, change, fetch, fetch_one, query, together

# A thread that stands on more lines than this is written anew when it is copied: each costs every read a look.
MAX_LINES = 16


def find(thread_id: str) -> Plan[Thread | None]:
    """The thread, locked; None if it is not there or has expired."""
    row = yield from fetch_one("lock_thread", thread_id=thread_id)
    thread = None if row is None else to_thread(row)
    return None if thread is None or thread.expired else thread


def delete(op: DeleteThread) -> Plan[bool]:
    row = yield from fetch_one("lock_thread", thread_id=op.thread_id)
    if row is None:
        return False
    thread = to_thread(row)
    yield from purge(thread)
    yield Notify(topic_of_thread(op.thread_id))
    return not thread.expired


def purge(thread: Thread) -> Plan[None]:
    """Delete a thread, and the lines that no other thread sees."""
    lines = yield from _lock_lines(thread)
    yield from together(
        query("delete_thread_views", thread=thread.no),
        query("delete_thread_heads", thread=thread.no),
        query("delete_thread", thread=thread.no),
    )
    yield from _release(lines)


def _lock_lines(thread: Thread) -> Plan[list[int]]:
    """Two that leave a line at the same time would each see the other, and nobody would delete it."""
    if not thread.based:
        return [thread.line]
    rows = yield from fetch("lines_of_thread", thread=thread.no)
    lines = [row[0] for row in rows]
    yield from together(*(query("lock_line", line=line) for line in lines))
    return lines


def _release(lines: Sequence[int]) -> Plan[None]:
    seen = yield from together(*(query("line_is_seen", line=line) for line in lines))
    gone: list[Query] = []
    for line, rows in zip(lines, seen, strict=True):
        if not rows:
            gone.append(query("delete_line", line=line))
            whole = line_range(line)
            gone += [Query(f"delete_line_{kind}", whole) for kind in ("checkpoints", "writes", "pieces")]
    yield from together(*gone)


def _flatten(thread: Thread) -> Plan[Thread]:
    """Write all that a thread sees onto one new line of its own."""
    lines = yield from _lock_lines(thread)
    [(line,)] = yield from fetch("insert_line")
    where = {"thread": thread.no, "line": line, "base": line << SEQ_BITS}
    yield from together(
        *(Query(f"flatten_{kind}", where) for kind in ("checkpoints", "writes", "pieces")),
        query("delete_thread_views", thread=thread.no),
        query("insert_view", thread=thread.no, line=line),
        query("set_line", no=thread.no, line=line, based=0),
    )
    yield from _release(lines)
    return thread._replace(line=line, based=0)


def copy(op: CopyThread) -> Plan[None]:
    check_name("source", op.source)
    check_name("target", op.target)
    if op.source == op.target:
        raise InvalidInput("target: a thread cannot be copied onto itself; name another.")
    first, second = sorted((op.source, op.target))
    rows = dict(
        zip(
            (first, second),
            (yield from together(query("lock_thread", thread_id=first), query("lock_thread", thread_id=second))),
            strict=True,
        )
    )
    found: list[Row] = rows[op.source]
    source = to_thread(found[0]) if found else None
    if source is None or source.expired:
        return
    if rows[op.target]:
        target = to_thread(rows[op.target][0])
        if _is_this_copy(target, source):
            return
        if not target.expired:
            raise Conflict(
                f"target: thread {op.target!r} is there already. Delete it first, or name another; nothing was "
                "written.",
                thread_id=op.target,
            )
        yield from purge(target)
    lines = yield from fetch("lines_of_thread", thread=source.no)
    if len(lines) > MAX_LINES:
        source = yield from _flatten(source)
    yield from _share(source, op.target)


def _is_this_copy(target: Thread, source: Thread) -> bool:
    """A repeat whose answer was lost: neither has changed since."""
    return (
        (target.origin, target.home) == (source.thread_id, source.home)
        and target.origin_seq == target.seq == source.seq
        and source.updated_at <= target.created_at == target.updated_at
    )


def _share(source: Thread, name: str) -> Plan[None]:
    """Freeze what the source has, and let both go on with lines of their own."""
    held, [(line,)] = yield from together(query("line_holds", **line_range(source.line)), query("insert_line"))
    asked: list[Query] = []
    own = source.line
    if held:
        [(own,)] = yield from fetch("insert_line")
        asked.append(query("insert_view", thread=source.no, line=own))
        asked.append(query("set_line", no=source.no, line=own, based=1))
    now = max(source.now, source.updated_at)
    asked += [
        query("copy_views", thread=line, source=source.no, own=own),
        query("copy_heads", thread=line, source=source.no),
        query("insert_view", thread=line, line=line),
        query(
            "insert_thread",
            no=line,
            thread_id=name,
            home=source.home,
            line=line,
            based=1,
            seq=source.seq,
            checkpoints=source.checkpoints,
            size_bytes=source.size_bytes,
            created_at=now,
            updated_at=now,
            hour=now // HOUR_US,
            expires_at=source.expires_at,
            head=source.head,
            tips=source.tips,
            floors=source.floors,
            meta=source.meta,
            origin=source.thread_id,
            origin_seq=source.seq,
        ),
    ]
    yield Notify(topic_of_thread(name))
    yield from together(*asked, last=True)


def drop(op: DropCheckpoints) -> Plan[int]:
    thread = yield from find(op.thread_id)
    places = list(dict.fromkeys((ns, name) for ns, name in op.drop))
    if thread is None or not places:
        return 0
    if thread.based:
        thread = yield from _flatten(thread)
    line = thread.line
    counts = yield from together(
        *(query("drop_checkpoint", line=line, ns=ns, checkpoint_id=name) for ns, name in places),
        *(query("drop_writes", line=line, ns=ns, checkpoint_id=name) for ns, name in places),
    )
    dropped: int = sum(counts[: len(places)])
    if sum(counts):
        yield Notify(topic_of_thread(op.thread_id))
        spaces = list(dict.fromkeys(ns for ns, _ in places))
        for ns in spaces:
            thread = yield from _cut_back(thread, ns)
        yield from _recount(thread)
    return dropped


def _cut_back(thread: Thread, ns: str) -> Plan[Thread]:
    """Delete the elements of a namespace that no checkpoint needs any more, and find its head anew."""
    at = {"line": thread.line, "ns": ns}
    newest, spans, pieces, heads = yield from together(
        Query("newest_checkpoint", at),
        Query("spans_of_namespace", at),
        Query("pieces_of_namespace", at),
        query("thread_head", thread_id=thread.thread_id, ns=ns),
    )
    head, meta = newest[0] if newest else (None, "{}")
    tips, floors = (thread.tips, thread.floors) if not ns else heads[0][1:] if heads else ("{}", "{}")
    lowest = read_numbers(floors)
    needed = merge(span for row in spans for span in read_spans(row[0]))
    gone: list[Query] = []
    for row_id, lane, n, count in pieces:
        if not _meets(needed.get(lane, []), n, n + count):
            gone.append(query("drop_piece", id=row_id))
            lowest[lane] = max(lowest.get(lane, 0), n + count)
    floors = write_numbers(lowest)
    if not ns:
        thread = thread._replace(head=head, floors=floors, meta=meta)
    elif heads:
        gone.append(query("put_thread_head", thread=thread.no, ns=ns, head=head, tips=tips, floors=floors))
    yield from together(*gone)
    return thread


def _recount(thread: Thread) -> Plan[None]:
    """The thread's counters anew; one with nothing left goes."""
    whole = line_range(thread.line)
    [counts], held = yield from together(Query("measure_line", whole), Query("line_holds", whole))
    if not held:
        yield from purge(thread)
        return
    checkpoints, *sizes = map(int, counts)
    now = max(thread.now, thread.updated_at)
    yield from change(
        "update_thread",
        no=thread.no,
        seq=thread.seq,
        checkpoints=checkpoints,
        size_bytes=sum(sizes),
        updated_at=now,
        hour=now // HOUR_US,
        expires_at=thread.expires_at,
        head=thread.head,
        tips=thread.tips,
        floors=thread.floors,
        meta=thread.meta,
    )


def merge(spans: Iterable[Span]) -> dict[str, list[tuple[int, int]]]:
    """For each lane the elements of all spans, as ranges in order that do not touch."""
    found: dict[str, list[tuple[int, int]]] = {}
    for span in sorted(spans, key=lambda span: (span.lane, span.start)):
        if span.start == span.end:
            continue
        ranges = found.setdefault(span.lane, [])
        if ranges and span.start <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], span.end))
        else:
            ranges.append((span.start, span.end))
    return found


def _meets(ranges: list[tuple[int, int]], start: int, end: int) -> bool:
    """Whether one of the ranges, as `merge` gives them, has an element from ``start`` up to ``end``."""
    last = bisect_left(ranges, (end,)) - 1  # the last that begins before
    return last >= 0 and ranges[last][1] > start


def set_ttl(op: SetThreadTtl) -> Plan[bool]:
    thread = yield from find(op.thread_id)
    if thread is None:
        return False
    expires_at = None if op.ttl_seconds is None else expiry(thread.now, op.ttl_seconds)
    yield from together(query("set_thread_expiry", no=thread.no, expires_at=expires_at), last=True)
    return True


def expire(op: ExpireThreads) -> Plan[int]:
    check_limit(op.limit)
    return (yield from expire_all((yield from fetch("expired_threads", limit=op.limit))))


def expire_all(rows: list[Row]) -> Plan[int]:
    for row in rows:
        thread = to_thread(row)
        yield from purge(thread)
        yield Notify(topic_of_thread(thread.thread_id))
    return len(rows)

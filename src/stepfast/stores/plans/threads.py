"""Threads: write a commit, and read a checkpoint with all that it needs.

A thread's row is locked first, so that its commits happen one after the other; then everything is decided in
memory and written together, the thread's counters with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stepfast.errors import Conflict, Damaged, InvalidInput
from stepfast.ops.threads import NewCheckpoint, Piece, Put, PutThread, ReadPieces, ReadThread, View, Write, Writes
from stepfast.stores.plans.thread_rows import (
    HOUR_US,
    SEQ_BITS,
    SEQ_MASK,
    Thread,
    WriteRow,
    check_meta,
    check_name,
    expiry,
    read_body,
    read_numbers,
    to_checkpoint,
    to_pieces,
    to_thread,
    to_write_row,
    to_writes,
    topic_of_thread,
    write_body,
    write_numbers,
    write_spans,
)
from stepfast.stores.plans.thread_upkeep import purge
from stepfast.stores.sql import Notify, Plan, Query, Row, Together, fetch, fetch_one, query, together


def put(op: PutThread) -> Plan[Put]:
    _check(op)
    name, new = op.thread_id, op.checkpoint
    spaces = _namespaces(op)
    places = _places(op.writes)
    asked = [Query("lock_thread", {"thread_id": name})]
    asked += [Query("thread_head", {"thread_id": name, "ns": ns}) for ns in spaces]
    asked += [Query("own_writes", {"thread_id": name, "ns": ns, "checkpoint_id": at}) for ns, at in places]
    if new is not None:
        where = {"thread_id": name, "ns": new.ns, "checkpoint_id": new.checkpoint_id}
        asked.append(Query("own_checkpoint", where))
    answers: list[list[Row]] = yield Together(asked)
    thread = to_thread(answers[0][0]) if answers[0] else None
    heads = answers[1 : 1 + len(spaces)]
    beside = answers[1 + len(spaces) : 1 + len(spaces) + len(places)]
    there = answers[-1] if new is not None else []
    fresh = thread is None
    if thread is None or thread.expired:
        if thread is not None:
            yield from purge(thread)
            heads, there, beside, fresh = [[] for _ in heads], [], [], True
        thread = yield from _begin(op)
    elif thread.home != op.home:
        raise Conflict(
            f"thread {name!r} is not the one that was read: it was deleted and begun again. "
            "Read it again; nothing was written.",
            stale="home",
            thread_id=name,
        )
    elif thread.based:
        there, beside = yield from _look_below(thread, new, there, places)
    change = Change(op, thread, zip(spaces, heads, strict=True))
    if op.pieces:
        yield from change.add_pieces()
    if new is not None:
        yield from change.add_checkpoint(new, there[0] if there else None)
    if op.writes:
        known = {row[1:5]: to_write_row(row) for rows in beside for row in rows}
        for writes in op.writes:
            change.add_writes(writes, known)
    if fresh or change.queries:  # else it is a repeat whose answer was lost
        yield Notify(topic_of_thread(name))
        yield Together(change.finish(fresh), last=True)
    return Put(change.placed, thread.created_at)


def _check(op: PutThread) -> None:
    check_name("thread_id", op.thread_id)
    check_name("home", op.home)
    for piece in op.pieces:
        if piece.count < 1 or piece.n < 0:
            raise InvalidInput(f"pieces: {piece.count} elements from number {piece.n} are no piece of {piece.lane!r}.")
    new = op.checkpoint
    if new is not None:
        check_name("checkpoint.checkpoint_id", new.checkpoint_id)
        check_meta(new.meta)
        for span in new.spans:
            if not 0 <= span.start <= span.end:
                raise InvalidInput(f"checkpoint.spans: {span.start} to {span.end} is no span of {span.lane!r}.")
    for writes in op.writes:
        check_name("writes.checkpoint_id", writes.checkpoint_id)


def _namespaces(op: PutThread) -> list[str]:
    """Those besides the root whose head or lanes the commit touches; writes touch neither."""
    found = [op.ns] if op.pieces and op.ns else []
    new = op.checkpoint
    if new is not None and new.ns and new.ns not in found:
        found.append(new.ns)
    return found


def _places(writes: list[Writes]) -> list[tuple[str, str]]:
    return list(dict.fromkeys([(one.ns, one.checkpoint_id) for one in writes]))


def _begin(op: PutThread) -> Plan[Thread]:
    """A row for a thread that is not there yet, on a line of its own."""
    [(line,)], [(now,)] = yield from together(query("insert_line"), query("time_now"))
    return Thread(
        no=line,
        thread_id=op.thread_id,
        home=op.home,
        line=line,
        based=0,
        seq=0,
        checkpoints=0,
        size_bytes=0,
        created_at=now,
        updated_at=now,
        expires_at=None,
        head=None,
        tips="{}",
        floors="{}",
        meta="{}",
        origin=None,
        origin_seq=None,
        now=now,
    )


def _look_below(
    thread: Thread, new: NewCheckpoint | None, there: list[Row], places: list[tuple[str, str]]
) -> Plan[tuple[list[Row], list[list[Row]]]]:
    """What the thread shares with others, too: its own versions come after, and count instead."""
    asked = [query("shared_writes", thread=thread.no, ns=ns, checkpoint_id=at) for ns, at in places]
    if new is not None and not there:
        asked.append(query("shared_checkpoint", thread=thread.no, ns=new.ns, checkpoint_id=new.checkpoint_id))
    answers = yield from together(*asked)
    if new is not None and not there:
        there = answers[-1]
    return there, answers[: len(places)]


class Space:
    """The head and the lanes of a namespace while a commit changes them."""

    __slots__ = ("_as_read", "_total", "floors", "head", "tips")

    def __init__(self, head: str | None, tips: str, floors: str) -> None:
        self.head = head
        self.tips = read_numbers(tips)
        self.floors = floors
        self._as_read = tips
        self._total = sum(self.tips.values())

    def columns(self) -> dict[str, Any]:
        grown = sum(self.tips.values()) != self._total
        return {"head": self.head, "tips": write_numbers(self.tips) if grown else self._as_read, "floors": self.floors}


class Change:
    """One commit to a thread: decided here, row by row, and written at the end."""

    def __init__(self, op: PutThread, thread: Thread, heads: Iterable[tuple[str, list[Row]]]) -> None:
        self.op = op
        self.thread = thread
        self.seq = thread.seq
        self.size = thread.size_bytes
        self.checkpoints = thread.checkpoints
        self.meta = thread.meta
        self.placed = 0
        self.queries: list[Query] = []
        self.spaces = {"": Space(thread.head, thread.tips, thread.floors)}
        for ns, rows in heads:
            self.spaces[ns] = Space(*(rows[0] if rows else (None, "{}", "{}")))

    def _next_id(self) -> int:
        self.seq += 1
        if self.seq > SEQ_MASK:
            raise InvalidInput(
                f"thread {self.thread.thread_id!r} has {SEQ_MASK} rows and takes no more; begin another."
            )
        return self.thread.line << SEQ_BITS | self.seq

    def add_pieces(self) -> Plan[None]:
        op = self.op
        tips = self.spaces[op.ns].tips
        for piece in op.pieces:
            tip = tips.get(piece.lane, 0)
            if piece.n != tip:
                yield from self._check_repeat(piece, tip)
                continue
            tips[piece.lane] = tip + piece.count
            self.size += len(piece.data)
            self.queries.append(
                Query(
                    "insert_thread_piece",
                    {
                        "id": self._next_id(),
                        "line": self.thread.line,
                        "ns": op.ns,
                        "lane": piece.lane,
                        "n": piece.n,
                        "count": piece.count,
                        "data": piece.data,
                    },
                )
            )

    def _check_repeat(self, piece: Piece, tip: int) -> Plan[None]:
        """A piece that is there already is fine if it is the same: its answer was lost."""
        op = self.op
        if piece.n < tip:
            row = yield from fetch_one("piece_at", thread_id=op.thread_id, ns=op.ns, lane=piece.lane, n=piece.n)
            if row is not None and tuple(row) == (piece.count, piece.data):
                return
        raise self._stale_lane(piece.lane, f"the next element has the number {tip}, and not {piece.n}")

    def _stale_lane(self, lane: str, why: str) -> Conflict:
        return Conflict(
            f"lane {lane!r} of thread {self.thread.thread_id!r} changed meanwhile: {why}. Read the thread again; "
            "nothing was written.",
            stale="lane",
            lane=lane,
            thread_id=self.thread.thread_id,
        )

    def add_checkpoint(self, new: NewCheckpoint, there: Row | None) -> Plan[None]:
        space = self.spaces[new.ns]
        yield from self._check_spans(new, space)
        row: dict[str, Any] = {
            "ns": new.ns,
            "checkpoint_id": new.checkpoint_id,
            "parent_id": new.parent_id,
            "run_id": new.run_id,
            "meta": new.meta,
            "spans": write_spans(new.spans),
            "head": new.head,
        }
        if there is not None:
            self._replace(new, there, row)
            return
        if not self.op.fork and space.head != new.parent_id:
            raise Conflict(
                f"thread {self.thread.thread_id!r} has gone on meanwhile: its head is {space.head!r}, and not "
                f"{new.parent_id!r}, the parent of checkpoint {new.checkpoint_id!r}. Read it again and decide anew; "
                "nothing was written.",
                stale="head",
                head=space.head,
                thread_id=self.thread.thread_id,
            )
        row["id"] = self._next_id()
        row["line"] = self.thread.line
        row["at"] = self.thread.now
        self.placed = self.seq
        self.checkpoints += 1
        self.size += len(new.head)
        self.queries.append(Query("insert_thread_checkpoint", row))
        space.head = new.checkpoint_id
        if not new.ns:
            self.meta = new.meta

    def _replace(self, new: NewCheckpoint, there: Row, row: dict[str, Any]) -> None:
        """A checkpoint that is there: in place, or beside the version that others see, too."""
        row_id, old = there[0], to_checkpoint(there)
        self.placed = old.seq
        if there[1:8] == tuple(row.values()):
            return
        self.size += len(new.head) - len(old.head)
        if row_id >> SEQ_BITS == self.thread.line:
            row["id"] = row_id
            self.queries.append(Query("update_thread_checkpoint", row))
        else:
            row["id"] = self.thread.line << SEQ_BITS | self.placed
            row["line"] = self.thread.line
            row["at"] = old.at
            self.queries.append(Query("insert_thread_checkpoint", row))
        if not new.ns and self.spaces[""].head == new.checkpoint_id:
            self.meta = new.meta

    def _check_spans(self, new: NewCheckpoint, space: Space) -> Plan[None]:
        """No checkpoint may need elements that are not there, be it that another process deleted them."""
        floors = read_numbers(space.floors)
        for span in new.spans:
            if span.end > space.tips.get(span.lane, 0):
                raise self._stale_lane(span.lane, f"it has no element {span.end - 1}")
            floor = min(floors.get(span.lane, 0), span.end)
            if span.start < floor:
                yield from self._check_elements(new.ns, span.lane, span.start, floor)

    def _check_elements(self, ns: str, lane: str, low: int, high: int) -> Plan[None]:
        where = {"thread_id": self.thread.thread_id, "ns": ns, "lane": lane}
        rows = yield from fetch("places_of_pieces", **where, low=low, high=high)
        reached = low
        for n, count in rows:
            if n > reached:
                break
            reached = max(reached, n + count)
        if reached < high:
            raise self._stale_lane(lane, f"its element {reached} was deleted")

    def add_writes(self, new: Writes, known: dict[tuple[str, str, str, int], WriteRow]) -> None:
        regular = [write for write in new.writes if write.idx >= 0]
        if regular:
            self._add_regular(new, regular, known)
        for write in new.writes:
            if write.idx < 0:
                self._put_row(new, write.idx, write_body([write]), known)

    def _add_regular(self, new: Writes, regular: list[Write], known: dict[tuple[str, str, str, int], WriteRow]) -> None:
        """Of two writes with the same idx the first stays."""
        old = known.get((new.ns, new.checkpoint_id, new.task_id, 0))
        merged = {write.idx: write for write in reversed(regular)}
        if old is not None:
            standing = {write.idx: write for write in read_body(old)}
            if merged.keys() <= standing.keys():
                return
            merged |= standing
        self._put_row(new, 0, write_body([merged[idx] for idx in sorted(merged)]), known)

    def _put_row(self, new: Writes, slot: int, body: bytes, known: dict[tuple[str, str, str, int], WriteRow]) -> None:
        key = (new.ns, new.checkpoint_id, new.task_id, slot)
        old = known.get(key)
        if old is not None and (old.body, old.task_path) == (body, new.task_path):
            return
        self.size += len(body) - (0 if old is None else len(old.body))
        own = self.thread.line << SEQ_BITS
        row_id = self._next_id() if old is None else own | old.id & SEQ_MASK
        row = WriteRow(row_id, *key, new.task_path, body)
        known[key] = row
        params = row._asdict()
        if old is not None and old.id == row_id:
            self.queries.append(Query("update_thread_writes", params))
        else:
            params["line"] = self.thread.line
            self.queries.append(Query("insert_thread_writes", params))

    def finish(self, fresh: bool) -> list[Query]:
        """The thread's own rows, then those gathered."""
        thread, ttl = self.thread, self.op.ttl_seconds
        now = max(thread.now, thread.updated_at)
        columns = {
            "no": thread.no,
            "seq": self.seq,
            "checkpoints": self.checkpoints,
            "size_bytes": self.size,
            "updated_at": now,
            "hour": now // HOUR_US,
            "expires_at": thread.expires_at if ttl is None else expiry(thread.now, ttl),
            "meta": self.meta,
            **self.spaces[""].columns(),
        }
        queries = []
        if fresh:
            queries.append(query("insert_view", thread=thread.no, line=thread.line))
            columns |= {
                "thread_id": thread.thread_id,
                "home": thread.home,
                "line": thread.line,
                "based": 0,
                "created_at": thread.created_at,
                "origin": None,
                "origin_seq": None,
            }
        queries.append(Query("insert_thread" if fresh else "update_thread", columns))
        queries += [
            query("put_thread_head", thread=thread.no, ns=ns, **space.columns())
            for ns, space in self.spaces.items()
            if ns
        ]
        return queries + self.queries


def read(op: ReadThread) -> Plan[View | None]:
    where = {"thread_id": op.thread_id, "ns": op.ns, "checkpoint_id": op.checkpoint_id}
    asked = [
        query("view_thread", thread_id=op.thread_id, ns=op.ns),
        Query("view_checkpoint", where),
        Query("view_writes", where),
    ]
    if op.values:
        asked.append(Query("view_pieces", where))
    found, rows, writes, *pieces = yield from together(*asked, last=True)
    if not found:
        return None
    home, tips, born = found[0]
    if not isinstance(home, str) or not isinstance(born, int):
        raise Damaged(f"the row of thread {op.thread_id!r} is damaged; restore the store from a backup.")
    beside = to_writes(writes)
    return View(
        home=home,
        born=born,
        tips=read_numbers(tips),
        checkpoint=to_checkpoint(rows[0]) if rows else None,
        pieces=to_pieces(pieces[0]) if pieces else [],
        writes=next(iter(beside.values())) if beside else [],
    )


def read_pieces(op: ReadPieces) -> Plan[list[Piece]]:
    if not op.spans:
        return []
    rows = yield from fetch("pieces_of_spans", thread_id=op.thread_id, ns=op.ns, spans=write_spans(op.spans))
    return to_pieces(rows)

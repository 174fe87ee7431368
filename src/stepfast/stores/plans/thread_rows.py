"""What the plans of threads share: rows to objects and back, and the numbers that hold them together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from types import NoneType
from typing import Any, NamedTuple

import msgspec

from stepfast.errors import Damaged, InvalidInput
from stepfast.ops.threads import Checkpoint, Item, Page, Piece, Span, ThreadInfo, View, Write, Writes
from stepfast.stores.sql import Row

SEQ_BITS = 27
SEQ_MASK = (1 << SEQ_BITS) - 1
HOUR_US = 3_600_000_000
# Beyond it a moment is no number that every database holds.
_LONGEST_TTL = 100 * 366 * 86_400

# Made here, where no two threads meet: msgspec crashes if two of them are the first to use a class.
_spans = msgspec.json.Decoder(list[Span])
_numbers = msgspec.json.Decoder(dict[str, int])
_metas = msgspec.json.Decoder(dict[str, Any])
_bodies = msgspec.msgpack.Decoder(list[Write])
_encode_body = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
_PREPARED = [msgspec.msgpack.Decoder(kind) for kind in (View, Page, Item, ThreadInfo)]


class Thread(NamedTuple):
    """A thread's row, with the store's time beside it."""

    no: int
    thread_id: str
    home: str
    line: int
    based: int
    seq: int
    checkpoints: int
    size_bytes: int
    created_at: int
    updated_at: int
    expires_at: int | None
    head: str | None
    tips: str
    floors: str
    meta: str
    origin: str | None
    origin_seq: int | None
    now: int

    @property
    def expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= self.now


_TEXT, _NUMBER = (str, NoneType), (int, NoneType)
_THREAD: tuple[Any, ...] = (
    *(int, str, str, int, int, int, int, int, int, int, _NUMBER),
    *(_TEXT, str, str, str, _TEXT, _NUMBER, int),
)


def to_thread(row: Row) -> Thread:
    if not all(map(isinstance, row, _THREAD)):
        raise Damaged(f"the row of thread {row[1]!r} is damaged; restore the store from a backup.")
    return Thread._make(row)


def to_info(thread: Thread) -> ThreadInfo:
    return ThreadInfo(
        thread_id=thread.thread_id,
        created_at=thread.created_at,
        updated_at=thread.updated_at,
        expires_at=thread.expires_at,
        checkpoints=thread.checkpoints,
        size_bytes=thread.size_bytes,
        meta=thread.meta,
        head=thread.head,
    )


_CHECKPOINT: tuple[Any, ...] = (int, str, str, _TEXT, _TEXT, str, str, bytes, int)


def to_checkpoint(row: Row) -> Checkpoint:
    """The columns of `checkpoint_columns`; more may follow."""
    if not all(map(isinstance, row, _CHECKPOINT)):
        raise Damaged(f"the row of checkpoint {row[2]!r} is damaged; restore the store from a backup.")
    return Checkpoint(
        ns=row[1],
        checkpoint_id=row[2],
        parent_id=row[3],
        run_id=row[4],
        meta=row[5],
        spans=read_spans(row[6], row[2]),
        head=row[7],
        seq=row[0] & SEQ_MASK,
        at=row[8],
    )


def read_spans(text: str, checkpoint_id: str = "") -> list[Span]:
    try:
        return _spans.decode(text)
    except msgspec.DecodeError as error:
        raise Damaged(f"the spans of checkpoint {checkpoint_id!r} are damaged ({error}).") from None


def write_spans(spans: Sequence[Span]) -> str:
    return _encode_json(spans).decode()


def read_numbers(text: str | None) -> dict[str, int]:
    """The tips or floors of a namespace; none yet where there is no row."""
    if text is None or text == "{}":
        return {}
    try:
        return _numbers.decode(text)
    except (msgspec.DecodeError, TypeError) as error:
        raise Damaged(f"the lanes of a thread are damaged ({error}).") from None


def write_numbers(numbers: Mapping[str, int]) -> str:
    return _encode_json(numbers).decode()


_PIECE: tuple[Any, ...] = (str, int, int, bytes)
_place = itemgetter(0, 1)


def to_pieces(rows: Iterable[Row]) -> list[Piece]:
    """Each piece once, by lane and number, however many spans need it."""
    found: list[Piece] = []
    last: tuple[str, int] | None = None
    try:
        ordered = sorted(rows, key=_place)
    except TypeError:
        raise Damaged("a piece of a thread is damaged; restore the store from a backup.") from None
    # Column by column, for there are many rows; one by one where something is amiss.
    columns = list(zip(*ordered, strict=True))
    sound = all({kind} == set(map(type, column)) for kind, column in zip(_PIECE, columns, strict=False))
    if sound and len(set(map(_place, ordered))) == len(ordered):
        return list(map(Piece, *columns)) if columns else []
    for row in ordered:
        if not all(map(isinstance, row, _PIECE)):
            raise Damaged(f"piece {row[1]!r} of lane {row[0]!r} is damaged; restore the store from a backup.")
        if row[:2] != last:
            last = row[:2]
            found.append(Piece(*row))
    return found


class WriteRow(NamedTuple):
    """The regular writes of a task (slot 0), or a special one (its idx)."""

    id: int
    ns: str
    checkpoint_id: str
    task_id: str
    slot: int
    task_path: str
    body: bytes


_WRITE: tuple[Any, ...] = (int, str, str, str, int, str, bytes)


def to_write_row(row: Row) -> WriteRow:
    if not all(map(isinstance, row, _WRITE)):
        raise Damaged(f"the writes of task {row[3]!r} are damaged; restore the store from a backup.")
    return WriteRow._make(row)


def read_body(row: WriteRow) -> list[Write]:
    try:
        return _bodies.decode(row.body)
    except msgspec.DecodeError as error:
        raise Damaged(f"the writes of task {row.task_id!r} are damaged ({error}).") from None


def write_body(writes: Sequence[Write]) -> bytes:
    return _encode_body(writes)


def to_writes(rows: Iterable[Row]) -> dict[tuple[str, str], list[Writes]]:
    """By (namespace, checkpoint), in the order of task path, task and idx; of two versions the later row counts."""
    newest: dict[tuple[str, str, str, int], WriteRow] = {}
    for raw in rows:
        row = to_write_row(raw)
        newest[row[1:5]] = row
    tasks: dict[tuple[str, str, str], list[WriteRow]] = {}
    for row in newest.values():
        tasks.setdefault(row[1:4], []).append(row)
    found: dict[tuple[str, str], list[Writes]] = {}
    for (ns, checkpoint_id, task_id), parts in tasks.items():
        writes = [write for part in parts for write in read_body(part)]
        writes.sort(key=_by_idx)
        path = max(parts, key=_by_slot).task_path
        made = Writes(ns=ns, checkpoint_id=checkpoint_id, task_id=task_id, task_path=path, writes=writes)
        found.setdefault((ns, checkpoint_id), []).append(made)
    for several in found.values():
        several.sort(key=_by_task)
    return found


def _by_idx(write: Write) -> int:
    return write.idx


def _by_slot(row: WriteRow) -> int:
    return row.slot


def _by_task(writes: Writes) -> tuple[str, str]:
    return writes.task_path, writes.task_id


class Where:
    """Compares top-level keys of a checkpoint's meta; None with a missing key, too."""

    def __init__(self, where: dict[str, Any]) -> None:
        try:
            self._wanted = list(_metas.decode(_encode_json(where)).items())
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise InvalidInput(f"where: must be plain JSON ({error}).") from None

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def holds(self, meta: str) -> bool:
        if not self._wanted:
            return True
        try:
            there = _metas.decode(meta)
        except (msgspec.DecodeError, TypeError) as error:
            raise Damaged(f"the meta of a checkpoint is damaged ({error}).") from None
        return all(there.get(key) == value for key, value in self._wanted)


def check_meta(meta: str) -> None:
    try:
        _metas.decode(meta)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"checkpoint.meta: must be the text of a JSON object ({error}).") from None


def check_name(name: str, value: str) -> None:
    if not value:
        raise InvalidInput(f"{name}: must not be empty.")


def expiry(now: int, ttl_seconds: float) -> int:
    if not 0 <= ttl_seconds <= _LONGEST_TTL:
        raise InvalidInput(f"ttl_seconds: must be from 0 to {_LONGEST_TTL}, not {ttl_seconds}.")
    return now + int(ttl_seconds * 1_000_000)


def topic_of_thread(thread_id: str) -> str:
    return f"thread:{thread_id}"


def line_range(line: int) -> dict[str, int]:
    return {"low": line << SEQ_BITS, "high": (line + 1) << SEQ_BITS}

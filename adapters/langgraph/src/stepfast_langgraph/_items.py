"""One item of the store as its rows hold it.

* ``langgraph.store``: how long the item lives (8 bytes, -1 for ever), then its value, sealed by the codec;
* ``langgraph.store.vectors``: its embeddings, valid while their write id is that of the item;
* ``langgraph.store.ttl``: the same length of life; its time is that of the last read, and only sweeps and reads of
  items that do not live for ever look at it.

All three have the item's name as their id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from struct import Struct
from typing import Any, NamedTuple
from uuid import uuid4

from langgraph.store.base import Item, SearchItem

from stepfast import Codec, Damaged, InvalidInput, Unencodable
from stepfast.threads import DeleteRecord, Op, PutRecord, Record

from . import _vectors
from ._names import from_record_id

ITEM = "langgraph.store"
VECTORS = f"{ITEM}.vectors"
TTL = f"{ITEM}.ttl"

_LIFE = Struct(">q")
_FOR_EVER = -1
_MINUTE = 60_000_000
_LONGEST = 1 << 60
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RENEW_PART = 100  # a read renews an item at most once in this part of its life: each renewal is a durable write


class Row(NamedTuple):
    record: Record
    life: int | None  # microseconds
    sealed: bytes

    @property
    def name(self) -> str:
        return self.record.record_id


def to_row(record: Record) -> Row:
    if len(record.body) < _LIFE.size:
        raise Damaged(f"the item {record.record_id!r} of the store is damaged: it is too short.")
    life: int = _LIFE.unpack_from(record.body)[0]
    return Row(record, None if life == _FOR_EVER else life, record.body[_LIFE.size :])


class Items:
    """Items to rows and back."""

    def __init__(self, codec: Codec, tenant: str) -> None:
        self._codec = codec
        self._tenant = tenant

    def _bind(self, kind: str, name: str, life: int) -> bytes:
        return f"{kind}|{self._tenant}|{life}|{name}".encode()

    def value(self, row: Row) -> dict[str, Any]:
        bind = self._bind(ITEM, row.name, _FOR_EVER if row.life is None else row.life)
        value = self._codec.decode(row.sealed, bind=bind)
        if not isinstance(value, dict):
            raise Damaged(f"the item {row.name!r} of the store is damaged: it is no dict.")
        return value

    def item(self, row: Row) -> Item:
        namespace, key = from_record_id(row.name)
        created, updated = _moment(row.record.created_at), _moment(row.record.updated_at)
        return Item(value=self.value(row), key=key, namespace=namespace, created_at=created, updated_at=updated)

    def search_item(self, row: Row, score: float | None, value: dict[str, Any] | None) -> SearchItem:
        namespace, key = from_record_id(row.name)
        created, updated = _moment(row.record.created_at), _moment(row.record.updated_at)
        return SearchItem(namespace, key, self.value(row) if value is None else value, created, updated, score)

    def put(self, name: str, value: Mapping[str, Any], minutes: float | None) -> list[Op[Any]]:
        """The writes of an item, the item first. `Unencodable` names the key and the type."""
        life = _FOR_EVER if minutes is None else _to_life(minutes)
        if not isinstance(value, Mapping):
            raise InvalidInput(f"value: must be a dict, not {type(value).__name__}. Nothing was written.")
        try:
            sealed = self._codec.encode(dict(value), bind=self._bind(ITEM, name, life), label="value")
        except Unencodable as error:
            raise Unencodable(f"the item {name!r} cannot be stored: {error.message}", **error.details) from None
        head = _LIFE.pack(life)
        ops: list[Op[Any]] = [PutRecord(kind=ITEM, record_id=name, body=head + sealed, write_id=uuid4().hex)]
        if life != _FOR_EVER:
            ops.append(PutRecord(kind=TTL, record_id=name, body=head, write_id=uuid4().hex))
        return ops

    def put_vectors(self, name: str, write_id: str, vectors: list[list[float]]) -> Op[Any]:
        packed = [_vectors.pack(vector) for vector in vectors]
        body = self._codec.encode(packed, bind=self._bind(VECTORS, name, 0))
        return PutRecord(kind=VECTORS, record_id=name, body=body, write_id=write_id)

    def vectors(self, record: Record) -> list[Any]:
        packed = self._codec.decode(record.body, bind=self._bind(VECTORS, record.record_id, 0))
        return [_vectors.unpack(each) for each in packed]


def delete(name: str) -> list[Op[Any]]:
    return [DeleteRecord(kind=kind, record_id=name) for kind in (ITEM, VECTORS, TTL)]


def delete_unchanged(row: Row) -> list[Op[Any]]:
    """Delete an item unless it was written meanwhile: then nothing of the batch is done, with a `Conflict`."""
    record = row.record
    still = PutRecord(kind=ITEM, record_id=row.name, body=record.body, write_id=uuid4().hex, expected=record.version)
    return [still, *delete(row.name)]


def renew(row: Row) -> Op[Any]:
    assert row.life is not None  # noqa: S101
    return PutRecord(kind=TTL, record_id=row.name, body=_LIFE.pack(row.life), write_id=uuid4().hex)


def touched(row: Row, touch: Record | None) -> int:
    """When the item was written or read last."""
    return max(row.record.updated_at, touch.updated_at if touch is not None else 0)


def expired(row: Row, touch: Record | None, now: int) -> bool:
    return row.life is not None and touched(row, touch) + row.life <= now


def may_be_expired(touch: Record, now: int) -> bool:
    """Whether a sweep should look at the item of this row."""
    return len(touch.body) < _LIFE.size or touch.updated_at + int(_LIFE.unpack_from(touch.body)[0]) <= now


def worth_renewing(row: Row, touch: Record | None, now: int) -> bool:
    return row.life is not None and now - touched(row, touch) >= row.life // _RENEW_PART


def _to_life(minutes: Any) -> int:
    if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not math.isfinite(minutes) or minutes < 0:
        raise InvalidInput(f"ttl: must be a number of minutes from 0 on, or None for ever, not {minutes!r}.")
    return int(min(minutes * _MINUTE, _LONGEST))


def _moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)

"""`StepfastCache`: what nodes with a `CachePolicy` have worked out before, on the same store as the checkpoints."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, Self, TypeVar
from uuid import uuid4

from langgraph.cache.base import BaseCache, FullKey, Namespace

from stepfast import Codec, CodecError, Conflict, InvalidInput, KeyRing
from stepfast.adapters import StoreLike, open_any
from stepfast.flow import Do, Flow
from stepfast.threads import DeleteRecord, DeleteRecords, GetRecord, ListRecords, Op, PutRecord, Record

from ._names import record_id
from ._records import PAGE, StoreTime
from ._types import make_codec

log = logging.getLogger("stepfast.langgraph")
ValueT = TypeVar("ValueT")

KIND = "langgraph.cache"
_LIFE = Struct(">q")  # before each value: how long it lives, in microseconds, or -1 for ever
_FOR_EVER = -1
_LONGEST = 1 << 60
_ROOT = "/"  # all names begin with it, so that they can all be deleted at once


class StepfastCache(BaseCache[ValueT]):
    """A `BaseCache` on SQLite, PostgreSQL or a Stepfast server; blocking and async in one object.

    ``store`` is a URL, a path, or a store or client that is open already. Values go through the Stepfast codec: no
    pickle, and encrypted where a key is set. What cannot be read any more (a class was renamed, a key is gone) counts
    as not there, so the node runs again.
    """

    def __init__(
        self,
        store: StoreLike = None,
        *,
        codec: Codec | None = None,
        keyring: KeyRing | None = None,
        api_key: str | None = None,
    ) -> None:
        super().__init__()
        self._place = open_any(store, codec=codec, keyring=keyring, api_key=api_key, make_codec=make_codec)
        self._now = StoreTime(self._place.store)

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, ValueT]:
        return self._place.drive(self._get(keys))

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, ValueT]:
        return await self._place.adrive(self._get(keys))

    def set(self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]) -> None:
        self._place.drive(self._set(pairs))

    async def aset(self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]) -> None:
        await self._place.adrive(self._set(pairs))

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Forget all of these namespaces, or everything."""
        self._place.drive(self._clear(namespaces))

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        await self._place.adrive(self._clear(namespaces))

    def sweep(self) -> int:
        """Delete what has expired; gives how many. It cannot be read any more anyway."""
        return self._place.drive(self._sweep())

    async def asweep(self) -> int:
        return await self._place.adrive(self._sweep())

    def close(self) -> None:
        """Close the store, if this object opened it."""
        self._place.close()

    async def aclose(self) -> None:
        await self._place.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    # --- the same for both ------------------------------------------------------------------------

    def _get(self, keys: Sequence[FullKey]) -> Flow[dict[FullKey, ValueT]]:
        wanted = [(tuple(namespace), key) for namespace, key in keys]
        if not wanted:
            return {}
        found = yield Do([GetRecord(kind=KIND, record_id=_name(*full)) for full in wanted])
        values: dict[FullKey, ValueT] = {}
        for full, record in zip(wanted, found, strict=True):
            if record is None or (yield from self._expired(record)):
                continue
            try:
                values[full] = self._place.codec.decode(record.body[_LIFE.size :], bind=self._bind(record))
            except CodecError as error:
                log.warning("a cached value of %s is not used: %s", full[0], error.message)
        return values

    def _set(self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]) -> Flow[None]:
        ops = [self._put(_name(tuple(full[0]), full[1]), *pair) for full, pair in pairs.items()]
        if ops:
            yield Do(ops)

    def _put(self, name: str, value: Any, seconds: float | None) -> Op[Any]:
        life = _FOR_EVER
        if seconds is not None:
            if not math.isfinite(seconds) or seconds < 0:
                raise InvalidInput(f"ttl: must be a number of seconds from 0 on, or None for ever, not {seconds!r}.")
            life = int(min(seconds * 1_000_000, _LONGEST))
        head = _LIFE.pack(life)
        sealed = self._place.codec.encode(value, bind=self._place_of(name, head), label="the cached value")
        return PutRecord(kind=KIND, record_id=name, body=head + sealed, write_id=uuid4().hex)

    def _bind(self, record: Record) -> bytes:
        return self._place_of(record.record_id, record.body[: _LIFE.size])

    def _place_of(self, name: str, head: bytes) -> bytes:
        return f"{KIND}|{self._place.tenant}|{head.hex()}|{name}".encode()

    def _expired(self, record: Record) -> Flow[bool]:
        life = _LIFE.unpack_from(record.body)[0] if len(record.body) >= _LIFE.size else _FOR_EVER
        return life != _FOR_EVER and record.updated_at + life <= (yield self._now)

    def _clear(self, namespaces: Sequence[Namespace] | None) -> Flow[None]:
        prefixes = [_ROOT] if namespaces is None else [_name(tuple(each), "") for each in namespaces]
        for prefix in prefixes:
            while (yield Do([DeleteRecords(kind=KIND, prefix=prefix, limit=PAGE)]))[0] == PAGE:
                pass

    def _sweep(self) -> Flow[int]:
        gone, after = 0, ""
        while True:
            [page] = yield Do([ListRecords(kind=KIND, after=after, limit=PAGE)])
            for record in page:
                if not (yield from self._expired(record)):
                    continue
                still = PutRecord(
                    kind=KIND,
                    record_id=record.record_id,
                    body=record.body,
                    write_id=uuid4().hex,
                    expected=record.version,
                )
                try:
                    yield Do([still, DeleteRecord(kind=KIND, record_id=record.record_id)])
                except Conflict:  # it was set again just now
                    continue
                gone += 1
            if len(page) < PAGE:
                return gone
            after = page[-1].record_id


def _name(namespace: tuple[str, ...], key: str) -> str:
    return _ROOT + record_id(namespace, key)

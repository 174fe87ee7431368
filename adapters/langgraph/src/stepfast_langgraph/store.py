"""`StepfastStore`: LangGraph's long-term memory on the same store as the checkpoints."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Self

from langchain_core.embeddings import Embeddings
from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)

from stepfast import Codec, Conflict, InvalidInput, KeyRing, StepfastError
from stepfast import inputs as check
from stepfast.adapters import StoreLike, open_any
from stepfast.flow import Do, Flow
from stepfast.threads import DeleteRecord, GetRecord, ListRecords, PutRecord, RecentRecords, Record
from stepfast.threads import Op as StoreOp

from . import _filters, _items, _vectors
from ._items import Items, Row, to_row
from ._names import check_home, check_key, check_namespace, from_record_id, namespace_id, record_id
from ._records import LEAST, PAGE, Embed, StoreTime, list_records, next_size
from ._types import make_codec

log = logging.getLogger("stepfast.langgraph")

_AFTER_KEYS = "0"  # the character after "/": no key of a namespace sorts behind it


class StepfastStore(BaseStore):
    """A `BaseStore` on SQLite, PostgreSQL or a Stepfast server; blocking and async in one object.

    ``store`` is a URL, a path, or a store or client that is open already. ``index`` turns on search by meaning, as in
    the stock stores (``embed``, ``dims``, ``fields``); ``ttl`` is their `TTLConfig`, in minutes. Values come back
    exactly as they were put, by ``codec`` or by one that encrypts with ``keyring``. A batch of puts is one transaction.
    """

    supports_ttl = True

    def __init__(
        self,
        store: StoreLike = None,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        codec: Codec | None = None,
        keyring: KeyRing | None = None,
        api_key: str | None = None,
    ) -> None:
        check.mapping("index", index)
        check.mapping("ttl", ttl)
        self.index_config = index
        self.ttl_config = ttl
        self._dims: int | None = None
        self._embeddings: Embeddings | None = None
        self._fields: list[tuple[str, Any]] = []
        if index is not None:
            if index.get("distance_type", "cosine") != "cosine":
                raise InvalidInput("index: only distance_type='cosine' is offered.")
            self._embeddings = ensure_embeddings(index.get("embed"))
            self._dims = index.get("dims")
            self._fields = _tokenized(index.get("fields") or ["$"])
        self._place = open_any(store, codec=codec, keyring=keyring, api_key=api_key, make_codec=make_codec)
        self._now = StoreTime(self._place.store)
        self._items = Items(self._place.codec, self._place.tenant)
        self._sweeper: _Sweeper | None = None
        self._lock = threading.Lock()

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> Self:
        """A store to be used in ``with`` or ``async with``, as the stock ones are."""
        return cls(conn_string, **options)

    def setup(self) -> None:
        """Nothing to do: a store brings its own tables up to date when it is opened."""

    async def asetup(self) -> None:
        """Nothing to do, as `setup`."""

    @property
    def url(self) -> str:
        """Where the store is; it holds no secret."""
        return self._place.store.url

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return self._place.drive(self._batch(list(ops)))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await self._place.adrive(self._batch(list(ops)))

    def sweep_ttl(self) -> int:
        """Delete the items whose time is over; gives how many. They cannot be read any more anyway."""
        return self._place.drive(self._sweep())

    async def asweep_ttl(self) -> int:
        return await self._place.adrive(self._sweep())

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> None:
        """Sweep in the background until `stop_ttl_sweeper` or `close`; every 5 minutes if nothing else is said."""
        minutes = sweep_interval_minutes or (self.ttl_config or {}).get("sweep_interval_minutes") or 5
        with self._lock:
            if self._sweeper is None:
                self._sweeper = _Sweeper(self.sweep_ttl, float(minutes) * 60)

    def stop_ttl_sweeper(self) -> None:
        with self._lock:
            sweeper, self._sweeper = self._sweeper, None
        if sweeper is not None:
            sweeper.stop()

    def close(self) -> None:
        """Stop the sweeper and, if this object opened the store, close it."""
        self.stop_ttl_sweeper()
        self._place.close()

    async def aclose(self) -> None:
        self.stop_ttl_sweeper()
        await self._place.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    # --- a batch: all is checked, then it reads, then it writes -----------------------------------

    def _batch(self, ops: Sequence[Op]) -> Flow[list[Result]]:
        puts: dict[str, PutOp] = {}
        gets: dict[int, str] = {}
        for number, op in enumerate(ops):
            if isinstance(op, GetOp):
                gets[number] = record_id(check_namespace(op.namespace), check_key(op.key))
            elif isinstance(op, PutOp):
                home = check_namespace(op.namespace) if op.value is None else check_home(op.namespace)
                name = record_id(home, check_key(op.key))
                puts.pop(name, None)  # the last one counts
                puts[name] = op
            elif isinstance(op, SearchOp):
                check_namespace(op.namespace_prefix)
                _filters.check_filter(op.filter)
                _check_window(op.limit, op.offset)
            elif isinstance(op, ListNamespacesOp):
                _check_listing(op)
            else:
                raise InvalidInput(f"batch: {type(op).__name__} is no operation of a store.")
        writes = self._encode(puts)
        texts = self._texts(puts)
        queries = [op.query for op in ops if isinstance(op, SearchOp) and op.query] if self._fields else []
        embedded: list[Any] = []
        if self._embeddings is not None and (texts or queries):
            embedded = yield Embed(self._embeddings, [text for _, text in texts], queries)
        by_query = dict(zip(queries, embedded[len(texts) :], strict=True))
        results: list[Result] = [None] * len(ops)
        if gets:
            yield from self._get(gets, ops, results)
        for number, op in enumerate(ops):
            if isinstance(op, SearchOp):
                results[number] = yield from self._search(op, by_query.get(op.query or ""))
            elif isinstance(op, ListNamespacesOp):
                results[number] = yield from self._namespaces(op)
        if writes:
            yield Do(self._with_vectors(writes, texts, embedded))
        return results

    # --- writing ----------------------------------------------------------------------------------

    def _encode(self, puts: dict[str, PutOp]) -> dict[str, list[StoreOp[Any]]]:
        return {
            name: _items.delete(name) if op.value is None else self._items.put(name, op.value, op.ttl)
            for name, op in puts.items()
        }

    def _texts(self, puts: dict[str, PutOp]) -> list[tuple[str, str]]:
        """What is to be embedded: the item's id and the text."""
        found: list[tuple[str, str]] = []
        for name, op in puts.items() if self._fields else ():
            if op.value is None or op.index is False:
                continue
            for path, tokens in self._fields if op.index is None else _tokenized(op.index):
                try:
                    found += [(name, text) for text in get_text_at_path(op.value, tokens)]
                except (TypeError, ValueError) as error:
                    raise InvalidInput(
                        f"index: the field {path!r} of {op.key!r} cannot be made text: {error}. Name the fields to "
                        "index, or put it with index=False. Nothing was written."
                    ) from None
        return found

    def _with_vectors(
        self, writes: dict[str, list[StoreOp[Any]]], texts: list[tuple[str, str]], embedded: list[Any]
    ) -> list[StoreOp[Any]]:
        vectors: dict[str, list[list[float]]] = {}
        for (name, _), vector in zip(texts, embedded[: len(texts)], strict=True):
            vectors.setdefault(name, []).append(_vectors.check_vector(vector, self._dims))
        ops: list[StoreOp[Any]] = []
        for name, write in writes.items():
            ops += write
            item = write[0]
            if not isinstance(item, PutRecord):
                continue
            if name in vectors:
                ops.append(self._items.put_vectors(name, item.write_id, vectors[name]))
            elif self._fields:
                ops.append(DeleteRecord(kind=_items.VECTORS, record_id=name))
        return ops

    # --- reading ----------------------------------------------------------------------------------

    def _get(self, gets: dict[int, str], ops: Sequence[Op], results: list[Result]) -> Flow[None]:
        names = list(dict.fromkeys(gets.values()))
        found = yield Do([GetRecord(kind=_items.ITEM, record_id=name) for name in names])
        rows = {record.record_id: to_row(record) for record in found if record is not None}
        mortal = [row for row in rows.values() if row.life is not None]
        if mortal:
            touches = yield Do([GetRecord(kind=_items.TTL, record_id=row.name) for row in mortal])
            now: int = yield self._now
            for row, touch in zip(mortal, touches, strict=True):
                if _items.expired(row, touch, now):
                    del rows[row.name]
            wanted = {gets[number] for number in gets if getattr(ops[number], "refresh_ttl", True)}
            yield from self._renew([row for row in mortal if row.name in rows.keys() & wanted], _by_id(touches), now)
        for number, name in gets.items():
            results[number] = self._items.item(rows[name]) if name in rows else None

    def _renew(self, rows: list[Row], touches: dict[str, Record], now: int) -> Flow[None]:
        renewals = [_items.renew(row) for row in rows if _items.worth_renewing(row, touches.get(row.name), now)]
        if renewals:
            yield Do(renewals)

    def _search(self, op: SearchOp, query: Any) -> Flow[list[SearchItem]]:
        prefix = namespace_id(tuple(op.namespace_prefix))
        window = _Window(op)
        if query is not None:
            yield from self._search_near(window, _vectors.check_vector(query, self._dims), prefix)
        yield from self._search_recent(window, prefix)
        if op.refresh_ttl:
            yield from self._renew([row for row in window.rows if row.life is not None], window.touches, window.now)
        return window.items

    def _search_recent(self, window: _Window, prefix: str) -> Flow[None]:
        """Look through the items, the newest first."""
        size, newest = window.first_page, 0
        last: Record | None = None
        while not window.full:
            at, after = (None, "") if last is None else (last.updated_at, last.record_id)
            [page] = yield Do([RecentRecords(kind=_items.ITEM, prefix=prefix, after_at=at, after=after, limit=size)])
            yield from self._look_through(window, [to_row(record) for record in page])
            if len(page) < size:
                break
            newest = newest or page[0].updated_at
            last, size = page[-1], next_size(page)
        if last is not None and not window.full:  # what was put in the meantime has left the pages it would be on
            [page] = yield Do([RecentRecords(kind=_items.ITEM, prefix=prefix, limit=size)])
            yield from self._look_through(window, [to_row(each) for each in page if each.updated_at >= newest])

    def _search_near(self, window: _Window, query: list[float], prefix: str) -> Flow[None]:
        """Look through the items that have vectors, the nearest first; the nearest vector of an item counts."""
        owners: list[Record] = []
        vectors: list[Any] = []
        for record in (yield from list_records(_items.VECTORS, prefix)):
            some = self._items.vectors(record)
            owners += [record] * len(some)
            vectors += some
        best: dict[str, tuple[float, str]] = {}
        for record, score in zip(owners, _vectors.similarities(query, vectors), strict=True):
            known = best.get(record.record_id)
            best[record.record_id] = (score if known is None else max(score, known[0]), record.write_id)
        names = sorted(best, key=lambda name: (-best[name][0], name))
        start, size = 0, window.first_page
        while start < len(names) and not window.full:
            some = names[start : start + size]
            start, size = start + size, min(2 * size, PAGE)
            found = yield Do([GetRecord(kind=_items.ITEM, record_id=name) for name in some])
            # Vectors of another write tell of an older value.
            near = [to_row(each) for each in found if each is not None and each.write_id == best[each.record_id][1]]
            window.scores.update({row.name: best[row.name][0] for row in near})
            yield from self._look_through(window, near)

    def _look_through(self, window: _Window, rows: list[Row]) -> Flow[None]:
        """Take from these rows what the search asks for."""
        rows = [row for row in rows if row.name not in window.seen]
        mortal = [row for row in rows if row.life is not None]
        if mortal:
            window.touches.update(
                _by_id((yield Do([GetRecord(kind=_items.TTL, record_id=row.name) for row in mortal])))
            )
            window.now = yield self._now
        for row in rows:
            window.seen.add(row.name)
            if window.full or _items.expired(row, window.touches.get(row.name), window.now):
                continue
            value = self._items.value(row) if window.op.filter else None
            if value is not None and not _filters.matches(value, window.op.filter):
                continue
            if window.reached():
                window.rows.append(row)
                window.items.append(self._items.search_item(row, window.scores.get(row.name), value))

    def _namespaces(self, op: ListNamespacesOp) -> Flow[list[tuple[str, ...]]]:
        prefix = namespace_id(_filters.narrowest_prefix(op.match_conditions))
        found: set[tuple[str, ...]] = set()
        after = ""
        size = LEAST
        while True:
            [page] = yield Do([ListRecords(kind=_items.ITEM, prefix=prefix, after=after, limit=size)])
            some = {from_record_id(record.record_id)[0] for record in page}
            found |= some
            if len(page) < size:
                break
            size = min(max(LEAST, 4 * len(some)), PAGE)  # large steps through small namespaces, and the other way
            # The other items of the last namespace have nothing to add.
            after = namespace_id(from_record_id(page[-1].record_id)[0]) + _AFTER_KEYS
        kept = {each for each in found if _filters.namespace_matches(each, op.match_conditions)}
        if op.max_depth is not None:
            kept = {each[: op.max_depth] for each in kept}
        return sorted(kept)[op.offset : op.offset + op.limit]

    # --- sweeping ---------------------------------------------------------------------------------

    def _sweep(self) -> Flow[int]:
        now: int = yield self._now
        gone, after = 0, ""
        while True:
            [page] = yield Do([ListRecords(kind=_items.TTL, after=after, limit=PAGE)])
            due = [touch for touch in page if _items.may_be_expired(touch, now)]
            if due:
                gone += yield from self._sweep_some(due, now)
            if len(page) < PAGE:
                return gone
            after = page[-1].record_id

    def _sweep_some(self, due: list[Record], now: int) -> Flow[int]:
        found = yield Do([GetRecord(kind=_items.ITEM, record_id=touch.record_id) for touch in due])
        gone = 0
        for touch, record in zip(due, found, strict=True):
            row = None if record is None else to_row(record)
            try:
                if row is None or row.life is None:  # of an item that is gone, or lives for ever now
                    yield Do([DeleteRecord(kind=_items.TTL, record_id=touch.record_id)])
                elif _items.expired(row, touch, now):
                    yield Do(_items.delete_unchanged(row))
                    gone += 1
            except Conflict:  # it was put again just now
                continue
        return gone


class _Window:
    """What a search has found so far, between its offset and its limit."""

    def __init__(self, op: SearchOp) -> None:
        self.op = op
        self.rows: list[Row] = []
        self.items: list[SearchItem] = []
        self.seen: set[str] = set()
        self.scores: dict[str, float] = {}
        self.touches: dict[str, Record] = {}
        self.now = 0
        self._passed = 0

    @property
    def first_page(self) -> int:
        """How many rows to begin with: without a filter they are all it takes."""
        return min(max(self.op.limit + self.op.offset, LEAST), PAGE)

    @property
    def full(self) -> bool:
        return len(self.items) >= self.op.limit

    def reached(self) -> bool:
        """Count one that matches; whether it lies behind the offset."""
        self._passed += 1
        return self._passed > self.op.offset


class _Sweeper:
    """A thread that sweeps at intervals; an outage of the store does not end it."""

    def __init__(self, sweep: Any, seconds: float) -> None:
        self._sweep = sweep
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepfast-store-sweeper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            try:
                self._sweep()
            except StepfastError as error:
                log.warning("expired items of the store are still there: %s", error.message)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def _by_id(records: Iterable[Record | None]) -> dict[str, Record]:
    return {record.record_id: record for record in records if record is not None}


def _tokenized(paths: Any) -> list[tuple[str, Any]]:
    if isinstance(paths, str) or not all(isinstance(path, str) for path in paths):
        raise InvalidInput(f"index: must be a list of field names, not {paths!r}.")
    return [(path, path if path == "$" else tokenize_path(path)) for path in paths]


def _check_window(limit: Any, offset: Any) -> None:
    for name, number in (("limit", limit), ("offset", offset)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise InvalidInput(f"{name}: must be a whole number from 0 on, not {number!r}.")


def _check_listing(op: ListNamespacesOp) -> None:
    _check_window(op.limit, op.offset)
    if op.max_depth is not None:
        _check_window(op.max_depth, 0)
    _filters.check_conditions(op.match_conditions)
    for condition in op.match_conditions or ():
        check_namespace(condition.path)

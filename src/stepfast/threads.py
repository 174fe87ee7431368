"""Threads: the histories of frameworks' states, and the operations that a checkpointer is built with.

`Threads` lists, searches, measures and expires the threads of a store without decoding one value of them. The
operations are for adapters; each is executed by a store, alone or in a batch that is one durable transaction:

    store.execute([threads.PutThread(...)], tenant=store.tenant)
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from stepfast.errors import InvalidInput, NotFound
from stepfast.flow import Do, Flow, drive, drive_async
from stepfast.ops.base import Op
from stepfast.ops.records import DeleteRecord, DeleteRecords, GetRecord, ListRecords, PutRecord, RecentRecords, Record
from stepfast.ops.threads import (
    Checkpoint,
    CopyThread,
    CountThreads,
    DeleteThread,
    DropCheckpoints,
    ExpireThreads,
    FindRuns,
    Item,
    ListCheckpoints,
    ListThreads,
    NewCheckpoint,
    Page,
    PagePiece,
    Piece,
    Put,
    PutThread,
    ReadPath,
    ReadPieces,
    ReadThread,
    RunRow,
    SetThreadTtl,
    Span,
    ThreadInfo,
    ThreadPage,
    View,
    Write,
    Writes,
)
from stepfast.stores.base import AsyncStore, Store

__all__ = [
    "ERROR_SLOT",
    "INTERRUPT_SLOT",
    "Checkpoint",
    "CopyThread",
    "CountThreads",
    "DeleteRecord",
    "DeleteRecords",
    "DeleteThread",
    "DropCheckpoints",
    "ExpireThreads",
    "FindRuns",
    "GetRecord",
    "Item",
    "ListCheckpoints",
    "ListRecords",
    "ListThreads",
    "NewCheckpoint",
    "Op",
    "Page",
    "PagePiece",
    "Piece",
    "Put",
    "PutRecord",
    "PutThread",
    "ReadPath",
    "ReadPieces",
    "ReadThread",
    "RecentRecords",
    "Record",
    "RunRow",
    "SetThreadTtl",
    "Span",
    "Status",
    "SummaryPage",
    "ThreadInfo",
    "ThreadPage",
    "ThreadSummary",
    "Threads",
    "View",
    "Write",
    "Writes",
]

Status = Literal["interrupted", "error"]

ERROR_SLOT: Final = -1
"""The ``idx`` of the write that holds the exception of a failed task."""
INTERRUPT_SLOT: Final = -3
"""The ``idx`` of the write that holds what a task asks a person."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PAGE = 100


@dataclass(frozen=True)
class ThreadSummary:
    """One thread as its rows describe it.

    ``metadata`` is that of its latest checkpoint. ``status`` is filled by `Threads.get` and by searches for one:
    *interrupted* if a task waits for an answer, *error* if one failed and did not run again, else None: whether such
    a thread has ended or was cut off cannot be told without its framework.
    """

    thread_id: str
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None
    checkpoints: int
    size_bytes: int
    checkpoint_id: str | None
    metadata: dict[str, Any] = field(default_factory=dict)
    status: Status | None = None

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON can hold it."""
        return {
            "thread_id": self.thread_id,
            "status": self.status,
            "checkpoints": self.checkpoints,
            "size_bytes": self.size_bytes,
            "created_at": self.created_at.isoformat(),
            "updated_at": self.updated_at.isoformat(),
            "expires_at": None if self.expires_at is None else self.expires_at.isoformat(),
            "checkpoint_id": self.checkpoint_id,
            "metadata": self.metadata,
        }


Summaries: TypeAlias = "list[ThreadSummary]"  # `Threads.list` hides the builtin inside the class


class SummaryPage(NamedTuple):
    """Some threads, and the ``cursor`` with which the next page begins; it is empty at the end."""

    threads: Summaries
    cursor: str


class Threads:
    """The threads of a store, those with the newest activity first. Names that begin with ``a`` are awaited."""

    def __init__(self, store: Store, tenant: str | None = None) -> None:
        self._store = store
        self._astore = AsyncStore(store)
        self._tenant = store.tenant if tenant is None else tenant

    def list(
        self,
        where: Mapping[str, Any] | None = None,
        *,
        prefix: str = "",
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        limit: int | None = None,
    ) -> Iterator[ThreadSummary]:
        """Yield threads, read a page at a time; nothing is held open in between.

        ``where`` compares top-level fields of the metadata of a thread's latest checkpoint; ``prefix`` is how the
        thread ids begin.
        """
        cursor, left = "", _check_limit(limit)
        while left > 0:
            op = _list_op(where, prefix, updated_after, updated_before, min(left, _PAGE), cursor)
            page = _to_page(self._do(op))
            yield from page.threads
            left -= len(page.threads)
            cursor = page.cursor
            if not cursor:
                return

    async def alist(
        self,
        where: Mapping[str, Any] | None = None,
        *,
        prefix: str = "",
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[ThreadSummary]:
        cursor, left = "", _check_limit(limit)
        while left > 0:
            op = _list_op(where, prefix, updated_after, updated_before, min(left, _PAGE), cursor)
            page = _to_page(await self._ado(op))
            for thread in page.threads:
                yield thread
            left -= len(page.threads)
            cursor = page.cursor
            if not cursor:
                return

    def page(
        self,
        where: Mapping[str, Any] | None = None,
        *,
        prefix: str = "",
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        limit: int = _PAGE,
        cursor: str = "",
    ) -> SummaryPage:
        """Return one page; pass its cursor to get the next."""
        return _to_page(self._do(_list_op(where, prefix, updated_after, updated_before, limit, cursor)))

    async def apage(
        self,
        where: Mapping[str, Any] | None = None,
        *,
        prefix: str = "",
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        limit: int = _PAGE,
        cursor: str = "",
    ) -> SummaryPage:
        return _to_page(await self._ado(_list_op(where, prefix, updated_after, updated_before, limit, cursor)))

    def search(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        status: Status | None = None,
        limit: int = 10,
        offset: int = 0,
    ) -> Summaries:
        """Return the threads with this metadata, and with this status if one is named."""
        return drive(_search(metadata, status, limit, offset), self._store, self._tenant)

    async def asearch(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        status: Status | None = None,
        limit: int = 10,
        offset: int = 0,
    ) -> Summaries:
        return await drive_async(_search(metadata, status, limit, offset), self._astore, self._tenant)

    def count(self, where: Mapping[str, Any] | None = None, *, prefix: str = "") -> int:
        return int(self._do(CountThreads(where=dict(where or {}), prefix=prefix)))

    async def acount(self, where: Mapping[str, Any] | None = None, *, prefix: str = "") -> int:
        return int(await self._ado(CountThreads(where=dict(where or {}), prefix=prefix)))

    def get(self, thread_id: str) -> ThreadSummary:
        """Return one thread with its status; raise `NotFound` if there is none."""
        return _one(thread_id, *self._store.execute(_get_ops(thread_id), tenant=self._tenant))

    async def aget(self, thread_id: str) -> ThreadSummary:
        return _one(thread_id, *await self._astore.execute(_get_ops(thread_id), tenant=self._tenant))

    def set_ttl(self, thread_id: str, ttl: float | timedelta | None) -> None:
        """Let a thread expire, whole, in ``ttl`` from now (seconds, or a timedelta), or with None never."""
        if not self._do(SetThreadTtl(thread_id=str(thread_id), ttl_seconds=seconds_of(ttl))):
            raise _missing(thread_id)

    async def aset_ttl(self, thread_id: str, ttl: float | timedelta | None) -> None:
        if not await self._ado(SetThreadTtl(thread_id=str(thread_id), ttl_seconds=seconds_of(ttl))):
            raise _missing(thread_id)

    def delete(self, thread_id: str) -> bool:
        """Delete a thread whole; return whether there was one."""
        return bool(self._do(DeleteThread(thread_id=str(thread_id))))

    async def adelete(self, thread_id: str) -> bool:
        return bool(await self._ado(DeleteThread(thread_id=str(thread_id))))

    def expire(self) -> int:
        """Delete every expired thread, each whole, and return how many. They read as absent already."""
        return drive(_expire(), self._store, self._tenant)

    async def aexpire(self) -> int:
        return await drive_async(_expire(), self._astore, self._tenant)

    def _do(self, op: Any) -> Any:
        return self._store.one(op, tenant=self._tenant)

    async def _ado(self, op: Any) -> Any:
        return await self._astore.one(op, tenant=self._tenant)


def seconds_of(ttl: float | timedelta | None) -> float | None:
    """Return a time to live as the operations take it; raise `InvalidInput` if it is none."""
    if ttl is None:
        return None
    number: Any = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < float("inf"):
        raise InvalidInput(f"ttl: must be a number of seconds above 0, a timedelta, or None for ever, not {ttl!r}.")
    return float(number)


def _list_op(
    where: Mapping[str, Any] | None,
    prefix: str,
    after: datetime | None,
    before: datetime | None,
    limit: int,
    cursor: str,
) -> ListThreads:
    return ListThreads(
        where=dict(where or {}),
        prefix=prefix,
        updated_after=None if after is None else _micros(after),
        updated_before=None if before is None else _micros(before),
        limit=limit,
        cursor=cursor,
    )


def _get_ops(thread_id: str) -> list[Any]:
    thread_id = str(thread_id)
    return [ListThreads(ids=[thread_id], limit=1), ReadThread(thread_id=thread_id, values=False)]


def _one(thread_id: str, page: ThreadPage, view: View | None) -> ThreadSummary:
    if not page.items:
        raise _missing(thread_id)
    return _summary(page.items[0], status_of(view))


def _search(metadata: Mapping[str, Any] | None, status: Status | None, limit: int, offset: int) -> Flow[Summaries]:
    if status not in (None, "interrupted", "error"):
        raise InvalidInput(f"status: {status!r} is unknown. Use interrupted or error.")
    found: Summaries = []
    cursor, wanted = "", _check_limit(limit) + _check_limit(offset)
    while len(found) < wanted:
        [page] = yield Do([_list_op(metadata, "", None, None, _PAGE, cursor)])
        threads = _to_page(page).threads
        if status is not None and threads:
            views = yield Do([ReadThread(thread_id=thread.thread_id, values=False) for thread in threads])
            told = [replace(thread, status=status_of(view)) for thread, view in zip(threads, views, strict=True)]
            threads = [thread for thread in told if thread.status == status]
        found += threads
        cursor = page.cursor
        if not cursor:
            break
    return found[offset : offset + limit]


def _expire() -> Flow[int]:
    gone = 0
    while True:
        [some] = yield Do([ExpireThreads(limit=_PAGE)])
        if not some:
            return gone
        gone += some


def status_of(view: View | None) -> Status | None:
    """From the slots of a checkpoint's writes alone: a task that has a result is neither waiting nor failed."""
    if view is None:
        return None
    slots: dict[str, set[int]] = {}
    for each in view.writes:
        slots.setdefault(each.task_id, set()).update(write.idx for write in each.writes)
    open_tasks = [found for found in slots.values() if max(found, default=0) < 0]
    if any(INTERRUPT_SLOT in found for found in open_tasks):
        return "interrupted"
    return "error" if any(ERROR_SLOT in found for found in open_tasks) else None


def _to_page(page: ThreadPage) -> SummaryPage:
    return SummaryPage([_summary(info) for info in page.items], page.cursor)


def _summary(info: ThreadInfo, status: Status | None = None) -> ThreadSummary:
    return ThreadSummary(
        thread_id=info.thread_id,
        created_at=_moment(info.created_at),
        updated_at=_moment(info.updated_at),
        expires_at=None if info.expires_at is None else _moment(info.expires_at),
        checkpoints=info.checkpoints,
        size_bytes=info.size_bytes,
        checkpoint_id=info.head,
        metadata=json.loads(info.meta) if info.meta else {},
        status=status,
    )


def _missing(thread_id: str) -> NotFound:
    return NotFound(f"there is no thread {thread_id!r}. `threads.list()` lists those there are.")


def _check_limit(limit: Any) -> int:
    if limit is None:
        return 1 << 62
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise InvalidInput(f"limit: must be a whole number from 0 on, or None for all, not {limit!r}.")
    return int(limit)


def _moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def _micros(moment: datetime) -> int:
    """A naive moment is taken as UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)

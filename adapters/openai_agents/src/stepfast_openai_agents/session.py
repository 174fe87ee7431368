"""StepfastSession: the SDK's Session in any Stepfast store, one row an item.

Items have numbers that are never given twice. A head says which of them are the history now: spans of numbers, so that
adding costs the items added, and what a run has seen can be read again as it was. Inside a durable run, what is added
and the run's own record of it are one transaction: neither is lost, and none is there twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from stepfast import AsyncRun, AsyncStore, Codec, Conflict, Damaged
from stepfast import inputs as check
from stepfast.adapters import StoreLike, check_store, open_any
from stepfast.threads import DeleteRecords, GetRecord, ListRecords, Op, PutRecord, Record

HEADS = "openai_agents.session"
ITEMS = "openai_agents.session_item"
_TRIES = 50
_PAGE = 1000

Spans = list[list[int]]


class Head:
    """Which items are the history, and the number of the next one."""

    def __init__(self, version: int = 0, spans: Spans | None = None, following: int = 0) -> None:
        self.version = version
        self.spans: Spans = spans or []
        self.following = following

    def __len__(self) -> int:
        return sum(end - start for start, end in self.spans)

    def add(self, count: int) -> range:
        """Room for so many items at the end; gives their numbers."""
        numbers = range(self.following, self.following + count)
        self.following += count
        if self.spans and self.spans[-1][1] == numbers.start:
            self.spans[-1][1] = numbers.stop
        elif count:
            self.spans.append([numbers.start, numbers.stop])
        return numbers

    def pop(self) -> int | None:
        """Take the last item out; gives its number."""
        if not self.spans:
            return None
        self.spans[-1][1] -= 1
        number = self.spans[-1][1]
        if self.spans[-1][0] == number:
            self.spans.pop()
        return number

    def remove(self, start: int, stop: int) -> bool:
        """Take these numbers out, wherever they are; gives whether any of them was there."""
        before = len(self)
        kept = [part for first, end in self.spans for part in ([first, min(end, start)], [max(first, stop), end])]
        self.spans = [part for part in kept if part[0] < part[1]]
        return len(self) != before

    def last(self, count: int | None) -> Spans:
        """The spans of the latest items, oldest first."""
        if count is None:
            return [list(span) for span in self.spans]
        found: Spans = []
        for start, end in reversed(self.spans):
            if count <= 0:
                break
            found.insert(0, [max(start, end - count), end])
            count -= end - found[0][0]
        return found


class StepfastSession:
    """The SDK's Session protocol; a drop-in for ``SQLiteSession`` on SQLite, PostgreSQL or a server.

    ``store`` is a URL, a client, or nothing for the default; ``session_settings`` are the SDK's, such as a limit of
    what is read.
    """

    def __init__(
        self, session_id: str, store: StoreLike = None, *, session_settings: Any = None, codec: Codec | None = None
    ) -> None:
        check.name("session_id", session_id)
        check_store(store, codec=codec)
        self.session_id = session_id
        self.session_settings = session_settings
        opened = open_any(store, shared=True)
        self._store = opened.store
        self._async = AsyncStore(opened.store)
        self._codec = codec or opened.codec
        self._prefix = f"{quote(session_id, safe='')}/"

    # --- the protocol ------------------------------------------------------------------------------

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """The history, oldest first; with a limit its latest part."""
        return await self.read((await self.head()).last(self._limit(limit)))

    async def add_items(self, items: list[Any]) -> None:
        """Add to the history: all of these, or none."""
        if items:
            await self.change(lambda head: self.adding(head, items))

    async def pop_item(self) -> Any:
        """Take the latest item out of the history; None if there is none."""

        async def take(head: Head) -> tuple[Any, list[Op[Any]]]:
            last = head.last(1)
            item = (await self.read(last))[0] if last else None
            number = head.pop()
            return item, [] if number is None else [self.put_head(head), self._delete(number)]

        return await self.change(take)

    async def clear_session(self) -> None:
        """Delete the history."""

        async def empty(head: Head) -> tuple[None, list[Op[Any]]]:
            head.spans = []
            return None, [self.put_head(head)]

        await self.change(empty)
        while await self._one(DeleteRecords(kind=ITEMS, prefix=self._prefix)):
            pass

    async def forget(self, numbers: Sequence[int]) -> None:
        """Take out what a run had added, which is being rewound; what is out already stays out."""

        async def remove(head: Head) -> tuple[None, list[Op[Any]]]:
            return None, [self.put_head(head)] if head.remove(numbers[0], numbers[1]) else []

        await self.change(remove)

    # --- heads and items ---------------------------------------------------------------------------

    async def head(self) -> Head:
        found: Record | None = await self._one(GetRecord(kind=HEADS, record_id=self._prefix))
        if found is None:
            return Head()
        spans, following = self._codec.decode(found.body, bind=self._bind("head"))
        return Head(found.version, [list(span) for span in spans], following)

    async def read(self, spans: Spans) -> list[Any]:
        """The items with these numbers, each checked to be the one that was put there."""
        items: list[Any] = []
        for start, end in spans:
            while start < end:
                after = self._id(start - 1) if start else ""
                op = ListRecords(kind=ITEMS, prefix=self._prefix, after=after, limit=min(end - start, _PAGE))
                rows: list[Record] = await self._one(op)
                for number, row in enumerate(rows, start):
                    if row.record_id != self._id(number):
                        raise Damaged(f"session {self.session_id!r}: item {number} is not in the store.")
                    items.append(self._codec.decode(row.body, bind=self._bind(number)))
                if not rows:
                    raise Damaged(f"session {self.session_id!r}: item {start} is not in the store.")
                start += len(rows)
        return items

    async def adding(self, head: Head, items: Sequence[Any]) -> tuple[list[int], list[Op[Any]]]:
        """The operations that add items; gives their numbers too."""
        numbers = head.add(len(items))
        puts: list[Op[Any]] = [
            PutRecord(
                kind=ITEMS,
                record_id=self._id(number),
                body=self._codec.encode(item, bind=self._bind(number), label="item"),
                write_id=uuid.uuid4().hex,
                expected=0,
            )
            for number, item in zip(numbers, items, strict=True)
        ]
        return [numbers.start, numbers.stop], [self.put_head(head), *puts]

    def put_head(self, head: Head) -> Op[Any]:
        return PutRecord(
            kind=HEADS,
            record_id=self._prefix,
            body=self._codec.encode([head.spans, head.following], bind=self._bind("head")),
            write_id=uuid.uuid4().hex,
            expected=head.version,
        )

    async def change(self, plan: Any, write: Any = None) -> Any:
        """Read the head, plan on it and write; again, if another was quicker."""
        for _ in range(_TRIES):
            value, ops = await plan(await self.head())
            try:
                if write is not None:
                    return await write(value, ops)
                if ops:
                    await self._async.execute(ops, tenant=self._store.tenant)
                return value
            except Conflict:
                continue
        raise Conflict(f"session {self.session_id!r} is written to by too many at once; try again.")

    def is_in_store_of(self, run: AsyncRun) -> bool:
        """Whether this session and a run can be written in one transaction."""
        return run.store is self._store or (run.store.url == self._store.url and run.store.tenant == self._store.tenant)

    # --- small things ------------------------------------------------------------------------------

    def _limit(self, limit: int | None) -> int | None:
        settings = self.session_settings
        return limit if limit is not None or settings is None else getattr(settings, "limit", None)

    def _id(self, number: int) -> str:
        return f"{self._prefix}{number:012d}"

    def _bind(self, what: object) -> bytes:
        return f"session|{self._store.tenant}|{self._prefix}|{what}".encode()

    def _delete(self, number: int) -> Op[Any]:
        return DeleteRecords(kind=ITEMS, prefix=self._id(number), limit=1)

    async def _one(self, op: Any) -> Any:
        return (await self._async.execute([op], tenant=self._store.tenant))[0]

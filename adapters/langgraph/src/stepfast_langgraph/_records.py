"""What the store and the cache share: reading many records, the store's time, and embeddings, as commands of flows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from langchain_core.embeddings import Embeddings

from stepfast import AsyncStore, Store
from stepfast.flow import Do, Flow
from stepfast.threads import ListRecords, Record

_ASK_AGAIN_SECONDS = 60.0
PAGE = 500
LEAST = 16
_BYTES = 8 * 1024 * 1024


class StoreTime:
    """A command whose answer is the store's time in microseconds: what expires, expires by it.

    The store is asked once a minute; in between its time is that of this machine, shifted by the known difference.
    """

    def __init__(self, store: Store) -> None:
        self._clock = store.clock
        self._known = (0, float("-inf"))  # the difference to this machine's clock, and when it was asked

    def perform(self, store: Store, _tenant: str) -> int:
        if (now := self._now()) is not None:
            return now
        asked = self._clock.now_us()
        return self._learn(asked, store.check())

    async def aperform(self, store: AsyncStore, _tenant: str) -> int:
        if (now := self._now()) is not None:
            return now
        asked = self._clock.now_us()
        return self._learn(asked, await store.check())

    def _now(self) -> int | None:
        """None if the store must be asked first."""
        skew, asked = self._known
        return self._clock.now_us() + skew if time.monotonic() - asked < _ASK_AGAIN_SECONDS else None

    def _learn(self, before: int, theirs: int) -> int:
        """Take the store's answer to a question that was sent at ``before``."""
        after = self._clock.now_us()
        # A store on this machine reads the same clock: what is left is the time of the question itself.
        self._known = (0 if before <= theirs <= after else theirs - (before + after) // 2, time.monotonic())
        return after + self._known[0]


class Embed(NamedTuple):
    """A command whose answer is the embeddings of all texts, then of all queries."""

    embeddings: Embeddings
    texts: list[str]
    queries: list[str]

    def perform(self, _store: Store, _tenant: str) -> list[Any]:
        found = list(self.embeddings.embed_documents(self.texts)) if self.texts else []
        return found + [self.embeddings.embed_query(query) for query in self.queries]

    async def aperform(self, _store: AsyncStore, _tenant: str) -> list[Any]:
        found = list(await self.embeddings.aembed_documents(self.texts)) if self.texts else []
        return found + [await self.embeddings.aembed_query(query) for query in self.queries]


def list_records(kind: str, prefix: str) -> Flow[list[Record]]:
    """All records of a kind whose ids begin with a prefix."""
    found: list[Record] = []
    size = LEAST
    while True:
        after = found[-1].record_id if found else ""
        [page] = yield Do([ListRecords(kind=kind, prefix=prefix, after=after, limit=size)])
        found += page
        if len(page) < size:
            return found
        size = next_size(page)


def next_size(page: Sequence[Record]) -> int:
    """How many records like these to read at once: few round trips, but not more bytes than one should hold."""
    average = sum(len(record.body) for record in page) // len(page) + 1
    return min(max(_BYTES // average, LEAST), PAGE)

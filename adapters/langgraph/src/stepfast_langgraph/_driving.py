"""Decisions without waiting: what the store and the cache do is written once, and driven blocking or on a loop."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from langchain_core.embeddings import Embeddings

from stepfast.threads import ListRecords, Record

from ._flow import Do
from ._opening import Place

T = TypeVar("T")
_ASK_AGAIN_SECONDS = 60.0
PAGE = 500
LEAST = 16
_BYTES = 8 * 1024 * 1024


class Now(NamedTuple):
    """The answer is the store's time in microseconds."""


class Embed(NamedTuple):
    """The answer is the embeddings of all texts, then of all queries."""

    texts: list[str]
    queries: list[str]


Flow = Generator[Do | Now | Embed, Any, T]


class StoreTime:
    """The store's time, as near as one can tell without asking each time: what expires, expires by it."""

    def __init__(self, place: Place) -> None:
        self._clock = place.store.clock
        self._known = (0, float("-inf"))  # the difference to this machine's clock, and when it was asked

    def now(self) -> int | None:
        """None if the store must be asked first."""
        skew, asked = self._known
        return self._clock.now_us() + skew if time.monotonic() - asked < _ASK_AGAIN_SECONDS else None

    def learn(self, before: int, theirs: int) -> int:
        """Take the store's answer to a question that was sent at ``before``."""
        after = self._clock.now_us()
        # A store on this machine reads the same clock: what is left is the time of the question itself.
        self._known = (0 if before <= theirs <= after else theirs - (before + after) // 2, time.monotonic())
        return after + self._known[0]


class Driver:
    """Runs flows on a place, for callers of both kinds. A flow is told of errors, and may go on."""

    def __init__(self, place: Place, embeddings: Embeddings | None = None) -> None:
        self.place = place
        self.time = StoreTime(place)
        self._embeddings = embeddings

    def run(self, flow: Flow[T]) -> T:
        try:
            command = next(flow)
            while True:
                try:
                    answer = self._answer(command)
                except BaseException as error:
                    command = flow.throw(error)
                else:
                    command = flow.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def arun(self, flow: Flow[T]) -> T:
        try:
            command = next(flow)
            while True:
                try:
                    answer = await self._aanswer(command)
                except BaseException as error:
                    command = flow.throw(error)
                else:
                    command = flow.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def _answer(self, command: Do | Now | Embed) -> Any:
        place = self.place
        if isinstance(command, Do):
            return place.store.execute(command.ops, tenant=place.tenant)
        if isinstance(command, Embed):
            return self._embed(command)
        now = self.time.now()
        if now is None:
            asked = place.store.clock.now_us()
            now = self.time.learn(asked, place.store.check())
        return now

    async def _aanswer(self, command: Do | Now | Embed) -> Any:
        place = self.place
        if isinstance(command, Do):
            return await place.astore.execute(command.ops, tenant=place.tenant)
        if isinstance(command, Embed):
            return await self._aembed(command)
        now = self.time.now()
        if now is None:
            asked = place.store.clock.now_us()
            now = self.time.learn(asked, await place.astore.check())
        return now

    def _embed(self, command: Embed) -> list[Any]:
        assert self._embeddings is not None  # noqa: S101
        found = list(self._embeddings.embed_documents(command.texts)) if command.texts else []
        return found + [self._embeddings.embed_query(query) for query in command.queries]

    async def _aembed(self, command: Embed) -> list[Any]:
        assert self._embeddings is not None  # noqa: S101
        found = list(await self._embeddings.aembed_documents(command.texts)) if command.texts else []
        return found + [await self._embeddings.aembed_query(query) for query in command.queries]


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

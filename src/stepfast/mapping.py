"""The durable map: many items, few commits, each item recorded once.

Finished items are gathered and written as one row, a *chunk*, whenever enough of them or enough
time has come together; slow items are therefore written one by one, quick ones by the hundred.
A result is yielded only after its chunk is durable. The items' numbers and input hashes stand in
the chunk's preview, so a resumed map knows what is finished without decoding a result.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from stepfast._failpoints import declare, failpoint
from stepfast.errors import Damaged, Diverged, InvalidInput, Suspended, Unencodable
from stepfast.flow import Call, Flow, drive, drive_async
from stepfast.journal import Step, StepStatus
from stepfast.ledger import StepCall
from stepfast.ops import RecordStep
from stepfast.progress import ProgressLine
from stepfast.session import Session
from stepfast.steps import describe_error, rebuild_error
from stepfast.stores.base import AsyncStore, Store

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

declare("map.before_flush", "map.flushed")

CHUNK_ITEMS = 512
CHUNK_SECONDS = 0.02
_CHUNK_PREVIEW = tuple[list[int], bytes]
_HASH = 8


class MapCall(NamedTuple):
    call: StepCall
    concurrency: int
    ordered: bool
    return_exceptions: bool
    total: int | None
    progress: bool | None


class Outcome(NamedTuple):
    """What one item came to; ``failed`` marks a recorded exception."""

    number: int
    fingerprint: bytes
    value: Any
    failed: bool = False


class Chunks:
    """What the journal has of a map, and what is still to be written."""

    def __init__(self, session: Session, mapping: MapCall) -> None:
        self.session = session
        self.mapping = mapping
        self.path = mapping.call.key
        self.finished = False
        self.where: dict[int, tuple[str, int, bytes]] = {}
        self.pending: list[Outcome] = []
        self.flushed_at = time.monotonic()
        self.next_chunk = 0
        self._decoded: dict[str, list[Any]] = {}
        self._left: dict[str, int] = {}
        self.load()

    def load(self) -> None:
        done = self.session.journal.get(self.path)
        self.finished = done is not None
        prefix = f"{self.path}/~"
        for key, step in self.session.journal.items():
            if step.kind == "items" and key.startswith(prefix):
                self.session.check_seal(step)
                self.next_chunk = max(self.next_chunk, int(key[len(prefix) :]) + 1)
                numbers, hashes = self._read_preview(step)
                self._left[key] = len(numbers)
                for index, number in enumerate(numbers):
                    self.where[number] = (key, index, hashes[index * _HASH : (index + 1) * _HASH])

    def _read_preview(self, step: Step) -> tuple[list[int], bytes]:
        try:
            read: tuple[list[int], bytes] = msgspec.msgpack.decode(step.preview, type=_CHUNK_PREVIEW)
        except msgspec.DecodeError:
            raise Damaged(f"the record of items {step.key} is damaged.", key=step.key) from None
        return read

    def fingerprint(self, item: Any) -> bytes:
        return self.session.codec.fingerprint((item,), {})[0][:_HASH]

    def knows(self, number: int, fingerprint: bytes) -> bool:
        """Whether the item is finished; a changed item is `Diverged`, unless told otherwise."""
        record = self.where.get(number)
        if record is None:
            return False
        if record[2] == fingerprint or self.mapping.call.on_drift in ("accept", "warn"):
            return True
        if self.mapping.call.on_drift == "rerun":
            del self.where[number]
            return False
        raise Diverged(
            f"item {number} of {self.path} is not the one recorded under that number. A map must be given the same "
            "items in the same order; use another key for other items, or on_drift='rerun'.",
            key=self.path,
            item=number,
        )

    def compare(self, count: int, items: Any) -> None:
        """A finished map takes its items as given, unless they can be looked at without using them up."""
        if not isinstance(items, Sequence) or self.mapping.call.on_drift in ("accept", "warn"):
            return
        same = len(items) == count
        if not same or any(self.record_of(n)[2] != self.fingerprint(item) for n, item in enumerate(items)):
            raise Diverged(
                f"{self.path} is finished, and was given other items then ({count} of them). Use another key for "
                "other items, or pass on_drift='accept' to keep the recorded results.",
                key=self.path,
            )

    def record_of(self, number: int) -> tuple[str, int, bytes]:
        found = self.where.get(number)
        if found is None:
            raise Damaged(f"{self.path} is finished, and the record of its item {number} is missing.", key=self.path)
        return found

    def value_of(self, number: int) -> Flow[Any]:
        key, index, _ = self.record_of(number)
        values = self._decoded.get(key)
        if values is None:
            step = self.session.journal[key]
            bind = self.session.bind(step.key, step.generation)
            values = self._decoded[key] = yield from self.session.unpack(step.result or b"", step.blob_id, bind)
        self._left[key] -= 1
        failed, value = values[index]
        if self._left[key] == 0:
            del self._decoded[key]
        return rebuild_error(value, f"{self.path}/{number}") if failed else value

    def add(self, outcome: Outcome) -> None:
        self.pending.append(outcome)

    def due(self) -> bool:
        return len(self.pending) >= CHUNK_ITEMS or time.monotonic() - self.flushed_at >= CHUNK_SECONDS

    def flush(self) -> Flow[list[Outcome]]:
        """Write what is pending as one row; gives what is now durable."""
        written, self.pending = self.pending, []
        try:
            yield from self._write(written)
        except Unencodable:
            # One result that cannot be stored is no reason to do the others again.
            yield from self._write([outcome for outcome in written if self._is_storable(outcome)])
            raise
        self.flushed_at = time.monotonic()
        return written

    def _is_storable(self, outcome: Outcome) -> bool:
        try:
            self.session.codec.encode(outcome.value)
        except Unencodable:
            return outcome.failed
        return True

    def _write(self, written: list[Outcome]) -> Flow[None]:
        if not written:
            return
        session, call = self.session, self.mapping.call
        yield from session.ready()
        lease = session.hold()
        key = f"{self.path}/~{self.next_chunk}"
        generation = session.generations.get(key, 0)
        bind = session.bind(key, generation)
        values = [(o.failed, describe_error(o.value) if o.failed else o.value) for o in written]
        packed, blob_id, pieces = session.pack(values, bind)
        preview = msgspec.msgpack.encode(([o.number for o in written], b"".join(o.fingerprint for o in written)))
        now = time.time_ns() // 1000
        row = Step(
            key,
            generation,
            call.position,
            "items",
            call.name,
            self.path,
            StepStatus.FINISHED,
            b"",
            preview,
            packed,
            None,
            blob_id,
            lease.attempt,
            now,
            now,
            b"",
            tally=len(written),
        )
        row = session.sealed(row)
        failpoint("map.before_flush")
        yield from session.write(pieces, RecordStep(lease=lease, journal_id=session.journal_id, step=row))
        session.remember(row)
        failpoint("map.flushed")
        self.next_chunk += 1

    def close(self, count: int) -> Flow[None]:
        """Record that the map is complete, with how many items it had."""
        session, call = self.session, self.mapping.call
        if any(number >= count for number in self.where) and call.on_drift not in ("accept", "warn"):
            raise Diverged(
                f"{self.path} was given {count} items, and more are recorded. A map must be given the same items in "
                "the same order; use another key for other items.",
                key=self.path,
            )
        started = time.time_ns() // 1000
        yield from session.record(call, StepStatus.FINISHED, count, started)

    def total(self) -> Flow[int]:
        step = self.session.journal[self.path]
        bind = self.session.bind(step.key, step.generation)
        return (yield from self.session.unpack(step.result or b"", step.blob_id, bind))  # type: ignore[no-any-return]

    def scope_of(self, number: int) -> str:
        return f"{self.path}/{number}"


class _Sequencer:
    """Holds results back until those before them are out, if the order matters."""

    def __init__(self, ordered: bool) -> None:
        self._ordered = ordered
        self._next = 0
        self._held: dict[int, Any] = {}

    def put(self, number: int, value: Any) -> list[Any]:
        if not self._ordered:
            return [value]
        self._held[number] = value
        out = []
        while self._next in self._held:
            out.append(self._held.pop(self._next))
            self._next += 1
        return out

    @property
    def backlog(self) -> int:
        return len(self._held)


def _length(items: Any) -> int | None:
    try:
        return len(items)
    except TypeError:
        return None


def map_sync(session: Session, store: Store, mapping: MapCall, items: Iterable[Any]) -> Iterator[Any]:
    def run(flow: Flow[Any]) -> Any:
        return drive(flow, store, session.tenant)

    chunks = Chunks(session, mapping)
    line = ProgressLine(mapping.call.name, mapping.total or _length(items), show=mapping.progress)
    try:
        if chunks.finished:
            count = run(chunks.total())
            chunks.compare(count, items)
            for number in range(count):
                line.advance(1, replayed=True)
                yield run(chunks.value_of(number))
            return
        yield from _map_pending(session, run, chunks, mapping, items, line)
    finally:
        line.close()


def _map_pending(
    session: Session,
    run: Callable[[Flow[Any]], Any],
    chunks: Chunks,
    mapping: MapCall,
    items: Iterable[Any],
    line: ProgressLine,
) -> Iterator[Any]:
    from concurrent.futures import ThreadPoolExecutor

    function = mapping.call.function
    context = contextvars.copy_context()

    def work(number: int, item: Any) -> Any:
        token = session.enter(chunks.scope_of(number))
        try:
            return run(_call(function, item))
        finally:
            session.leave(token)

    out = _Sequencer(mapping.ordered)
    source = iter(enumerate(items))
    window = 1 if mapping.concurrency == 1 else mapping.concurrency * 4
    running: dict[Future[Any], tuple[int, bytes]] = {}
    ended: SimpleQueue[Future[Any]] = SimpleQueue()
    pool = ThreadPoolExecutor(mapping.concurrency, "stepfast-map") if mapping.concurrency > 1 else None
    count, exhausted, failure = 0, False, None
    try:
        while True:
            while not exhausted and failure is None and len(running) < window and out.backlog < window * 64:
                try:
                    number, item = next(source)
                except StopIteration:
                    exhausted = True
                    break
                count = number + 1
                fingerprint = chunks.fingerprint(item)
                if chunks.knows(number, fingerprint):
                    line.advance(1, replayed=True)
                    yield from out.put(number, run(chunks.value_of(number)))
                    continue
                if session.suspended:
                    run(session.ready())
                session.hold()
                if pool is None:
                    failure = _settle(chunks, number, fingerprint, _try(work, number, item))
                    if chunks.due() or failure is not None:
                        break
                else:
                    future = pool.submit(context.copy().run, work, number, item)
                    running[future] = (number, fingerprint)
                    future.add_done_callback(ended.put)
            if running:
                # What is done must not wait for the next item that takes long.
                for future in _take(ended, CHUNK_SECONDS if chunks.pending else None):
                    number, fingerprint = running.pop(future)
                    outcome = future.exception() or _Value(future.result())
                    failure = _settle(chunks, number, fingerprint, outcome) or failure
            idle = not running and (exhausted or failure is not None)
            if chunks.pending and (idle or chunks.due()):
                for written in run(chunks.flush()):
                    line.advance(1)
                    yield from out.put(written.number, written.value)
            if idle:
                break
        if failure is not None:
            raise failure
        run(chunks.close(count))
    finally:
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
            for future, (number, fingerprint) in running.items():
                if future.done() and not future.cancelled():
                    _settle(chunks, number, fingerprint, future.exception() or _Value(future.result()))
        if chunks.pending and session.poison is None and session.lease is not None:
            with suppress(Exception):
                run(chunks.flush())


def _take(ended: SimpleQueue[Future[Any]], timeout: float | None) -> list[Future[Any]]:
    """All that has ended, once something has; nothing if that takes too long."""
    taken = []
    with suppress(Empty):
        taken.append(ended.get(timeout=timeout))
        while True:
            taken.append(ended.get_nowait())
    return taken


class _Value(NamedTuple):
    value: Any


def _try(work: Callable[[int, Any], Any], number: int, item: Any) -> _Value | BaseException:
    try:
        return _Value(work(number, item))
    except Exception as error:
        return error


def _settle(chunks: Chunks, number: int, fingerprint: bytes, outcome: _Value | BaseException) -> BaseException | None:
    """Put an item's outcome among the pending; gives the exception that must stop the map, if any."""
    if isinstance(outcome, _Value):
        chunks.add(Outcome(number, fingerprint, outcome.value))
    elif isinstance(outcome, Exception) and not isinstance(outcome, Suspended) and chunks.mapping.return_exceptions:
        chunks.add(Outcome(number, fingerprint, outcome, failed=True))
    else:
        return outcome
    return None


def _call(function: Callable[..., Any], item: Any) -> Flow[Any]:
    return (yield Call(function, (item,), {}))


async def map_async(
    session: Session, store: AsyncStore, mapping: MapCall, items: Iterable[Any] | AsyncIterable[Any]
) -> AsyncIterator[Any]:
    async def run(flow: Flow[Any]) -> Any:
        return await drive_async(flow, store, session.tenant)

    chunks = Chunks(session, mapping)
    line = ProgressLine(mapping.call.name, mapping.total or _length(items), show=mapping.progress)
    try:
        if chunks.finished:
            count = await run(chunks.total())
            chunks.compare(count, items)
            for number in range(count):
                line.advance(1, replayed=True)
                yield await run(chunks.value_of(number))
            return
        async for value in _map_pending_async(session, run, chunks, mapping, items, line):
            yield value
    finally:
        line.close()


async def _map_pending_async(
    session: Session,
    run: Callable[[Flow[Any]], Any],
    chunks: Chunks,
    mapping: MapCall,
    items: Iterable[Any] | AsyncIterable[Any],
    line: ProgressLine,
) -> AsyncIterator[Any]:
    import asyncio

    function = mapping.call.function

    async def work(number: int, item: Any) -> _Value | BaseException:
        token = session.enter(chunks.scope_of(number))
        try:
            return _Value(await run(_call(function, item)))
        except Exception as error:
            return error
        finally:
            session.leave(token)

    out = _Sequencer(mapping.ordered)
    source = _enumerate(items)
    running: dict[asyncio.Task[Any], tuple[int, bytes]] = {}
    count, exhausted, failure = 0, False, None
    try:
        while True:
            while not exhausted and failure is None and len(running) < mapping.concurrency:
                try:
                    number, item = await anext(source)
                except StopAsyncIteration:
                    exhausted = True
                    break
                count = number + 1
                fingerprint = chunks.fingerprint(item)
                if chunks.knows(number, fingerprint):
                    line.advance(1, replayed=True)
                    for value in out.put(number, await run(chunks.value_of(number))):
                        yield value
                    continue
                if session.suspended:
                    await run(session.ready())
                session.hold()
                running[asyncio.create_task(work(number, item))] = (number, fingerprint)
            if running:
                soon = CHUNK_SECONDS if chunks.pending else None
                done, _ = await asyncio.wait(running, timeout=soon, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    number, fingerprint = running.pop(task)
                    failure = _settle(chunks, number, fingerprint, task.result()) or failure
            idle = not running and (exhausted or failure is not None)
            if chunks.pending and (idle or chunks.due()):
                for written in await run(chunks.flush()):
                    line.advance(1)
                    for value in out.put(written.number, written.value):
                        yield value
            if idle:
                break
        if failure is not None:
            raise failure
        await run(chunks.close(count))
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if chunks.pending and session.poison is None and session.lease is not None:
            with suppress(Exception):
                await run(chunks.flush())


async def _enumerate(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[tuple[int, Any]]:
    number = 0
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield number, item
            number += 1
    elif isinstance(items, Iterable):
        for item in items:
            yield number, item
            number += 1
    else:
        raise InvalidInput(f"items: takes an iterable or an async iterable, not {type(items).__name__}.")

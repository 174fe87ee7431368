"""What the contract suite is written with: drivers, builders, and a look at all that a store holds."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec

from stepfast.clock import new_id
from stepfast.errors import Damaged, StepfastError
from stepfast.intents import TERMINAL, Event, Intent, Status, fold
from stepfast.journal import Step, StepStatus, seal_parts
from stepfast.ops import (
    AppendEvent,
    AskDecision,
    Checkpoint,
    CheckWritable,
    Claim,
    CreateIntent,
    Filter,
    FinishIntent,
    GetIntent,
    Lease,
    ListCheckpoints,
    ListDecisions,
    ListIntents,
    ListRecords,
    ListThreads,
    NewIntent,
    Op,
    OpenIntent,
    PutCheckpoint,
    PutPiece,
    PutRecord,
    PutThread,
    ReadCheckpoints,
    ReadEvents,
    ReadJournal,
    ReadPiece,
    RecordStep,
)
from stepfast.ops.threads import NewCheckpoint, Piece, Span, Write, Writes
from stepfast.stores.base import AsyncStore, Store, Watch

__all__ = [
    "AsyncDriver",
    "BlockingDriver",
    "Driver",
    "World",
    "case_ids",
    "cases",
    "check_history",
    "checkpoint",
    "claim",
    "create",
    "dump",
    "events_of",
    "expect",
    "finish",
    "get",
    "make_world",
    "new_intent",
    "open_new",
    "step",
    "thread_put",
]

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
AGENT = "agent://demo"
ENDINGS = frozenset(f"intent.{status.lower()}" for status in TERMINAL)
WAIT = 20.0


class Driver(ABC):
    """How a test reaches a store: in the same words, whether the caller blocks or lives on an event loop.

    Each driver works for a tenant of its own, so that tests may share a store.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tenant = new_id()
        self.tenants = {self.tenant}
        self.pieces: set[tuple[str, str, str, int]] = set()

    async def execute(self, *ops: Op[Any], tenant: str | None = None) -> list[Any]:
        return await self.send(ops, self._note(ops, tenant))

    async def do(self, op: Op[R], *, tenant: str | None = None) -> R:
        result: R = (await self.execute(op, tenant=tenant))[0]
        return result

    async def now(self) -> int:
        """The store's time."""
        return await self.do(CheckWritable())

    def advance(self, seconds: float) -> None:
        self.store.clock.advance(seconds)

    def watch(self, *topics: str) -> Watch:
        return self.store.watch(*topics, tenant=self.tenant)

    async def check_histories(self) -> None:
        """What must hold of every intent after any test."""
        for tenant in self.tenants:
            for intent in await self.do(ListIntents(where=Filter(limit=10_000)), tenant=tenant):
                check_history(intent, await events_of(self, intent.intent_id, tenant=tenant))

    @abstractmethod
    async def send(self, ops: Sequence[Op[Any]], tenant: str) -> list[Any]:
        """Execute one batch."""

    @abstractmethod
    async def together(self, batches: Iterable[Sequence[Op[Any]]]) -> list[Any]:
        """Send batches at the same time; each gives its results or its error."""

    @abstractmethod
    async def woken(self, watch: Watch) -> bool:
        """Wait until a watch wakes; False if it does not in a long time."""

    def _note(self, ops: Sequence[Op[Any]], tenant: str | None) -> str:
        chosen = tenant or self.tenant
        self.tenants.add(chosen)
        self.pieces |= {(chosen, o.journal_id, o.blob_id, o.number) for o in ops if isinstance(o, PutPiece)}
        return chosen


class BlockingDriver(Driver):
    """For callers without an event loop; what happens together happens in threads."""

    async def send(self, ops: Sequence[Op[Any]], tenant: str) -> list[Any]:
        return self.store.execute(ops, tenant=tenant)

    async def together(self, batches: Iterable[Sequence[Op[Any]]]) -> list[Any]:
        waiting = list(batches)
        answers: list[Any] = [None] * len(waiting)
        start = threading.Barrier(len(waiting))

        def run(number: int) -> None:
            start.wait(WAIT)
            try:
                answers[number] = self.store.execute(waiting[number], tenant=self.tenant)
            except Exception as error:
                answers[number] = error

        threads = [threading.Thread(target=run, args=(n,), name=f"caller-{n}") for n in range(len(waiting))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    async def woken(self, watch: Watch) -> bool:
        return watch.wait(WAIT)


class AsyncDriver(Driver):
    """For callers on an event loop."""

    async def send(self, ops: Sequence[Op[Any]], tenant: str) -> list[Any]:
        return await AsyncStore(self.store).execute(ops, tenant=tenant)

    async def together(self, batches: Iterable[Sequence[Op[Any]]]) -> list[Any]:
        outcomes: list[Any] = await asyncio.gather(
            *(self.send(b, self.tenant) for b in batches), return_exceptions=True
        )
        return outcomes

    async def woken(self, watch: Watch) -> bool:
        return await watch.wait_async(WAIT)


# --- saying what is expected ---------------------------------------------------------------------


def cases(**named: Any) -> Callable[[F], F]:
    """Run a test once for each named value, as its argument ``case``."""

    def mark(test: F) -> F:
        test.cases = named  # type: ignore[attr-defined]
        return test

    return mark


def case_ids(test: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = getattr(test, "cases", {})
    return found


async def expect(
    kind: type[StepfastError] | tuple[type[StepfastError], ...], doing: Awaitable[Any], about: str = ""
) -> StepfastError:
    """The error that a refused call raised."""
    try:
        answer = await doing
    except kind as error:
        return error
    except Exception as error:
        raise AssertionError(f"{about}: expected {kind}, and it raised {error!r}") from error
    raise AssertionError(f"{about}: expected {kind}, and it was allowed: {answer!r}")


def check_history(intent: Intent, events: list[Event]) -> None:
    """A gapless, chained history of one ending at most, which adds up to the row."""
    name = intent.intent_id
    assert fold(events) == (intent.status, intent.seq, intent.head), f"the history of {name} is not its row"
    assert all(event.intent_id == name for event in events)
    endings = [event for event in events if event.event_type in ENDINGS]
    assert len(endings) == int(intent.finished), f"{name} has {len(endings)} endings and is {intent.status}"
    attempts = [event.attempt for event in events]
    assert attempts == sorted(attempts), f"the attempt of {name} went back: {attempts}"
    assert attempts[-1] <= intent.attempt or intent.superseded_by is not None
    assert 0 <= intent.lost <= intent.max_delivery_attempts, f"{name} lost {intent.lost} deliveries"
    assert intent.lost <= intent.attempt
    assert (intent.finished_at is not None) == intent.finished
    if intent.finished:
        assert intent.claimable_at is None
    if intent.leased:
        assert intent.status is Status.IN_PROGRESS
        assert intent.claimable_at is not None
        assert intent.lease_token is not None
        assert intent.owner is not None
    else:
        assert intent.lease_token is None
        assert intent.owner is None


async def dump(driver: Driver, *, tenant: str | None = None) -> dict[str, Any]:
    """All that a tenant has in the store, as reads show it."""
    chosen = tenant or driver.tenant
    held: dict[str, Any] = {}

    async def read(op: Op[R]) -> R:
        return await driver.do(op, tenant=chosen)

    intents = await read(ListIntents(where=Filter(limit=10_000)))
    for intent in intents:
        held[f"intent {intent.intent_id}"] = intent
        held[f"events {intent.intent_id}"] = await events_of(driver, intent.intent_id, tenant=chosen)
    for journal_id in sorted({intent.journal_id for intent in intents}):
        steps = await read(ReadJournal(journal_id=journal_id, voided=True))
        held[f"steps {journal_id}"] = steps
        held[f"live steps {journal_id}"] = await read(ReadJournal(journal_id=journal_id))
        held[f"checkpoints {journal_id}"] = await read(ReadCheckpoints(journal_id=journal_id, limit=10_000))
    held["records"] = await read(ListRecords(kind="doc", limit=10_000))
    held["threads"] = (await read(ListThreads(limit=10_000))).items
    held["thread checkpoints"] = await read(ListCheckpoints(limit=10_000))
    held["decisions"] = await read(ListDecisions(pending=False, limit=10_000))
    for owner, journal_id, blob_id, number in sorted(driver.pieces):
        if owner == chosen:
            op = ReadPiece(journal_id=journal_id, blob_id=blob_id, number=number)
            try:
                held[f"piece {journal_id} {blob_id} {number}"] = await read(op)
            except Damaged:
                held[f"piece {journal_id} {blob_id} {number}"] = None
    return held


async def events_of(driver: Driver, intent_id: str, *, tenant: str | None = None) -> list[Event]:
    return await driver.do(ReadEvents(intent_id=intent_id, limit=100_000), tenant=tenant)


# --- builders ------------------------------------------------------------------------------------


def new_intent(**fields: Any) -> NewIntent:
    return NewIntent(**{"intent_id": new_id(), "intent_type": "demo.v1", "to_agent": AGENT, **fields})


async def create(driver: Driver, **fields: Any) -> Intent:
    return (await driver.do(CreateIntent(new=new_intent(**fields)))).intent


async def get(driver: Driver, intent_id: str) -> Intent:
    return await driver.do(GetIntent(intent_id=intent_id))


async def open_new(driver: Driver, *, lease_seconds: float = 30.0, **fields: Any) -> Lease:
    """Create an intent and take it."""
    op = OpenIntent(token=new_id(), owner="worker-1", lease_seconds=lease_seconds, new=new_intent(**fields))
    lease = (await driver.do(op)).lease
    assert lease is not None
    return lease


async def claim(
    driver: Driver,
    *,
    to_agent: str = AGENT,
    token: str | None = None,
    lease_seconds: float = 30.0,
    limit: int = 1,
) -> list[Lease]:
    """The leases on the next intents of an address."""
    op = Claim(to_agent=to_agent, token=token or new_id(), owner="worker-2", lease_seconds=lease_seconds, limit=limit)
    return [Lease(i.intent_id, i.attempt, i.lease_token or "") for i in await driver.do(op)]


def finish(lease: Lease, status: Status = Status.COMPLETED, **fields: Any) -> FinishIntent:
    return FinishIntent(intent_id=lease.intent_id, lease=lease, status=status, **fields)


def step(key: str, lease: Lease, *, position: int = 1, generation: int = 0, **fields: Any) -> Step:
    """A finished step, sealed as the library seals one."""
    values = {
        "kind": "step",
        "name": key,
        "scope": "",
        "status": StepStatus.FINISHED,
        "input_hash": b"input of " + key.encode(),
        "preview": b"preview",
        "result": b"result of " + key.encode(),
        "error": None,
        "blob_id": None,
        "attempt": lease.attempt,
        "started_at": 1_000,
        "finished_at": 2_000,
        **fields,
    }
    if values["status"] is StepStatus.STARTED:
        values["result"] = values["finished_at"] = None
    made = Step(key=key, generation=generation, position=position, seal=b"", **values)
    return msgspec.structs.replace(made, seal=blake2b(b"\0".join(seal_parts(made)), digest_size=16).digest())


def checkpoint(lease: Lease, version: int, *, journal_id: str | None = None, **fields: Any) -> Checkpoint:
    values = {
        "pin": None,
        "state": b"state %d" % version,
        "meta": b"{}",
        "blob_id": None,
        "at": 3_000,
        **fields,
    }
    seal = blake2b(repr(sorted(values.items())).encode(), digest_size=16).digest()
    return Checkpoint(
        journal_id=journal_id or lease.intent_id, version=version, attempt=lease.attempt, seal=seal, **values
    )


class World(msgspec.Struct, frozen=True):
    """An intent in the middle of its work, with one of everything."""

    lease: Lease
    recorded: Step
    started: Step

    @property
    def intent_id(self) -> str:
        return self.lease.intent_id

    @property
    def journal_id(self) -> str:
        return self.lease.intent_id


async def make_world(driver: Driver, **fields: Any) -> World:
    lease = await open_new(driver, **{"labels": {"team": "red"}, "run_id": f"run {new_id()}", **fields})
    name = lease.intent_id
    world = World(
        lease, step("first", lease), step("second", lease, position=2, kind="once", status=StepStatus.STARTED)
    )
    await driver.execute(
        RecordStep(lease=lease, journal_id=name, step=world.recorded),
        RecordStep(lease=lease, journal_id=name, step=world.started),
        AskDecision(
            lease=lease,
            journal_id=name,
            key="approve",
            kind="ask",
            question=b"May I?",
            outcomes=["yes", "no"],
        ),
        PutPiece(journal_id=name, blob_id="blob-1", number=0, data=b"piece"),
        PutCheckpoint(lease=lease, checkpoint=checkpoint(lease, 1, blob_id="blob-1")),
        AppendEvent(intent_id=name, lease=lease, note_id="note-1", event_type="intent.noted", details={"n": 1}),
        PutRecord(kind="doc", record_id=name, body=b"first", write_id="w-1", expected=0, belongs_to=name),
        thread_put(name),
    )
    return world


def thread_put(thread_id: str, **fields: Any) -> PutThread:
    """The first commit of a thread: an element, a checkpoint that needs it, and a write."""
    made = NewCheckpoint(
        ns="", checkpoint_id="c1", run_id="run-1", meta='{"step":1}', spans=[Span("messages", 0, 1)], head=b"head"
    )
    values = {
        "home": "home",
        "pieces": [Piece("messages", 0, 1, b"hello")],
        "checkpoint": made,
        "writes": [Writes(ns="", checkpoint_id="c1", task_id="t1", writes=[Write(0, "messages", b"hello")])],
        **fields,
    }
    return PutThread(thread_id=thread_id, **values)

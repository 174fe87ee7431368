"""The wire breaks at any byte of a request or its answer: nothing is lost, nothing is done twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stepfast.clock import new_id
from stepfast.errors import OutcomeUnknown, StepfastError, StoreUnavailable
from stepfast.intents import Status, fold
from stepfast.journal import StepStatus
from stepfast.ops import (
    AnswerDecision,
    AppendEvent,
    AskDecision,
    Checkpoint,
    CheckWritable,
    Claim,
    CreateIntent,
    FinishIntent,
    Lease,
    ListIntents,
    Op,
    Opened,
    OpenIntent,
    Prune,
    PutCheckpoint,
    PutPiece,
    ReadCheckpoints,
    ReadEvents,
    ReadJournal,
    RecordStep,
    ReleaseIntent,
    RenewLease,
    ReviveIntent,
    SettleStep,
    SetTypePolicy,
    SuspendIntent,
    Sweep,
    VoidSteps,
)
from stepfast.stores.base import Store
from stepfast.stores.postgres import PostgresStore
from tests.stores.conftest import Opener, wait_until
from tests.stores.faults import Proxy, over
from tests.stores.kit import create, finish, keys, new_intent, open_run, record, record_op, step

Batch = Sequence[Op[Any]]
Scene = Callable[[Store], Batch]


def lease_of(opened: Opened) -> Lease:
    assert opened.lease is not None
    return opened.lease


def ask_op(opened: Opened) -> AskDecision:
    return AskDecision(
        lease=lease_of(opened),
        journal_id=opened.intent.journal_id,
        key="q",
        kind="ask",
        question=b"?",
        outcomes=["yes"],
    )


def with_run(make: Callable[[Store, Opened], Batch]) -> Scene:
    return lambda store: make(store, open_run(store))


def started(store: Store, opened: Opened) -> Opened:
    record(store, opened, step(1, StepStatus.STARTED))
    return opened


def settle_op(opened: Opened) -> SettleStep:
    return SettleStep(lease=lease_of(opened), journal_id=opened.intent.journal_id, step=step(1, seal="done"))


def asked(store: Store, opened: Opened) -> Opened:
    store.one(ask_op(opened))
    return opened


def checkpoint_op(opened: Opened) -> PutCheckpoint:
    journal = opened.intent.journal_id
    return PutCheckpoint(
        lease=lease_of(opened),
        checkpoint=Checkpoint(
            journal_id=journal, version=1, pin="p", state=b"s", meta=b"", blob_id=None, attempt=1, at=1, seal=b"x"
        ),
    )


def finish_op(opened: Opened, status: Status = Status.COMPLETED) -> FinishIntent:
    return FinishIntent(intent_id=opened.intent.intent_id, status=status, lease=lease_of(opened), result=b"r")


def failed(store: Store) -> str:
    opened = open_run(store)
    finish(store, opened, Status.FAILED)
    return opened.intent.intent_id


def claim_among_three(store: Store) -> Batch:
    for _ in range(3):
        create(store)
    return [Claim(to_agent="agent", token="t", owner="o", lease_seconds=60, limit=2)]


def prune_one(store: Store) -> Batch:
    finish(store, open_run(store))
    return [Prune(keep_latest=0)]


# Each prepares what it needs, and gives the batch that the wire breaks under.
SCENES: dict[str, Scene] = {
    "create": lambda store: [CreateIntent(new=new_intent(idempotency_key="k", labels={"a": "b"}))],
    "open": lambda store: [OpenIntent(token="t", owner="o", lease_seconds=60, new=new_intent(run_id="r"))],
    "open again": with_run(
        lambda store, run: [
            OpenIntent(token="u", owner="o", lease_seconds=60, intent_id=run.intent.intent_id, dead_attempt=1)
        ]
    ),
    "claim": claim_among_three,
    "record": with_run(lambda store, run: [record_op(run, step(1))]),
    "record three": with_run(lambda store, run: [record_op(run, step(n)) for n in range(3)]),
    "settle": with_run(lambda store, run: [settle_op(started(store, run))]),
    "settle and start": with_run(
        lambda store, run: [settle_op(started(store, run)), record_op(run, step(2, StepStatus.STARTED))]
    ),
    "settle and finish": with_run(lambda store, run: [settle_op(started(store, run)), finish_op(run)]),
    "void": with_run(
        lambda store, run: [
            VoidSteps(
                lease=lease_of(started(store, run)), journal_id=run.intent.journal_id, steps=[("f#1", 0)], reason="bad"
            )
        ]
    ),
    "renew": with_run(lambda store, run: [RenewLease(lease=lease_of(run), lease_seconds=60)]),
    "release": with_run(lambda store, run: [ReleaseIntent(lease=lease_of(run), reason="later")]),
    "release as lost": with_run(lambda store, run: [ReleaseIntent(lease=lease_of(run), reason="crash", lost=True)]),
    "lose the last delivery": lambda store: [
        ReleaseIntent(lease=lease_of(open_run(store, max_delivery_attempts=1)), reason="crash", lost=True)
    ],
    "finish": with_run(lambda store, run: [finish_op(run)]),
    "cancel": with_run(
        lambda store, run: [
            FinishIntent(intent_id=run.intent.intent_id, status=Status.CANCELED, reason="no more", actor="ann")
        ]
    ),
    "revive": lambda store: [ReviveIntent(intent_id=failed(store), new_id=new_id())],
    "ask": with_run(lambda store, run: [ask_op(run)]),
    "ask and suspend": with_run(
        lambda store, run: [
            ask_op(run),
            SuspendIntent(lease=lease_of(run), waiting_reason="WAITING_FOR_HUMAN", keys=["q"]),
        ]
    ),
    "suspend, answered": with_run(
        lambda store, run: [SuspendIntent(lease=lease_of(asked(store, run)), waiting_reason="WAITING_FOR_HUMAN")]
    ),
    "answer": with_run(
        lambda store, run: [
            AnswerDecision(journal_id=asked(store, run).intent.journal_id, key="q", outcome="yes", actor="ann")
        ]
    ),
    "checkpoint": with_run(lambda store, run: [checkpoint_op(run)]),
    "checkpoint and finish": with_run(lambda store, run: [checkpoint_op(run), finish_op(run)]),
    "pieces and step": with_run(
        lambda store, run: [
            *(PutPiece(journal_id=run.intent.journal_id, blob_id="b", number=n, data=b"x" * 50_000) for n in range(3)),
            record_op(run, step(1)),
        ]
    ),
    "note": with_run(
        lambda store, run: [
            AppendEvent(intent_id=run.intent.intent_id, lease=lease_of(run), note_id="n", event_type="intent.note")
        ]
    ),
    "policy": lambda store: [SetTypePolicy(intent_type="run", max_delivery_attempts=5)],
    "sweep": with_run(lambda store, run: [Sweep()]),
    "prune": prune_one,
    "check": lambda store: [CheckWritable()],
}


def world(store: Store, tenant: str) -> Any:
    """What a batch left behind, without what differs from one run to the next."""
    found = []
    for intent in store.one(ListIntents(), tenant=tenant):
        events = store.one(ReadEvents(intent_id=intent.intent_id), tenant=tenant)
        assert fold(events) == (intent.status, intent.seq, intent.head)
        steps = store.one(ReadJournal(journal_id=intent.journal_id, voided=True), tenant=tenant)
        versions = store.one(ReadCheckpoints(journal_id=intent.journal_id), tenant=tenant)
        found.append(
            (
                str(intent.status),
                intent.attempt,
                intent.lost,
                intent.leased,
                [event.event_type for event in events],
                [(s.key, s.status, s.voided) for s in steps],
                [v.version for v in versions],
            )
        )
    return sorted(found)


class Tenant(Store):
    """A store as one tenant sees it, so that every try starts from nothing."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.url, store.clock)
        self._store = store
        self.tenant = new_id()

    def execute(self, ops: Batch, *, tenant: str = "") -> list[Any]:
        return self._store.execute(ops, tenant=self.tenant)

    def submit(self, ops: Batch, done: Any, *, tenant: str = "") -> None:
        raise NotImplementedError

    def close(self) -> None: ...


@pytest.fixture
def faulty(open_store: Opener, proxy: Proxy, pg_url: str) -> PostgresStore:
    return open_store(over(pg_url, proxy.port), commit_timeout=20.0)


def shape(results: list[Any]) -> list[str]:
    return [type(result).__name__ for result in results]


@pytest.mark.parametrize("scene", SCENES)
def test_a_cut_wire_loses_nothing_and_doubles_nothing(
    scene: str, store: PostgresStore, faulty: PostgresStore, proxy: Proxy
) -> None:
    def run(cut: tuple[str, int] | None) -> tuple[Any, list[str]]:
        tenant = Tenant(store)
        batch = SCENES[scene](tenant)
        proxy.count()
        if cut is not None:
            proxy.cut(*cut)  # type: ignore[arg-type]
        results = faulty.execute(batch, tenant=tenant.tenant)
        return world(store, tenant.tenant), shape(results)

    run(None)
    expected = run(None)
    sizes = dict(proxy.passed)

    tried = 0
    for way, size in sizes.items():
        for after in sorted({0, 1, *range(0, size, max(1, size // 9)), size - 1}):
            assert run((way, after)) == expected, f"{way} cut after {after} of {size} bytes"
            tried += 1
    assert proxy.cuts >= tried


def test_every_byte_of_a_steps_answer_may_be_the_last(
    store: PostgresStore, faulty: PostgresStore, proxy: Proxy
) -> None:
    opened = open_run(store)
    record(faulty, opened, step(0))
    proxy.count()
    record(faulty, opened, step(1))

    number = 2
    for after in range(proxy.passed["response"] + 1):
        proxy.cut("response", after)
        record(faulty, opened, step(number))
        number += 1

    assert keys(store, opened) == [f"f#{n}" for n in range(number)]


def test_a_group_cut_in_the_middle_is_resolved_for_each_of_its_callers(
    store: PostgresStore, faulty: PostgresStore, proxy: Proxy
) -> None:
    runs = [open_run(store) for _ in range(8)]
    done = [0] * len(runs)
    errors: list[BaseException] = []
    enough = threading.Event()

    def work(place: int) -> None:
        try:
            while not enough.is_set():
                record(faulty, runs[place], step(done[place]))
                done[place] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(runs))]
    for thread in threads:
        thread.start()
    for number in range(20):
        before = sum(done)
        wait_until(lambda: bool(errors) or sum(done) > before + 20, "no progress")  # noqa: B023
        proxy.cut("response" if number % 2 else "request", number * 67 % 1500)
        wait_until(lambda: bool(errors) or proxy.cuts > number, "no cut")  # noqa: B023
    enough.set()
    for thread in threads:
        thread.join()

    assert errors == []
    for opened, count in zip(runs, done, strict=True):
        assert keys(store, opened) == [f"f#{n}" for n in range(count)]


def test_an_answer_that_never_comes_is_looked_up_after_the_timeout(
    open_store: Opener, proxy: Proxy, pg_url: str, store: PostgresStore
) -> None:
    faulty = open_store(over(pg_url, proxy.port), commit_timeout=0.3)
    opened = open_run(faulty)
    record(faulty, opened, step(0))
    proxy.swallow(True)
    releasing = threading.Timer(0.4, proxy.swallow, [False])
    releasing.start()

    record(faulty, opened, step(1))

    releasing.join()
    assert keys(store, opened) == ["f#0", "f#1"]


def test_where_nothing_can_be_found_out_the_outcome_is_unknown_and_the_same_call_settles_it(
    open_store: Opener, proxy: Proxy, pg_url: str, store: PostgresStore
) -> None:
    faulty = open_store(over(pg_url, proxy.port), commit_timeout=0.3, connect_timeout=2)
    opened = open_run(faulty)
    record(faulty, opened, step(0))
    proxy.swallow(True)

    with pytest.raises(OutcomeUnknown, match="made again"):
        record(faulty, opened, step(1))

    proxy.swallow(False)
    assert keys(store, opened) == ["f#0", "f#1"]
    record(faulty, opened, step(1))
    assert keys(store, opened) == ["f#0", "f#1"]


def test_a_store_that_cannot_be_reached_has_surely_written_nothing(
    open_store: Opener, proxy: Proxy, pg_url: str
) -> None:
    faulty = open_store(over(pg_url, proxy.port), connect_timeout=0.2)
    opened = open_run(faulty)
    proxy.close()

    for attempt in range(2):
        with pytest.raises(StoreUnavailable, match=r"[Nn]othing was written"):
            record(faulty, opened, step(attempt))
    with pytest.raises(StoreUnavailable):
        keys(faulty, opened)


def test_an_interrupted_caller_leaves_the_store_in_order(store: PostgresStore) -> None:
    from stepfast import _failpoints

    opened = open_run(store)

    def interrupt(name: str) -> None:
        if name == "postgres.before_send":
            raise KeyboardInterrupt

    _failpoints.install(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            record(store, opened, step(1))
    finally:
        _failpoints.uninstall()

    record(store, opened, step(1))
    assert keys(store, opened) == ["f#1"]


def test_a_refused_request_does_not_spoil_its_group(store: PostgresStore) -> None:
    runs = [open_run(store) for _ in range(8)]
    zombie = open_run(store)
    finish(store, zombie)
    outcomes: dict[str, Any] = {}

    def work(name: str, op: Op[Any]) -> None:
        try:
            outcomes[name] = store.one(op)
        except StepfastError as error:
            outcomes[name] = type(error).__name__

    for number in range(10):
        batch: list[tuple[str, Op[Any]]] = [(f"{n}", record_op(run, step(number))) for n, run in enumerate(runs)]
        batch.append(
            ("zombie", RecordStep(lease=lease_of(zombie), journal_id=zombie.intent.journal_id, step=step(number)))
        )
        batch.append(("note", AppendEvent(intent_id="nobody", lease=None, note_id="n", event_type="intent.note")))
        threads = [threading.Thread(target=work, args=item) for item in batch]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes == {**dict.fromkeys(map(str, range(8))), "zombie": "AlreadyFinished", "note": "NotFound"}

    for run in runs:
        assert len(keys(store, run)) == 10

"""Writes of an attempt that loses its intent at the worst moment: after it looked, before it writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from stepfast import Fenced
from stepfast.clock import new_id
from stepfast.intents import Status
from stepfast.journal import Step, StepStatus
from stepfast.ops import (
    AppendEvent,
    AskDecision,
    Checkpoint,
    FinishIntent,
    GetIntent,
    Lease,
    ListDecisions,
    NewIntent,
    Op,
    OpenIntent,
    PutCheckpoint,
    ReadCheckpoints,
    ReadEvents,
    ReadJournal,
    RecordStep,
    ReleaseIntent,
    RenewLease,
    SettleStep,
    SuspendIntent,
    VoidSteps,
)
from stepfast.stores import Store
from stepfast.testing import on_failpoint
from stepfast.testing.contract_kit import check_history


def step(key: str, status: StepStatus, attempt: int) -> Step:
    done = status is StepStatus.FINISHED
    return Step(
        key, 0, 1, "once", "work", "", status, b"", b"", b"done" if done else None, None, None, attempt, 1,
        2 if done else None, b"seal" + status.value.encode(),
    )  # fmt: skip


def checkpoint(journal: str, attempt: int) -> Checkpoint:
    return Checkpoint(
        journal_id=journal,
        version=1,
        pin=None,
        state=b"s",
        meta=b"m",
        blob_id=None,
        attempt=attempt,
        at=1,
        seal=b"seal",
    )


#: Every write that a lease allows, as the attempt that has it would make it.
WRITES: dict[str, Callable[[Lease], Op[Any]]] = {
    "record": lambda x: RecordStep(lease=x, journal_id=x.intent_id, step=step("late", StepStatus.FINISHED, x.attempt)),
    "settle": lambda x: SettleStep(lease=x, journal_id=x.intent_id, step=step("begun", StepStatus.FINISHED, x.attempt)),
    "void": lambda x: VoidSteps(lease=x, journal_id=x.intent_id, steps=[("begun", 0)], reason="late"),
    "finish": lambda x: FinishIntent(intent_id=x.intent_id, status=Status.COMPLETED, lease=x, result=b"late"),
    "renew": lambda x: RenewLease(lease=x, lease_seconds=10.0),
    "release": lambda x: ReleaseIntent(lease=x, reason="late"),
    "ask": lambda x: AskDecision(
        lease=x, journal_id=x.intent_id, key="late", kind="ask", question=b"?", outcomes=["yes"]
    ),
    "suspend": lambda x: SuspendIntent(lease=x, waiting_reason="WAITING_FOR_HUMAN"),
    "checkpoint": lambda x: PutCheckpoint(lease=x, checkpoint=checkpoint(x.intent_id, x.attempt)),
    "note": lambda x: AppendEvent(intent_id=x.intent_id, lease=x, note_id="late", event_type="intent.noted"),
}


def take(store: Store, new: NewIntent | None, intent_id: str | None, dead: int | None) -> Lease:
    opened = store.one(
        OpenIntent(
            token=new_id(), owner="somebody", lease_seconds=60.0, new=new, intent_id=intent_id, dead_attempt=dead
        )
    )
    assert opened.lease is not None
    return opened.lease


def begin(store: Store) -> Lease:
    """An intent that is held, with a one-shot step begun."""
    name = new_id()
    lease = take(store, NewIntent(intent_id=name, intent_type="t", to_agent=f"agent://{name}"), None, None)
    store.one(RecordStep(lease=lease, journal_id=name, step=step("begun", StepStatus.STARTED, 1)))
    return lease


def held(store: Store, intent_id: str) -> tuple[Any, ...]:
    """All that the store has of an intent."""
    return (
        store.one(GetIntent(intent_id=intent_id)),
        store.one(ReadEvents(intent_id=intent_id)),
        store.one(ReadJournal(journal_id=intent_id, voided=True)),
        store.one(ReadCheckpoints(journal_id=intent_id)),
        store.one(ListDecisions(journal_id=intent_id, pending=False)),
    )


def check_fenced_in_the_write(store: Store, other: Store, write: str, moment: str) -> None:
    """The intent is taken over when the write is already on its way: nothing of it may count."""
    lease = begin(store)
    after: list[Any] = []

    def overtake() -> None:
        take(other, None, lease.intent_id, lease.attempt)
        after.append(held(other, lease.intent_id))

    with on_failpoint(moment, overtake), pytest.raises(Fenced):
        store.one(WRITES[write](lease))
    assert after, "the intent was to be taken over"
    assert held(store, lease.intent_id) == after[0], "a fenced write left something behind"


def check_gapless_over_two_stores(store: Store, other: Store, notes: int) -> None:
    """Two stores, as two processes would have them, write the history of one intent at once."""
    name = begin(store).intent_id
    failures: list[BaseException] = []

    def write(where: Store, who: str) -> None:
        try:
            for number in range(notes):
                where.one(AppendEvent(intent_id=name, lease=None, note_id=f"{who}-{number}", event_type="intent.noted"))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(where, f"{n}")) for n, where in enumerate([store, other] * 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    events = store.one(ReadEvents(intent_id=name, limit=10_000))
    check_history(store.one(GetIntent(intent_id=name)), events)
    assert sum(event.event_type == "intent.noted" for event in events) == 4 * notes

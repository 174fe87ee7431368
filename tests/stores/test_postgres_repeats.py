"""A request whose answer was lost is made again, perhaps after others went on: it changes nothing more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stepfast.errors import Fenced
from stepfast.intents import Status
from stepfast.journal import StepStatus
from stepfast.ops import (
    AskDecision,
    Checkpoint,
    FinishIntent,
    GetIntent,
    Lease,
    Op,
    Opened,
    OpenIntent,
    PutCheckpoint,
    ReleaseIntent,
    RenewLease,
    SettleStep,
    SuspendIntent,
    VoidSteps,
)
from stepfast.stores.base import Store
from stepfast.stores.sqlite import SqliteStore
from tests.stores.kit import history, open_run, record, record_op, step


@pytest.fixture(params=["sqlite", "postgres"])
def any_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "postgres":
        yield request.getfixturevalue("store")
    else:
        with SqliteStore(":memory:") as memory:
            yield memory


def lease_of(opened: Opened) -> Lease:
    assert opened.lease is not None
    return opened.lease


def checkpoint(opened: Opened) -> Op[Any]:
    made = Checkpoint(
        journal_id=opened.intent.journal_id,
        version=1,
        pin=None,
        state=b"s",
        meta=b"",
        blob_id=None,
        attempt=1,
        at=1,
        seal=b"x",
    )
    return PutCheckpoint(lease=lease_of(opened), checkpoint=made)


def ask(opened: Opened) -> Op[Any]:
    return AskDecision(
        lease=lease_of(opened), journal_id=opened.intent.journal_id, key="q", kind="ask", question=b"?", outcomes=["y"]
    )


def suspend(opened: Opened) -> Op[Any]:
    return SuspendIntent(lease=lease_of(opened), waiting_reason="WAITING_FOR_TIME")


def void(opened: Opened) -> Op[Any]:
    return VoidSteps(lease=lease_of(opened), journal_id=opened.intent.journal_id, steps=[("f#1", 0)], reason="bad")


def settle(opened: Opened) -> Op[Any]:
    return SettleStep(lease=lease_of(opened), journal_id=opened.intent.journal_id, step=step(2, seal="done"))


BATCHES: dict[str, Callable[[Opened], list[Op[Any]]]] = {
    "record": lambda run: [record_op(run, step(3))],
    "settle": lambda run: [settle(run)],
    "void": lambda run: [void(run)],
    "checkpoint": lambda run: [checkpoint(run)],
    "ask": lambda run: [ask(run)],
    "suspend": lambda run: [suspend(run)],
    "ask and suspend": lambda run: [ask(run), suspend(run)],
    "checkpoint and suspend": lambda run: [checkpoint(run), suspend(run)],
    "settle, void and release": lambda run: [
        settle(run),
        void(run),
        ReleaseIntent(lease=lease_of(run), reason="later"),
    ],
    "release": lambda run: [ReleaseIntent(lease=lease_of(run), reason="later")],
    "release as lost": lambda run: [ReleaseIntent(lease=lease_of(run), reason="crash", lost=True)],
}


def prepared(store: Store) -> Opened:
    opened = open_run(store)
    record(store, opened, step(1))
    record(store, opened, step(2, StepStatus.STARTED))
    return opened


def take_over(store: Store, opened: Opened) -> None:
    """Another worker gets the intent, after its lease has run out if need be."""
    store.clock.advance(1000)
    intent = store.one(GetIntent(intent_id=opened.intent.intent_id))
    if intent.status is Status.WAITING:
        # Waiting for time: whoever holds the key resumes it, here by canceling and looking on.
        store.one(FinishIntent(intent_id=intent.intent_id, status=Status.CANCELED, actor="ann"))
        return
    taken = store.one(OpenIntent(token="other", owner="o", lease_seconds=60, intent_id=intent.intent_id))
    assert taken.lease is not None
    assert taken.lease.attempt == 2


@pytest.mark.parametrize("name", BATCHES)
def test_a_repeat_after_others_went_on_finds_what_it_did(any_store: Store, name: str) -> None:
    opened = prepared(any_store)
    batch = BATCHES[name](opened)
    any_store.execute(batch)
    take_over(any_store, opened)
    before = history(any_store, opened.intent.intent_id)

    results = any_store.execute(batch)

    assert len(results) == len(batch)
    assert history(any_store, opened.intent.intent_id) == before


@pytest.mark.parametrize("name", BATCHES)
def test_what_was_never_done_is_refused_after_others_went_on(any_store: Store, name: str) -> None:
    opened = prepared(any_store)
    take_over(any_store, opened)
    before = history(any_store, opened.intent.intent_id)

    with pytest.raises(Fenced):
        any_store.execute(BATCHES[name](opened))

    assert history(any_store, opened.intent.intent_id) == before


def test_a_renewal_is_refused_after_others_went_on(any_store: Store) -> None:
    opened = prepared(any_store)
    take_over(any_store, opened)

    with pytest.raises(Fenced):
        any_store.one(RenewLease(lease=lease_of(opened), lease_seconds=60))

"""Short words for what these tests do to a store."""

from __future__ import annotations

from typing import Any

from stepfast.clock import new_id
from stepfast.intents import Intent, Status
from stepfast.journal import Step, StepStatus
from stepfast.ops import (
    Claim,
    Created,
    CreateIntent,
    FinishIntent,
    NewIntent,
    Opened,
    OpenIntent,
    ReadEvents,
    ReadJournal,
    RecordStep,
)
from stepfast.stores.base import Store


def new_intent(**columns: Any) -> NewIntent:
    return NewIntent(**{"intent_id": new_id(), "intent_type": "run", "to_agent": "agent", **columns})


def create(store: Store, **columns: Any) -> Created:
    return store.one(CreateIntent(new=new_intent(**columns)))


def open_run(store: Store, *, token: str = "token", lease_seconds: float = 300.0, **columns: Any) -> Opened:
    opened = store.one(
        OpenIntent(
            token=token, owner="me", lease_seconds=lease_seconds, new=new_intent(**{"run_id": new_id(), **columns})
        )
    )
    assert opened.lease is not None
    return opened


def step(number: int, status: StepStatus = StepStatus.FINISHED, *, attempt: int = 1, seal: str = "") -> Step:
    return Step(
        f"f#{number}", 0, number, "step", "f", "", status, b"h" * 16, b"", b"result", None, None, attempt, 1, 2,
        f"seal{number}{seal}".encode(),
    )  # fmt: skip


def record_op(opened: Opened, what: Step) -> RecordStep:
    assert opened.lease is not None
    return RecordStep(lease=opened.lease, journal_id=opened.intent.journal_id, step=what)


def record(store: Store, opened: Opened, what: Step) -> None:
    store.one(record_op(opened, what))


def finish(store: Store, opened: Opened, status: Status = Status.COMPLETED) -> Intent:
    assert opened.lease is not None
    return store.one(FinishIntent(intent_id=opened.intent.intent_id, status=status, lease=opened.lease))


def claim(store: Store, token: str, *, limit: int = 1, to_agent: str = "agent") -> list[Intent]:
    return store.one(Claim(to_agent=to_agent, token=token, owner="me", lease_seconds=300.0, limit=limit))


def keys(store: Store, opened: Opened) -> list[str]:
    return [found.key for found in store.one(ReadJournal(journal_id=opened.intent.journal_id))]


def history(store: Store, intent_id: str) -> list[str]:
    return [event.event_type for event in store.one(ReadEvents(intent_id=intent_id))]

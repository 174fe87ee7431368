"""Intents, their events, and the one table that says how an intent may move."""

from __future__ import annotations

from enum import StrEnum
from hashlib import blake2b
from typing import Any

import msgspec

from stepfast.clock import from_micros
from stepfast.errors import AlreadyFinished, InvalidTransition

__all__ = [
    "TERMINAL",
    "TRANSITIONS",
    "Event",
    "Intent",
    "Status",
    "WaitingReason",
    "chain",
    "check_transition",
    "fold",
]


class Status(StrEnum):
    """Where an intent is in its life; `TRANSITIONS` says where it may go from there."""

    CREATED = "CREATED"
    SUBMITTED = "SUBMITTED"
    DELIVERED = "DELIVERED"
    IN_PROGRESS = "IN_PROGRESS"
    WAITING = "WAITING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    TIMED_OUT = "TIMED_OUT"


class WaitingReason(StrEnum):
    WAITING_FOR_HUMAN = "WAITING_FOR_HUMAN"
    WAITING_FOR_TOOL = "WAITING_FOR_TOOL"
    WAITING_FOR_AGENT = "WAITING_FOR_AGENT"
    WAITING_FOR_TIME = "WAITING_FOR_TIME"


TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELED, Status.TIMED_OUT})

# The whole lifecycle. A redelivery is IN_PROGRESS → IN_PROGRESS: the status stays, the attempt rises.
TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.CREATED: frozenset({Status.SUBMITTED}) | TERMINAL,
    Status.SUBMITTED: frozenset({Status.DELIVERED}) | TERMINAL,
    Status.DELIVERED: frozenset({Status.IN_PROGRESS, Status.WAITING}) | TERMINAL,
    Status.IN_PROGRESS: frozenset({Status.IN_PROGRESS, Status.WAITING}) | TERMINAL,
    Status.WAITING: frozenset({Status.IN_PROGRESS, Status.WAITING}) | TERMINAL,
    Status.COMPLETED: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELED: frozenset(),
    Status.TIMED_OUT: frozenset(),
}


def check_transition(intent_id: str, old: Status, new: Status) -> None:
    if new in TRANSITIONS[old]:
        return
    if old in TERMINAL:
        raise AlreadyFinished(
            f"intent {intent_id} is {old} and stays so; it cannot become {new}. "
            "Revive it or send a new intent to have the work done again.",
            intent_id=intent_id,
            status=str(old),
        )
    raise InvalidTransition(f"intent {intent_id} cannot go from {old} to {new}.", intent_id=intent_id)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an intent's history. ``data`` is the writer's own value, opaque to the store."""

    intent_id: str
    seq: int
    event_type: str
    status: Status
    at: int
    attempt: int
    actor: str = ""
    details: dict[str, Any] = {}
    data: bytes | None = None
    digest: bytes = b""

    def as_dict(self) -> dict[str, Any]:
        moment = from_micros(self.at)
        return {
            "intent_id": self.intent_id,
            "seq": self.seq,
            "event_type": self.event_type,
            "status": str(self.status),
            "at": moment.isoformat().replace("+00:00", "Z") if moment else None,
            "attempt": self.attempt,
            "actor": self.actor or None,
            "details": self.details,
        }


def chain(previous: bytes, event: Event) -> bytes:
    """The digest that ties an event to all before it."""
    body = msgspec.msgpack.encode(
        (
            event.intent_id,
            event.seq,
            event.event_type,
            str(event.status),
            event.at,
            event.attempt,
            event.actor,
            msgspec.json.encode(event.details),
            event.data,
        )
    )
    return blake2b(previous + body, digest_size=16).digest()


def fold(events: list[Event]) -> tuple[Status, int, bytes]:
    """Status, length and head digest that a history adds up to; raises ValueError where it does not."""
    status, head = Status.CREATED, b""
    ended = False
    for number, event in enumerate(events, 1):
        if event.seq != number:
            raise ValueError(f"event {number} of {event.intent_id} is numbered {event.seq}")
        head = chain(head, event)
        if head != event.digest:
            raise ValueError(f"event {number} of {event.intent_id} does not follow from the one before")
        if ended and event.status is not status:
            raise ValueError(f"event {number} of {event.intent_id} changes a status that was final")
        if number > 1 and event.status is not status and event.status not in TRANSITIONS[status]:
            raise ValueError(f"event {number} of {event.intent_id} goes from {status} to {event.status}")
        status = event.status
        ended = ended or status in TERMINAL
    return status, len(events), head


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A durable piece of work, as the store holds it. Times are microseconds since the epoch."""

    intent_id: str
    run_id: str | None = None
    journal_id: str = ""
    intent_type: str = ""
    to_agent: str = ""
    from_agent: str | None = None
    correlation_id: str | None = None
    payload: bytes | None = None
    meta: bytes | None = None
    labels: dict[str, str] = {}
    status: Status = Status.CREATED
    waiting_reason: str | None = None
    attempt: int = 0
    lost: int = 0
    max_delivery_attempts: int = 3
    claimable_at: int | None = None
    leased: bool = False
    lease_token: str | None = None
    owner: str | None = None
    deadline_at: int | None = None
    created_at: int = 0
    updated_at: int = 0
    finished_at: int | None = None
    result: bytes | None = None
    error: bytes | None = None
    reason: str | None = None
    total_steps: int | None = None
    seq: int = 0
    head: bytes = b""
    idempotency_key: str | None = None
    body_hash: bytes | None = None
    revived_from: str | None = None
    superseded_by: str | None = None

    @property
    def finished(self) -> bool:
        return self.status in TERMINAL

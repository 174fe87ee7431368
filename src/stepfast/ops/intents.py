"""Intents: created, found, moved and ended."""

from __future__ import annotations

from typing import Any

import msgspec

from stepfast.intents import Intent, Status
from stepfast.ops.base import Lease, Op


class NewIntent(msgspec.Struct, frozen=True, kw_only=True):
    intent_id: str
    intent_type: str
    to_agent: str
    run_id: str | None = None
    from_agent: str | None = None
    correlation_id: str | None = None
    payload: bytes | None = None
    meta: bytes | None = None
    labels: dict[str, str] = {}
    idempotency_key: str | None = None
    body_hash: bytes | None = None
    deadline_at: int | None = None
    ttl_seconds: float | None = None
    not_before: int | None = None
    delay_seconds: float | None = None
    max_delivery_attempts: int | None = None
    total_steps: int | None = None


class Created(msgspec.Struct, frozen=True):
    intent: Intent
    existed: bool


class CreateIntent(Op[Created], frozen=True, kw_only=True):
    """The same idempotency key (or run id) and body give the same intent; another body is a Conflict."""

    new: NewIntent


class GetIntent(Op[Intent], frozen=True, kw_only=True):
    """By id, or by run id; NotFound if there is none."""

    reads = True
    intent_id: str | None = None
    run_id: str | None = None


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """All that is given must hold. ``before`` is the id after which the next page goes on."""

    statuses: list[Status] = []
    to_agent: str | None = None
    intent_type: str | None = None
    labels: dict[str, str] = {}
    before: str | None = None
    limit: int = 50


class ListIntents(Op[list[Intent]], frozen=True, kw_only=True):
    """Newest first."""

    reads = True
    where: Filter = Filter()


class FinishIntent(Op[Intent], frozen=True, kw_only=True):
    """The one ending. With a lease it is the worker's; without, somebody's from outside."""

    intent_id: str
    status: Status
    lease: Lease | None = None
    result: bytes | None = None
    error: bytes | None = None
    reason: str | None = None
    actor: str = ""


class ReviveIntent(Op[Created], frozen=True, kw_only=True):
    """A new intent that takes over the journal, payload and run id of one that ended without completing."""

    intent_id: str
    new_id: str
    actor: str = ""
    deadline_at: int | None = None


class MoveIntent(Op[Intent], frozen=True, kw_only=True):
    """Let an intent that no attempt holds wait (for a person, a time, another agent) or go on; safe to repeat
    with the same ``note_id``.

    ``claimable`` says whether a worker may take it from now on. One that waits, or that is handled from outside,
    is kept from workers. An intent that an attempt holds is a Conflict.
    """

    intent_id: str
    status: Status
    note_id: str
    waiting_reason: str | None = None
    claimable: bool = False
    details: dict[str, Any] = {}
    data: bytes | None = None
    actor: str = ""


class SetTypePolicy(Op[None], frozen=True, kw_only=True):
    """The default number of delivery attempts for intents of a type."""

    intent_type: str
    max_delivery_attempts: int

"""Questions that a run waits on, and their answers."""

from __future__ import annotations

from typing import Literal

import msgspec

from stepfast.intents import Intent
from stepfast.ops.base import Lease, Op


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A question a run waits on. ``question``, ``value`` and ``comment`` are values of the asker's codec."""

    journal_id: str
    key: str
    intent_id: str
    kind: Literal["ask", "in_doubt", "resume"]
    question: bytes
    outcomes: list[str]
    comment_required: bool = False
    asked_at: int = 0
    expires_at: int | None = None
    default_outcome: str | None = None
    attempt: int = 0
    outcome: str | None = None
    value: bytes | None = None
    comment: bytes | None = None
    actor: str | None = None
    answered_at: int | None = None


class AskDecision(Op[Decision], frozen=True, kw_only=True):
    """Record the question; a repeat gives the decision as it stands, answered or not."""

    lease: Lease
    journal_id: str
    key: str
    kind: Literal["ask", "in_doubt", "resume"]
    question: bytes
    outcomes: list[str]
    comment_required: bool = False
    expires_in: float | None = None
    default_outcome: str | None = None


class SuspendIntent(Op[Intent], frozen=True, kw_only=True):
    """Give up the lease and wait. If one of ``keys`` has its answer already, the intent is claimable at once."""

    lease: Lease
    waiting_reason: str
    keys: list[str] = []


class AnswerDecision(Op[Decision], frozen=True, kw_only=True):
    """The same answer again is fine; a different one is AlreadyAnswered."""

    journal_id: str
    key: str
    outcome: str
    value: bytes | None = None
    comment: bytes | None = None
    actor: str = ""


class ListDecisions(Op[list[Decision]], frozen=True, kw_only=True):
    reads = True
    journal_id: str | None = None
    pending: bool = True
    limit: int = 100

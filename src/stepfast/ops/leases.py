"""Leases: who may write for an intent now, and what time does by itself."""

from __future__ import annotations

import msgspec

from stepfast.intents import Intent
from stepfast.ops.base import Lease, Op
from stepfast.ops.intents import NewIntent


class Claim(Op[list[Intent]], frozen=True, kw_only=True):
    """The next intents for an address, each with its attempt raised. Safe to repeat with the same token."""

    to_agent: str
    token: str
    owner: str
    lease_seconds: float
    limit: int = 1


class Opened(msgspec.Struct, frozen=True):
    """``lease`` is None where the intent is finished or another owner holds it."""

    intent: Intent
    lease: Lease | None
    existed: bool


class OpenIntent(Op[Opened], frozen=True, kw_only=True):
    """Create if need be, then claim that one intent.

    ``dead_attempt`` says that the caller has seen the owner of that attempt dead, so that its lease
    need not run out.
    """

    token: str
    owner: str
    lease_seconds: float
    new: NewIntent | None = None
    intent_id: str | None = None
    dead_attempt: int | None = None


class RenewLease(Op[int], frozen=True, kw_only=True):
    """Gives the new end of the lease."""

    lease: Lease
    lease_seconds: float


class ReleaseIntent(Op[Intent], frozen=True, kw_only=True):
    """Hand the intent back. ``lost`` says that the delivery was lost; otherwise it costs no attempt.

    Deliveries lost in a row without a newly finished step are counted, and the last one ends the intent. ``data`` is
    the error that ended the delivery, if there was one; then ``reason`` is its text, and both become the intent's own.
    """

    lease: Lease
    reason: str
    lost: bool = False
    delay_seconds: float = 0.0
    data: bytes | None = None


class ReleaseOwner(Op[int], frozen=True, kw_only=True):
    """Take what an owner holds as lost deliveries, and hand it on at once: its process is known to be gone."""

    owner: str
    reason: str
    limit: int = 1000


class ListAddresses(Op[list[str]], frozen=True, kw_only=True):
    """The addresses that have work a worker could claim now, in the order of their names."""

    reads = True
    after: str = ""
    limit: int = 1000


class Sweep(Op[int], frozen=True, kw_only=True):
    """Settle what has become due by the store's clock: deadlines, exhausted leases, expired decisions."""

    limit: int = 100

"""Claim, open, renew, release; and what time does by itself."""

from __future__ import annotations

from stepfast.errors import InvalidInput
from stepfast.intents import Intent, Status
from stepfast.ops import Claim, Lease, Opened, OpenIntent, ReleaseIntent, RenewLease, Sweep
from stepfast.stores.plans.decisions import settle_expired
from stepfast.stores.plans.intents import find_or_build, insert
from stepfast.stores.plans.rows import (
    Moment,
    advanced,
    check_limit,
    check_owner,
    gave_up,
    lock,
    lose_delivery,
    note_of,
    owns,
    plain,
    time_out_if_due,
    to_intent,
    to_locked,
    topic_of_address,
    write_all,
)
from stepfast.stores.plans.thread_upkeep import expire_all
from stepfast.stores.sql import Notify, Plan, fetch, fetch_one, query, together

# An expired thread may have many rows, and others wait while they are deleted.
_THREADS_AT_A_TIME = 5


def claim(op: Claim) -> Plan[list[Intent]]:
    if not 1 <= op.limit <= 1000:
        raise InvalidInput(f"limit: must be from 1 to 1000, not {op.limit}.")
    _lease_us(op.lease_seconds)
    held, rows = yield from together(
        query("held_by_token", to_agent=op.to_agent, token=op.token),
        query("next_claimable", to_agent=op.to_agent, limit=op.limit),
    )
    if held:
        return [to_intent(row) for row in held]
    taken: list[Intent] = []
    while rows:
        wanted = op.limit - len(taken)
        moments = [Moment(*to_locked(row)) for row in rows]
        progress = yield from advanced(moments)
        granted = [moment for moment, made in zip(moments, progress, strict=True) if _deliver(moment, op, made)]
        # Some may have ended instead (deadline, deliveries); then there may be others in their place.
        last = len(granted) == wanted or len(rows) < wanted
        yield from write_all(moments, last=last)
        taken += [moment.intent for moment in granted]
        if last:
            break
        rows = yield from fetch("next_claimable", to_agent=op.to_agent, limit=op.limit - len(taken))
    return taken


def _lease_us(seconds: float) -> int:
    """A lease of less than a millisecond would run out under the claim that takes it."""
    if not seconds >= 0.001:
        raise InvalidInput(f"lease_seconds: must be at least 0.001, not {seconds}.")
    return int(seconds * 1_000_000)


def _deliver(
    moment: Moment, op: Claim | OpenIntent, progress: bool = False, why_lost: str = "its lease ran out"
) -> bool:
    """Grants the lease; False if the intent ended instead (deadline passed, or no delivery left).

    ``progress`` says whether the attempt that holds the lease so far had a newly finished step.
    """
    if time_out_if_due(moment):
        return False
    if moment.intent.leased and lose_delivery(moment, why_lost, advanced=progress):
        return False
    moment.set(
        attempt=moment.intent.attempt + 1,
        leased=True,
        lease_token=op.token,
        owner=op.owner,
        claimable_at=moment.now + _lease_us(op.lease_seconds),
    )
    moment.move(Status.IN_PROGRESS, "intent.in_progress", details={"owner": op.owner})
    return True


def open_intent(op: OpenIntent) -> Plan[Opened]:
    _lease_us(op.lease_seconds)
    if op.new is not None:
        moment, existed = yield from find_or_build(op.new)
    elif op.intent_id is not None:
        moment, existed = Moment(*(yield from lock(op.intent_id))), True
    else:
        raise InvalidInput("new, intent_id: give one of them.")
    if not existed and op.new is not None:
        granted = _deliver(moment, op)
        yield from insert(moment)
        return Opened(moment.intent, _lease(moment.intent) if granted else None, False)
    intent = moment.intent
    if intent.leased and intent.lease_token == op.token:
        return Opened(intent, _lease(intent), True)
    if intent.finished or not _may_take(moment, op.dead_attempt):
        return Opened(intent, None, True)
    dead = op.dead_attempt is not None and intent.leased and op.dead_attempt == intent.attempt
    [progress] = yield from advanced([moment])
    granted = _deliver(moment, op, progress, "its owner died" if dead else "its lease ran out")
    yield from moment.write()
    return Opened(moment.intent, _lease(moment.intent) if granted else None, True)


def _may_take(moment: Moment, dead_attempt: int | None) -> bool:
    """An embedded open does not wait out a back-off: a person or a script asked for this very run."""
    intent = moment.intent
    if intent.status is Status.WAITING and intent.claimable_at is None:
        return intent.deadline_at is not None and intent.deadline_at <= moment.now
    if not intent.leased or (intent.claimable_at is not None and intent.claimable_at <= moment.now):
        return True
    return dead_attempt == intent.attempt


def _lease(intent: Intent) -> Lease:
    return Lease(intent.intent_id, intent.attempt, intent.lease_token or "")


def renew(op: RenewLease) -> Plan[int]:
    lease = op.lease
    row = yield from fetch_one(
        "renew_lease",
        intent_id=lease.intent_id,
        attempt=lease.attempt,
        token=lease.token,
        lease_us=_lease_us(op.lease_seconds),
    )
    if row is None:
        intent, _ = yield from lock(lease.intent_id)
        check_owner(intent, lease)
        raise InvalidInput("the lease could not be renewed.")
    return int(row[0])


def release(op: ReleaseIntent) -> Plan[Intent]:
    intent, now = yield from lock(op.lease.intent_id)
    if intent.attempt == op.lease.attempt and not intent.leased:
        return intent  # a repeat whose answer was lost, or there is nothing left to hand back
    if not owns(intent, op.lease) and (yield from gave_up("release", op.lease)):
        return intent
    check_owner(intent, op.lease)
    moment = Moment(intent, now)
    note = note_of("release", op.lease)
    reason = plain(op.reason)
    if time_out_if_due(moment, note_id=note):
        return (yield from moment.write())
    yield Notify(topic_of_address(intent.to_agent))
    if op.lost:
        [progress] = yield from advanced([moment])
        if not lose_delivery(moment, reason, advanced=progress, data=op.data, note_id=note):
            moment.set(claimable_at=now + int(op.delay_seconds * 1_000_000))
    else:
        moment.set(leased=False, lease_token=None, owner=None, claimable_at=now + int(op.delay_seconds * 1_000_000))
        moment.tell("intent.released", details={"reason": reason}, data=op.data, note_id=note)
    return (yield from moment.write())


def sweep(op: Sweep) -> Plan[int]:
    check_limit(op.limit)
    settled = 0
    late, stale = yield from together(
        query("past_deadline", limit=op.limit),
        query("expired_threads", limit=min(op.limit, _THREADS_AT_A_TIME)),
    )
    for row in late:
        moment = Moment(*to_locked(row))
        if time_out_if_due(moment):
            yield from moment.write(last=False)
            settled += 1
    for row in (yield from fetch("exhausted_leases", limit=op.limit)):
        moment = Moment(*to_locked(row))
        # The query has looked at the journal, but before the row was locked.
        [progress] = yield from advanced([moment])
        if not (progress or moment.intent.finished) and lose_delivery(moment, "its lease ran out", advanced=False):
            yield from moment.write(last=False)
            settled += 1
    settled += yield from settle_expired(op.limit)
    settled += yield from expire_all(stale)
    return settled

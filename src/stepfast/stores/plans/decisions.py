"""Questions a run waits on, and their answers."""

from __future__ import annotations

import msgspec

from stepfast.errors import AlreadyAnswered, AlreadyFinished, InvalidInput, NotFound
from stepfast.intents import Intent, Status
from stepfast.ops import AnswerDecision, AskDecision, Decision, ListDecisions, SuspendIntent
from stepfast.stores.plans.rows import (
    Moment,
    check_journal,
    check_limit,
    check_owner,
    gave_up,
    lock_and,
    note_of,
    owns,
    to_decision,
    to_locked,
    topic_of_address,
)
from stepfast.stores.sql import Notify, Plan, Query, change, fetch, query, together

EXPIRED = "expired"


def ask(op: AskDecision) -> Plan[Decision]:
    if not op.outcomes:
        raise InvalidInput("outcomes: a question needs at least one allowed outcome.")
    if op.default_outcome is not None and op.default_outcome not in op.outcomes:
        raise InvalidInput(f"default: {op.default_outcome!r} is not among the outcomes {op.outcomes}.")
    known = query("decision", journal_id=op.journal_id, key=op.key)
    (intent, now), (rows,) = yield from lock_and(op.lease.intent_id, known)
    asked = to_decision(rows[0]) if rows else None
    if asked is not None and (asked.intent_id, asked.attempt) == (op.lease.intent_id, op.lease.attempt):
        return asked  # this attempt's own, even where it has given the intent up since
    check_owner(intent, op.lease)
    check_journal(intent, op.journal_id)
    if asked is not None:
        return asked
    decision = Decision(
        journal_id=op.journal_id,
        key=op.key,
        intent_id=intent.intent_id,
        kind=op.kind,
        question=op.question,
        outcomes=op.outcomes,
        comment_required=op.comment_required,
        asked_at=now,
        expires_at=None if op.expires_in is None else now + int(op.expires_in * 1_000_000),
        default_outcome=op.default_outcome,
        attempt=op.lease.attempt,
    )
    columns = msgspec.structs.asdict(decision)
    columns["outcomes"] = msgspec.json.encode(op.outcomes).decode()
    columns["comment_required"] = int(op.comment_required)
    moment = Moment(intent, now)
    moment.tell("intent.human_task_assigned", details={"decision": op.key, "kind": op.kind})
    yield from moment.write(Query("insert_decision", columns))
    return decision


def suspend(op: SuspendIntent) -> Plan[Intent]:
    answered = [query("answered_of_intent", intent_id=op.lease.intent_id, key=key) for key in op.keys]
    (intent, now), found = yield from lock_and(op.lease.intent_id, *answered)
    if intent.attempt == op.lease.attempt and not intent.leased and intent.status is Status.WAITING:
        return intent  # a repeat whose answer was lost
    if not owns(intent, op.lease) and (yield from gave_up("suspend", op.lease)):
        return intent  # the same, and the run went on since
    check_owner(intent, op.lease)
    moment = Moment(intent, now)
    moment.set(leased=False, lease_token=None, owner=None, claimable_at=now if any(found) else None)
    details = {"waiting_reason": op.waiting_reason, "decisions": op.keys}
    moment.move(Status.WAITING, "intent.waiting", details=details, note_id=note_of("suspend", op.lease))
    moment.set(waiting_reason=op.waiting_reason)
    return (yield from moment.write())


def answer(op: AnswerDecision) -> Plan[Decision]:
    carrier, rows = yield from together(
        query("lock_latest_of_journal", journal_id=op.journal_id),
        query("decision", journal_id=op.journal_id, key=op.key),
    )
    if not rows or not carrier:
        raise NotFound(f"there is no decision {op.key!r} for {op.journal_id}.", key=op.key)
    decision = to_decision(rows[0])
    intent, now = to_locked(carrier[0])
    if decision.outcome is not None:
        if (decision.outcome, decision.actor) == (op.outcome, op.actor):
            return decision
        raise AlreadyAnswered(
            f"decision {op.key!r} was answered {decision.outcome!r} by {decision.actor or 'somebody'}; that stands.",
            key=op.key,
            outcome=decision.outcome,
        )
    if op.outcome not in decision.outcomes:
        raise InvalidInput(f"outcome: {op.outcome!r} is not one of {', '.join(decision.outcomes)}.")
    if decision.comment_required and not op.comment:
        raise InvalidInput("comment: this decision needs one.")
    if intent.finished:
        raise AlreadyFinished(
            f"intent {intent.intent_id} is {intent.status}; its decisions are no longer taken.",
            intent_id=intent.intent_id,
            status=str(intent.status),
        )
    if decision.expires_at is not None and decision.expires_at <= now:
        raise AlreadyAnswered(
            f"decision {op.key!r} expired before this answer came; it counts as "
            f"{decision.default_outcome or EXPIRED!r}.",
            key=op.key,
            outcome=decision.default_outcome or EXPIRED,
        )
    return (yield from _settle(decision, Moment(intent, now), op))


def _settle(decision: Decision, moment: Moment, op: AnswerDecision, *, last: bool = True) -> Plan[Decision]:
    answered = msgspec.structs.replace(
        decision,
        outcome=op.outcome,
        value=op.value,
        comment=op.comment,
        actor=op.actor,
        answered_at=moment.now,
    )
    given = query(
        "answer_decision",
        journal_id=decision.journal_id,
        key=decision.key,
        outcome=op.outcome,
        value=op.value,
        comment=op.comment,
        actor=op.actor,
        answered_at=moment.now,
    )
    if moment.intent.status is Status.WAITING:
        moment.set(claimable_at=moment.now)
    moment.tell("intent.answered", actor=op.actor, details={"decision": decision.key, "outcome": op.outcome})
    yield Notify(topic_of_address(moment.intent.to_agent))
    yield from moment.write(given, last=last)
    return answered


def settle_expired(limit: int) -> Plan[int]:
    """Give decisions whose time ran out their default, or the outcome `expired`."""
    settled = 0
    for row in (yield from fetch("expired_decisions", limit=limit)):
        decision = to_decision(row)
        carrier, current = yield from together(
            query("lock_latest_of_journal", journal_id=decision.journal_id),
            query("decision", journal_id=decision.journal_id, key=decision.key),
        )
        if not current or to_decision(current[0]).outcome is not None:
            continue
        outcome = decision.default_outcome or EXPIRED
        op = AnswerDecision(journal_id=decision.journal_id, key=decision.key, outcome=outcome, actor="expiry")
        intent, now = to_locked(carrier[0]) if carrier else (None, decision.expires_at)
        if intent is None or intent.finished:  # nobody is left to hear of it
            yield from change("answer_decision", **msgspec.structs.asdict(op), answered_at=now)
        else:
            yield from _settle(decision, Moment(intent, now or 0), op, last=False)
        settled += 1
    return settled


def list_open(op: ListDecisions) -> Plan[list[Decision]]:
    check_limit(op.limit)
    rows = yield from fetch("list_decisions", journal_id=op.journal_id, pending=int(op.pending), limit=op.limit)
    return [to_decision(row) for row in rows]

"""Create, read, finish and revive intents."""

from __future__ import annotations

import msgspec

from stepfast.errors import AlreadyFinished, Conflict, InvalidInput, NotFound
from stepfast.intents import TERMINAL, Intent, Status
from stepfast.ops import (
    Created,
    CreateIntent,
    FinishIntent,
    GetIntent,
    ListIntents,
    NewIntent,
    ReviveIntent,
    SetTypePolicy,
)
from stepfast.stores.plans.rows import (
    Moment,
    as_columns,
    check_owner,
    lock,
    lock_and,
    plain,
    time_out_if_due,
    to_intent,
    to_locked,
    topic_of_address,
    topic_of_intent,
)
from stepfast.stores.sql import Notify, Plan, Query, Row, Rows, at_most, change, fetch, fetch_one, query, together

DEFAULT_DELIVERY_ATTEMPTS = 3
_EVENT_OF = {
    Status.COMPLETED: "intent.completed",
    Status.FAILED: "intent.failed",
    Status.CANCELED: "intent.canceled",
}


def create(op: CreateIntent) -> Plan[Created]:
    moment, existed = yield from find_or_build(op.new)
    if not existed:
        yield from insert(moment)
    return Created(moment.intent, existed)


def find_or_build(new: NewIntent) -> Plan[tuple[Moment, bool]]:
    """The intent this request made before (locked), or a fresh one not yet written."""
    asked = [query("time_and_attempts", intent_type=new.intent_type)]
    if new.idempotency_key is not None:
        asked.append(query("lock_intent_by_key", idempotency_key=new.idempotency_key))
    if new.run_id is not None:
        asked.append(query("lock_intent_by_run", run_id=new.run_id))
    asked.append(query("lock_intent", intent_id=new.intent_id))
    [(now, rule)], *same = yield from together(*asked)
    found = next((rows[0] for rows in same if rows), None)
    if found is not None:
        return Moment(*_check_same(new, found)), True
    attempts = new.max_delivery_attempts
    if attempts is None:
        attempts = DEFAULT_DELIVERY_ATTEMPTS if rule is None else rule
    if attempts < 1:
        raise InvalidInput(f"max_delivery_attempts: must be at least 1, not {attempts}.")
    if new.deadline_at is not None and new.ttl_seconds is not None:
        raise InvalidInput("deadline_at, ttl_seconds: give one of them, not both.")
    if new.ttl_seconds is not None and new.ttl_seconds <= 0:
        raise InvalidInput(f"ttl_seconds: must be more than 0, not {new.ttl_seconds}.")
    deadline = new.deadline_at if new.ttl_seconds is None else now + int(new.ttl_seconds * 1_000_000)
    start = new.not_before or now
    if new.delay_seconds:
        start = now + int(new.delay_seconds * 1_000_000)
    intent = Intent(
        intent_id=new.intent_id,
        run_id=new.run_id,
        journal_id=new.intent_id,
        intent_type=new.intent_type,
        to_agent=new.to_agent,
        from_agent=new.from_agent,
        correlation_id=new.correlation_id,
        payload=new.payload,
        meta=new.meta,
        labels=new.labels,
        max_delivery_attempts=attempts,
        claimable_at=start,
        deadline_at=deadline,
        created_at=now,
        updated_at=now,
        total_steps=new.total_steps,
        idempotency_key=new.idempotency_key,
        body_hash=new.body_hash,
    )
    moment = Moment(intent, now)
    moment.tell("intent.created")
    moment.move(Status.SUBMITTED, "intent.submitted")
    moment.move(Status.DELIVERED, "intent.delivered")
    return moment, False


def insert(moment: Moment, *before: Query | Rows) -> Plan[None]:
    """Write a fresh intent, and end the plan.

    Where somebody was first since the plan looked, the database refuses it as a duplicate; the
    runner then starts the plan again, and it finds theirs.
    """
    intent = moment.intent
    if not intent.leased:
        # One that is taken at once is news to nobody: no worker can have it, and nobody knows its id yet.
        yield Notify(topic_of_intent(intent.intent_id))
        yield Notify(topic_of_address(intent.to_agent))
    fresh = Query("insert_intent", as_columns(intent))
    labels = [query("insert_label", name=n, value=v, intent_id=intent.intent_id) for n, v in intent.labels.items()]
    yield from together(*before, fresh, *labels, *moment.event_queries(), last=True)


def _check_same(new: NewIntent, row: Row) -> tuple[Intent, int]:
    intent, now = to_locked(row)
    if new.body_hash is not None and intent.body_hash is not None and new.body_hash != intent.body_hash:
        by_key = new.idempotency_key is not None and new.idempotency_key == intent.idempotency_key
        what, key = ("idempotency key", new.idempotency_key) if by_key else ("run id", new.run_id)
        raise Conflict(
            f"{what} {key!r} was used before with a different body (intent {intent.intent_id}). "
            "Use another key for other work, or send the same body.",
            intent_id=intent.intent_id,
        )
    return intent, now


def get(op: GetIntent) -> Plan[Intent]:
    if op.intent_id is not None:
        row = yield from fetch_one("intent_by_id", intent_id=op.intent_id)
    elif op.run_id is not None:
        row = yield from fetch_one("intent_by_run", run_id=op.run_id)
    else:
        raise InvalidInput("intent_id, run_id: give one of them.")
    if row is None:
        name = f"intent {op.intent_id}" if op.intent_id else f"run {op.run_id!r}"
        raise NotFound(f"there is no {name} in this store.")
    return to_intent(row)


def list_page(op: ListIntents) -> Plan[list[Intent]]:
    where = op.where
    if not 1 <= where.limit <= 10_000:
        raise InvalidInput(f"limit: must be from 1 to 10000, not {where.limit}.")
    labels: list[tuple[str | None, str | None]] = list(where.labels.items())
    first, *others = labels or [(None, None)]
    found: list[Intent] = []
    before = where.before
    while len(found) < where.limit:
        rows = yield from fetch(
            "list_intents",
            before=before,
            to_agent=where.to_agent,
            intent_type=where.intent_type,
            any_status=int(not where.statuses),
            label_name=first[0],
            label_value=first[1],
            limit=where.limit,
            **at_most([s.value for s in where.statuses], 9),
        )
        page = [to_intent(row) for row in rows]
        found += [i for i in page if all(i.labels.get(str(k)) == v for k, v in others)]
        if len(page) < where.limit:
            break
        before = page[-1].intent_id
    return found[: where.limit]


def finish(op: FinishIntent) -> Plan[Intent]:
    if op.status not in _EVENT_OF:
        raise InvalidInput(f"status: an intent is finished as COMPLETED, FAILED or CANCELED, not {op.status}.")
    intent, now = yield from lock(op.intent_id)
    if intent.finished and (_is_same_ending(intent, op) or _is_same_lateness(intent, op)):
        return intent
    if op.lease is not None:
        check_owner(intent, op.lease)
    elif intent.finished:
        raise AlreadyFinished(
            f"intent {intent.intent_id} is {intent.status} and stays so. Revive it to have the work done again.",
            intent_id=intent.intent_id,
            status=str(intent.status),
        )
    moment = Moment(intent, now)
    if time_out_if_due(moment):
        return (yield from moment.write())
    reason = _reason(op)
    moment.set(result=op.result, error=op.error, reason=reason)
    details = {"reason": reason} if reason else {}
    moment.move(op.status, _EVENT_OF[op.status], actor=op.actor, details=details)
    return (yield from moment.write())


def _is_same_ending(intent: Intent, op: FinishIntent) -> bool:
    """A repeat of the very same request, whose answer was lost."""
    return (intent.status, intent.result, intent.error, intent.reason) == (
        op.status,
        op.result,
        op.error,
        _reason(op),
    )


def _reason(op: FinishIntent) -> str | None:
    return None if op.reason is None else plain(op.reason)


def _is_same_lateness(intent: Intent, op: FinishIntent) -> bool:
    """A repeat of a request that came after the deadline, so that its answer was TIMED_OUT."""
    return intent.status is Status.TIMED_OUT and (op.lease is None or op.lease.attempt == intent.attempt)


def revive(op: ReviveIntent) -> Plan[Created]:
    (old, now), (taken,) = yield from lock_and(op.intent_id, query("intent_by_id", intent_id=op.new_id))
    if taken and old.superseded_by == op.new_id:
        return Created(to_intent(taken[0]), True)
    if old.superseded_by is not None:
        raise Conflict(f"intent {old.intent_id} was revived already, as {old.superseded_by}: revive that one.")
    if old.status not in TERMINAL - {Status.COMPLETED}:
        raise Conflict(f"intent {old.intent_id} is {old.status}; only one that ended without completing is revived.")
    if taken:
        raise Conflict(f"intent id {op.new_id} is taken; revive with a fresh one.", intent_id=op.new_id)
    closing = Moment(old, now)
    closing.tell("intent.revived", actor=op.actor, details={"as": op.new_id})
    yield Notify(topic_of_intent(old.intent_id))
    fresh = msgspec.structs.replace(
        old,
        intent_id=op.new_id,
        status=Status.CREATED,
        waiting_reason=None,
        lost=0,  # but `attempt` goes on, so that each attempt of a journal has a number of its own
        claimable_at=now,
        deadline_at=op.deadline_at,
        created_at=now,
        updated_at=now,
        finished_at=None,
        result=None,
        error=None,
        reason=None,
        seq=0,
        head=b"",
        idempotency_key=None,
        revived_from=old.intent_id,
        superseded_by=None,
    )
    moment = Moment(fresh, now)
    moment.tell("intent.created", actor=op.actor, details={"revived_from": old.intent_id})
    moment.move(Status.SUBMITTED, "intent.submitted")
    moment.move(Status.DELIVERED, "intent.delivered")
    supersede = query("supersede_intent", intent_id=old.intent_id, superseded_by=op.new_id)
    yield from insert(moment, supersede, closing.update(), *closing.event_queries())
    return Created(moment.intent, False)


def set_type_policy(op: SetTypePolicy) -> Plan[None]:
    if op.max_delivery_attempts < 1:
        raise InvalidInput(f"max_delivery_attempts: must be at least 1, not {op.max_delivery_attempts}.")
    yield from change(
        "set_attempts_of_type", intent_type=op.intent_type, max_delivery_attempts=op.max_delivery_attempts
    )

"""Events, retention, and the proof that a store can be written."""

from __future__ import annotations

from typing import Any

from stepfast.errors import InvalidInput
from stepfast.intents import TERMINAL, Event, Status
from stepfast.ops import AppendEvent, CheckWritable, Prune, ReadEvents
from stepfast.stores.plans.rows import Moment, check_limit, check_owner, lock_and, to_event
from stepfast.stores.sql import Plan, at_most, fetch, fetch_one, query, together


def read(op: ReadEvents) -> Plan[list[Event]]:
    check_limit(op.limit)
    rows = yield from fetch("events_since", intent_id=op.intent_id, since=op.since, limit=op.limit)
    return [to_event(row) for row in rows]


_LIFECYCLE = frozenset(f"intent.{status.lower()}" for status in Status)


def append(op: AppendEvent) -> Plan[int]:
    if not op.event_type.startswith("intent."):
        raise InvalidInput(f"event_type: must start with 'intent.', not {op.event_type!r}.")
    if op.event_type in _LIFECYCLE:
        raise InvalidInput(f"event_type: {op.event_type!r} tells of a change of status; a note changes none.")
    known = query("event_of_note", intent_id=op.intent_id, note_id=op.note_id)
    (intent, now), (noted,) = yield from lock_and(op.intent_id, known)
    if noted:
        return int(noted[0][0])
    if op.lease is not None:
        check_owner(intent, op.lease)
    moment = Moment(intent, now)
    moment.tell(op.event_type, actor=op.actor, details=op.details, data=op.data, note_id=op.note_id)
    yield from moment.write()
    return moment.intent.seq


# The intent first: the history of one that is there cannot be deleted.
_OF_INTENT = ("delete_intent", "delete_events", "delete_labels", "delete_records_of")
_OF_JOURNAL = ("delete_steps", "delete_decisions", "delete_checkpoints", "delete_pieces")


def prune(op: Prune) -> Plan[int]:
    wrong = set(op.statuses) - TERMINAL
    if wrong:
        raise InvalidInput(f"statuses: only finished intents are pruned, not {', '.join(sorted(wrong))}.")
    if op.finished_before is None and op.keep_latest is None:
        raise InvalidInput("finished_before, keep_latest: give at least one of them.")
    label: tuple[str | None, str | None] = (None, None)
    if op.labels:
        if len(op.labels) > 1:
            raise InvalidInput("labels: prune by one label at a time.")
        label = next(iter(op.labels.items()))
    where: dict[str, Any] = {
        "any_status": int(not op.statuses),
        "label_name": label[0],
        "label_value": label[1],
        **at_most([s.value for s in op.statuses], 4),
    }
    check_limit(op.limit)
    newest = None
    if op.keep_latest is not None:
        if op.keep_latest < 0:
            raise InvalidInput(f"keep_latest: must be at least 0, not {op.keep_latest}.")
        over = yield from fetch("newest_to_keep", keep=op.keep_latest, **where)
        if not over:
            return 0
        newest = over[0][1]
    rows = yield from fetch("prunable", finished_before=op.finished_before, limit=op.limit, **where)
    ids = [row[0] for row in rows]
    if newest in ids:
        rows = rows[: ids.index(newest) + 1]
    yield from together(*(query(part, intent_id=row[0]) for row in rows for part in _OF_INTENT))
    journals = list(dict.fromkeys(row[1] for row in rows))
    users = yield from together(*(query("journal_in_use", journal_id=journal) for journal in journals))
    free = [journal for journal, used in zip(journals, users, strict=True) if not used]
    yield from together(*(query(part, journal_id=journal) for journal in free for part in _OF_JOURNAL), last=True)
    return len(rows)


def check_writable(_op: CheckWritable) -> Plan[int]:
    row = yield from fetch_one("touch_health")
    return int(row[0]) if row else 0

"""Documents of the platform, timers, and what a server asks of a store besides."""

from __future__ import annotations

import msgspec

from stepfast.errors import Conflict, Damaged, InvalidInput
from stepfast.intents import Intent, Status
from stepfast.ops import (
    DeleteRecord,
    DeleteRecords,
    DueRecords,
    GetRecord,
    ListAddresses,
    ListRecords,
    Measure,
    Measures,
    MoveIntent,
    NextDue,
    PutRecord,
    RecentRecords,
    Record,
    ReleaseOwner,
)
from stepfast.stores.plans.rows import (
    Moment,
    advanced,
    check_limit,
    lock_and,
    lose_delivery,
    time_out_if_due,
    to_locked,
    topic_of_address,
    write_all,
)
from stepfast.stores.sql import Notify, Plan, Row, change, fetch, fetch_one, query, together

_FIELDS = tuple(f.name for f in msgspec.structs.fields(Record))
_PREPARED = msgspec.json.Decoder(Record)  # made where no two threads meet, as in `rows`
_END_OF_TIME = (1 << 63) - 1
_MOVES = {Status.WAITING: "intent.waiting", Status.IN_PROGRESS: "intent.in_progress"}


def _to_record(row: Row) -> Record:
    try:
        return msgspec.convert(dict(zip(_FIELDS, row, strict=True)), Record)
    except (TypeError, ValueError, msgspec.DecodeError) as error:
        raise Damaged(f"the row of record {row[1]!r} ({row[0]!r}) is damaged ({error}).") from None


def put(op: PutRecord) -> Plan[Record]:
    if not op.kind or not op.record_id:
        raise InvalidInput("kind, record_id: a record needs both.")
    [(now,)], rows = yield from together(query("time_now"), query("lock_record", kind=op.kind, record_id=op.record_id))
    old = _to_record(rows[0]) if rows else None
    if old is not None and old.write_id == op.write_id:
        return old  # a repeat whose answer was lost
    version = 0 if old is None else old.version
    if op.expected is not None and op.expected != version:
        raise Conflict(
            f"record {op.record_id!r} ({op.kind}) is at version {version}, not {op.expected}: it changed meanwhile. "
            "Read it again and decide anew; nothing was written."
        )
    record = Record(
        kind=op.kind,
        record_id=op.record_id,
        version=version + 1,
        body=op.body,
        belongs_to=op.belongs_to,
        due_at=op.due_at,
        created_at=now if old is None else old.created_at,
        updated_at=now,
        write_id=op.write_id,
    )
    yield Notify(f"record:{op.kind}")
    yield from change("insert_record" if old is None else "update_record", **msgspec.structs.asdict(record))
    return record


def get(op: GetRecord) -> Plan[Record | None]:
    row = yield from fetch_one("record", kind=op.kind, record_id=op.record_id)
    return None if row is None else _to_record(row)


def list_page(op: ListRecords) -> Plan[list[Record]]:
    check_limit(op.limit)
    where = {"kind": op.kind, "after": op.after, "limit": op.limit}
    if op.belongs_to is not None:
        length = len(op.prefix)
        name, where = "list_records_of", {**where, "belongs_to": op.belongs_to, "prefix": op.prefix, "length": length}
    elif op.prefix:
        name, where = "list_records_under", {**where, **_under(op.prefix)}
    else:
        name = "list_records"
    return [_to_record(row) for row in (yield from fetch(name, **where))]


def recent(op: RecentRecords) -> Plan[list[Record]]:
    check_limit(op.limit)
    at = _END_OF_TIME if op.after_at is None else op.after_at
    where = {"kind": op.kind, "at": at, "after": op.after, "limit": op.limit}
    if op.prefix:
        rows = yield from fetch("recent_records_under", **where, **_under(op.prefix))
    else:
        rows = yield from fetch("recent_records", **where)
    return [_to_record(row) for row in rows]


def _under(prefix: str) -> dict[str, str]:
    """Between which ids those lie that begin with a prefix: text compares by its code points."""
    rest = prefix.rstrip("\U0010ffff")
    if not rest:
        raise InvalidInput("prefix: must begin with a character that another one can follow.")
    following = ord(rest[-1]) + 1
    return {"low": prefix, "high": rest[:-1] + chr(0xE000 if following == 0xD800 else following)}


def due(op: DueRecords) -> Plan[list[Record]]:
    check_limit(op.limit)
    return [_to_record(row) for row in (yield from fetch("due_records", limit=op.limit))]


def delete(op: DeleteRecord) -> Plan[None]:
    yield Notify(f"record:{op.kind}")
    yield from change("delete_record", kind=op.kind, record_id=op.record_id)


def delete_many(op: DeleteRecords) -> Plan[int]:
    check_limit(op.limit)
    if not op.prefix:
        raise InvalidInput("prefix: must not be empty; name what is to go.")
    yield Notify(f"record:{op.kind}")
    return (yield from change("delete_records_under", kind=op.kind, limit=op.limit, **_under(op.prefix)))


def next_due(_op: NextDue) -> Plan[int | None]:
    row = yield from fetch_one("next_due")
    return None if row is None or row[0] is None else int(row[0])


def move(op: MoveIntent) -> Plan[Intent]:
    if op.status not in _MOVES:
        raise InvalidInput(f"status: an intent is moved to WAITING or IN_PROGRESS, not to {op.status}.")
    if (op.status is Status.WAITING) != (op.waiting_reason is not None):
        raise InvalidInput("waiting_reason: give one for WAITING, and only then.")
    known = query("event_of_note", intent_id=op.intent_id, note_id=op.note_id)
    (intent, now), (noted,) = yield from lock_and(op.intent_id, known)
    if noted:
        return intent
    if intent.leased and not intent.finished:
        raise Conflict(
            f"intent {intent.intent_id} is held by attempt {intent.attempt}: only its worker moves it.",
            intent_id=intent.intent_id,
        )
    moment = Moment(intent, now)
    if time_out_if_due(moment, note_id=op.note_id):
        return (yield from moment.write())
    details = dict(op.details)
    if op.waiting_reason is not None:
        details["waiting_reason"] = op.waiting_reason
    moment.set(claimable_at=now if op.claimable else None)
    moment.move(op.status, _MOVES[op.status], actor=op.actor, details=details, data=op.data, note_id=op.note_id)
    moment.set(waiting_reason=op.waiting_reason)
    if op.claimable:
        yield Notify(topic_of_address(intent.to_agent))
    return (yield from moment.write())


def release_owner(op: ReleaseOwner) -> Plan[int]:
    check_limit(op.limit)
    rows = yield from fetch("held_by_owner", owner=op.owner, limit=op.limit)
    moments = [Moment(*to_locked(row)) for row in rows]
    progress = yield from advanced(moments)
    for moment, made in zip(moments, progress, strict=True):
        if not time_out_if_due(moment) and not lose_delivery(moment, op.reason, advanced=made):
            moment.set(claimable_at=moment.now)
        yield Notify(topic_of_address(moment.intent.to_agent))
    if moments:
        yield from write_all(moments, last=True)
    return len(moments)


def addresses(op: ListAddresses) -> Plan[list[str]]:
    check_limit(op.limit)
    return [row[0] for row in (yield from fetch("addresses_with_work", after=op.after, limit=op.limit))]


def measure(_op: Measure) -> Plan[Measures]:
    by_status, [(claimable,)], [(size,)] = yield from together(
        query("open_by_status"), query("count_claimable"), query("store_size")
    )
    return Measures({status: int(count) for status, count in by_status}, int(claimable), int(size))

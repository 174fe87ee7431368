"""The journal: record, settle, void and read steps; large values in pieces."""

from __future__ import annotations

from typing import Any

import msgspec

from stepfast.errors import Conflict, Damaged, Fenced, NotFound
from stepfast.journal import Step
from stepfast.ops import (
    GetProgress,
    Progress,
    PutPiece,
    ReadJournal,
    ReadPiece,
    RecordStep,
    SettleStep,
    VoidSteps,
)
from stepfast.stores.plans.rows import (
    Moment,
    check_journal,
    check_owner,
    lock,
    lock_and,
    owns,
    plain,
    time_out_if_due,
    to_intent,
    to_step,
)
from stepfast.stores.sql import Plan, change, fetch, fetch_one, query


def record_params(op: RecordStep | SettleStep) -> dict[str, Any]:
    step, lease = op.step, op.lease
    return {
        "intent_id": lease.intent_id,
        "lease_attempt": lease.attempt,
        "lease_token": lease.token,
        "journal_id": op.journal_id,
        "key": step.key,
        "generation": step.generation,
        "position": step.position,
        "kind": step.kind,
        "name": step.name,
        "scope": step.scope,
        "status": step.status._value_,
        "input_hash": step.input_hash,
        "preview": step.preview,
        "result": step.result,
        "error": step.error,
        "blob_id": step.blob_id,
        "attempt": step.attempt,
        "started_at": step.started_at,
        "finished_at": step.finished_at,
        "seal": step.seal,
        "tally": step.tally,
    }


RECORD_ORDER = (
    *("tenant", "intent_id", "lease_attempt", "lease_token", "journal_id", "now", "tenant", "key", "generation"),
    *("position", "kind", "name", "scope", "status", "input_hash", "preview", "result", "error", "blob_id"),
    *("attempt", "started_at", "finished_at", "seal", "tally"),
)


def record_values(op: RecordStep, tenant: str, now: int) -> tuple[Any, ...]:
    """The parameters of the most frequent statement, in RECORD_ORDER.

    As bytearrays: for each value that is bytes, sqlite3 looks for an adapter first, and in vain.
    """
    step, lease = op.step, op.lease
    result = step.result
    return (
        tenant,
        lease.intent_id,
        lease.attempt,
        lease.token,
        op.journal_id,
        now,
        tenant,
        step.key,
        step.generation,
        step.position,
        step.kind,
        step.name,
        step.scope,
        step.status._value_,
        bytearray(step.input_hash),
        bytearray(step.preview),
        None if result is None else bytearray(result),
        step.error,
        step.blob_id,
        step.attempt,
        step.started_at,
        step.finished_at,
        bytearray(step.seal),
        step.tally,
    )


def record(op: RecordStep) -> Plan[None]:
    written = yield from change("record_step", **record_params(op))
    if written != 1:
        yield from explain_refusal(op)


def explain_refusal(op: RecordStep | SettleStep) -> Plan[None]:
    """Nothing was written: because it stands there already (fine), or because it must not be."""
    existing = yield from _stored(op.journal_id, op.step)
    if existing is not None and existing.seal == op.step.seal and existing.attempt == op.step.attempt:
        return
    intent, now = yield from lock(op.lease.intent_id)
    moment = Moment(intent, now)
    if time_out_if_due(moment):
        raise Fenced(
            f"intent {intent.intent_id} is past its deadline; nothing was written.",
            intent_id=intent.intent_id,
        )
    check_owner(intent, op.lease)
    check_journal(intent, op.journal_id)
    if existing is None:
        raise Conflict(f"step {op.step.key} was never started, so it cannot be settled.", key=op.step.key)
    raise Conflict(
        f"step {op.step.key} of intent {intent.intent_id} is recorded already, as {existing.status} by attempt "
        f"{existing.attempt}; its record stays.",
        key=op.step.key,
        intent_id=intent.intent_id,
    )


def _stored(journal_id: str, step: Step) -> Plan[Step | None]:
    row = yield from fetch_one("step_by_key", journal_id=journal_id, key=step.key, generation=step.generation)
    return None if row is None else to_step(row)


def settle(op: SettleStep) -> Plan[None]:
    written = yield from change("settle_step", **record_params(op))
    if written != 1:
        yield from explain_refusal(op)


def void(op: VoidSteps) -> Plan[int]:
    places = [{"journal_id": op.journal_id, "key": key, "generation": number} for key, number in op.steps]
    asked = [query("step_voided", **place) for place in places]
    (intent, now), found = yield from lock_and(op.lease.intent_id, *asked)
    recorded = sum(1 for rows in found if rows)
    standing = [place for place, rows in zip(places, found, strict=True) if rows and not rows[0][0]]
    if recorded == len(places) > 0 and not standing and not owns(intent, op.lease):
        return recorded  # a repeat whose answer was lost, and the run went on since
    check_owner(intent, op.lease)
    check_journal(intent, op.journal_id)
    if standing:
        moment = Moment(intent, now)
        moment.tell("intent.rewound", details={"steps": len(standing), "reason": plain(op.reason)})
        yield from moment.write(*(query("void_step", **place) for place in standing))
    return recorded


def read(op: ReadJournal) -> Plan[list[Step]]:
    rows = yield from fetch("journal", journal_id=op.journal_id, voided=int(op.voided))
    return [to_step(row) for row in rows]


class _Report(msgspec.Struct, frozen=True):
    doing: str
    step: int | None = None


_decode_report = msgspec.json.Decoder(_Report).decode


def _read_report(details: str, intent_id: str) -> _Report:
    try:
        return _decode_report(details)
    except msgspec.DecodeError as error:
        raise Damaged(
            f"what intent {intent_id} last told of itself is damaged ({error}).", intent_id=intent_id
        ) from None


def progress(op: GetProgress) -> Plan[Progress]:
    row = yield from fetch_one("intent_by_id", intent_id=op.intent_id)
    if row is None:
        raise NotFound(f"there is no intent {op.intent_id} in this store.", intent_id=op.intent_id)
    intent = to_intent(row)
    counted = yield from fetch_one("progress", journal_id=intent.journal_id)
    finished, recorded, position = counted or (0, 0, None)
    last = None
    if position is not None:
        named = yield from fetch_one("step_at", journal_id=intent.journal_id, position=position)
        last = named[0] if named else None
    told = yield from fetch_one("last_report", intent_id=op.intent_id)
    if told is not None:  # what the run itself says goes before what can be counted
        said = _read_report(told[0], op.intent_id)
        finished, last = finished if said.step is None else said.step, said.doing
    return Progress(int(finished), int(recorded), intent.total_steps, last)


def put_piece(op: PutPiece) -> Plan[None]:
    where = {"journal_id": op.journal_id, "blob_id": op.blob_id, "number": op.number}
    if (yield from change("insert_piece", **where, data=op.data)) != 1:
        row = yield from fetch_one("piece", **where)
        if row is None or row[0] != op.data:
            raise Conflict(f"piece {op.number} of the stored value {op.blob_id} exists already, with other bytes.")


def read_piece(op: ReadPiece) -> Plan[bytes]:
    row = yield from fetch_one("piece", journal_id=op.journal_id, blob_id=op.blob_id, number=op.number)
    if row is None:
        raise Damaged(f"piece {op.number} of the stored value {op.blob_id} is missing.", blob_id=op.blob_id)
    if not isinstance(row[0], bytes):
        raise Damaged(f"piece {op.number} of the stored value {op.blob_id} is damaged.", blob_id=op.blob_id)
    return row[0]

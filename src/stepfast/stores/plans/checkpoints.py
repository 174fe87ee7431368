"""Versioned snapshots."""

from __future__ import annotations

import msgspec

from stepfast.errors import Conflict, InvalidInput
from stepfast.ops import Checkpoint, PutCheckpoint, ReadCheckpoints
from stepfast.stores.plans.rows import check_journal, check_limit, check_owner, lock_and, to_checkpoint
from stepfast.stores.sql import Plan, fetch, query, together


def put(op: PutCheckpoint) -> Plan[int]:
    if op.keep < 2:
        raise InvalidInput(f"keep: at least 2 versions must stay, so that there is one to fall back to; not {op.keep}.")
    new = op.checkpoint
    where = {"journal_id": new.journal_id}
    known = query("checkpoint", **where, version=new.version)
    (intent, _), (rows,) = yield from lock_and(op.lease.intent_id, known)
    if rows and (to_checkpoint(rows[0]).seal, to_checkpoint(rows[0]).attempt) == (new.seal, new.attempt):
        return new.version  # a repeat whose answer was lost
    check_owner(intent, op.lease)
    check_journal(intent, new.journal_id)
    if rows:
        raise Conflict(f"checkpoint {new.version} of {new.journal_id} exists already and is never overwritten.")
    asked = [query("insert_checkpoint", **msgspec.structs.asdict(new))]
    if new.pin is not None:
        asked.append(query("unpin_checkpoints", **where, pin=new.pin, version=new.version))
    upto = new.version - op.keep
    if upto > 0:
        asked.append(query("drop_pieces_of_old_checkpoints", **where, upto=upto))
        asked.append(query("drop_old_checkpoints", **where, upto=upto))
    yield from together(*asked, last=True)
    return new.version


def read(op: ReadCheckpoints) -> Plan[list[Checkpoint]]:
    check_limit(op.limit)
    rows = yield from fetch(
        "read_checkpoints", journal_id=op.journal_id, version=op.version, pin=op.pin, limit=op.limit
    )
    return [to_checkpoint(row) for row in rows]

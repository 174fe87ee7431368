"""Many rows by one statement: the steps of a group, which are the hot path, and the events of a transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from stepfast.ops import RecordStep
from stepfast.stores.group import Request
from stepfast.stores.postgres_link import Packed, pack_bytes, pack_ints, pack_texts
from stepfast.stores.sql import Row

Columns = tuple[tuple[str, Callable[[Any], Packed]], ...]

# The parameters of `record_steps_at_once`, in the order of `_row`.
_STEPS: Columns = (
    ("tenant_s", pack_texts),
    ("intent_id_s", pack_texts),
    ("lease_attempt_s", pack_ints),
    ("lease_token_s", pack_texts),
    ("journal_id_s", pack_texts),
    ("key_s", pack_texts),
    ("generation_s", pack_ints),
    ("position_s", pack_ints),
    ("kind_s", pack_texts),
    ("name_s", pack_texts),
    ("scope_s", pack_texts),
    ("status_s", pack_texts),
    ("input_hash_s", pack_bytes),
    ("preview_s", pack_bytes),
    ("result_s", pack_bytes),
    ("error_s", pack_bytes),
    ("blob_id_s", pack_texts),
    ("attempt_s", pack_ints),
    ("started_at_s", pack_ints),
    ("finished_at_s", pack_ints),
    ("seal_s", pack_bytes),
    ("tally_s", pack_ints),
)
# Those of `insert_events_at_once`, in the order of `insert_event`.
_EVENTS: Columns = (
    ("tenant_s", pack_texts),
    ("intent_id_s", pack_texts),
    ("seq_s", pack_ints),
    ("event_type_s", pack_texts),
    ("status_s", pack_texts),
    ("at_s", pack_ints),
    ("attempt_s", pack_ints),
    ("actor_s", pack_texts),
    ("details_s", pack_texts),
    ("data_s", pack_bytes),
    ("digest_s", pack_bytes),
    ("note_id_s", pack_texts),
)


def events_params(events: Sequence[Row]) -> dict[str, Any]:
    """Events, each with its tenant in front, as arrays."""
    return _as_arrays(_EVENTS, events)


def is_step(request: Request) -> bool:
    """Whether the request is nothing but one step."""
    ops = request.ops
    return len(ops) == 1 and type(ops[0]) is RecordStep


def steps_params(requests: Sequence[Request]) -> dict[str, Any]:
    """All steps as arrays, by intent: whoever else locks several intents does so in the same order."""
    rows = sorted([_row(request) for request in requests], key=lambda row: row[1])
    return _as_arrays(_STEPS, rows)


def _as_arrays(columns: Columns, rows: Sequence[Row]) -> dict[str, Any]:
    return {name: pack(column) for (name, pack), column in zip(columns, zip(*rows, strict=True), strict=True)}


def written_steps(requests: Sequence[Request], rows: list[Row]) -> list[Request]:
    """The requests whose step is surely among the rows that the statement wrote."""
    if len(rows) == len(requests):
        return list(requests)
    places = [_place(request) for request in requests]
    # Of two requests for the same place one may have been written, and nothing says which.
    sought = Counter(places)
    written = {place for place in rows if sought[place] == 1}
    return [request for request, place in zip(requests, places, strict=True) if place in written]


def _row(request: Request) -> tuple[Any, ...]:
    op = request.ops[0]
    assert isinstance(op, RecordStep)  # noqa: S101 - `is_step` looked
    lease, step = op.lease, op.step
    return (
        request.tenant,
        lease.intent_id,
        lease.attempt,
        lease.token,
        op.journal_id,
        step.key,
        step.generation,
        step.position,
        step.kind,
        step.name,
        step.scope,
        step.status.value,
        step.input_hash,
        step.preview,
        step.result,
        step.error,
        step.blob_id,
        step.attempt,
        step.started_at,
        step.finished_at,
        step.seal,
        step.tally,
    )


def _place(request: Request) -> Row:
    row = _row(request)
    return row[0], row[4], row[5], row[6]

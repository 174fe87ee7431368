"""What every plan shares: rows to objects, the fence, and the one way to change an intent."""

from __future__ import annotations

from copy import copy
from types import NoneType
from typing import Any

import msgspec

from stepfast.errors import AlreadyFinished, Conflict, Damaged, Fenced, InvalidInput, NotFound
from stepfast.intents import Event, Intent, Status, chain, check_transition
from stepfast.journal import Step, StepStatus
from stepfast.ops import Checkpoint, Decision, Lease
from stepfast.stored_names import NOTE_PREFIX
from stepfast.stores.sql import Notify, Plan, Query, Row, Rows, fetch_one, query, together

_INTENT_FIELDS = tuple(f.name for f in msgspec.structs.fields(Intent))
_COLUMNS = len(_INTENT_FIELDS)
_EVENT_FIELDS = tuple(f.name for f in msgspec.structs.fields(Event))
_DECISION_FIELDS = tuple(f.name for f in msgspec.structs.fields(Decision))
_CHECKPOINT_FIELDS = tuple(f.name for f in msgspec.structs.fields(Checkpoint))


# Made here, where no two threads meet: msgspec crashes if two of them are the first to use a class.
_PREPARED = [msgspec.json.Decoder(kind) for kind in (Intent, Event, Decision, Checkpoint)]
# A flipped bit may turn a number into bytes, or bytes into text.
_WRONG = (TypeError, ValueError, msgspec.DecodeError)


def to_intent(row: Row) -> Intent:
    values = dict(zip(_INTENT_FIELDS, row, strict=False))
    try:
        values["labels"] = msgspec.json.decode(values["labels"])
        values["leased"] = bool(values["leased"])
        return msgspec.convert(values, Intent)
    except _WRONG as error:
        raise Damaged(
            f"the row of intent {row[0]} is damaged ({error}); restore the store from a backup.",
            intent_id=row[0],
        ) from None


def to_locked(row: Row) -> tuple[Intent, int]:
    """An intent with the store's time beside it."""
    return to_intent(row[:_COLUMNS]), int(row[_COLUMNS])


def to_event(row: Row) -> Event:
    try:
        values = dict(zip(_EVENT_FIELDS, row, strict=False))
        values["details"] = msgspec.json.decode(values["details"])
        return msgspec.convert(values, Event)
    except _WRONG as error:
        raise Damaged(f"event {row[1]} of intent {row[0]} is damaged ({error}).", intent_id=row[0]) from None


_STATUSES = {str(s): s for s in StepStatus}
_BYTES, _TEXT, _NUMBER = (bytes, NoneType), (str, NoneType), (int, NoneType)
# As the columns of `journal` come.
_STEP: tuple[Any, ...]
_STEP = (str, int, int, str, str, str, str, bytes, bytes, _BYTES, _BYTES, _TEXT, int, int, _NUMBER, bytes, int, int)


def to_step(row: Row) -> Step:
    status = _STATUSES.get(row[6])
    if status is None or not all(map(isinstance, row, _STEP)):
        raise Damaged(f"the row of step {row[0]!r} is damaged: it has the status {row[6]!r}.", key=row[0])
    return Step(*row[:6], status, *row[7:16], bool(row[16]), row[17])  # type: ignore[call-arg]


def to_decision(row: Row) -> Decision:
    fields = dict(zip(_DECISION_FIELDS, row, strict=False))
    try:
        fields["outcomes"] = msgspec.json.decode(fields["outcomes"])
        fields["comment_required"] = bool(fields["comment_required"])
        return msgspec.convert(fields, Decision)
    except _WRONG as error:
        raise Damaged(f"the row of decision {row[1]!r} of {row[0]} is damaged ({error}).", key=row[1]) from None


def to_checkpoint(row: Row) -> Checkpoint:
    try:
        return msgspec.convert(dict(zip(_CHECKPOINT_FIELDS, row, strict=True)), Checkpoint)
    except _WRONG as error:
        raise Damaged(f"the row of checkpoint {row[1]!r} of {row[0]} is damaged ({error}).") from None


def topic_of_intent(intent_id: str) -> str:
    return f"intent:{intent_id}"


def topic_of_address(address: str) -> str:
    """By the last name alone: a worker may listen by it, whatever the address was written like."""
    return f"agent:{address.rpartition('/')[2]}"


def lock(intent_id: str) -> Plan[tuple[Intent, int]]:
    row = yield from fetch_one("lock_intent", intent_id=intent_id)
    return _found(intent_id, row)


def lock_and(intent_id: str, *others: Query) -> Plan[tuple[tuple[Intent, int], list[Any]]]:
    """The intent, locked, and the answers to what else the plan wants to know once it is."""
    rows, *answers = yield from together(query("lock_intent", intent_id=intent_id), *others)
    return _found(intent_id, rows[0] if rows else None), answers


def _found(intent_id: str, row: Row | None) -> tuple[Intent, int]:
    if row is None:
        raise NotFound(f"there is no intent {intent_id} in this store.", intent_id=intent_id)
    return to_locked(row)


def owns(intent: Intent, lease: Lease) -> bool:
    mine = (intent.intent_id, intent.attempt, intent.lease_token) == (
        lease.intent_id,
        lease.attempt,
        lease.token,
    )
    return intent.leased and mine and not intent.finished


def check_owner(intent: Intent, lease: Lease) -> None:
    if intent.finished:
        raise AlreadyFinished(
            f"intent {intent.intent_id} is {intent.status}: {intent.reason or 'it has ended'}. Nothing was written.",
            intent_id=intent.intent_id,
            status=str(intent.status),
        )
    if not owns(intent, lease):
        raise Fenced(
            f"attempt {lease.attempt} of intent {intent.intent_id} no longer owns it (attempt {intent.attempt} is "
            "current, or it was handed back). Stop this worker's work on it; nothing was written.",
            intent_id=intent.intent_id,
            attempt=lease.attempt,
            current_attempt=intent.attempt,
        )


def check_journal(intent: Intent, journal_id: str) -> None:
    """A lease is good for its own intent's journal only."""
    if intent.journal_id != journal_id:
        raise Conflict(f"intent {intent.intent_id} writes journal {intent.journal_id}, not {journal_id}.")


def check_limit(limit: int) -> None:
    if limit < 1:
        raise InvalidInput(f"limit: must be at least 1, not {limit}.")


class Moment:
    """The events and the new columns of one change, gathered, then written together."""

    def __init__(self, intent: Intent, now: int) -> None:
        self.intent = copy(intent)  # nobody else's until it is written, so it is changed in place
        self.now = now
        self.events: list[Row] = []
        self._expected_seq = intent.seq

    def set(self, **columns: Any) -> None:
        intent = self.intent
        for name, value in columns.items():
            msgspec.structs.force_setattr(intent, name, value)

    def move(self, status: Status, event_type: str, **event: Any) -> None:
        """Change the status as the table allows, and tell it."""
        check_transition(self.intent.intent_id, self.intent.status, status)
        self.set(status=status, waiting_reason=None)
        if self.intent.finished:
            self.set(finished_at=self.now, claimable_at=None, leased=False, lease_token=None, owner=None)
        self.tell(event_type, **event)

    def tell(
        self,
        event_type: str,
        *,
        actor: str = "",
        details: dict[str, Any] | None = None,
        data: bytes | None = None,
        note_id: str | None = None,
    ) -> None:
        intent = self.intent
        event = Event(
            intent_id=intent.intent_id,
            seq=intent.seq + 1,
            event_type=event_type,
            status=intent.status,
            at=self.now,
            attempt=intent.attempt,
            actor=actor,
            details=details or {},
            data=data,
        )
        digest = chain(intent.head, event)
        self.events.append(
            (
                event.intent_id,
                event.seq,
                event_type,
                event.status._value_,
                event.at,
                event.attempt,
                actor,
                msgspec.json.encode(details).decode() if details else "{}",
                data,
                digest,
                note_id,
            )
        )
        self.set(seq=event.seq, head=digest)

    def write(self, *before: Query, last: bool = True) -> Plan[Intent]:
        """Write the change, and in front of it what belongs to it; as a rule that ends the plan."""
        yield from write_all([self], *before, last=last)
        return self.intent

    def update(self) -> Query:
        self.set(updated_at=self.now)
        return Query("update_intent", {**as_columns(self.intent), "expected_seq": self._expected_seq})

    def event_queries(self) -> list[Query | Rows]:
        return [Rows("insert_event", self.events)] if self.events else []


def write_all(moments: list[Moment], *before: Query, last: bool) -> Plan[None]:
    asked: list[Query | Rows] = list(before)
    for moment in moments:
        asked.append(moment.update())
        asked += moment.event_queries()
        yield Notify(topic_of_intent(moment.intent.intent_id))
    answers = yield from together(*asked, last=last)
    for question, changed in zip(asked, answers, strict=True):
        # Not while the row is locked, as it always is; and were it not, the event's number would be taken.
        if isinstance(question, Query) and question.name == "update_intent" and changed != 1:
            raise Fenced(f"intent {question.params['intent_id']} changed meanwhile; nothing was written.")


def as_columns(intent: Intent) -> dict[str, Any]:
    columns = msgspec.structs.asdict(intent)
    columns["labels"] = msgspec.json.encode(intent.labels).decode()
    columns["status"] = intent.status._value_
    columns["leased"] = int(intent.leased)
    return columns


def plain(text: str) -> str:
    """Free text, such as an error's, as every database can hold it."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def note_of(word: str, lease: Lease) -> str:
    """Marks the event by which an attempt gave the intent up, so that a repeat finds that it did."""
    return f"{NOTE_PREFIX}{word}:{lease.attempt}"


def gave_up(word: str, lease: Lease) -> Plan[bool]:
    """Whether this attempt did so before, in a request whose answer was lost."""
    row = yield from fetch_one("event_of_note", intent_id=lease.intent_id, note_id=note_of(word, lease))
    return row is not None


def time_out_if_due(moment: Moment, *, note_id: str | None = None) -> bool:
    """Past its deadline an intent is TIMED_OUT, whoever is the first to touch it."""
    intent = moment.intent
    if intent.finished or intent.deadline_at is None or intent.deadline_at > moment.now:
        return False
    moment.set(reason="the deadline passed")
    details = {"deadline_at": intent.deadline_at}
    moment.move(Status.TIMED_OUT, "intent.timed_out", details=details, note_id=note_id)
    return True


def advanced(moments: list[Moment]) -> Plan[list[bool]]:
    """Returns for each intent whether its current attempt finished a step that no attempt before it had finished.

    The rows must be locked: then a step that its owner still records comes before this look, or is refused.
    """
    held = [moment.intent for moment in moments if moment.intent.leased]
    if not held:
        return [False] * len(moments)
    asked = [query("finished_by_attempt", journal_id=i.journal_id, attempt=i.attempt) for i in held]
    found = iter((yield from together(*asked)))
    return [moment.intent.leased and bool(next(found)) for moment in moments]


def lose_delivery(
    moment: Moment, reason: str, *, advanced: bool, data: bytes | None = None, note_id: str | None = None
) -> bool:
    """Ends a delivery that was lost; True if it was the last one, and the intent is FAILED.

    Deliveries lost in a row without a newly finished step are counted: one that ``advanced`` begins the count anew.
    ``data`` is the handler's exception if that ended the delivery, and then it is also why the intent failed.
    """
    intent = moment.intent
    lost = 0 if advanced else intent.lost + 1
    moment.set(lost=lost, leased=False, lease_token=None, owner=None)
    details = {"delivery_attempt": intent.attempt, "lost": lost, "reason": reason}
    if lost < intent.max_delivery_attempts:
        moment.tell("intent.delivery_lost", details=details, data=data, note_id=note_id)
        return False
    moment.tell("intent.delivery_failed", details=details, data=data, note_id=note_id)
    text = reason
    if data is None:
        most = intent.max_delivery_attempts
        text = f"{lost} of {most} deliveries were lost in a row without a newly finished step; the last one: {reason}"
    moment.set(reason=text, error=data)
    moment.move(Status.FAILED, "intent.failed", details={"reason": text})
    return True

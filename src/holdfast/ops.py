"""Every operation a store can do, as data, each with its result.

A store executes a list of operations in one durable transaction, in order. Each write is
idempotent by its keys: doing the same operation again after an answer was lost changes nothing
and gives the same answer. So an outcome that is not known is looked up by asking once more.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Literal, TypeVar

import msgspec

from holdfast.intents import Event, Intent, Status
from holdfast.journal import Step

R = TypeVar("R")


class Op(msgspec.Struct, Generic[R], frozen=True, kw_only=True, tag=True, gc=False):
    """``reads``: touches nothing, and never waits for a writer."""

    reads: ClassVar[bool] = False


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The right to write for an intent: the attempt number fences, the token proves who holds it."""

    intent_id: str
    attempt: int
    token: str


# --- intents -------------------------------------------------------------------------------------


class NewIntent(msgspec.Struct, frozen=True, kw_only=True):
    intent_id: str
    intent_type: str
    to_agent: str
    run_id: str | None = None
    from_agent: str | None = None
    correlation_id: str | None = None
    payload: bytes | None = None
    meta: bytes | None = None
    labels: dict[str, str] = {}
    idempotency_key: str | None = None
    body_hash: bytes | None = None
    deadline_at: int | None = None
    ttl_seconds: float | None = None
    not_before: int | None = None
    delay_seconds: float | None = None
    max_delivery_attempts: int | None = None
    total_steps: int | None = None


class Created(msgspec.Struct, frozen=True):
    intent: Intent
    existed: bool


class CreateIntent(Op[Created], frozen=True, kw_only=True):
    """The same idempotency key (or run id) and body give the same intent; another body is a Conflict."""

    new: NewIntent


class GetIntent(Op[Intent], frozen=True, kw_only=True):
    """By id, or by run id; NotFound if there is none."""

    reads = True
    intent_id: str | None = None
    run_id: str | None = None


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """All that is given must hold. ``before`` is the id after which the next page goes on."""

    statuses: list[Status] = []
    to_agent: str | None = None
    intent_type: str | None = None
    labels: dict[str, str] = {}
    before: str | None = None
    limit: int = 50


class ListIntents(Op[list[Intent]], frozen=True, kw_only=True):
    """Newest first."""

    reads = True
    where: Filter = Filter()


class FinishIntent(Op[Intent], frozen=True, kw_only=True):
    """The one ending. With a lease it is the worker's; without, somebody's from outside."""

    intent_id: str
    status: Status
    lease: Lease | None = None
    result: bytes | None = None
    error: bytes | None = None
    reason: str | None = None
    actor: str = ""


class ReviveIntent(Op[Created], frozen=True, kw_only=True):
    """A new intent that takes over the journal, payload and run id of one that ended without completing."""

    intent_id: str
    new_id: str
    actor: str = ""
    deadline_at: int | None = None


class MoveIntent(Op[Intent], frozen=True, kw_only=True):
    """Let an intent that no attempt holds wait (for a person, a time, another agent) or go on; safe to repeat
    with the same ``note_id``.

    ``claimable`` says whether a worker may take it from now on. One that waits, or that is handled from outside,
    is kept from workers. An intent that an attempt holds is a Conflict.
    """

    intent_id: str
    status: Status
    note_id: str
    waiting_reason: str | None = None
    claimable: bool = False
    details: dict[str, Any] = {}
    data: bytes | None = None
    actor: str = ""


class SetTypePolicy(Op[None], frozen=True, kw_only=True):
    """The default number of delivery attempts for intents of a type."""

    intent_type: str
    max_delivery_attempts: int


# --- leases --------------------------------------------------------------------------------------


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
    """Hand the intent back. ``lost`` counts it as a lost delivery; otherwise it costs no attempt."""

    lease: Lease
    reason: str
    lost: bool = False
    delay_seconds: float = 0.0
    data: bytes | None = None


class ReleaseOwner(Op[int], frozen=True, kw_only=True):
    """Count what an owner holds as lost deliveries, and hand it on at once: its process is known to be gone."""

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


# --- the journal ---------------------------------------------------------------------------------


class ReadJournal(Op[list[Step]], frozen=True, kw_only=True):
    """All steps of a journal in the order the run reached them; voided ones only on request."""

    reads = True
    journal_id: str
    voided: bool = False


class RecordStep(Op[None], frozen=True, kw_only=True):
    """Write a step's first row: STARTED for a one-shot, FINISHED or FAILED otherwise."""

    lease: Lease
    journal_id: str
    step: Step


class SettleStep(Op[None], frozen=True, kw_only=True):
    """Give a STARTED step its ending."""

    lease: Lease
    journal_id: str
    step: Step


class VoidSteps(Op[int], frozen=True, kw_only=True):
    """Set steps aside so that they run again; their rows stay for the history."""

    lease: Lease
    journal_id: str
    steps: list[tuple[str, int]]
    reason: str


class Progress(msgspec.Struct, frozen=True):
    """How far a run is, counted from its journal: finished top-level steps, and all records."""

    finished: int
    recorded: int
    total_steps: int | None
    last_step: str | None


class GetProgress(Op[Progress], frozen=True, kw_only=True):
    reads = True
    intent_id: str


# --- decisions -----------------------------------------------------------------------------------


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A question a run waits on. ``question``, ``value`` and ``comment`` are values of the asker's codec."""

    journal_id: str
    key: str
    intent_id: str
    kind: Literal["ask", "in_doubt", "resume"]
    question: bytes
    outcomes: list[str]
    comment_required: bool = False
    asked_at: int = 0
    expires_at: int | None = None
    default_outcome: str | None = None
    attempt: int = 0
    outcome: str | None = None
    value: bytes | None = None
    comment: bytes | None = None
    actor: str | None = None
    answered_at: int | None = None


class AskDecision(Op[Decision], frozen=True, kw_only=True):
    """Record the question; a repeat gives the decision as it stands, answered or not."""

    lease: Lease
    journal_id: str
    key: str
    kind: Literal["ask", "in_doubt", "resume"]
    question: bytes
    outcomes: list[str]
    comment_required: bool = False
    expires_in: float | None = None
    default_outcome: str | None = None


class SuspendIntent(Op[Intent], frozen=True, kw_only=True):
    """Give up the lease and wait. If one of ``keys`` has its answer already, the intent is claimable at once."""

    lease: Lease
    waiting_reason: str
    keys: list[str] = []


class AnswerDecision(Op[Decision], frozen=True, kw_only=True):
    """The same answer again is fine; a different one is AlreadyAnswered."""

    journal_id: str
    key: str
    outcome: str
    value: bytes | None = None
    comment: bytes | None = None
    actor: str = ""


class ListDecisions(Op[list[Decision]], frozen=True, kw_only=True):
    reads = True
    journal_id: str | None = None
    pending: bool = True
    limit: int = 100


# --- checkpoints and pieces ----------------------------------------------------------------------


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    journal_id: str
    version: int
    pin: str | None
    state: bytes
    meta: bytes
    blob_id: str | None
    attempt: int
    at: int
    seal: bytes


class PutCheckpoint(Op[int], frozen=True, kw_only=True):
    """Add a version. Older ones beyond ``keep`` go, except pinned ones."""

    lease: Lease
    checkpoint: Checkpoint
    keep: int = 10


class ReadCheckpoints(Op[list[Checkpoint]], frozen=True, kw_only=True):
    """Newest first."""

    reads = True
    journal_id: str
    limit: int = 100
    version: int | None = None
    pin: str | None = None


class PutPiece(Op[None], frozen=True, kw_only=True):
    """One piece of a value too large for a row; it counts only once a row names its blob."""

    journal_id: str
    blob_id: str
    number: int
    data: bytes


class ReadPiece(Op[bytes], frozen=True, kw_only=True):
    reads = True
    journal_id: str
    blob_id: str
    number: int


# --- records ------------------------------------------------------------------------------------


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A small document of the platform (a key, a scenario's state): versioned, and perhaps due at a time."""

    kind: str
    record_id: str
    version: int
    body: bytes
    belongs_to: str = ""
    due_at: int | None = None
    created_at: int = 0
    updated_at: int = 0
    write_id: str = ""


class PutRecord(Op[Record], frozen=True, kw_only=True):
    """Write a document; safe to repeat with the same ``write_id``.

    ``expected`` is the version it must have now (0: it must not be there); another one is a Conflict. None
    overwrites whatever there is. ``belongs_to`` names an intent with which the record is pruned.
    """

    kind: str
    record_id: str
    body: bytes
    write_id: str
    expected: int | None = None
    belongs_to: str = ""
    due_at: int | None = None


class GetRecord(Op[Record | None], frozen=True, kw_only=True):
    reads = True
    kind: str
    record_id: str


class ListRecords(Op[list[Record]], frozen=True, kw_only=True):
    """By id, after ``after``; those of one intent only if ``belongs_to`` is given."""

    reads = True
    kind: str
    belongs_to: str | None = None
    after: str = ""
    limit: int = 1000


class DueRecords(Op[list[Record]], frozen=True, kw_only=True):
    """Those whose time has come by the store's clock, the most overdue first."""

    reads = True
    limit: int = 100


class DeleteRecord(Op[None], frozen=True, kw_only=True):
    """Delete a document, if it is there."""

    kind: str
    record_id: str


# --- history and upkeep --------------------------------------------------------------------------


class ReadEvents(Op[list[Event]], frozen=True, kw_only=True):
    reads = True
    intent_id: str
    since: int = 0
    limit: int = 1000


class AppendEvent(Op[int], frozen=True, kw_only=True):
    """Note something that changes no status; safe to repeat with the same ``note_id``."""

    intent_id: str
    lease: Lease | None
    note_id: str
    event_type: str
    details: dict[str, Any] = {}
    data: bytes | None = None
    actor: str = ""


class Prune(Op[int], frozen=True, kw_only=True):
    """Delete at most ``limit`` finished intents that match, with all that is theirs; gives how many went."""

    finished_before: int | None = None
    keep_latest: int | None = None
    labels: dict[str, str] = {}
    statuses: list[Status] = []
    limit: int = 100


class NextDue(Op[int | None], frozen=True, kw_only=True):
    """When the next deadline, decision or record falls due by the store's clock; None if nothing is timed."""

    reads = True


class Measures(msgspec.Struct, frozen=True):
    """What a store holds, for whoever watches over it."""

    open_by_status: dict[str, int]
    claimable: int
    size_bytes: int


class Measure(Op[Measures], frozen=True, kw_only=True):
    reads = True


class CheckWritable(Op[int], frozen=True, kw_only=True):
    """A real durable write; gives the store's clock."""


AnyOp = (
    CreateIntent
    | GetIntent
    | ListIntents
    | FinishIntent
    | ReviveIntent
    | MoveIntent
    | SetTypePolicy
    | Claim
    | OpenIntent
    | RenewLease
    | ReleaseIntent
    | ReleaseOwner
    | ListAddresses
    | Sweep
    | ReadJournal
    | RecordStep
    | SettleStep
    | VoidSteps
    | GetProgress
    | AskDecision
    | SuspendIntent
    | AnswerDecision
    | ListDecisions
    | PutCheckpoint
    | ReadCheckpoints
    | PutPiece
    | ReadPiece
    | ReadEvents
    | AppendEvent
    | Prune
    | PutRecord
    | GetRecord
    | ListRecords
    | DueRecords
    | DeleteRecord
    | NextDue
    | Measure
    | CheckWritable
)

"""Every operation a store can do, as data, each with its result.

A store executes a list of operations in one durable transaction, in order. Each write is
idempotent by its keys: doing the same operation again after an answer was lost changes nothing
and gives the same answer. So an outcome that is not known is looked up by asking once more.
"""

from __future__ import annotations

from stepfast.ops.base import (
    Lease,
    Op,
)
from stepfast.ops.checkpoints import (
    Checkpoint,
    PutCheckpoint,
    PutPiece,
    ReadCheckpoints,
    ReadPiece,
)
from stepfast.ops.decisions import (
    AnswerDecision,
    AskDecision,
    Decision,
    ListDecisions,
    SuspendIntent,
)
from stepfast.ops.intents import (
    Created,
    CreateIntent,
    Filter,
    FinishIntent,
    GetIntent,
    ListIntents,
    MoveIntent,
    NewIntent,
    ReviveIntent,
    SetTypePolicy,
)
from stepfast.ops.journal import (
    GetProgress,
    Progress,
    ReadJournal,
    RecordStep,
    SettleStep,
    VoidSteps,
)
from stepfast.ops.leases import (
    Claim,
    ListAddresses,
    Opened,
    OpenIntent,
    ReleaseIntent,
    ReleaseOwner,
    RenewLease,
    Sweep,
)
from stepfast.ops.records import (
    DeleteRecord,
    DeleteRecords,
    DueRecords,
    GetRecord,
    ListRecords,
    PutRecord,
    RecentRecords,
    Record,
)
from stepfast.ops.threads import (
    CopyThread,
    CountThreads,
    DeleteThread,
    DropCheckpoints,
    ExpireThreads,
    FindRuns,
    ListCheckpoints,
    ListThreads,
    PutThread,
    ReadPath,
    ReadPieces,
    ReadThread,
    SetThreadTtl,
)
from stepfast.ops.upkeep import (
    AppendEvent,
    CheckWritable,
    Measure,
    Measures,
    NextDue,
    Prune,
    ReadEvents,
)

__all__ = [
    "AnswerDecision",
    "AnyOp",
    "AppendEvent",
    "AskDecision",
    "CheckWritable",
    "Checkpoint",
    "Claim",
    "CopyThread",
    "CountThreads",
    "CreateIntent",
    "Created",
    "Decision",
    "DeleteRecord",
    "DeleteRecords",
    "DeleteThread",
    "DropCheckpoints",
    "DueRecords",
    "ExpireThreads",
    "Filter",
    "FindRuns",
    "FinishIntent",
    "GetIntent",
    "GetProgress",
    "GetRecord",
    "Lease",
    "ListAddresses",
    "ListCheckpoints",
    "ListDecisions",
    "ListIntents",
    "ListRecords",
    "ListThreads",
    "Measure",
    "Measures",
    "MoveIntent",
    "NewIntent",
    "NextDue",
    "Op",
    "OpenIntent",
    "Opened",
    "Progress",
    "Prune",
    "PutCheckpoint",
    "PutPiece",
    "PutRecord",
    "PutThread",
    "ReadCheckpoints",
    "ReadEvents",
    "ReadJournal",
    "ReadPath",
    "ReadPiece",
    "ReadPieces",
    "ReadThread",
    "RecentRecords",
    "Record",
    "RecordStep",
    "ReleaseIntent",
    "ReleaseOwner",
    "RenewLease",
    "ReviveIntent",
    "SetThreadTtl",
    "SetTypePolicy",
    "SettleStep",
    "SuspendIntent",
    "Sweep",
    "VoidSteps",
]

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
    | RecentRecords
    | DueRecords
    | DeleteRecord
    | DeleteRecords
    | NextDue
    | Measure
    | CheckWritable
    | PutThread
    | ReadThread
    | ReadPieces
    | ListCheckpoints
    | ReadPath
    | CopyThread
    | DeleteThread
    | DropCheckpoints
    | FindRuns
    | ListThreads
    | CountThreads
    | SetThreadTtl
    | ExpireThreads
)

"""Crash recovery by default: a run goes on at its first unfinished step, wherever it is started again."""

from holdfast.async_client import AsyncHoldfast
from holdfast.client import Holdfast
from holdfast.clock import Clock
from holdfast.codec import Codec, KeyRing, TypeRegistry, register
from holdfast.core import Retention
from holdfast.decorators import durable, once, step
from holdfast.errors import (
    AlreadyAnswered,
    AlreadyFinished,
    CodecError,
    Conflict,
    Damaged,
    Diverged,
    Fenced,
    HoldfastError,
    InvalidInput,
    InvalidTransition,
    KeyUnavailable,
    NotFound,
    OutcomeUnknown,
    ResumeRefused,
    RunBusy,
    RunFailed,
    RunFinished,
    SchemaTooNew,
    StepFailed,
    StoreError,
    StoreFull,
    StoreUnavailable,
    Suspended,
    Unencodable,
    UnknownFormat,
    UnknownType,
)
from holdfast.intents import Event, Intent, Status
from holdfast.recovery import Check, File, Verdict
from holdfast.run import AsyncRun, AsyncScope, Run, Scope, current_run, idempotency_key
from holdfast.steps import DID_NOT_HAPPEN, Answer, Happened, Retry
from holdfast.stores import AsyncStore, Store, open_store

__version__ = "0.1.0"

__all__ = [
    "DID_NOT_HAPPEN",
    "AlreadyAnswered",
    "AlreadyFinished",
    "Answer",
    "AsyncHoldfast",
    "AsyncRun",
    "AsyncScope",
    "AsyncStore",
    "Check",
    "Clock",
    "Codec",
    "CodecError",
    "Conflict",
    "Damaged",
    "Diverged",
    "Event",
    "Fenced",
    "File",
    "Happened",
    "Holdfast",
    "HoldfastError",
    "Intent",
    "InvalidInput",
    "InvalidTransition",
    "KeyRing",
    "KeyUnavailable",
    "NotFound",
    "OutcomeUnknown",
    "ResumeRefused",
    "Retention",
    "Retry",
    "Run",
    "RunBusy",
    "RunFailed",
    "RunFinished",
    "SchemaTooNew",
    "Scope",
    "Status",
    "StepFailed",
    "Store",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Suspended",
    "TypeRegistry",
    "Unencodable",
    "UnknownFormat",
    "UnknownType",
    "Verdict",
    "__version__",
    "current_run",
    "durable",
    "idempotency_key",
    "once",
    "open_store",
    "register",
    "step",
]

"""Crash recovery by default: a run goes on at its first unfinished step, wherever it is started again."""

import typing

if typing.TYPE_CHECKING:
    from stepfast.async_client import AsyncStepfast
    from stepfast.client import Stepfast
    from stepfast.clock import Clock
    from stepfast.codec import Codec, KeyRing, TypeRegistry, register
    from stepfast.core import Retention
    from stepfast.decorators import durable, once, step
    from stepfast.errors import (
        AccessDenied,
        AlreadyAnswered,
        AlreadyFinished,
        CodecError,
        Conflict,
        Damaged,
        Diverged,
        Fenced,
        GiveUp,
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
        StepfastError,
        StoreError,
        StoreFull,
        StoreUnavailable,
        Suspended,
        Suspension,
        Unencodable,
        UnknownFormat,
        UnknownType,
    )
    from stepfast.intents import Event, Intent, Status
    from stepfast.recovery import Check, File, Verdict
    from stepfast.run import AsyncRun, AsyncScope, AsyncStepCalls, Run, Scope, StepCalls, current_run, idempotency_key
    from stepfast.steps import DID_NOT_HAPPEN, Answer, Happened, Retry, Waiting
    from stepfast.stores import AsyncStore, Store, open_store
    from stepfast.worker import AsyncWorker, Worker

__version__ = "0.1.0"

__all__ = [
    "DID_NOT_HAPPEN",
    "AccessDenied",
    "AlreadyAnswered",
    "AlreadyFinished",
    "Answer",
    "AsyncRun",
    "AsyncScope",
    "AsyncStepCalls",
    "AsyncStepfast",
    "AsyncStore",
    "AsyncWorker",
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
    "GiveUp",
    "Happened",
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
    "StepCalls",
    "StepFailed",
    "Stepfast",
    "StepfastError",
    "Store",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Suspended",
    "Suspension",
    "TypeRegistry",
    "Unencodable",
    "UnknownFormat",
    "UnknownType",
    "Verdict",
    "Waiting",
    "Worker",
    "__version__",
    "current_run",
    "durable",
    "idempotency_key",
    "once",
    "open_store",
    "register",
    "step",
]

# Each name is loaded from its module when it is first used, so that importing the package costs next to nothing.
_HOMES = {
    "stepfast.async_client": "AsyncStepfast",
    "stepfast.client": "Stepfast",
    "stepfast.clock": "Clock",
    "stepfast.codec": "Codec KeyRing TypeRegistry register",
    "stepfast.core": "Retention",
    "stepfast.decorators": "durable once step",
    "stepfast.errors": (
        "AccessDenied AlreadyAnswered AlreadyFinished CodecError Conflict Damaged Diverged Fenced GiveUp StepfastError "
        "InvalidInput InvalidTransition KeyUnavailable NotFound OutcomeUnknown ResumeRefused RunBusy "
        "RunFailed RunFinished SchemaTooNew StepFailed StoreError StoreFull StoreUnavailable Suspended "
        "Suspension Unencodable UnknownFormat UnknownType"
    ),
    "stepfast.intents": "Event Intent Status",
    "stepfast.recovery": "Check File Verdict",
    "stepfast.run": "AsyncRun AsyncScope AsyncStepCalls Run Scope StepCalls current_run idempotency_key",
    "stepfast.steps": "DID_NOT_HAPPEN Answer Happened Retry Waiting",
    "stepfast.stores": "AsyncStore Store open_store",
    "stepfast.worker": "AsyncWorker Worker",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> typing.Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})

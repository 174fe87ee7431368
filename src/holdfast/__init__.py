"""Crash recovery by default: a run goes on at its first unfinished step, wherever it is started again."""

import typing

if typing.TYPE_CHECKING:
    from holdfast.async_client import AsyncHoldfast
    from holdfast.client import Holdfast
    from holdfast.clock import Clock
    from holdfast.codec import Codec, KeyRing, TypeRegistry, register
    from holdfast.core import Retention
    from holdfast.decorators import durable, once, step
    from holdfast.errors import (
        AccessDenied,
        AlreadyAnswered,
        AlreadyFinished,
        CodecError,
        Conflict,
        Damaged,
        Diverged,
        Fenced,
        GiveUp,
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
    from holdfast.worker import AsyncWorker, Worker

__version__ = "0.1.0"

__all__ = [
    "DID_NOT_HAPPEN",
    "AccessDenied",
    "AlreadyAnswered",
    "AlreadyFinished",
    "Answer",
    "AsyncHoldfast",
    "AsyncRun",
    "AsyncScope",
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
    "holdfast.async_client": "AsyncHoldfast",
    "holdfast.client": "Holdfast",
    "holdfast.clock": "Clock",
    "holdfast.codec": "Codec KeyRing TypeRegistry register",
    "holdfast.core": "Retention",
    "holdfast.decorators": "durable once step",
    "holdfast.errors": (
        "AccessDenied AlreadyAnswered AlreadyFinished CodecError Conflict Damaged Diverged Fenced GiveUp HoldfastError "
        "InvalidInput InvalidTransition KeyUnavailable NotFound OutcomeUnknown ResumeRefused RunBusy "
        "RunFailed RunFinished SchemaTooNew StepFailed StoreError StoreFull StoreUnavailable Suspended "
        "Unencodable UnknownFormat UnknownType"
    ),
    "holdfast.intents": "Event Intent Status",
    "holdfast.recovery": "Check File Verdict",
    "holdfast.run": "AsyncRun AsyncScope Run Scope current_run idempotency_key",
    "holdfast.steps": "DID_NOT_HAPPEN Answer Happened Retry",
    "holdfast.stores": "AsyncStore Store open_store",
    "holdfast.worker": "AsyncWorker Worker",
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

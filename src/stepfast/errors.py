"""Every error a caller can meet.

StepfastError
├── InvalidInput              the call was wrong; nothing was written
│   ├── Unencodable           a value has a type the codec does not know
│   └── InvalidTransition     the lifecycle table has no such arrow
├── AccessDenied              the key is missing, revoked, or does not allow this
├── NotFound                  no such intent, run, decision or checkpoint
├── Conflict                  the store already holds something else under that key
│   ├── AlreadyFinished       the intent reached its one ending
│   └── AlreadyAnswered       the decision was answered differently
├── Fenced                    a newer attempt owns the intent; this one must stop
├── RunBusy                   a living owner holds the run
├── RunFailed                 the run ended FAILED, CANCELED or TIMED_OUT
├── RunFinished               the run is COMPLETED and was asked to do new work
├── Diverged                  the input of a recorded step changed
├── StepFailed                a recorded step error whose class is not at hand
├── ResumeRefused             the checks before resuming said *fail*
├── Suspended                 the run waits for a decision; open it again once that is answered
├── GiveUp                    raised by a worker's handler: trying again would not help
├── CodecError                stored bytes cannot be turned into a value
│   ├── Damaged               checksum, length or structure is wrong
│   ├── UnknownType           the bytes name a type this process does not know
│   ├── UnknownFormat         written by a newer library, or not by this one
│   └── KeyUnavailable        no key to decrypt, or a plain row where a key is set
└── StoreError                the store cannot serve
    ├── StoreUnavailable      certainly not applied; try again later
    ├── OutcomeUnknown        may have been applied; look it up by its key
    ├── StoreFull             no space left; nothing was written
    └── SchemaTooNew          the library is older than the schema it met

``Suspension`` stands outside this tree: it is control flow, and derives from BaseException so that a framework's
``except Exception`` cannot swallow it. It travels from the call that waits to the end of the ``with sf.run(...)`` block
(or of the durable function, or to the worker), where it becomes a ``Suspended``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = [
    "AccessDenied",
    "AlreadyAnswered",
    "AlreadyFinished",
    "CodecError",
    "Conflict",
    "Damaged",
    "Diverged",
    "Fenced",
    "GiveUp",
    "InvalidInput",
    "InvalidTransition",
    "KeyUnavailable",
    "NotFound",
    "OutcomeUnknown",
    "ResumeRefused",
    "RunBusy",
    "RunFailed",
    "RunFinished",
    "SchemaTooNew",
    "StepFailed",
    "StepfastError",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Suspended",
    "Suspension",
    "Unencodable",
    "UnknownFormat",
    "UnknownType",
]


class StepfastError(Exception):
    """Something went wrong in Stepfast."""

    code = "error"

    def __init__(self, message: str | None = None, **details: Any) -> None:
        self.message = message or (type(self).__doc__ or "").strip().splitlines()[0]
        self.details = details
        super().__init__(self.message)


class InvalidInput(StepfastError):
    """The call was wrong; nothing was written."""

    code = "invalid_input"


class Unencodable(InvalidInput):
    """A value has a type that the codec does not know."""

    code = "unencodable"


class InvalidTransition(InvalidInput):
    """The intent cannot go from its present status to that one."""

    code = "invalid_transition"


class AccessDenied(StepfastError):
    """The key is missing or revoked, or it does not allow this; nothing was written."""

    code = "access_denied"


class NotFound(StepfastError):
    """There is no such thing in the store."""

    code = "not_found"


class Conflict(StepfastError):
    """The store already holds something else under that key."""

    code = "conflict"


class AlreadyFinished(Conflict):
    """The intent has reached its one ending, which never changes."""

    code = "already_finished"


class AlreadyAnswered(Conflict):
    """The decision has already been answered differently."""

    code = "already_answered"


class Fenced(StepfastError):
    """A newer attempt owns this intent; this one must stop. Nothing was written."""

    code = "fenced"


class RunBusy(StepfastError):
    """A living owner holds this run."""

    code = "run_busy"


class RunFailed(StepfastError):
    """The run ended without completing."""

    code = "run_failed"


class RunFinished(StepfastError):
    """The run is completed and takes no new work."""

    code = "run_finished"


class Diverged(StepfastError):
    """The input of a recorded step changed."""

    code = "diverged"


class StepFailed(StepfastError):
    """A step failed in an earlier attempt, and its error was recorded."""

    code = "step_failed"


class ResumeRefused(StepfastError):
    """The checks before resuming found that this run must not go on."""

    code = "resume_refused"


class Suspended(StepfastError):
    """The run waits for a decision and holds no lease; open it again once the decision is answered.

    ``decisions`` has the keys of all questions of the run that have no answer yet.
    """

    code = "suspended"

    def __init__(self, message: str | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.run_id: str = details.get("run_id", "")
        self.intent_id: str = details.get("intent_id", "")
        self.decisions: list[str] = details.get("decisions", [])


class GiveUp(StepfastError):
    """The handler says that trying again would not help: its intent fails at once."""

    code = "give_up"


class CodecError(StepfastError):
    """Stored bytes cannot be turned into a value."""

    code = "codec"


class Damaged(CodecError):
    """Stored bytes are damaged: their checksum, length or structure is wrong."""

    code = "damaged"


class UnknownType(CodecError):
    """Stored bytes name a type that this process does not know."""

    code = "unknown_type"


class UnknownFormat(CodecError):
    """Stored bytes are in a format that this version does not know."""

    code = "unknown_format"


class KeyUnavailable(CodecError):
    """The encryption key of a stored value is not available."""

    code = "key_unavailable"


class StoreError(StepfastError):
    """The store cannot serve."""

    code = "store"


class StoreUnavailable(StoreError):
    """The store could not be reached; nothing was written."""

    code = "store_unavailable"


class OutcomeUnknown(StoreError):
    """The store did not confirm; the operation may or may not have been applied."""

    code = "outcome_unknown"


class StoreFull(StoreError):
    """The store has no space left; nothing was written."""

    code = "store_full"


class SchemaTooNew(StoreError):
    """The store was written by a newer version of Stepfast."""

    code = "schema_too_new"


class Suspension(BaseException):
    """The signal inside an open run that it waits for a decision. Control flow, not an error.

    Code that runs inside a ``with sf.run(...)`` block lets it pass. Leaving the block turns it into `Suspended`.
    """

    def __init__(self, message: str, *, run_id: str, intent_id: str, decisions: Iterable[str]) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.intent_id = intent_id
        self.decisions = list(decisions)

    def as_error(self) -> Suspended:
        """Returns the ordinary exception for callers outside the run, with the traceback of the call that waits."""
        error = Suspended(str(self), run_id=self.run_id, intent_id=self.intent_id, decisions=self.decisions)
        return error.with_traceback(self.__traceback__)

"""Batches of operations on their way to a server and back, as MessagePack.

A request carries any number of batches, each a transaction of its own. The values inside an operation
are bytes already, so neither side of the wire decodes what a user stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from stepfast import errors, ops
from stepfast.errors import StepfastError, StoreError

OPS_PATH = "/v1/ops"
SESSION_PATH = "/v1/ops/session"
CONTENT_TYPE = "application/x-stepfast"


class Fault(msgspec.Struct, frozen=True):
    """An error as it travels: the class by name, so that the caller catches what an embedded store raises."""

    kind: str
    message: str
    details: dict[str, Any] = {}


class Request(msgspec.Struct, frozen=True, array_like=True):
    """``watch``: all topics the caller's session waits on from now on; None leaves them as they are."""

    batches: list[list[ops.AnyOp]]
    session: str = ""
    watch: list[str] | None = None


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """For each batch its results or the error; ``heard`` says whether this server has the caller's session."""

    outcomes: list[list[msgspec.Raw] | Fault]
    heard: bool = True


class _Reply(msgspec.Struct, frozen=True, array_like=True):
    outcomes: list[Any]
    heard: bool


class Session(msgspec.Struct, frozen=True, array_like=True):
    """Opens the stream of wake-ups; as long as it is open, the owner's process is known to live."""

    session: str
    owner: str
    watch: list[str] = []


# Made here, where no two threads meet: msgspec crashes if two of them are the first to use a class.
_encode = msgspec.msgpack.Encoder().encode
_requests = msgspec.msgpack.Decoder(Request)
_answers = msgspec.msgpack.Decoder(Answer)
_sessions = msgspec.msgpack.Decoder(Session)
_RESULTS: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(get_args(kind.__orig_bases__[0])[0]) for kind in get_args(ops.AnyOp)
}
_KINDS = {
    name: kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, StepfastError)
}


def encode_request(
    batches: Sequence[Sequence[ops.Op[Any]]], session: str = "", watch: list[str] | None = None
) -> bytes:
    return _encode((batches, session, watch))


def decode_request(data: bytes) -> Request:
    return _requests.decode(data)


def encode_answer(outcomes: Sequence[list[Any] | BaseException], heard: bool = True) -> bytes:
    told = [to_fault(o) if isinstance(o, BaseException) else o for o in outcomes]
    return _encode(_Reply(told, heard))


def decode_answer(
    data: bytes, batches: Sequence[Sequence[ops.Op[Any]]]
) -> tuple[list[list[Any] | StepfastError], bool]:
    """What became of each batch, in order; `msgspec.DecodeError` (a ValueError) if these are not its answers."""
    answer = _answers.decode(data)
    told: list[list[Any] | StepfastError] = []
    for batch, outcome in zip(batches, answer.outcomes, strict=True):
        if isinstance(outcome, Fault):
            told.append(to_error(outcome))
        else:
            told.append([_RESULTS[type(op)].decode(raw) for op, raw in zip(batch, outcome, strict=True)])
    return told, answer.heard


def encode_session(session: Session) -> bytes:
    return _encode(session)


def decode_session(data: bytes) -> Session:
    return _sessions.decode(data)


def to_fault(error: BaseException) -> Fault:
    """An error for the other side. What is not ours is a failure of the server, and says nothing of its inside."""
    if not isinstance(error, StepfastError):
        return Fault("StoreError", "the server failed on this batch; its log says how.")
    kind = next((k.__name__ for k in type(error).__mro__ if k.__name__ in _KINDS), "StepfastError")
    details = {name: value for name, value in error.details.items() if _is_plain(value)}
    return Fault(kind, error.message, details)


def to_error(fault: Fault) -> StepfastError:
    kind = _KINDS.get(fault.kind, StoreError)
    return kind(fault.message, **fault.details)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)

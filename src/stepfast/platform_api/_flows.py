"""Requests and streams as flows: what is asked, tried again, and gone on with, without any I/O."""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from typing import Any, NamedTuple, TypedDict, TypeVar
from uuid import uuid4

import msgspec

from stepfast import errors
from stepfast.errors import (
    AccessDenied,
    Conflict,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    StepfastError,
    StoreUnavailable,
)
from stepfast.intents import TERMINAL

Json = dict[str, Any]
T = TypeVar("T")

_TRIES = 5
_FIRST_PAUSE, _LONGEST_PAUSE, _LONGEST_ASKED = 0.1, 5.0, 60.0
_READ_SLACK = 15.0
_LONGEST_LINE = 16 << 20
_SKIPS_AFTER = 3
# The server has done nothing, so asking again is safe whatever was asked.
_NOT_DONE = frozenset({408, 425, 429, 503})
_PERHAPS_DONE = frozenset({500, 502, 504})
_BY_STATUS: dict[int, type[StepfastError]] = {
    400: InvalidInput,
    401: AccessDenied,
    403: AccessDenied,
    404: NotFound,
    408: StoreUnavailable,
    409: Conflict,
    413: InvalidInput,
    415: InvalidInput,
    422: InvalidInput,
    429: StoreUnavailable,
    501: StepfastError,
}


class How(TypedDict, total=False):
    """What every method takes besides its own."""

    idempotency_key: str | None
    trace_id: str | None
    owner_agent: str | None
    x_owner_agent: str | None
    authorization: str | None


# --- what a flow may ask for -------------------------------------------------------------------------


class Ask(NamedTuple):
    """One request. ``repeatable``: doing it twice is doing it once."""

    method: str
    path: str
    params: dict[str, str]
    body: Json | None
    headers: dict[str, str]
    repeatable: bool


class Reply(NamedTuple):
    status: int
    headers: Any
    content: bytes


class Sleep(NamedTuple):
    seconds: float


class Open(NamedTuple):
    """Begin a stream; the answer has its content only where it is an error."""

    ask: Ask
    read_timeout: float


class Read(NamedTuple):
    """The next bytes of the open stream; None at its end."""


class Shut(NamedTuple):
    """Let go of the stream."""


class Emit(NamedTuple):
    """Hand this to whoever reads the stream."""

    value: Json


Command = Ask | Sleep | Open | Read | Shut | Emit
Flow = Generator[Command, Any, T]


class Lost(Exception):
    """The connection broke; ``sent`` says whether the server may have got the request."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


# --- requests ------------------------------------------------------------------------------------


def ask(
    method: str,
    path: str,
    body: Json | None = None,
    *,
    params: dict[str, Any] | None = None,
    repeatable: bool | None = None,
    how: How | None = None,
) -> Ask:
    """A request. A write gets a key of its own; whether the server keeps it is for ``repeatable`` to say."""
    how = how or {}
    headers = {"x-trace-id": how.get("trace_id") or str(uuid4())}
    reads = method in ("GET", "DELETE")
    if not reads:
        headers["idempotency-key"] = how.get("idempotency_key") or str(uuid4())
    for name in ("x_owner_agent", "authorization"):
        if how.get(name) is not None:
            headers[name.replace("_", "-")] = str(how.get(name))
    given = {**(params or {}), "owner_agent": how.get("owner_agent")}
    query = {name: str(value) for name, value in given.items() if value is not None}
    return Ask(method, path, query, body, headers, reads if repeatable is None else repeatable)


def call(request: Ask) -> Flow[Json]:
    """The server's object, or a typed error. Tries again where that is safe."""
    for attempt in range(_TRIES):
        last = attempt == _TRIES - 1
        try:
            reply: Reply = yield request
        except Lost as lost:
            if last or (lost.sent and not request.repeatable):
                kind = OutcomeUnknown if lost.sent and not request.repeatable else StoreUnavailable
                raise kind(f"{request.method} {request.path}: the server did not answer ({lost}).") from None
            yield Sleep(pause(attempt))
            continue
        again = reply.status in _NOT_DONE or (request.repeatable and reply.status in _PERHAPS_DONE)
        if again and not last:
            yield Sleep(asked_pause(reply, attempt))
            continue
        return object_of(reply)
    raise AssertionError("unreachable")


def pause(attempt: int) -> float:
    """A little longer each time, and never in step with others."""
    longest: float = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**attempt)
    return longest * (0.5 + random.random() / 2)  # noqa: S311


def asked_pause(reply: Reply, attempt: int) -> float:
    asked = reply.headers.get("retry-after", "")
    return min(float(asked), _LONGEST_ASKED) if asked.isdecimal() else pause(attempt)


def object_of(reply: Reply) -> Json:
    if reply.status >= 400:
        raise error_of(reply)
    try:
        return msgspec.json.decode(reply.content, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise StoreUnavailable(f"the server's answer ({reply.status}) is no JSON object: {error}.") from None


def error_of(reply: Reply) -> StepfastError:
    """The error that the server had, by its code; by its status where the code is not one of ours."""
    try:
        told = msgspec.json.decode(reply.content, type=dict[str, Any])
    except msgspec.MsgspecError:
        told = {}
    said = told.get("error")
    said = said if isinstance(said, dict) else {}
    detail = told.get("detail")
    text = said.get("message") or (detail if isinstance(detail, str) else None) or f"HTTP {reply.status}"
    details: Any = said.get("details")
    kind = _kinds().get(str(said.get("code")))
    if kind is None:
        kind = _BY_STATUS.get(reply.status, StepfastError if reply.status < 500 else StoreUnavailable)
    error = kind(str(text))
    error.details = {**(details if isinstance(details, dict) else {}), "http_status": reply.status}
    if said.get("code"):
        error.code = str(said["code"])
    return error


def _kinds() -> dict[str, type[StepfastError]]:
    found: dict[str, type[StepfastError]] = {}
    rest: list[type[StepfastError]] = [StepfastError]
    while rest:
        kind = rest.pop()
        rest += kind.__subclasses__()
        if kind.__module__ == errors.__name__ and kind is not StepfastError:
            found[kind.code] = kind
    return found


# --- streams -------------------------------------------------------------------------------------


class Frame(NamedTuple):
    event: str
    data: str


class Frames:
    """Server-sent events out of bytes, however they are cut. Only CR and LF end a line: U+2028 is text."""

    def __init__(self) -> None:
        self._rest = b""
        self._event = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[Frame]:
        # A CR at the end may be half of a CRLF: it waits for the next bytes.
        text = self._rest + data
        held = b"\r" if text.endswith(b"\r") else b""
        lines = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop() + held
        if len(self._rest) > _LONGEST_LINE:
            raise StoreUnavailable(f"the server sent a line of more than {_LONGEST_LINE:,} bytes.")
        return [frame for line in lines if (frame := self._line(line.decode("utf-8", "replace"))) is not None]

    def _line(self, line: str) -> Frame | None:
        if not line:
            frame = Frame(self._event, "\n".join(self._data)) if self._event or self._data else None
            self._event, self._data = "", []
            return frame
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value.strip()
        elif name == "data":
            self._data.append(value)
        return None


class Following(NamedTuple):
    """A stream to be followed: where it is, from where on, and for how long."""

    path: str
    since: int
    wait_seconds: int
    timeout_seconds: float | None
    params: dict[str, Any]
    how: How
    dense: bool  # its numbers have no gaps, so that a gap is a frame that was lost
    ends: bool  # with the first event that tells of an ending


def follow(what: Following) -> Flow[None]:
    """Emit every object of a stream once, in order, over as many connections as it takes."""
    if what.since < 0 or what.wait_seconds < 1:
        raise InvalidInput("since must be at least 0, and wait_seconds at least 1.")
    deadline = None if what.timeout_seconds is None else time.monotonic() + what.timeout_seconds
    at, failures = Cursor(what.since), 0
    while True:
        wait = what.wait_seconds
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"nothing more came from {what.path} within {what.timeout_seconds} seconds")
            wait = max(1, min(wait, int(left)))
        began, before = time.monotonic(), at.seq
        params = {**what.params, "since": at.seq, "wait_seconds": wait}
        asked = 0.0
        try:
            reply: Reply = yield Open(ask("GET", what.path, params=params, how=what.how), wait + _READ_SLACK)
            if reply.status in _NOT_DONE or (reply.status >= 500 and reply.status != 501):
                asked = asked_pause(reply, failures)
            elif reply.status >= 400:
                raise error_of(reply)
            else:
                if (yield from _read(what, at, failures >= _SKIPS_AFTER)):
                    return
        except Lost:
            asked = pause(failures)
        yield Shut()
        if at.seq > before or (not asked and time.monotonic() - began > 0.5):
            failures = 0
        else:  # it ended at once with nothing: do not spin
            failures += 1
            asked = asked or pause(failures)
        if asked:
            yield Sleep(asked if deadline is None else max(0.0, min(asked, deadline - time.monotonic())))


class Cursor:
    """The last number that was emitted, whatever becomes of the connection."""

    def __init__(self, seq: int) -> None:
        self.seq = seq


def _read(what: Following, at: Cursor, skip: bool) -> Flow[bool]:
    """One connection's frames; whether all is told."""
    frames = Frames()
    while True:
        data: bytes | None = yield Read()
        if data is None:
            return False
        for frame in frames.feed(data):
            if frame.event == "stream.timeout":
                return False
            if not frame.event.startswith("intent."):
                continue
            event = _object(frame.data)
            number = None if event is None else event.get("seq")
            if event is None or not isinstance(number, int) or isinstance(number, bool):
                if what.dense and not skip:  # damaged on its way: it is asked for again
                    return False
                continue
            if number <= at.seq:
                continue
            if what.dense and number > at.seq + 1 and not skip:
                return False
            at.seq = number
            yield Emit(event)
            if what.ends and is_ending(event):
                return True


def _object(text: str) -> Json | None:
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError):
        return None


def is_ending(event: Json) -> bool:
    status, kind = event.get("status"), event.get("event_type")
    return status in TERMINAL or (isinstance(kind, str) and kind.removeprefix("intent.").upper() in TERMINAL)

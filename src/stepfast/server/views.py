"""Intents and events in the shapes of the AXME wire.

Values of users are shown where they are plain JSON, and never built: anything else is ``{"$opaque": "<what>"}``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from stepfast import bindings
from stepfast.codec import Codec
from stepfast.core import iso
from stepfast.errors import CodecError, KeyUnavailable, UnknownType
from stepfast.intents import TERMINAL, Event, Intent, Status
from stepfast.server.controls import Extra

_LEGACY = {
    Status.CREATED: "accepted",
    Status.SUBMITTED: "accepted",
    Status.DELIVERED: "accepted",
    Status.IN_PROGRESS: "running",
    Status.WAITING: "blocked",
    Status.COMPLETED: "done",
}
_MAX_DIGITS = 4300  # more digits than that no JSON reader takes
_BIGGEST = 10**_MAX_DIGITS


def to_json(value: Any) -> str:
    """ASCII only: some readers of streams take U+2028 and its like for the end of a line."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def reply(content: dict[str, Any], status: int = 200) -> Response:
    return Response(to_json(content), status, media_type="application/json")


def opaque(what: str) -> dict[str, str]:
    return {"$opaque": what}


def plain(value: Any) -> Any:
    """A decoded value as JSON can say it."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        return value if -_BIGGEST < value < _BIGGEST else opaque("int")
    if kind is float:
        return value if math.isfinite(value) else opaque("float")
    if kind is dict:
        if not all(type(key) is str for key in value):
            return opaque("dict")
        return {key: plain(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [plain(item) for item in value]
    return opaque(f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))


def value_of(codec: Codec, data: bytes | None, bind: bytes) -> Any:
    """Stored bytes as JSON; what cannot be read here is said, not raised."""
    return None if data is None else _shown(lambda: codec.decode(data, bind=bind))


def payload_of(codec: Codec, tenant: str, intent: Intent) -> Any:
    data = intent.payload
    return None if data is None else _shown(lambda: bindings.open_payload(codec, data, tenant, intent.journal_id))


def _shown(decode: Callable[[], Any]) -> Any:
    try:
        return plain(decode())
    except KeyUnavailable:
        return opaque("encrypted")
    except UnknownType as error:
        return opaque(str(error.details.get("type", "unknown type")))
    except CodecError as error:
        return opaque(error.code)


def result_of(codec: Codec, tenant: str, intent: Intent) -> Any:
    return value_of(codec, intent.result, bindings.of_result(tenant, intent.journal_id))


def error_of(codec: Codec, tenant: str, intent: Intent) -> Any:
    """What was told of a failure; where nothing was, the store's reason."""
    if intent.error is not None:
        return value_of(codec, intent.error, bindings.of_error(tenant, intent.journal_id))
    if intent.status in (Status.FAILED, Status.TIMED_OUT):
        return {"reason": intent.reason}
    return None


def show(codec: Codec, tenant: str, intent: Intent, extra: Extra) -> dict[str, Any]:
    """The intent object of ``GET /v1/intents/{id}``."""
    status = str(intent.status)
    return {
        "intent_id": intent.intent_id,
        "intent_type": intent.intent_type,
        "correlation_id": intent.correlation_id,
        "from_agent": intent.from_agent or "",
        "to_agent": intent.to_agent,
        "status": status,
        "lifecycle_status": status,
        "legacy_status": _LEGACY.get(intent.status, "failed"),
        "waiting_reason": intent.waiting_reason,
        "lifecycle_waiting_reason": intent.waiting_reason,
        "payload": {} if intent.payload is None else payload_of(codec, tenant, intent),
        "result": result_of(codec, tenant, intent),
        "error": error_of(codec, tenant, intent),
        "reason": intent.reason,
        "created_at": iso(intent.created_at),
        "updated_at": iso(intent.updated_at),
        "finished_at": iso(intent.finished_at),
        "deadline_at": iso(intent.deadline_at),
        "delivery_attempt": intent.attempt,
        "lost_deliveries": intent.lost,
        "max_delivery_attempts": intent.max_delivery_attempts,
        "seq": intent.seq,
        "run_id": intent.run_id,
        "labels": intent.labels,
        "revived_from": intent.revived_from,
        "superseded_by": intent.superseded_by,
        **extra.shown(),
    }


def envelope(shown: dict[str, Any]) -> dict[str, Any]:
    """The intent, and beside it what scripts read at the top."""
    mirrored = ("intent_id", "intent_type", "status", "lifecycle_status", "payload", "result")
    return {"ok": True, "intent": shown, **{name: shown[name] for name in mirrored}}


def show_event(codec: Codec, tenant: str, event: Event, intent: Intent, extra: Extra) -> dict[str, Any]:
    """One line of the history. An ending carries its result: nobody has to fetch the intent for it."""
    details = dict(event.details)
    shown: dict[str, Any] = {
        "intent_id": event.intent_id,
        "seq": event.seq,
        "event_type": event.event_type,
        "status": str(event.status),
        "at": iso(event.at),
        "attempt": event.attempt,
        "actor": event.actor or "stepfast",
        "handler": intent.to_agent,
    }
    reason = details.get("waiting_reason")
    if event.status is Status.WAITING and isinstance(reason, str):
        shown["waiting_reason"] = shown["lifecycle_waiting_reason"] = reason
        if extra.pending_with is not None:
            shown["pending_with"] = extra.pending_with
    if event.event_type == "intent.human_task_assigned":
        shown["human_task"] = details.get("human_task", extra.human_task)
    if event.data is not None:
        shown["data"] = value_of(codec, event.data, bindings.of_error(tenant, intent.journal_id))
    if event.event_type == f"intent.{event.status.lower()}" and event.status in TERMINAL:
        result = result_of(codec, tenant, intent)
        error = error_of(codec, tenant, intent)
        if event.status is Status.COMPLETED:
            details["result"] = shown["result"] = shown["data"] = result
        elif error is not None:
            details["error"] = shown["error"] = shown["data"] = error
    shown["details"] = plain(details)
    return shown

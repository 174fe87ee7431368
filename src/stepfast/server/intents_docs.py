"""What the OpenAPI document says of the routes on intents."""

from __future__ import annotations

from typing import Any

_TEXT: dict[str, Any] = {"type": "string"}
_MAYBE: dict[str, Any] = {"type": ["string", "null"]}
_NUMBER: dict[str, Any] = {"type": "integer", "minimum": 0}
_OBJECT: dict[str, Any] = {"type": "object"}
_FLAG: dict[str, Any] = {"type": "boolean"}
_STATUS: dict[str, Any] = {
    "enum": [
        "CREATED",
        "SUBMITTED",
        "DELIVERED",
        "IN_PROGRESS",
        "WAITING",
        "COMPLETED",
        "FAILED",
        "CANCELED",
        "TIMED_OUT",
    ]
}
ADDRESS = "^(agent://)?[A-Za-z0-9._~@+-]{1,128}(/[A-Za-z0-9._~@+-]{1,128}){0,2}$"
_YEAR = 366 * 86_400


def parameter(name: str, schema: dict[str, Any], description: str, place: str = "query") -> dict[str, Any]:
    return {"name": name, "in": place, "required": False, "schema": schema, "description": description}


def answer(description: str, **properties: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"ok": {"const": True}, **properties},
        "required": ["ok", *properties],
    }
    return {"200": {"description": description, "content": {"application/json": {"schema": schema}}}}


def _body(properties: dict[str, Any], required: list[str], **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required, **more}
    return {"required": bool(required), "content": {"application/json": {"schema": schema}}}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


_KEY = parameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    "The same key and body give the first answer again; another body is a 409.",
    "header",
)
_OWNER = [
    parameter("owner_agent", _TEXT, "Whose intent it is; must not differ from x-owner-agent."),
    parameter("x-attempt-token", {"type": "string"}, "The attempt_token of a delivery: fences out old ones.", "header"),
]
_SINCE = parameter("since", {"type": "integer", "minimum": 0, "maximum": 1 << 53}, "Only what comes after this seq.")

INTENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "intent_id": _TEXT,
        "intent_type": _TEXT,
        "correlation_id": _MAYBE,
        "from_agent": _TEXT,
        "to_agent": _TEXT,
        "status": _STATUS,
        "lifecycle_status": _STATUS,
        "legacy_status": {"enum": ["accepted", "running", "blocked", "done", "failed"]},
        "waiting_reason": _MAYBE,
        "lifecycle_waiting_reason": _MAYBE,
        "payload": {"description": "As it was sent; `$opaque` where this server cannot read it."},
        "result": {},
        "error": {},
        "reason": _MAYBE,
        "created_at": _TEXT,
        "updated_at": _TEXT,
        "finished_at": _MAYBE,
        "deadline_at": _MAYBE,
        "delivery_attempt": _NUMBER,
        "lost_deliveries": _NUMBER,
        "max_delivery_attempts": _NUMBER,
        "seq": _NUMBER,
        "reply_to": _MAYBE,
        "human_task": {"type": ["object", "null"]},
        "pending_with": {"type": ["object", "null"]},
        "remind_count": _NUMBER,
        "controls": _OBJECT,
        "policy": _OBJECT,
        "policy_generation": _NUMBER,
    },
    "required": [
        "intent_id",
        "intent_type",
        "correlation_id",
        "from_agent",
        "to_agent",
        "status",
        "lifecycle_status",
        "payload",
        "created_at",
        "policy_generation",
    ],
}
EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "intent_id": _TEXT,
        "seq": {"type": "integer", "minimum": 1},
        "event_type": {"type": "string", "pattern": "^intent\\."},
        "status": _STATUS,
        "at": _TEXT,
        "attempt": _NUMBER,
        "actor": _TEXT,
        "handler": _TEXT,
        "details": _OBJECT,
    },
    "required": ["intent_id", "seq", "event_type", "status", "at", "details"],
}
_SECONDS = _or_null({"type": "number", "exclusiveMinimum": 0, "maximum": _YEAR})
_NAME = _or_null({"type": "string", "minLength": 1, "maxLength": 383})
_CREATE = {
    "intent_type": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[A-Za-z0-9][A-Za-z0-9_.:/-]*$"},
    "to_agent": {"type": "string", "maxLength": 383, "pattern": ADDRESS},
    "payload": {"type": ["object", "null"]},
    "correlation_id": _or_null({"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}),
    "from_agent": {"description": "An agent key's own address counts, whatever stands here."},
    "reply_to": _NAME,
    "deadline_at": {"type": ["string", "null"], "description": "RFC 3339, from 1970 to 9998; or give ttl_seconds."},
    "ttl_seconds": _SECONDS,
    "remind_after_seconds": _SECONDS,
    "remind_interval_seconds": _SECONDS,
    "max_reminders": _or_null({"type": "integer", "minimum": 0, "maximum": 1000}),
    "escalate_to": _NAME,
    "max_delivery_attempts": _or_null({"type": "integer", "minimum": 1, "maximum": 1000}),
    "human_task": {"type": ["object", "null"], "description": "What a person is asked; the intent then waits for it."},
}
_REASON = _or_null({"type": "string", "maxLength": 2000})
_ACTOR = _or_null({"type": "string", "maxLength": 255})
_GENERATION = _or_null(_NUMBER)
_STEERING = {"reason": _REASON, "actor": _ACTOR, "expected_policy_generation": _GENERATION}
_ANSWERING = {
    "actor": _ACTOR,
    "attempt_token": _or_null({"type": "string", "maxLength": 255}),
    "expected_policy_generation": _GENERATION,
}
_APPLIED = {"applied": _FLAG, "policy_generation": _NUMBER}
_STREAM = {
    "200": {
        "description": "One frame an event, comments between, `stream.timeout` where the time is over",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
_ONE = "/v1/intents/{intent_id}"

DOCS: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/intents"): {
        "summary": "Create an intent",
        "parameters": [_KEY],
        "requestBody": _body(_CREATE, ["intent_type", "to_agent"]),
        "responses": answer("Durable", intent_id=_TEXT, status={"enum": ["DELIVERED", "WAITING"]}, created_at=_TEXT),
    },
    ("GET", "/v1/intents"): {
        "summary": "List intents, the newest first",
        "parameters": [
            parameter("status", _TEXT, "Statuses, separated by commas."),
            parameter("to_agent", _TEXT, "Exactly this address."),
            parameter("intent_type", _TEXT, "Exactly this type."),
            parameter("before", _TEXT, "The next_before of the page before."),
            parameter("limit", {"type": "integer"}, "At most so many; brought into 1 to 1000."),
        ],
        "responses": answer("A page", intents={"type": "array", "items": INTENT}, next_before=_MAYBE),
    },
    ("POST", "/v1/intents/bulk-cancel"): {
        "summary": "Cancel old open intents, or only say which",
        "requestBody": _body(
            {
                "older_than_hours": {"type": "number", "minimum": 0.1, "maximum": 1e6},
                "status_filter": {"type": ["array", "null"], "items": _TEXT},
                "dry_run": _FLAG,
                "reason": _REASON,
                "limit": {"type": "integer", "minimum": 1, "maximum": 5000},
            },
            [],
        ),
        "responses": answer("Done, or counted", dry_run=_FLAG, intent_ids={"type": "array", "items": _TEXT}),
    },
    ("GET", _ONE): {
        "summary": "Show an intent",
        "responses": answer(
            "Found",
            intent=INTENT,
            intent_id=_TEXT,
            intent_type=_TEXT,
            status=_STATUS,
            lifecycle_status=_STATUS,
            payload={},
            result={},
        ),
    },
    ("GET", f"{_ONE}/events"): {
        "summary": "The history of an intent",
        "parameters": [_SINCE, parameter("limit", {"type": "integer"}, "At most so many; brought into 1 to 1000.")],
        "responses": answer("In order", events={"type": "array", "items": EVENT}),
    },
    ("GET", f"{_ONE}/events/stream"): {
        "summary": "The history of an intent as server-sent events",
        "parameters": [_SINCE, parameter("wait_seconds", {"type": "integer"}, "Brought into 1 to 60.")],
        "responses": _STREAM,
    },
    ("POST", f"{_ONE}/resume"): {
        "summary": "Answer for an intent: its result, a failure, a person's decision, or let it go on",
        "description": (
            "`action` complete or fail ends it; `task_result` is a person's decision; `approve_current_step` releases "
            "a wait; `status` pending_human_approval asks a person; anything else is the result."
        ),
        "parameters": [_KEY, *_OWNER],
        "requestBody": _body(_ANSWERING, []),
        "responses": answer("Applied, or stale", intent=INTENT, **_APPLIED),
    },
    ("POST", f"{_ONE}/resolve"): {
        "summary": "End an intent",
        "parameters": [_KEY, *_OWNER],
        "requestBody": _body(
            {
                "status": {"type": "string", "description": "COMPLETED, FAILED or CANCELED."},
                "result": {},
                "error": {},
                "reason": _REASON,
                **_ANSWERING,
            },
            ["status"],
        ),
        "responses": answer("Ended, or stale", intent=INTENT, **_APPLIED),
    },
    ("POST", f"{_ONE}/controls"): {
        "summary": "Patch the controls of an intent; a `checkpoint` in it is told in the history",
        "parameters": [_KEY, _OWNER[0]],
        "requestBody": _body({"controls_patch": _OBJECT, **_STEERING}, ["controls_patch"]),
        "responses": answer("Applied, or stale", **_APPLIED),
    },
    ("POST", f"{_ONE}/policy"): {
        "summary": "Patch the policy of an intent",
        "parameters": [_KEY, _OWNER[0]],
        "requestBody": _body(
            {
                "grants_patch": {"type": ["object", "null"]},
                "envelope_patch": {"type": ["object", "null"]},
                **_STEERING,
            },
            [],
        ),
        "responses": answer("Applied, or stale", **_APPLIED),
    },
    ("POST", f"{_ONE}/revive"): {
        "summary": "A new intent that goes on where one that ended without completing had stopped",
        "parameters": [_KEY],
        "responses": answer("The new one", intent=INTENT, intent_id=_TEXT, status=_STATUS),
    },
}

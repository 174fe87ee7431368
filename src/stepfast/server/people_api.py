"""People's tasks and approvals over HTTP."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepfast.clock import new_id
from stepfast.core import iso
from stepfast.errors import Conflict, InvalidInput, NotFound
from stepfast.ops import GetIntent, GetRecord, PutRecord
from stepfast.server import inbox_api, people
from stepfast.server.caller import Caller
from stepfast.server.guard import query_int, read_as, read_json
from stepfast.server.scenario_runs import waits_for_person
from stepfast.server.state import Platform
from stepfast.server.store_time import StoreTime
from stepfast.server.views import reply

__all__ = ["DOCS", "routes"]

APPROVAL = "approval"
_ABOUT = frozenset({"content_hash", "actor"})


class DecisionBody(msgspec.Struct, kw_only=True):
    decision: Literal["approve", "reject"]
    comment: Annotated[str, Meta(max_length=1000)] | None = None


class AnswerBody(msgspec.Struct, kw_only=True):
    """Of an answer; the fields of a form stand beside these."""

    outcome: Annotated[str, Meta(min_length=1, max_length=255)]
    comment: Annotated[str, Meta(max_length=10_000)] | None = None
    content_hash: Annotated[str, Meta(max_length=128)] | None = None
    actor: Annotated[str, Meta(max_length=200)] | None = None


def _context(request: Request) -> tuple[Platform, Caller]:
    return request.app.state.platform, request.state.caller


async def my_tasks(request: Request) -> Response:
    """In the shape that AXME's command line reads."""
    platform, caller = _context(request)
    caller.require("read")
    limit = query_int(request, "limit", 100, least=1, most=500)
    tasks = [
        {
            "intent_id": task["intent_id"],
            "task_id": task["task_id"],
            "intent_type": task["intent_type"],
            "status": "WAITING",
            "from_agent": task["from_agent"],
            "assigned_at": task["asked_at"],
            "due_at": task["due_at"],
            "human_task": task.get("human_task")
            or {"title": task["title"], "task_type": "approval", "allowed_outcomes": task["outcomes"]},
        }
        for task in await people.list_tasks(platform, caller, limit)
    ]
    return reply({"ok": True, "tasks": tasks})


async def list_tasks(request: Request) -> Response:
    platform, caller = _context(request)
    caller.require("read")
    limit = query_int(request, "limit", 100, least=1, most=500)
    return reply({"ok": True, "tasks": await people.list_tasks(platform, caller, limit)})


async def get_task(request: Request) -> Response:
    platform, caller = _context(request)
    caller.require("read")
    return reply({"ok": True, "task": await people.show_one(platform, caller, request.path_params["task_id"])})


async def answer(request: Request) -> Response:
    platform, caller = _context(request)
    caller.require("answer")
    given = await read_json(request)
    try:
        body = msgspec.convert(given, AnswerBody)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{error}.") from None
    intent, _, decision = await people.find_task(platform, caller, request.path_params["task_id"])
    said = {name: value for name, value in given.items() if name not in _ABOUT}
    actor = people.actor_of(caller, body.actor)
    if decision is not None:
        done = await people.answer_decision(
            platform, caller, intent, decision, said, shown=body.content_hash, actor=actor
        )
        intent = await platform.store.one(GetIntent(intent_id=intent.intent_id), tenant=caller.tenant)
        outcome = done.outcome
    else:
        intent = await people.answer_task(platform, caller, intent, said, shown=body.content_hash, actor=actor)
        outcome = body.outcome
    return reply(
        {"ok": True, "intent_id": intent.intent_id, "status": str(intent.status), "outcome": outcome, "actor": actor}
    )


async def decide(request: Request) -> Response:
    """A decision on what an intent waits for; on an id that nothing here has, it is kept for whoever asks for it."""
    platform, caller = _context(request)
    caller.require("answer")
    body = await read_as(request, DecisionBody)
    approval_id = request.path_params["approval_id"]
    try:
        approval_id = str(UUID(approval_id))
    except ValueError:
        raise InvalidInput("approval_id: must be a UUID.") from None
    try:
        intent = await platform.store.one(GetIntent(intent_id=approval_id), tenant=caller.tenant)
    except NotFound:
        intent = None
    decided = iso(platform.part(StoreTime).now())
    told = {"approval_id": approval_id, "decision": body.decision, "comment": body.comment, "decided_at": decided}
    if intent is not None and (waits_for_person(intent) or intent.finished):
        outcome = "approved" if body.decision == "approve" else "rejected"
        said = {"outcome": outcome, **({"comment": body.comment} if body.comment else {})}
        await people.answer_task(platform, caller, intent, said)
        return reply({"ok": True, "approval": told})
    put = PutRecord(kind=APPROVAL, record_id=approval_id, body=msgspec.json.encode(told), write_id=new_id(), expected=0)
    try:
        await platform.store.one(put, tenant=caller.tenant)
    except Conflict:
        record = await platform.store.one(GetRecord(kind=APPROVAL, record_id=approval_id), tenant=caller.tenant)
        known = told if record is None else msgspec.json.decode(record.body)
        if known["decision"] != body.decision:
            raise Conflict(f"approval {approval_id} was decided already: {known['decision']}.") from None
        told = known
    return reply({"ok": True, "approval": told})


routes: list[Route] = [
    Route("/v1/me/tasks", my_tasks, methods=["GET"]),
    Route("/v1/tasks", list_tasks, methods=["GET"]),
    Route("/v1/tasks/{task_id}", get_task, methods=["GET"]),
    Route("/v1/tasks/{task_id}/answer", answer, methods=["POST"]),
    Route("/v1/approvals/{approval_id}/decision", decide, methods=["POST"]),
    *inbox_api.routes,
]

_TEXT, _NULL_TEXT = {"type": "string"}, {"type": ["string", "null"]}
_TASK: dict[str, Any] = {
    "type": "object",
    "required": ["task_id", "kind", "intent_id", "title", "outcomes", "comment_required", "content_hash"],
    "properties": {
        "task_id": _TEXT,
        "kind": {"enum": ["human_task", "ask", "in_doubt", "resume"]},
        "intent_id": _TEXT,
        "run_id": _NULL_TEXT,
        "key": _NULL_TEXT,
        "title": _NULL_TEXT,
        "description": _NULL_TEXT,
        "question": _NULL_TEXT,
        "evidence": {"description": 'What the person decides on; {"$opaque": …} where the server cannot read it'},
        "encrypted": {"type": "boolean"},
        "outcomes": {"type": "array", "items": _TEXT},
        "comment_required": {"type": "boolean"},
        "form_schema": {"type": ["object", "null"]},
        "assignees": {"type": "array", "items": _TEXT},
        "asked_at": _NULL_TEXT,
        "due_at": _NULL_TEXT,
        "content_hash": {**_TEXT, "description": "Send it with the answer: it then counts for this content only"},
    },
}
_LIMIT = {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 500, "default": 100}}


def _good(description: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "required": ["ok", *properties], "properties": {"ok": {"const": True}, **properties}}
    return {"200": {"description": description, "content": {"application/json": {"schema": schema}}}}


DOCS: dict[tuple[str, str], dict[str, Any]] = {
    ("GET", "/v1/me/tasks"): {
        "summary": "What waits for a person, in the shape of the AXME wire",
        "parameters": [_LIMIT],
        "responses": _good(
            "The tasks",
            tasks={"type": "array", "items": {"type": "object", "required": ["intent_id", "status", "human_task"]}},
        ),
    },
    ("GET", "/v1/tasks"): {
        "summary": "What waits for a person: human tasks, and the questions of runs",
        "parameters": [_LIMIT],
        "responses": _good("The tasks", tasks={"type": "array", "items": _TASK}),
    },
    ("GET", "/v1/tasks/{task_id}"): {
        "summary": "One task with its evidence",
        "responses": _good("The task", task=_TASK),
    },
    ("POST", "/v1/tasks/{task_id}/answer"): {
        "summary": "Answer a task",
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["outcome"],
                        "properties": {
                            "outcome": {"type": "string", "minLength": 1, "maxLength": 255},
                            "comment": {"type": ["string", "null"], "maxLength": 10_000},
                            "value": {"description": "For the question of a run: what it gets with the outcome"},
                            "data": {"description": "Fields of the task's form; they may also stand beside outcome"},
                            "content_hash": {"type": ["string", "null"], "maxLength": 128},
                            "actor": {"type": ["string", "null"], "maxLength": 200},
                        },
                    }
                }
            },
        },
        "responses": _good("Taken", intent_id=_TEXT, status=_TEXT, outcome=_NULL_TEXT, actor=_TEXT),
    },
    ("POST", "/v1/approvals/{approval_id}/decision"): {
        "summary": "Approve or reject what an intent waits for",
        "parameters": [
            {"name": "approval_id", "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}}
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["decision"],
                        "properties": {
                            "decision": {"enum": ["approve", "reject"]},
                            "comment": {"type": ["string", "null"], "maxLength": 1000},
                        },
                    }
                }
            },
        },
        "responses": _good("Decided", approval={"type": "object", "required": ["approval_id", "decision"]}),
    },
    **inbox_api.DOCS,
}

"""The inbox over HTTP."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepfast.errors import InvalidInput
from stepfast.server import inbox
from stepfast.server.caller import Caller
from stepfast.server.errors import BadRequest
from stepfast.server.guard import query_int, query_text, read_as
from stepfast.server.people import answer_task
from stepfast.server.state import Platform
from stepfast.server.views import reply

Agent = Annotated[str, Meta(min_length=1, max_length=383, pattern="^[!-~]+$")]


class ReplyBody(msgspec.Struct, kw_only=True):
    message: Annotated[str, Meta(min_length=1, max_length=5000)]


class DelegateBody(msgspec.Struct, kw_only=True):
    delegate_to: Agent
    note: Annotated[str, Meta(max_length=2000)] | None = None


class DecideBody(msgspec.Struct, kw_only=True):
    comment: Annotated[str, Meta(max_length=2000)] | None = None


class DeleteBody(msgspec.Struct, kw_only=True):
    mode: Literal["self", "both"] = "self"
    message_ids: Annotated[list[str], Meta(max_length=1000)] | None = None
    limit: Annotated[float, Meta(ge=1, le=1000, multiple_of=1)] = 1000  # JSON has no whole numbers: 5.0 is one


def _context(request: Request) -> tuple[Platform, Caller, str | None]:
    caller: Caller = request.state.caller
    asked, told = query_text(request, "owner_agent", longest=383), request.headers.get("x-owner-agent")
    if asked and told and asked != told:
        raise BadRequest("owner_agent and x-owner-agent differ; send one of them.")
    name = asked or told
    if name is not None and not (len(name) <= 383 and all("!" <= c <= "~" for c in name)):
        raise InvalidInput("owner_agent: must be an agent's address.")
    return request.app.state.platform, caller, inbox.owner_of(caller, name)


async def _shown(platform: Platform, caller: Caller, thread_id: str, owner: str | None) -> dict[str, Any]:
    thread, _ = await inbox.find(platform, caller, thread_id, owner)
    return (await inbox.show_all(platform, caller, [thread], owner))[0]


async def list_threads(request: Request) -> Response:
    platform, caller, owner = _context(request)
    caller.require("read")
    limit = query_int(request, "limit", 50, least=1, most=200)
    threads = await inbox.scan(platform, caller, owner, limit)
    return reply({"ok": True, "threads": await inbox.show_all(platform, caller, threads, owner)})


async def get_thread(request: Request) -> Response:
    platform, caller, owner = _context(request)
    caller.require("read")
    shown = await _shown(platform, caller, request.path_params["thread_id"], owner)
    return reply({"ok": True, "thread": shown, "messages": shown["messages"]})


async def changes(request: Request) -> Response:
    """Threads in the order in which they changed last, after a cursor."""
    platform, caller, owner = _context(request)
    caller.require("read")
    limit = query_int(request, "limit", 50, least=1, most=200)
    text = query_text(request, "cursor", longest=100)
    after = (-1, "")
    if text is not None:
        read = inbox.read_cursor(text)
        if read is None:
            raise InvalidInput("cursor: is not one that this server gave.")
        after = read
    threads = await inbox.scan(platform, caller, owner, 10_000, since=after[0] - 1)
    threads = [t for t in threads if (t.intent.updated_at, t.intent.intent_id) > after]
    threads.sort(key=lambda t: (t.intent.updated_at, t.intent.intent_id))
    page = threads[:limit]
    shown = await inbox.show_all(platform, caller, page, owner)
    told = [{"cursor": inbox.cursor_of(t.intent), "thread": s} for t, s in zip(page, shown, strict=True)]
    return reply(
        {
            "ok": True,
            "changes": told,
            "next_cursor": told[-1]["cursor"] if told else None,
            "has_more": len(threads) > limit,
        }
    )


async def send_reply(request: Request) -> Response:
    platform, caller, owner = _context(request)
    caller.require("resume")
    body = await read_as(request, ReplyBody)
    thread, _ = await inbox.find(platform, caller, request.path_params["thread_id"], owner)
    key = request.headers.get("idempotency-key")
    await inbox.reply_to(platform, caller, thread, body.message, key[:255] if key else None)
    return await _answer(platform, caller, thread.intent.intent_id, owner)


async def delegate(request: Request) -> Response:
    platform, caller, owner = _context(request)
    caller.require("resume")
    body = await read_as(request, DelegateBody)
    thread_id = request.path_params["thread_id"]
    thread = await inbox.delegate(platform, caller, thread_id, owner, body.delegate_to, body.note)
    [shown] = await inbox.show_all(platform, caller, [thread], owner)
    return reply({"ok": True, "thread": shown})


async def approve(request: Request) -> Response:
    return await _decide(request, "approved")


async def reject(request: Request) -> Response:
    return await _decide(request, "rejected")


async def _decide(request: Request, outcome: str) -> Response:
    platform, caller, owner = _context(request)
    caller.require("answer")
    body = await read_as(request, DecideBody)
    thread, _ = await inbox.find(platform, caller, request.path_params["thread_id"], owner)
    answer = {"outcome": outcome, **({"comment": body.comment} if body.comment is not None else {})}
    await answer_task(platform, caller, thread.intent, answer)
    return await _answer(platform, caller, thread.intent.intent_id, owner)


async def delete(request: Request) -> Response:
    platform, caller, owner = _context(request)
    caller.require("resume")
    body = await read_as(request, DeleteBody)
    thread, _ = await inbox.find(platform, caller, request.path_params["thread_id"], owner)
    gone = await inbox.hide(platform, caller, thread, owner, body.mode, body.message_ids, int(body.limit))
    shown = await _shown(platform, caller, thread.intent.intent_id, owner)
    told = {"mode": body.mode, "deleted_count": len(gone), "message_ids": gone}
    return reply({"ok": True, "thread": shown, **told})


async def _answer(platform: Platform, caller: Caller, thread_id: str, owner: str | None) -> Response:
    return reply({"ok": True, "thread": await _shown(platform, caller, thread_id, owner)})


routes: list[Route] = [
    Route("/v1/inbox", list_threads, methods=["GET"]),
    Route("/v1/inbox/changes", changes, methods=["GET"]),
    Route("/v1/inbox/{thread_id}", get_thread, methods=["GET"]),
    Route("/v1/inbox/{thread_id}/reply", send_reply, methods=["POST"]),
    Route("/v1/inbox/{thread_id}/delegate", delegate, methods=["POST"]),
    Route("/v1/inbox/{thread_id}/approve", approve, methods=["POST"]),
    Route("/v1/inbox/{thread_id}/reject", reject, methods=["POST"]),
    Route("/v1/inbox/{thread_id}/messages/delete", delete, methods=["POST"]),
]

_OWNER = {
    "name": "owner_agent",
    "in": "query",
    "schema": {"type": "string", "maxLength": 383, "pattern": "^[!-~]*$"},
    "description": "Whose inbox; an agent's key has its own",
}
_LIMIT = {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}}
_CURSOR = {
    "name": "cursor",
    "in": "query",
    "schema": {"type": "string", "maxLength": 100, "pattern": "^(u:[0-9]{1,18}:.*)?$"},
}
_THREAD: dict[str, Any] = {
    "type": "object",
    "required": ["thread_id", "intent_id", "status", "owner_agent", "from_agent", "to_agent", "timeline"],
    "properties": {
        "thread_id": {"type": "string"},
        "intent_id": {"type": "string"},
        "status": {"enum": ["pending", "active", "done"]},
        "owner_agent": {"type": "string"},
        "from_agent": {"type": "string"},
        "to_agent": {"type": "string"},
        "created_at": {"type": "string"},
        "updated_at": {"type": "string"},
        "timeline": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "object", "required": ["event_id", "event_type", "actor", "at", "details"]},
        },
        "messages": {"type": "array", "items": {"type": "object"}},
    },
}


def _good(description: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "required": ["ok", *properties], "properties": {"ok": {"const": True}, **properties}}
    return {"200": {"description": description, "content": {"application/json": {"schema": schema}}}}


def _body(required: bool, schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": required, "content": {"application/json": {"schema": {"type": "object", **schema}}}}


_TEXT = {"type": "string", "minLength": 1}
_COMMENT = {"properties": {"comment": {"type": ["string", "null"], "maxLength": 2000}}}
DOCS: dict[tuple[str, str], dict[str, Any]] = {
    ("GET", "/v1/inbox"): {
        "summary": "Intents as threads",
        "parameters": [_OWNER, _LIMIT],
        "responses": _good("The threads, the newest first", threads={"type": "array", "items": _THREAD}),
    },
    ("GET", "/v1/inbox/changes"): {
        "summary": "Threads that changed after a cursor",
        "parameters": [_OWNER, _LIMIT, _CURSOR],
        "responses": _good(
            "The changes, the oldest first",
            changes={"type": "array", "items": {"type": "object", "required": ["cursor", "thread"]}},
            next_cursor={"type": ["string", "null"]},
            has_more={"type": "boolean"},
        ),
    },
    ("GET", "/v1/inbox/{thread_id}"): {
        "summary": "One thread",
        "parameters": [_OWNER],
        "responses": _good("The thread", thread=_THREAD),
    },
    ("POST", "/v1/inbox/{thread_id}/reply"): {
        "summary": "Add a message to a thread",
        "parameters": [_OWNER],
        "requestBody": _body(True, {"required": ["message"], "properties": {"message": {**_TEXT, "maxLength": 5000}}}),
        "responses": _good("The thread", thread=_THREAD),
    },
    ("POST", "/v1/inbox/{thread_id}/delegate"): {
        "summary": "Hand a thread to another agent or person",
        "parameters": [_OWNER],
        "requestBody": _body(
            True,
            {
                "required": ["delegate_to"],
                "properties": {
                    "delegate_to": {**_TEXT, "maxLength": 383, "pattern": "^[!-~]+$"},
                    "note": {"type": ["string", "null"], "maxLength": 2000},
                },
            },
        ),
        "responses": _good("The thread", thread=_THREAD),
    },
    ("POST", "/v1/inbox/{thread_id}/approve"): {
        "summary": "Approve what a thread waits for",
        "parameters": [_OWNER],
        "requestBody": _body(False, _COMMENT),
        "responses": _good("The thread", thread=_THREAD),
    },
    ("POST", "/v1/inbox/{thread_id}/reject"): {
        "summary": "Reject what a thread waits for",
        "parameters": [_OWNER],
        "requestBody": _body(False, _COMMENT),
        "responses": _good("The thread", thread=_THREAD),
    },
    ("POST", "/v1/inbox/{thread_id}/messages/delete"): {
        "summary": "Take messages out of sight; the history keeps them",
        "parameters": [_OWNER],
        "requestBody": _body(
            False,
            {
                "properties": {
                    "mode": {"enum": ["self", "both"]},
                    "message_ids": {"type": ["array", "null"], "items": {"type": "string"}, "maxItems": 1000},
                    "limit": {"type": "integer", "minimum": 1, "maximum": 1000},
                }
            },
        ),
        "responses": _good(
            "What is left",
            thread=_THREAD,
            mode={"enum": ["self", "both"]},
            deleted_count={"type": "integer"},
            message_ids={"type": "array", "items": {"type": "string"}},
        ),
    },
}

"""The mesh over HTTP: heartbeats, who is alive, and the kill switch."""

from __future__ import annotations

import math
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepfast.addresses import bare, last_name, same_agent
from stepfast.core import iso
from stepfast.errors import InvalidInput, NotFound
from stepfast.server import keys
from stepfast.server.caller import Caller
from stepfast.server.delivery import Hub
from stepfast.server.guard import query_int, query_text, read_json
from stepfast.server.mesh import HEALTHS, Beat, Mesh, address_id
from stepfast.server.state import Platform
from stepfast.server.views import reply

__all__ = ["DOCS", "routes"]

_METRICS = ("intents_total", "intents_succeeded", "intents_failed", "avg_latency_ms", "cost_usd")


def _context(request: Request) -> tuple[Platform, Caller, Mesh]:
    platform: Platform = request.app.state.platform
    return platform, request.state.caller, platform.part(Mesh)


async def heartbeat(request: Request) -> Response:
    """A sign of life; it also keeps what the agent has in hand."""
    platform, caller, mesh = _context(request)
    metrics = _metrics(await read_json(request))
    address = caller.agent or _claimed(request)
    if address is None:
        return reply({"ok": True, "address": None, "health_status": "healthy", "last_heartbeat_at": None})
    beat = await mesh.beat(caller.tenant, address, metrics)
    await platform.part(Hub).heartbeat(caller)
    killed = await mesh.is_killed(caller.tenant, address)
    return reply({"ok": True, **_show(mesh, beat.address, beat, killed, None)})


def _claimed(request: Request) -> str | None:
    """A workspace key may speak for any of its agents."""
    name = query_text(request, "owner_agent", longest=383) or request.headers.get("x-owner-agent")
    if name is not None and not (len(name) <= 383 and all("!" <= c <= "~" for c in name) and bare(name)):
        raise InvalidInput("owner_agent: must be an agent's address.")
    return name


def _metrics(body: dict[str, Any]) -> dict[str, float]:
    told = body.get("metrics")
    if told is None:
        return {}
    if not isinstance(told, dict):
        raise InvalidInput("metrics: must be an object.")
    for name in _METRICS:
        value = told.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and math.isfinite(value) and 0 <= value <= 1e15):
            raise InvalidInput(f"metrics.{name}: must be a number from 0 to 1e15.")
    return {name: told[name] for name in _METRICS if told.get(name) is not None}


def _show(mesh: Mesh, address: str, beat: Beat | None, killed: bool, name: str | None) -> dict[str, Any]:
    return {
        "address_id": address_id(address),
        "address": address,
        "display_name": name,
        "health_status": mesh.health(beat, killed),
        "last_heartbeat_at": iso(beat.last_at) if beat is not None else None,
        "metrics": beat.metrics if beat is not None else {},
    }


async def _agents(platform: Platform, caller: Caller) -> list[dict[str, Any]]:
    """Every agent that has an account, or has been heard of, or is stopped."""
    mesh = platform.part(Mesh)
    names: dict[str, str | None] = {
        account.address: account.display_name
        for account in await keys.list_accounts(platform.store, caller.tenant)
        if account.status != "revoked"
    }
    beats = await mesh.beats(caller.tenant)
    killed = await mesh.killed(caller.tenant)
    for address in (*(beat.address for beat in beats.values()), *killed):
        if not any(same_agent(address, known) for known in names):
            names[address] = None
    shown = []
    for address, name in sorted(names.items()):
        if caller.agent is not None and not same_agent(caller.agent, address):
            continue
        beat = next((each for each in beats.values() if same_agent(each.address, address)), None)
        is_killed = any(same_agent(each, address) for each in killed)
        shown.append(_show(mesh, address, beat, is_killed, name))
    return shown


async def agents(request: Request) -> Response:
    platform, caller, _ = _context(request)
    caller.require("read")
    limit = query_int(request, "limit", 100, least=1, most=1000)
    health = query_text(request, "health", longest=20)
    if health is not None and health not in HEALTHS:
        raise InvalidInput(f"health: must be one of {', '.join(HEALTHS)}.")
    found = [each for each in await _agents(platform, caller) if health in (None, each["health_status"])]
    return reply({"ok": True, "agents": found[:limit]})


async def _find(platform: Platform, caller: Caller, name: str) -> dict[str, Any]:
    """By its id, its address or its name."""
    found = await _agents(platform, caller)
    wanted = next((each for each in found if each["address_id"] == name), None)
    if wanted is None and bare(name):
        wanted = next((each for each in found if same_agent(each["address"], name)), None)
    if wanted is None:
        error = NotFound(f"there is no agent {name[:383]} in this workspace.")
        error.code = "agent_not_found"
        raise error
    return wanted


async def agent(request: Request) -> Response:
    platform, caller, mesh = _context(request)
    caller.require("read")
    found = await _find(platform, caller, request.path_params["address_id"])
    events = await mesh.events(caller.tenant, 1000, None)
    mine = [_event(each) for each in events if same_agent(each["address"], found["address"])]
    return reply({"ok": True, "agent": {**found, "events": mine[:50]}, **found})


async def kill(request: Request) -> Response:
    return await _switch(request, killed=True)


async def resume(request: Request) -> Response:
    return await _switch(request, killed=False)


async def _switch(request: Request, *, killed: bool) -> Response:
    platform, caller, mesh = _context(request)
    caller.require("admin")
    await read_json(request)
    name = request.path_params["address_id"]
    try:
        found = await _find(platform, caller, name)
        address = found["address"]
    except NotFound:
        # An agent need not be known to be stopped: whoever pulls the switch must not have to wait for its first beat.
        if not killed or name.startswith("addr_") or not _is_address(name):
            raise
        address = name
    await (mesh.kill if killed else mesh.resume)(caller.tenant, address, caller.actor)
    shown = await _find(platform, caller, address) if killed else {"address": address}
    if not killed:
        beat = next((b for b in (await mesh.beats(caller.tenant)).values() if same_agent(b.address, address)), None)
        shown = _show(mesh, address, beat, False, None)
    return reply({"ok": True, "agent": shown, **shown})


def _is_address(name: str) -> bool:
    return name.isprintable() and len(name) <= 383 and 1 <= len(last_name(name)) <= 128


def _event(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "address_id": address_id(event["address"]), "at": iso(event["at"])}


async def events(request: Request) -> Response:
    _, caller, mesh = _context(request)
    caller.require("read")
    limit = query_int(request, "limit", 50, least=1, most=1000)
    found = await mesh.events(caller.tenant, limit, query_text(request, "event_type", longest=64))
    shown = [_event(each) for each in found if caller.agent is None or same_agent(caller.agent, each["address"])]
    return reply({"ok": True, "events": shown})


routes: list[Route] = [
    Route("/v1/mesh/heartbeat", heartbeat, methods=["POST"]),
    Route("/v1/mesh/agents", agents, methods=["GET"]),
    Route("/v1/mesh/events", events, methods=["GET"]),
    Route("/v1/mesh/agents/{address_id:path}/kill", kill, methods=["POST"]),
    Route("/v1/mesh/agents/{address_id:path}/resume", resume, methods=["POST"]),
    Route("/v1/mesh/agents/{address_id:path}", agent, methods=["GET"]),
]

_TEXT, _NULL_TEXT = {"type": "string"}, {"type": ["string", "null"]}
_NUMBER = {"type": ["number", "null"], "minimum": 0, "maximum": 1e15}
_AGENT: dict[str, Any] = {
    "type": "object",
    "required": ["address_id", "address", "health_status", "last_heartbeat_at", "metrics"],
    "properties": {
        "address_id": _TEXT,
        "address": _TEXT,
        "display_name": _NULL_TEXT,
        "health_status": {"enum": list(HEALTHS)},
        "last_heartbeat_at": _NULL_TEXT,
        "metrics": {"type": "object"},
    },
}


def _answer(description: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "required": ["ok", *properties], "properties": {"ok": {"const": True}, **properties}}
    return {"200": {"description": description, "content": {"application/json": {"schema": schema}}}}


def _limit(default: int) -> dict[str, Any]:
    return {
        "name": "limit",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": 1000, "default": default},
    }


_EMPTY = {"required": False, "content": {"application/json": {"schema": {"type": "object"}}}}
DOCS: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/mesh/heartbeat"): {
        "summary": "A sign of life of the agent whose key this is; keeps the leases it holds",
        "requestBody": {
            "required": False,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {
                            "metrics": {
                                "type": ["object", "null"],
                                "properties": dict.fromkeys(_METRICS, _NUMBER),
                                "description": "What was counted since the last beat",
                            }
                        },
                    }
                }
            },
        },
        "responses": _answer("Heard", address=_NULL_TEXT, health_status={"enum": list(HEALTHS)}),
    },
    ("GET", "/v1/mesh/agents"): {
        "summary": "The agents of the workspace, and how they are",
        "parameters": [_limit(100), {"name": "health", "in": "query", "schema": {"enum": list(HEALTHS)}}],
        "responses": _answer("The agents", agents={"type": "array", "items": _AGENT}),
    },
    ("GET", "/v1/mesh/events"): {
        "summary": "Agents that joined, recovered, were killed or resumed; the newest first",
        "parameters": [
            _limit(50),
            {"name": "event_type", "in": "query", "schema": {"type": "string", "maxLength": 64}},
        ],
        "responses": _answer("The events", events={"type": "array", "items": {"type": "object"}}),
    },
    ("GET", "/v1/mesh/agents/{address_id:path}"): {
        "summary": "One agent, by its id or address",
        "responses": _answer("The agent", agent=_AGENT),
    },
    ("POST", "/v1/mesh/agents/{address_id:path}/kill"): {
        "summary": "Stop an agent: nothing goes to it and nothing comes from it until it is resumed",
        "requestBody": _EMPTY,
        "responses": _answer("Stopped", agent=_AGENT),
    },
    ("POST", "/v1/mesh/agents/{address_id:path}/resume"): {
        "summary": "Let a stopped agent work again",
        "requestBody": _EMPTY,
        "responses": _answer("It may work again", agent=_AGENT),
    },
}

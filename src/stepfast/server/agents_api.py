"""Agents: who is registered, and the stream by which an agent is given its work."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepfast.addresses import same_agent
from stepfast.core import iso
from stepfast.errors import NotFound
from stepfast.intents import TERMINAL
from stepfast.server.caller import Caller
from stepfast.server.delivery import Hub
from stepfast.server.errors import HttpError
from stepfast.server.guard import query_int, query_text
from stepfast.server.intents_docs import answer, parameter
from stepfast.server.keys import Account, list_accounts
from stepfast.server.listeners import Listener
from stepfast.server.sse import KEEP_ALIVE, KEEP_ALIVE_SECONDS, Channel, EventStream, timeout_frame
from stepfast.server.state import Platform
from stepfast.server.views import reply

_OPEN_WORDS = frozenset({"CREATED", "SUBMITTED", "DELIVERED", "ACKNOWLEDGED", "IN_PROGRESS", "WAITING"})
_LEAST_PAUSE = 0.01
_WORDS = _OPEN_WORDS | TERMINAL


async def list_agents(request: Request) -> Response:
    """The agents of the caller's workspace; what the query says of it is ignored."""
    platform: Platform = request.app.state.platform
    caller: Caller = request.state.caller
    caller.require("read")
    limit = query_int(request, "limit", 1000, least=1, most=1000, clamp=True)
    found = [account for account in await list_accounts(platform.store, caller.tenant) if account.status != "revoked"]
    return reply({"ok": True, "agents": [agent_view(account) for account in found[:limit]]})


async def show_agent(request: Request) -> Response:
    platform: Platform = request.app.state.platform
    caller: Caller = request.state.caller
    caller.require("read")
    address = address_in(request)
    for account in await list_accounts(platform.store, caller.tenant):
        if account.status != "revoked" and same_agent(account.address, address):
            return reply({"ok": True, "agent": {**agent_view(account), "updated_at": iso(account.updated_at)}})
    error = NotFound(f"there is no agent {address} in this workspace.")
    error.code = "agent_not_found"
    raise error


def agent_view(account: Account) -> dict[str, Any]:
    return {
        "address": account.address,
        "service_account_id": account.account_id,
        "service_account_name": account.name,
        "display_name": account.display_name,
        "status": "deleted" if account.status == "revoked" else account.status,
        "created_at": iso(account.created_at),
    }


async def listen(request: Request) -> Response:
    """Deliveries for an address. One at a time: the next comes when this one is settled."""
    platform: Platform = request.app.state.platform
    caller: Caller = request.state.caller
    address = address_in(request)
    caller.check_receive(address)
    since = query_int(request, "since", 0, least=0, most=1 << 62)
    wait = query_int(request, "wait_seconds", 15, least=1, most=60, clamp=True)
    accepts = _accepts(query_text(request, "status"))
    hub = platform.part(Hub)

    async def tell(channel: Channel) -> None:
        await _Telling(hub, channel, caller, address, since, wait, accepts).run()

    return EventStream(platform, request.scope, tell)


def address_in(request: Request) -> str:
    address = str(request.path_params["address"]).strip("/")
    if not address or len(address) > 383 or not address.isprintable():
        raise HttpError("address: must be an agent's address or name.", status=422, code="invalid_agent_address")
    return address


def _accepts(text: str | None) -> bool:
    """Whether a filter lets open intents through. A delivery is of an open one, so nothing else comes."""
    words = {word.strip().upper() for word in (text or "").split(",") if word.strip()}
    if words - _WORDS:
        raise HttpError(f"status: {min(words - _WORDS)[:50]!r} is not a status.", status=422, code="invalid_input")
    return not words or bool(words & _OPEN_WORDS)


class _Telling:
    """One listener's stream, from its first byte to its last."""

    def __init__(
        self, hub: Hub, channel: Channel, caller: Caller, address: str, since: int, wait: int, accepts: bool
    ) -> None:
        self._hub = hub
        self._channel = channel
        self._caller = caller
        self._address = address
        self._since = since
        self._accepts = accepts
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + wait

    async def run(self) -> None:
        hub, channel = self._hub, self._channel
        listener = await hub.join(self._caller, self._address, self._since, channel.signal)
        how = ""
        try:
            how = await self._serve(listener)
        finally:  # also where the task is cancelled, by a shutdown that waits no longer or for a revoked key
            await hub.leave(listener, "gone" if channel.gone else how or channel.stream.reason or "gone")

    async def _serve(self, listener: Listener) -> str:
        hub, channel = self._hub, self._channel
        free, quiet, taken = False, self._loop.time(), self._end
        while True:
            if channel.gone:
                return "gone"
            if channel.stream.ended:
                if not listener.told:
                    await channel.write(timeout_frame(listener.since))
                return channel.stream.reason or "closing"
            now = self._loop.time()
            if listener.frame is not None:
                data, listener.frame = listener.frame, None
                taken, quiet, free = now, now, False
                await channel.write(data)
            elif listener.delivery is None and not listener.claiming:
                if listener.told:
                    return "timeout"
                if now >= self._end:
                    await channel.write(timeout_frame(listener.since))
                    return "timeout"
                if self._accepts and not free:
                    free = True
                    hub.offer(listener)
            elif listener.delivery is not None and now - taken >= hub.hold_seconds:
                if not listener.told:
                    await channel.write(timeout_frame(listener.since))
                return "held"
            if listener.delivery is not None and now >= self._end and not listener.told:
                # The handler is busy. When it is done, its reader finds this and comes back at once: so one that is
                # done without an answer is known. The body stays open: as long as it does, the agent lives.
                listener.told = True
                await channel.write(timeout_frame(listener.since))
            if now - quiet >= KEEP_ALIVE_SECONDS:
                quiet = now
                await channel.write(KEEP_ALIVE)
            await channel.pause(self._next(now, quiet, listener.told))

    def _next(self, now: float, quiet: float, told: bool) -> float:
        due = quiet + KEEP_ALIVE_SECONDS
        # Never less: past its time a listener may wait for a claim that is on its way.
        return max(_LEAST_PAUSE, (due if told else min(due, self._end)) - now)


async def background(platform: Platform) -> None:
    """As long as the server runs; then what is being handed on gets a moment."""
    hub = platform.part(Hub)
    try:
        await asyncio.Event().wait()
    finally:
        await hub.close()


_ALL, _AGENT, _STREAM = "/v1/agents", "/v1/agents/{address:path}", "/v1/agents/{address:path}/intents/stream"
routes: list[Route] = [
    Route(_ALL, list_agents, methods=["GET"]),
    Route(_STREAM, listen, methods=["GET"]),
    Route(_AGENT, show_agent, methods=["GET"]),
]

for _route in routes:
    if _route.path == _STREAM and _route.methods is not None:
        _route.methods.discard("HEAD")  # it would take an intent and drop it

_NAMES = ("address", "service_account_id", "service_account_name", "status", "created_at")
_AGENT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        **{name: {"type": "string"} for name in _NAMES},
        "display_name": {"type": ["string", "null"]},
        "status": {"enum": ["active", "suspended", "deleted"]},
    },
    "required": [*_NAMES, "display_name"],
}
DOCS: dict[tuple[str, str], dict[str, Any]] = {
    ("GET", _ALL): {
        "summary": "List the agents of this workspace",
        "parameters": [
            parameter("limit", {"type": "integer"}, "At most so many; brought into 1 to 1000."),
            parameter("org_id", {"type": "string"}, "Ignored: the key says whose agents these are."),
            parameter("workspace_id", {"type": "string"}, "Ignored, too."),
        ],
        "responses": answer("All", agents={"type": "array", "items": _AGENT_SCHEMA}),
    },
    ("GET", _AGENT): {
        "summary": "Show an agent, by its address or name",
        "responses": answer("Found", agent=_AGENT_SCHEMA),
    },
    ("GET", _STREAM): {
        "summary": "Deliveries for an agent, as server-sent events",
        "description": (
            "Each frame is one intent for this listener alone, under a lease that lives as long as the connection. The "
            "next one comes when it is settled. Give back the last seq as `since`."
        ),
        "parameters": [
            parameter("since", {"type": "integer", "minimum": 0, "maximum": 1 << 62}, "The last seq that was seen."),
            parameter("wait_seconds", {"type": "integer"}, "How long to wait; brought into 1 to 60."),
            parameter("status", {"type": "string"}, "Statuses, separated by commas; terminal ones alone get nothing."),
        ],
        "responses": {
            "200": {
                "description": "Frames `intent.delivered`, comments, and `stream.timeout` at the end",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            }
        },
    },
}

"""Whether the server is alive and can serve, what it is, and its figures."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stepfast import __version__
from stepfast.errors import StepfastError
from stepfast.ops import CheckWritable, Filter, GetRecord, ListDecisions, ListIntents, Measure, NextDue, Op
from stepfast.server.caller import Caller
from stepfast.server.errors import Forbidden, HttpError
from stepfast.server.pepper import PLATFORM
from stepfast.server.state import Platform

# A probe may come often and from anybody; the store is asked at most so often.
_READY_SECONDS = 1.0
_READY_TIMEOUT = 5.0
_CAPABILITIES = [
    "intents",
    "intents.events.stream",
    "agents.stream",
    "scenarios",
    "human_tasks",
    "inbox",
    "mesh",
    "service_accounts",
    "journal",
]


class NotReady(HttpError):
    """The store cannot be written, or its schema is not the one this server knows."""

    status = 503
    code = "not_ready"


class Readiness:
    """The latest answer of the store, which all who ask within a second share."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._lock = asyncio.Lock()
        self._asked = float("-inf")
        self._trouble: str | None = None

    async def trouble(self) -> str | None:
        async with self._lock:
            if time.monotonic() - self._asked >= _READY_SECONDS:
                self._trouble = await self._ask()
                self._asked = time.monotonic()
            return self._trouble

    async def _ask(self) -> str | None:
        """A real durable write, and a read of every table that the server lives on."""
        batch: list[Op[Any]] = [
            CheckWritable(),
            ListIntents(where=Filter(limit=1)),
            ListDecisions(limit=1),
            GetRecord(kind="key", record_id="none"),
            NextDue(),
        ]
        try:
            await asyncio.wait_for(asyncio.shield(self._platform.store.start(batch, tenant=PLATFORM)), _READY_TIMEOUT)
        except TimeoutError:
            return "the store does not answer"
        except StepfastError as error:
            return (type(error).__doc__ or "").strip().splitlines()[0]
        return None


async def show_health(request: Request) -> Response:
    platform: Platform = request.app.state.platform
    storage = "postgresql" if platform.raw.url.startswith("postgres") else "sqlite"
    return JSONResponse({"ok": True, "service": "stepfast", "deployment_profile": "self-hosted", "storage": storage})


async def show_ready(request: Request) -> Response:
    platform: Platform = request.app.state.platform
    if platform.closing.is_set():
        raise NotReady("the server is shutting down.", code="closing")
    trouble = await platform.part(Readiness).trouble()
    if trouble is not None:
        raise NotReady(trouble)
    return JSONResponse({"ok": True})


async def show_metrics(request: Request) -> Response:
    platform: Platform = request.app.state.platform
    _check_metrics(request, platform)
    found = [await platform.store.one(Measure(), tenant=tenant) for tenant in platform.tenants()]
    platform.metrics.measured(found)
    return Response(platform.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _check_metrics(request: Request, platform: Platform) -> None:
    """With a token, for whoever has it; without, for this machine, unless a proxy makes everybody look like it."""
    expected = platform.settings.metrics_token
    if expected is not None:
        given = request.headers.get("authorization", "")
        if given[:7].lower() == "bearer " and hmac.compare_digest(given[7:].strip().encode(), expected.encode()):
            return
        raise Forbidden("the figures need the metrics token, as Authorization: Bearer.")
    peer = request.client.host if request.client else ""
    try:
        near = ipaddress.ip_address(peer).is_loopback
    except ValueError:
        near = False
    if not near or platform.settings.behind_proxy:
        raise Forbidden("the figures are for this machine only, unless a metrics token is set.")


async def show_capabilities(request: Request) -> Response:
    return JSONResponse(
        {
            "ok": True,
            "capabilities": _CAPABILITIES,
            "supported_intent_types": ["intent.ask.v1", "intent.notify.v1", "intent.task.v1"],
            "any_intent_type": True,
            "version": __version__,
        }
    )


async def show_whoami(request: Request) -> Response:
    platform: Platform = request.app.state.platform
    caller: Caller = request.state.caller
    limits = platform.settings.limits
    return JSONResponse(
        {
            "ok": True,
            "tenant": caller.tenant,
            "org": caller.org,
            "workspace": caller.workspace,
            "role": caller.role,
            "agent": caller.agent,
            "key_id": caller.key_id or None,
            "scopes": sorted(caller.scopes),
            "time_us": platform.raw.clock.now_us(),
            "limits": {
                "body_bytes": limits.body_bytes,
                "ops_bytes": limits.ops_bytes,
                "depth": limits.depth,
                "nodes": limits.nodes,
                "streams_per_key": limits.streams_per_key,
                "requests_per_second": limits.requests_per_second,
            },
            "version": __version__,
        }
    )


routes: list[Route] = [
    Route("/health", show_health, methods=["GET"]),
    Route("/ready", show_ready, methods=["GET"]),
    Route("/metrics", show_metrics, methods=["GET"]),
    Route("/v1/capabilities", show_capabilities, methods=["GET"]),
    Route("/v1/whoami", show_whoami, methods=["GET"]),
]

_TEXT: dict[str, Any] = {"type": "string"}
_OK: dict[str, Any] = {"type": "boolean", "const": True}


def _answer(description: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"ok": _OK, **properties}, "required": ["ok", *properties]}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


DOCS: dict[tuple[str, str], dict[str, Any]] = {
    ("GET", "/health"): {
        "summary": "Whether the process is alive",
        "responses": {"200": _answer("Alive", service=_TEXT, deployment_profile=_TEXT, storage=_TEXT)},
    },
    ("GET", "/ready"): {
        "summary": "Whether it can serve: a real write, and the schema as it must be",
        "responses": {"200": _answer("Ready")},
    },
    ("GET", "/metrics"): {
        "summary": "Figures for Prometheus",
        "responses": {"200": {"description": "Figures", "content": {"text/plain": {"schema": _TEXT}}}},
    },
    ("GET", "/v1/capabilities"): {
        "summary": "What this server offers",
        "responses": {
            "200": _answer(
                "Capabilities",
                capabilities={"type": "array", "minItems": 1, "items": _TEXT},
                supported_intent_types={"type": "array", "minItems": 1, "items": _TEXT},
                any_intent_type={"type": "boolean"},
                version=_TEXT,
            )
        },
    },
    ("GET", "/v1/whoami"): {
        "summary": "Whose key this is, and what it may do",
        "responses": {
            "200": _answer(
                "The caller",
                tenant=_TEXT,
                org=_TEXT,
                workspace=_TEXT,
                role={"enum": ["workspace", "agent", "local"]},
                agent={"type": ["string", "null"]},
                key_id={"type": ["string", "null"]},
                scopes={"type": "array", "items": _TEXT},
                time_us={"type": "integer"},
                limits={"type": "object", "additionalProperties": {"type": "number"}},
                version=_TEXT,
            )
        },
    },
}

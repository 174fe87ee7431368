"""The server as an ASGI app: routes behind the guard, and the tasks that run as long as it does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from types import ModuleType
from typing import Any

from starlette.datastructures import State
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from stepfast.errors import NotFound
from stepfast.server import (
    accounts_api,
    agents_api,
    health,
    intents_api,
    mesh_api,
    openapi,
    ops_api,
    people_api,
    scenarios_api,
)
from stepfast.server.errors import NotOffered
from stepfast.server.guard import Guard, Hot
from stepfast.server.settings import Settings
from stepfast.server.state import Platform
from stepfast.stores.base import Store

log = logging.getLogger("stepfast.server")

MODULES: tuple[ModuleType, ...] = (
    health,
    ops_api,
    intents_api,
    agents_api,
    scenarios_api,
    people_api,
    mesh_api,
    accounts_api,
    openapi,
)

# Parts of the AXME interface that have nothing to do with durable runs: first segments after /v1/, and /mcp.
NOT_OFFERED = frozenset(
    {
        "access-requests",
        "aliases",
        "auth",
        "billing",
        "deliveries",
        "invites",
        "matrix",
        "media",
        "members",
        "organizations",
        "portal",
        "principals",
        "quotas",
        "routing",
        "schemas",
        "transports",
        "usage",
        "users",
        "webhooks",
        "workspaces",
    }
)


def all_routes() -> list[Route]:
    return [route for module in MODULES for route in module.routes]


class App:
    """The ASGI callable. ``state.platform`` is the `Platform`."""

    def __init__(self, platform: Platform) -> None:
        self.state = State()
        self.state.platform = self.platform = platform
        self._router = Router(all_routes(), redirect_slashes=False, lifespan=self._lifespan, default=_nothing_here)
        # The remote store's requests are the many, and the router costs more than they do.
        hot: Hot = ops_api.handle
        self._guard = Guard(platform, self._router, dict.fromkeys(ops_api.PATHS, hot))

    @cached_property
    def document(self) -> dict[str, Any]:
        """The OpenAPI document of this app."""
        return openapi.build_document(MODULES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        if scope["type"] == "http":
            await self._guard(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._router(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    @asynccontextmanager
    async def _lifespan(self, _app: Any) -> AsyncIterator[None]:
        """A module's ``background(platform)`` runs from start to shutdown."""
        platform = self.platform
        await platform.keys.load()
        tasks = [asyncio.create_task(platform.keys.keep(), name="stepfast-keys")]
        tasks += [
            asyncio.create_task(module.background(platform), name=f"stepfast-{module.__name__}")
            for module in MODULES
            if hasattr(module, "background")
        ]
        for task in tasks:
            task.add_done_callback(_report)
        try:
            yield
        finally:
            platform.close_streams()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _nothing_here(scope: Scope, _receive: Receive, _send: Send) -> None:
    first, _, rest = scope["path"].strip("/").partition("/")
    if first == "mcp" or (first == "v1" and rest.partition("/")[0] in NOT_OFFERED):
        raise NotOffered(
            "this part of the AXME interface is not offered here; Stepfast has intents, deliveries, tasks and keys."
        )
    raise NotFound("there is nothing at this path.")


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("the task %s ended", task.get_name(), exc_info=task.exception())


def build_app(store: Store, settings: Settings | None = None) -> App:
    """The app over a store. The caller closes the store after the app's shutdown."""
    return App(Platform(store, settings or Settings()))

"""The server's API without a server: its app in this process, asked by the same client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from stepfast.cli.reach import Loop
from stepfast.errors import StoreUnavailable
from stepfast.platform_api import PlatformAPI
from stepfast.stores import Store

if TYPE_CHECKING:
    from stepfast.server.app import App

Json = dict[str, Any]
_START_SECONDS, _STOP_SECONDS = 60.0, 2.0


class LocalAPI(PlatformAPI):
    """The server's API over an app in this process."""

    def __init__(self, transport: httpx.BaseTransport) -> None:
        self._transport = transport
        # Without keys the app answers to this machine only, which it knows by the host.
        super().__init__("http://127.0.0.1", "local")

    def _connect(self, settings: Json) -> httpx.Client:
        return httpx.Client(**settings, transport=self._transport)


@contextmanager
def running(store: Store, loop: Loop) -> Iterator[App]:
    """The server's app over a store, started as a server starts it."""
    from stepfast.server.app import build_app
    from stepfast.server.key_table import KeyTable

    class Local(KeyTable):
        """Whoever has opened the store itself can do all that a key allows, and more."""

        @property
        def required(self) -> bool:
            return False

    async def build() -> App:
        app = build_app(store)
        platform = app.platform
        platform.keys = Local(platform.store, platform.settings, platform.on_revoked)
        return app

    app = loop.run(build())
    lifespan = Lifespan(app)
    loop.run(lifespan.start(), _START_SECONDS)
    try:
        yield app
    finally:
        try:
            loop.run(lifespan.stop(), _STOP_SECONDS)
        except TimeoutError:  # whatever will not end ends with the loop
            pass


class Lifespan:
    """The start and the end of an ASGI app, as a server tells it of them."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def start(self) -> None:
        self._told: asyncio.Queue[Json] = asyncio.Queue()
        self._said: asyncio.Queue[Json] = asyncio.Queue()
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self._task = asyncio.ensure_future(self._app(scope, self._told.get, self._said.put))
        await self._say("startup")

    async def stop(self) -> None:
        await self._say("shutdown")
        await self._task

    async def _say(self, what: str) -> None:
        await self._told.put({"type": f"lifespan.{what}"})
        heard = asyncio.ensure_future(self._said.get())
        await asyncio.wait({heard, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not heard.done():
            heard.cancel()
            await self._task  # it ended with an error
            return
        answer = heard.result()
        if answer["type"] != f"lifespan.{what}.complete":
            lines = str(answer.get("message", "")).strip().splitlines() or ["no reason given"]
            raise StoreUnavailable(f"the store cannot be served: {lines[-1]}")


class InProcess(httpx.BaseTransport):
    """Requests of the blocking client, answered by an app on a loop in another thread."""

    def __init__(self, app: App, loop: Loop) -> None:
        self._asgi = httpx.ASGITransport(app)
        self._loop = loop

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def answer() -> httpx.Response:
            got = await self._asgi.handle_async_request(request)
            return httpx.Response(got.status_code, headers=got.headers, content=await got.aread())

        return self._loop.run(answer())

"""The server's API without a server: its app in this process, asked by the same client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

from holdfast.cli.reach import Loop
from holdfast.errors import StoreUnavailable
from holdfast.platform_api import PlatformAPI
from holdfast.platform_api._flows import ask, call
from holdfast.stores import Store

if TYPE_CHECKING:
    from holdfast.server.app import App

Json = dict[str, Any]
_START_SECONDS, _STOP_SECONDS = 60.0, 2.0


class Api(PlatformAPI):
    """The server's API, with the people's tasks, over HTTP or without it."""

    def __init__(self, base_url: str, api_key: str, *, transport: httpx.BaseTransport | None = None) -> None:
        super().__init__(base_url, api_key)
        if transport is not None:
            self._http.close()
            self._http = httpx.Client(base_url=base_url, transport=transport)

    def tasks(self, limit: int) -> list[Json]:
        found: list[Json] = self._do(call(ask("GET", "/v1/tasks", params={"limit": limit})))["tasks"]
        return found

    def task(self, task_id: str) -> Json:
        found: Json = self._do(call(ask("GET", f"/v1/tasks/{quote(task_id, safe='')}")))["task"]
        return found

    def answer_task(self, task_id: str, answer: Json) -> Json:
        return self._do(call(ask("POST", f"/v1/tasks/{quote(task_id, safe='')}/answer", answer)))


@contextmanager
def running(store: Store, loop: Loop) -> Iterator[App]:
    """The server's app over a store, started as a server starts it."""
    from holdfast.server.app import build_app
    from holdfast.server.key_table import KeyTable

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

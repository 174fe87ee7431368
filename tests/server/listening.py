"""A reader of streams for tests: real sockets, frames as they come, and an end as abrupt as one likes."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable
from typing import Any, Self

import httpx

from stepfast.platform_api._flows import Frames

_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Reader:
    """Follows one stream in a task. ``frames`` holds (event, data); ``ended`` tells how it ended."""

    def __init__(self, url: str, path: str, key: str = "any", **params: Any) -> None:
        # No certificates are read: that would take longer than most tests.
        self.client = httpx.AsyncClient(base_url=url, headers={"x-api-key": key}, timeout=60, verify=_NO_TLS)
        self.path = path
        self.params = params
        self.frames: list[tuple[str, Any]] = []
        self.raw = b""
        self.status = 0
        self.opened = asyncio.Event()
        self.ended: str | None = None
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        frames = Frames()
        try:
            async with self.client.stream("GET", self.path, params=self.params) as response:
                self.status = response.status_code
                async for piece in response.aiter_raw():
                    self.opened.set()
                    self.raw += piece
                    if self.status == 200:
                        self.frames += [(f.event, json.loads(f.data)) for f in frames.feed(piece)]
                    self._news.set()
            self.ended = "properly"
        except httpx.TransportError as error:
            self.ended = type(error).__name__
        finally:
            self.opened.set()
            self._news.set()

    async def until(self, what: Callable[[Self], Any], seconds: float = 20.0) -> Self:
        """Wait until this holds."""
        end = time.monotonic() + seconds
        while not what(self):
            self._news.clear()
            left = end - time.monotonic()
            assert left > 0, f"it did not come: {self.frames} {self.ended}"
            try:
                async with asyncio.timeout(min(left, 0.1)):
                    await self._news.wait()
            except TimeoutError:
                pass
        return self

    @property
    def delivered(self) -> list[dict[str, Any]]:
        return [data for event, data in self.frames if event == "intent.delivered"]

    async def intents(self, count: int = 1, seconds: float = 20.0) -> list[dict[str, Any]]:
        """Wait for so many deliveries."""
        await self.until(lambda _: len(self.delivered) >= count, seconds)
        return self.delivered

    async def end(self, seconds: float = 20.0) -> str:
        await self.until(lambda _: self.ended is not None, seconds)
        assert self.ended is not None
        return self.ended

    async def cut(self) -> None:
        """Break the connection, as a crash does."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.client.aclose()


async def until(what: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Wait until something holds; ``what`` may be async."""
    end = time.monotonic() + seconds
    while True:
        found = what()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < end, "it did not come about"
        await asyncio.sleep(0.02)

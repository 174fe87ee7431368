"""Server-sent events: frames that every reader of the AXME wire understands, and the life of one stream.

A stream never just breaks: whatever ends it (its time, a shutdown, a revoked key) it ends with a proper end of body,
because the readers out there die of a connection that is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stepfast.server.state import Platform, Stream
from stepfast.server.views import to_json

KEEP_ALIVE = b": ka\n\n"
KEEP_ALIVE_SECONDS = 10.0
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies that buffer would hold the frames back
]


def frame(event: str, data: dict[str, Any], number: int | None = None) -> bytes:
    """One frame: one data line, ASCII only, whatever is in it."""
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {event}\ndata: {to_json(data)}\n\n".encode("ascii")


def timeout_frame(last: int) -> bytes:
    """The tail. ``next_seq`` is the last seq that was sent: readers give it back as ``since``."""
    return frame("stream.timeout", {"ok": True, "next_seq": last})


class Channel:
    """The way to one reader. ``signal`` wakes whoever writes: news, a reader that left, the server's end."""

    def __init__(self, stream: Stream, receive: Receive, send: Send) -> None:
        self.stream = stream
        self.signal = asyncio.Event()
        self.gone = False
        self._receive = receive
        self._send = send
        self._watchers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Channel:
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self.write(KEEP_ALIVE)  # the reader and all proxies know at once that it is open
        self._watchers = [asyncio.create_task(self._until_gone()), asyncio.create_task(self._until_ended())]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        if not self.gone:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def write(self, data: bytes) -> None:
        with suppress(OSError):  # the reader left; `gone` tells
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def pause(self, seconds: float) -> None:
        """Until something happens, or this time is over."""
        with suppress(TimeoutError):  # asyncio.wait_for can swallow a cancellation (Python 3.11)
            async with asyncio.timeout(max(0.0, seconds)):
                await self.signal.wait()
        self.signal.clear()

    @property
    def over(self) -> bool:
        return self.gone or self.stream.ended

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self.signal.set()

    async def _until_ended(self) -> None:
        await self.stream.wait()
        self.signal.set()


class EventStream(Response):
    """The answer of a route that streams; ``tell`` writes what there is and returns when all is said."""

    media_type = "text/event-stream"

    def __init__(self, platform: Platform, scope: Scope, tell: Callable[[Channel], Awaitable[None]]) -> None:
        super().__init__()
        self._stream = platform.open_stream(scope)
        self._tell = tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with Channel(self._stream, receive, send) as channel:
            await self._tell(channel)

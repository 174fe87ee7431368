"""The platform: the one object that everything in an app shares.

For authors of routes: ``request.app.state.platform`` is the `Platform`, ``request.state.caller`` the `Caller`.

* ``platform.store`` is the store for async code; pass ``tenant=caller.tenant`` with every call.
* ``platform.part(Hub)`` gives the one Hub of this app, made by ``Hub(platform)`` when first asked for.
* ``platform.closing`` is set when the server begins to shut down.
* A stream (SSE, a session) calls ``stream = platform.open_stream(request.scope)`` before its first byte. That may
  raise RateLimited or Closing. It then waits on ``await stream.wait(seconds)``, which is True as soon as the
  stream must end: ``stream.reason`` is "closing" (write stream.timeout and end the body) or "revoked" (end). The
  guard closes the stream with its request. A stream that has not ended some seconds after its key was revoked is
  cancelled.
* ``platform.tenants()`` names every tenant that has ever been made, for loops over all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

from starlette.types import Scope

from stepfast.codec import Codec, TypeRegistry
from stepfast.server.caller import Caller
from stepfast.server.errors import Closing, RateLimited
from stepfast.server.key_table import KeyTable
from stepfast.server.limits import Buckets
from stepfast.server.metrics import CountedStore, Metrics
from stepfast.server.settings import Settings
from stepfast.stores.base import LOCAL_TENANT, Store

STREAMS = "stepfast.streams"
P = TypeVar("P")
REVOKED_GRACE_SECONDS = 2.0


class Stream:
    """A long answer that is under way."""

    def __init__(self, caller: Caller, forget: Callable[[Stream], None]) -> None:
        self.caller = caller
        self.reason: Literal["closing", "revoked"] | None = None
        self._forget = forget
        self._ended = asyncio.Event()
        self._task = asyncio.current_task()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    async def wait(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """True as soon as the stream must end, False when the time is over."""
        if self._ended.is_set():
            return True
        try:
            async with asyncio.timeout(timeout):  # wait_for of Python 3.11 can swallow a cancellation
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def end(self, reason: Literal["closing", "revoked"]) -> None:
        if self.reason is None:
            self.reason = reason
            self._ended.set()

    def cancel(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()

    def close(self) -> None:
        """Give the place back; the guard does it when the request is over, whatever happened."""
        self._forget(self)


class Platform:
    """One per app."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.settings = settings
        self.raw = store
        self.metrics = Metrics()
        self.store = CountedStore(store, self.metrics)
        # Values of users are shown where they are plain, never built: no class is known here.
        self.codec = Codec(registry=TypeRegistry(), strict=True)
        self.keys = KeyTable(self.store, settings, self.on_revoked)
        self.closing = asyncio.Event()
        self.buckets = Buckets(settings.limits.requests_per_second, settings.limits.burst)
        self.failures = Buckets(settings.limits.failures_per_second, settings.limits.failure_burst)
        self._streams: dict[str, set[Stream]] = {}
        self._parts: dict[type, Any] = {}

    def part(self, kind: type[P]) -> P:
        """The one object of a class in this app."""
        found = self._parts.get(kind)
        if found is None:
            found = self._parts[kind] = kind(self)  # type: ignore[call-arg]
        return cast(P, found)

    def tenants(self) -> list[str]:
        return [LOCAL_TENANT, *(tenant for tenant in self.keys.tenants if tenant != LOCAL_TENANT)]

    # --- streams ---------------------------------------------------------------------------------

    def open_stream(self, scope: Scope) -> Stream:
        """A place among the streams of the caller's key, given back when the request is over."""
        caller: Caller = scope["state"]["caller"]
        if self.closing.is_set():
            raise Closing
        name = caller.key_id or caller.tenant
        mine = self._streams.setdefault(name, set())
        most = self.settings.limits.streams_per_key
        if len(mine) >= most:
            raise RateLimited(f"this key has {most} open streams, which is the limit; close one.", retry_after=5)
        stream = Stream(caller, self._forget)
        mine.add(stream)
        self.metrics.streams.inc()
        scope.setdefault(STREAMS, []).append(stream)
        return stream

    def open_streams(self, key_id: str | None = None) -> int:
        if key_id is not None:
            return len(self._streams.get(key_id, ()))
        return sum(len(streams) for streams in self._streams.values())

    def _forget(self, stream: Stream) -> None:
        name = stream.caller.key_id or stream.caller.tenant
        mine = self._streams.get(name)
        if mine is not None and stream in mine:
            mine.discard(stream)
            self.metrics.streams.dec()
            if not mine:
                del self._streams[name]

    def on_revoked(self, key_id: str) -> None:
        """End the streams of a key; whichever does not end by itself is cancelled."""
        streams = list(self._streams.get(key_id, ()))
        for stream in streams:
            stream.end("revoked")
        if streams:
            asyncio.get_running_loop().call_later(REVOKED_GRACE_SECONDS, self._cancel, streams)

    def _cancel(self, streams: list[Stream]) -> None:
        for stream in streams:
            if stream in self._streams.get(stream.caller.key_id, ()):
                stream.cancel()

    def close_streams(self) -> None:
        """The server shuts down: every stream ends properly, and no new one begins."""
        self.closing.set()
        for streams in list(self._streams.values()):
            for stream in list(streams):
                stream.end("closing")

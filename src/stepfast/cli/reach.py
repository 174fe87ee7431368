"""Reaching the store: the client for what it can do, and the server's API for the rest.

The API is the same wherever the store is. For a server's URL it is asked over HTTP; for the URL of a store the same
app runs here, in a thread, over that store, and whoever can open the store is its local caller.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from stepfast.cli.setup import Setup
from stepfast.client import Stepfast
from stepfast.codec import Codec, KeyRing, TypeRegistry
from stepfast.errors import CodecError, KeyUnavailable
from stepfast.stores import AsyncStore, open_store

if TYPE_CHECKING:
    from stepfast.platform_api import PlatformAPI

T = TypeVar("T")
_STOP_SECONDS = 2.0
_CONNECT_SECONDS = 3.0


class Looking(Codec):
    """For looking in from outside: a value that cannot be built here is shown as text and is no error."""

    def decode(self, data: bytes, *, bind: bytes = b"", earlier: bytes | None = None) -> Any:
        try:
            return super().decode(data, bind=bind, earlier=earlier)
        except CodecError as error:
            encrypted = isinstance(error, KeyUnavailable)
            what = "encrypted" if encrypted else self.describe(data, bind=bind, earlier=earlier)
        if b"|question:" in bind:  # a question is a record with a text in it
            return {"question": f"({what})", "started_at": None}
        return {"$opaque": what}


def _looking() -> Looking:
    # No class is known here, so that none is ever built; and what was written before there were keys is shown, too.
    return Looking(registry=TypeRegistry(), strict=True, keyring=KeyRing.from_env(accept_plain=True))


def open_client(at: Setup, **options: Any) -> Stepfast:
    """The client on the store that the command line names; ``options`` are those of a server's client."""
    # Somebody sits and waits: a server that is not there is said to be so soon.
    options = {"connect_timeout": _CONNECT_SECONDS, **options} if at.remote else {}
    return Stepfast(at.place or "", at.key, codec=_looking(), **options)


@contextmanager
def open_api(at: Setup) -> Iterator[PlatformAPI]:
    """The API of the server, or of the store that the command line names."""
    from stepfast.cli.serverless import InProcess, LocalAPI, running
    from stepfast.platform_api import PlatformAPI

    if at.remote:
        # A server without keys takes any; one with keys says that this one is wrong.
        with PlatformAPI(at.place or "", at.key or "none") as api:
            yield api
        return
    with (
        open_store(at.place or "") as store,
        Loop() as loop,
        running(store, loop) as app,
        LocalAPI(InProcess(app, loop)) as local,
    ):
        yield local


def with_store(at: Setup, work: Callable[[AsyncStore], Coroutine[Any, Any, T]]) -> T:
    """What only whoever has the store itself may do."""
    with open_store(at.place or "") as store, Loop() as loop:
        return loop.run(work(AsyncStore(store)))


class Loop:
    """An event loop in a thread, for the blocking code around it."""

    def __enter__(self) -> Loop:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stepfast-cli", daemon=True)
        self._thread.start()
        return self

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def __exit__(self, *_: object) -> None:
        async def settle() -> None:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=_STOP_SECONDS)
            await self._loop.shutdown_asyncgens()
            await self._loop.shutdown_default_executor()

        self.run(settle())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

"""Where a durable run is kept: a URL, a client, a store, or the default of this machine."""

from __future__ import annotations

import asyncio
import os
import threading

from stepfast import AsyncStepfast, InvalidInput, Stepfast, Store

StoreLike = str | os.PathLike[str] | AsyncStepfast | Stepfast | Store | None

_lock = threading.Lock()
_opened: dict[tuple[int, str], AsyncStepfast] = {}


def client_of(store: StoreLike) -> AsyncStepfast:
    """A client for what the caller gave. Those opened by URL are shared and live as long as the process."""
    if isinstance(store, AsyncStepfast):
        return store
    if isinstance(store, Stepfast):
        return AsyncStepfast(store=store.store, codec=store.codec)
    if isinstance(store, Store):
        return AsyncStepfast(store=store)
    if store is not None and not isinstance(store, str | os.PathLike):
        raise InvalidInput(f"store: takes a URL, a client or a store, not {type(store).__name__}.")
    named = None if store is None else os.fspath(store)
    # By process: a child of fork opens its own.
    key = (os.getpid(), named or os.environ.get("STEPFAST_URL", ""))
    with _lock:
        if key not in _opened:
            _opened[key] = AsyncStepfast(named)
        return _opened[key]


def close_clients() -> None:
    """Close what was opened by URL, for programs that want it earlier than their end."""
    with _lock:
        opened = [client for (pid, _), client in _opened.items() if pid == os.getpid()]
        _opened.clear()

    async def close() -> None:
        for client in opened:
            await client.close()

    # On a loop of its own: the caller may stand on one, or on none.
    closing = threading.Thread(target=lambda: asyncio.run(close()))
    closing.start()
    closing.join()

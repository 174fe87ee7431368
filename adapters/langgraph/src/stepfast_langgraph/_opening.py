"""Where a saver, a store or a cache keeps its rows: a URL or a path, or a store or client that is open already."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from stepfast import AsyncStepfast, AsyncStore, Codec, InvalidInput, KeyRing, Stepfast, Store, open_store
from stepfast.flow import Flow, drive, drive_async

T = TypeVar("T")

Anywhere: TypeAlias = "str | os.PathLike[str] | Store | AsyncStore | Stepfast | AsyncStepfast | None"
"""What every part of this adapter takes as ``store``; None is ``STEPFAST_URL`` or the embedded store."""


class Place:
    """An open store with the codec of its values. It closes only what it opened itself."""

    def __init__(self, store: Store, codec: Codec, *, owned: bool) -> None:
        self.store = store
        self.codec = codec
        self.tenant = store.tenant
        self._owned = owned
        self._last: list[Callable[[], None]] = []
        self._mine = threading.local()

    def drive(self, flow: Flow[T]) -> T:
        return drive(flow, self.store, self.tenant)

    async def adrive(self, flow: Flow[T]) -> T:
        # An AsyncStore for each thread, as each has an event loop of its own.
        store: AsyncStore | None = getattr(self._mine, "store", None)
        if store is None:
            store = self._mine.store = AsyncStore(self.store)
        return await drive_async(flow, store, self.tenant)

    def before_close(self, function: Callable[[], None]) -> None:
        """Have something done while the store is still open."""
        self._last.append(function)

    def close(self) -> None:
        while self._last:
            self._last.pop()()
        if self._owned:
            self.store.close()

    async def aclose(self) -> None:
        while self._last:
            await asyncio.to_thread(self._last.pop())
        if self._owned:
            await asyncio.to_thread(self.store.close)


def open_place(
    store: Anywhere = None, *, codec: Codec | None = None, keyring: KeyRing | None = None, api_key: str | None = None
) -> Place:
    """Open what ``store`` names, or use it as it is. A client brings its own codec; ``keyring`` is for one of ours."""
    if keyring is not None:
        if codec is not None:
            raise InvalidInput("keyring: the codec has one of its own, or none. Give the one or the other.")
        codec = default_codec(keyring)
    if store is None or isinstance(store, str | os.PathLike):
        codec = codec or default_codec()  # first, so that nothing is left open if a key is wrong
        return Place(open_store(store, api_key=api_key), codec, owned=True)
    if api_key is not None:
        raise InvalidInput("api_key: the store is open already and has its key. Leave it out.")
    if isinstance(store, Stepfast | AsyncStepfast):
        return Place(store.store, codec or store.codec, owned=False)
    if isinstance(store, AsyncStore):
        store = store.store
    if not isinstance(store, Store):
        raise InvalidInput(f"store: must be a URL, a path, a Store or a Stepfast, not {type(store).__name__}.")
    return Place(store, codec or default_codec(), owned=False)


def default_codec(keyring: KeyRing | None = None) -> Codec:
    """Values exactly as they are, encrypted with this ring or with the one that the environment names."""
    from ._types import make_codec

    return make_codec(keyring or KeyRing.from_env())

"""Opening the store of an adapter from whatever its user passed as ``store``."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any, Self, TypeAlias, TypeVar

from stepfast.async_client import AsyncStepfast
from stepfast.client import Client, Stepfast
from stepfast.codec import Codec, KeyRing
from stepfast.errors import InvalidInput
from stepfast.flow import Flow, drive, drive_async
from stepfast.stores import AsyncStore, Store, open_store

T = TypeVar("T")

__all__ = ["LazyStore", "OpenStore", "StoreLike", "StoreOwner", "check_store", "close_shared", "open_any"]

StoreLike: TypeAlias = "str | os.PathLike[str] | Store | AsyncStore | Stepfast | AsyncStepfast | None"
"""What adapters take as ``store``: a URL, a path, a store or a client; None is ``STEPFAST_URL`` or the default."""

MakeCodec: TypeAlias = Callable[[KeyRing | None], Codec]


class OpenStore:
    """An open store with the codec of its values, and the two clients on it. It closes only what it opened itself."""

    def __init__(self, store: Store, codec: Codec, *, owned: bool, client: Client | None = None) -> None:
        self.store = store
        self.astore = AsyncStore(store)
        self.codec = codec
        self.tenant = store.tenant
        self._owned = owned
        self._lock = threading.Lock()
        self._clients: dict[type[Client], Client] = {} if client is None else {type(client): client}
        self._given = client
        self._before_close: list[Callable[[], None]] = []
        self._mine = threading.local()

    def drive(self, flow: Flow[T]) -> T:
        """Run a flow on this store, blocking, and return its value."""
        return drive(flow, self.store, self.tenant)

    async def adrive(self, flow: Flow[T]) -> T:
        """`drive` for an event loop."""
        # An AsyncStore for each thread, as each has an event loop of its own.
        store: AsyncStore | None = getattr(self._mine, "store", None)
        if store is None:
            store = self._mine.store = AsyncStore(self.store)
        return await drive_async(flow, store, self.tenant)

    def client(self, **options: Any) -> Stepfast:
        """Return the blocking client on this store; it is made once, with the options of the first call."""
        return self._client(Stepfast, options)  # type: ignore[return-value]

    def aclient(self, **options: Any) -> AsyncStepfast:
        """Return the client for event loops on this store; it is made once, with the options of the first call."""
        return self._client(AsyncStepfast, options)  # type: ignore[return-value]

    def _client(self, kind: type[Client], options: dict[str, Any]) -> Client:
        with self._lock:
            if kind not in self._clients:
                self._clients[kind] = kind(store=self.store, codec=self.codec, **options)
            return self._clients[kind]

    def before_close(self, function: Callable[[], None]) -> None:
        """Have ``function`` called by `close`, while the store is still open."""
        self._before_close.append(function)

    def close(self) -> None:
        """Call what `before_close` registered, last first, and close the store if it was opened here."""
        while self._before_close:
            self._before_close.pop()()
        self._stop_clients()
        if self._owned:
            self.store.close()

    async def aclose(self) -> None:
        """`close` for an event loop."""
        while self._before_close:
            await asyncio.to_thread(self._before_close.pop())
        await asyncio.to_thread(self._stop_clients)
        if self._owned:
            await self.astore.close()

    def _stop_clients(self) -> None:
        """End the threads that renew leases for the clients that were made here."""
        with self._lock:
            made = [client for client in self._clients.values() if client is not self._given]
            self._clients = {} if self._given is None else {type(self._given): self._given}
        for client in made:
            client._core.heart.stop()


def open_any(
    store: StoreLike = None,
    *,
    codec: Codec | None = None,
    keyring: KeyRing | None = None,
    api_key: str | None = None,
    shared: bool = False,
    make_codec: MakeCodec | None = None,
) -> OpenStore:
    """Open what ``store`` names, or use it as it is.

    A client brings its own codec, unless one is given. Otherwise values are encrypted with ``keyring`` or with the key
    ring that the environment names; ``make_codec`` makes that codec where an adapter has types of its own to add.
    ``shared`` returns the same open store for the same URL everywhere in this process, until `close_shared`; a forked
    child opens its own.
    """
    if keyring is not None and codec is not None:
        raise InvalidInput("keyring: the codec has one of its own, or none. Pass the one or the other.")
    check_store(store, codec=codec, keyring=keyring, api_key=api_key)
    if store is None or isinstance(store, str | os.PathLike):
        if shared:
            return _shared(store, codec, keyring, api_key, make_codec)
        return _opened(store, codec, keyring, api_key, make_codec)
    if api_key is not None:
        raise InvalidInput("api_key: the store is open already and has its key. Leave it out.")
    if isinstance(store, Client):
        chosen = codec or (None if keyring is None else _codec(keyring, make_codec)) or store.codec
        same = chosen is store.codec and isinstance(store, Stepfast | AsyncStepfast)
        return OpenStore(store.store, chosen, owned=False, client=store if same else None)
    inner = store.store if isinstance(store, AsyncStore) else store
    return OpenStore(inner, codec or _codec(keyring, make_codec), owned=False)


def check_store(store: Any, *, codec: Any = None, keyring: Any = None, api_key: Any = None, **_: Any) -> None:
    """Raise `InvalidInput` for what `open_any` could never open, for those who open it later."""
    if store is not None and not isinstance(store, str | os.PathLike | Store | AsyncStore | Client):
        raise InvalidInput(f"store: must be a URL, a path, a client or a store, not {type(store).__name__}.")
    for field, given, kind in (("codec", codec, Codec), ("keyring", keyring, KeyRing), ("api_key", api_key, str)):
        if given is not None and not isinstance(given, kind):
            raise InvalidInput(f"{field}: must be a {kind.__name__}, not {type(given).__name__}.")


class LazyStore:
    """Opens a store at its first use, and again in a forked child; for objects that users make once and keep.

    The options are those of `open_any`. What cannot be opened at all is refused at once.
    """

    def __init__(self, store: StoreLike = None, **options: Any) -> None:
        check_store(store, **options)
        self._store = store
        self._options = options
        self._lock = threading.Lock()
        self._opened: dict[int, OpenStore] = {}

    def get(self) -> OpenStore:
        """Return the open store of this process."""
        process = os.getpid()
        if process not in self._opened:
            if self._opened:  # in a child; a thread of the parent may have held the lock
                self._lock, self._opened = threading.Lock(), {}
            with self._lock:
                if process not in self._opened:
                    self._opened[process] = open_any(self._store, **self._options)
        return self._opened[process]

    def close(self) -> None:
        """Close the store if it was opened here; the next use opens it again."""
        opened = self._opened.pop(os.getpid(), None)
        if opened is not None:
            opened.close()


class StoreOwner:
    """The base of what ``durable`` returns: it has a store in ``_store``, and closes it."""

    _store: LazyStore

    def close(self) -> None:
        """Close the store if it was opened here, from a URL."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _opened(
    name: str | os.PathLike[str] | None,
    codec: Codec | None,
    keyring: KeyRing | None,
    api_key: str | None,
    make_codec: MakeCodec | None,
) -> OpenStore:
    chosen = codec or _codec(keyring, make_codec)  # first: a wrong key must not leave a store open
    return OpenStore(open_store(name, api_key=api_key), chosen, owned=True)


def _codec(keyring: KeyRing | None, make_codec: MakeCodec | None) -> Codec:
    ring = keyring or KeyRing.from_env()
    return Codec(keyring=ring) if make_codec is None else make_codec(ring)


_lock = threading.Lock()
_open: dict[tuple[Any, ...], OpenStore] = {}


def _after_fork() -> None:
    """A thread of the parent may have held the lock, and the parent's stores are not the child's to use."""
    global _lock
    _lock = threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)


def _shared(
    name: str | os.PathLike[str] | None,
    codec: Codec | None,
    keyring: KeyRing | None,
    api_key: str | None,
    make_codec: MakeCodec | None,
) -> OpenStore:
    url = os.environ.get("STEPFAST_URL", "") if name is None else os.fspath(name)
    key = (url, api_key, codec, keyring, make_codec)
    with _lock:
        if key not in _open:
            _open[key] = _opened(name, codec, keyring, api_key, make_codec)
        return _open[key]


def close_shared() -> None:
    """Close the stores that were opened with ``shared``, for programs that want it earlier than their end."""
    with _lock:
        opened = list(_open.values())
        _open.clear()
    for each in opened:
        each.close()

"""Stores behind a server: a real socket between the caller and the database."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import uvicorn

from stepfast.clock import Clock
from stepfast.errors import StepfastError, StoreUnavailable
from stepfast.ops import Op
from stepfast.server.app import build_app
from stepfast.server.caller import Caller
from stepfast.server.serve import bind
from stepfast.server.settings import Settings
from stepfast.stores.base import LOCAL_TENANT, Store, Watch
from stepfast.stores.group import Done
from stepfast.stores.plans.checks import check_text
from stepfast.stores.remote import RemoteStore
from tests.contract.places import SERVED, Place


class TenantKeys:
    """For the contract, whose every test is a tenant of its own: the key is the tenant's name, in hex."""

    loaded = True
    required = True
    tenants: tuple[str, ...] = ()

    async def load(self) -> None:
        pass

    async def keep(self) -> None:
        await asyncio.Event().wait()

    def check(self, token: bytes) -> Caller:
        tenant = bytes.fromhex(token.decode()).decode()
        return Caller(tenant=tenant, org="o", workspace="w", key_id=tenant, role="workspace")


class Served:
    """A server in a thread, over a store of its own."""

    def __init__(self, store: Store, port: int = 0, keys: TenantKeys | None = None) -> None:
        self.store = store
        SERVED.append(store)
        app = build_app(store, Settings(access_log=False))
        app.platform.keys = keys or TenantKeys()  # type: ignore[assignment]
        self.socket = bind("127.0.0.1", port)
        self.port: int = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(app, log_config=None, lifespan="on", timeout_keep_alive=60, access_log=False)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, name="server")
        self.thread.start()
        until = time.monotonic() + 30
        while not self.server.started:
            assert self.thread.is_alive(), "the server did not start"
            assert time.monotonic() < until, "the server did not start in time"
            time.sleep(0.005)

    def stop(self, *, abruptly: bool = False) -> None:
        self.server.force_exit = abruptly
        self.server.should_exit = True
        self.thread.join()
        self.socket.close()
        SERVED.remove(self.store)


class ManyTenants(Store):
    """A remote store for each tenant, as each has a key of its own."""

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(url, clock)
        self._lock = threading.Lock()
        self._stores: dict[str, RemoteStore] = {}
        self._closed = False

    def _for(self, tenant: str) -> RemoteStore:
        check_text((), tenant)
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the store is closed.")
            if tenant not in self._stores:
                self._stores[tenant] = RemoteStore(self.url, api_key=tenant.encode().hex(), clock=self.clock)
            return self._stores[tenant]

    def execute(self, ops: Sequence[Op[Any]], *, tenant: str = LOCAL_TENANT) -> list[Any]:
        return self._for(tenant).execute(ops, tenant=tenant)

    def submit(self, ops: Sequence[Op[Any]], done: Done, *, tenant: str = LOCAL_TENANT) -> None:
        try:
            store = self._for(tenant)
        except StepfastError as error:
            done(error)
        else:
            store.submit(ops, done, tenant=tenant)

    def watch(self, *topics: str, tenant: str = LOCAL_TENANT) -> Watch:
        return self._for(tenant).watch(*topics, tenant=tenant)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            stores, self._stores = list(self._stores.values()), {}
        for store in stores:
            store.close()


class Http(Place):
    """A server in front of another place. What must be gone when a store is closed is the client's part alone."""

    def __init__(self, bottom: Place) -> None:
        super().__init__()
        self.bottom = bottom
        self.clock = Clock()
        self.served: Served | None = None

    def open(self, clock: Clock | None = None) -> Store:
        self.clock = clock or self.clock
        if self.served is None:
            self.served = Served(self.bottom.open(self.clock))
        return ManyTenants(self.served.url, self.clock)

    def crash(self, store: Store) -> Store:
        """The server goes away without a word and comes back at the same address; its clients stay."""
        assert self.served is not None
        self.served.stop(abruptly=True)
        self.served.store.close()
        self.served = Served(self.bottom.open(self.clock), self.served.port)
        return store

    def leftovers(self) -> list[str]:
        ours = ("stepfast-sender", "stepfast-remote", "stepfast-presence")
        return [thread.name for thread in threading.enumerate() if thread.name.startswith(ours)]

    def __exit__(self, *exc: object) -> None:
        try:
            super().__exit__(*exc)
        finally:
            if self.served is not None:
                self.served.stop()
                self.served.store.close()
            self.bottom.close()

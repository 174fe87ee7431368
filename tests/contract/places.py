"""The stores under test: where each lives, how it is opened, and what must be gone when it is closed."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psycopg

from stepfast.clock import Clock
from stepfast.stores.base import Store
from stepfast.stores.postgres import PostgresStore
from stepfast.stores.sqlite import Durability, SqliteStore
from stepfast.testing.contract import AsyncDriver, BlockingDriver, Driver

KINDS = ("sqlite-memory", "sqlite-file", "postgres", "http+sqlite", "http+postgres")
DRIVERS: dict[str, Callable[[Store], Driver]] = {"sync": BlockingDriver, "async": AsyncDriver}
SETTLE_SECONDS = 10.0

OTHER_CONNECTIONS = (
    "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND backend_type = 'client backend'"
)


# Stores behind servers that live for many tests, in threads of this process.
SERVED: list[Store] = []


def _threads_of(store: Any) -> set[Any]:
    """The threads that a store has now; it makes them when it needs them."""
    pools = [getattr(store, name, None) for name in ("_reading", "_threads")]
    found = {thread for pool in pools if pool is not None for thread in pool._threads}
    listener = getattr(store, "_listener", None)
    others = (store._committer._thread, getattr(store, "_poller", None), getattr(listener, "_thread", None))
    return found | {thread for thread in others if thread is not None}


class Place(ABC):
    """One store's home: leaving it fails if a closed store left anything behind.

    ``open`` may be called again, for a second store on the same data.
    """

    def __init__(self) -> None:
        self.strangers = set(threading.enumerate())

    @abstractmethod
    def open(self, clock: Clock | None = None) -> Store: ...

    @abstractmethod
    def crash(self, store: Store) -> Store:
        """Lose the store without closing it, and give the one that is there afterwards."""

    def leftovers(self) -> list[str]:
        """What is still there of stores that were closed."""
        threads = set(threading.enumerate()) - self.strangers
        for store in SERVED:
            threads -= _threads_of(store)
        return [thread.name for thread in threads if thread.name.startswith("stepfast")]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        try:
            self.check_nothing_is_left()
        finally:
            self.close()

    def close(self) -> None:
        """Give back what the place itself holds: nothing, as a rule."""
        return

    def check_nothing_is_left(self) -> None:
        until = time.monotonic() + SETTLE_SECONDS
        while left := self.leftovers():
            assert time.monotonic() < until, f"left behind after close: {left}"
            time.sleep(0.005)


class Memory(Place):
    def open(self, clock: Clock | None = None) -> Store:
        return SqliteStore(":memory:", clock=clock)

    def crash(self, store: Store) -> Store:
        return store  # it dies with its process, so there is nothing to come back to


class File(Place):
    def __init__(self, folder: Path, durability: Durability = "power") -> None:
        super().__init__()
        self.path = folder / "store.db"
        self.durability = durability
        self.lost: list[Store] = []

    def open(self, clock: Clock | None = None) -> Store:
        return SqliteStore(self.path, durability=self.durability, clock=clock)

    def crash(self, store: Store) -> Store:
        """The old one is never closed while the new one works, as if its process had been killed."""
        while len(self.lost) > 20:
            self.lost.pop(0).close()
        self.lost.append(store)
        return SqliteStore(self.path, durability=self.durability, clock=store.clock)

    def leftovers(self) -> list[str]:
        while self.lost:
            self.lost.pop().close()
        return super().leftovers() + [name for name in _open_files() if name.startswith(str(self.path))]


class Postgres(Place):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.control = psycopg.connect(url, autocommit=True)

    def close(self) -> None:
        self.control.close()

    def open(self, clock: Clock | None = None) -> Store:
        return PostgresStore(self.url, schema="contract", clock=clock)

    def crash(self, store: Store) -> Store:
        """The server ends every connection; the store has to find that out for itself."""
        self.control.execute(f"SELECT pg_terminate_backend(pid) {OTHER_CONNECTIONS}")
        return store

    def leftovers(self) -> list[str]:
        rows = self.control.execute(f"SELECT pid, application_name, state, query {OTHER_CONNECTIONS}").fetchall()
        return super().leftovers() + [str(row) for row in rows]


def _open_files() -> list[str]:
    """Paths that this process has open; none where the system does not tell."""
    folder = Path("/proc/self/fd")
    found = []
    for entry in folder.iterdir() if folder.exists() else ():
        try:
            found.append(str(entry.readlink()))
        except OSError:
            continue
    return found

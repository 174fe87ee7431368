"""A PostgreSQL for these tests: a shared one with a schema for each test, and one that may be mistreated."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from stepfast.stores.postgres import PostgresStore
from tests.stores.faults import OwnServer, Proxy, socket_of

Opener = Callable[..., PostgresStore]


@pytest.fixture(scope="session")
def pg_url(postgres_url: str) -> str:
    return postgres_url


@pytest.fixture
def schema(pg_url: str) -> Iterator[str]:
    name = f"t_{uuid4().hex[:12]}"
    yield name
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@pytest.fixture
def open_store(pg_url: str, schema: str) -> Iterator[Opener]:
    """Opens stores on this test's schema; when it ends they must leave no thread and no connection behind."""
    opened: list[PostgresStore] = []
    before = our_threads()

    def opener(url: str = pg_url, **options: Any) -> PostgresStore:
        mark = f"{'&' if '?' in url else '?'}application_name={schema}"
        store = PostgresStore(url + mark, **{"schema": schema, **options})
        opened.append(store)
        return store

    yield opener
    for store in opened:
        store.close()
    assert our_threads() - before == set()
    wait_until(lambda: connections(pg_url, schema) == 0, "a connection was left open")


@pytest.fixture
def store(open_store: Opener) -> PostgresStore:
    return open_store()


@pytest.fixture
def proxy(pg_url: str) -> Iterator[Proxy]:
    made = Proxy(socket_of(pg_url))
    yield made
    made.close()


@pytest.fixture(scope="module")
def own_server() -> Iterator[OwnServer]:
    """A server that a test may stop, freeze or configure as it likes."""
    with tempfile.TemporaryDirectory(prefix="stepfast-own-") as folder:
        server = OwnServer(Path(folder) / "data")
        yield server
        server.stop()


def our_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("stepfast")}


def connections(url: str, name: str) -> int:
    """How many back ends serve an application."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [name])
        found = row.fetchone()
    return int(found[0]) if found else 0


def wait_until(true: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.005)

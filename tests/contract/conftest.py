"""Every store, blocking and async, for the contract suite."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from stepfast.stores.base import Store
from stepfast.testing.contract import Driver
from tests.contract.http_places import Http
from tests.contract.places import DRIVERS, KINDS, File, Memory, Place, Postgres
from tests.postgres_server import Server


def _database(server: Server, purpose: str) -> str:
    return server.database(f"{purpose}_{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}")


@pytest.fixture(scope="session")
def shared_postgres_url(postgres: Server) -> str:
    return _database(postgres, "contract")


@pytest.fixture(scope="session")
def shared_postgres(shared_postgres_url: str) -> Iterator[Store]:
    """One store for all contract tests of this process: each has a tenant of its own, which is quicker."""
    with Postgres(shared_postgres_url) as home, home.open() as store:
        yield store


@pytest.fixture(scope="session")
def http_over_postgres(postgres: Server) -> Iterator[Http]:
    with Http(Postgres(_database(postgres, "served"))) as home:
        yield home


@pytest.fixture(scope="session")
def http_over_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    with Http(File(tmp_path_factory.mktemp("served"), "process")) as home:
        yield home


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A store's home, for the test alone."""
    kind = request.param
    if kind.endswith("postgres"):
        found: Place = Postgres(_database(request.getfixturevalue("postgres"), kind.replace("+", "_")))
    elif kind == "sqlite-memory":
        found = Memory()
    else:
        found = File(request.getfixturevalue("tmp_path"))
    if kind.startswith("http"):
        found = Http(found)
    with found:
        yield found


# A run that needs one of them only, such as a seeded bug's, need not collect them all.
WAYS = os.environ.get("STEPFAST_TEST_DRIVERS", "").split() or [f"{kind}-{mode}" for kind in KINDS for mode in DRIVERS]


@pytest.fixture(params=WAYS)
async def driver(request: pytest.FixtureRequest) -> AsyncIterator[Driver]:
    """A way to reach each store."""
    kind, _, mode = request.param.rpartition("-")
    if kind == "postgres":
        store = request.getfixturevalue("shared_postgres")
        store.clock.offset_us = 0
        made = DRIVERS[mode](store)
        yield made
        await made.check_histories()
        return
    if kind.startswith("http"):
        served: Http = request.getfixturevalue(f"http_over_{kind.partition('+')[2]}")
        served.clock.offset_us = 0
        with served.open() as store:
            made = DRIVERS[mode](store)
            yield made
            await made.check_histories()
        return
    # The rules do not depend on the flush to the disk, which costs more time than all the rest.
    home = Memory() if kind == "sqlite-memory" else File(request.getfixturevalue("tmp_path"), "process")
    with home, home.open() as store:
        made = DRIVERS[mode](store)
        yield made
        await made.check_histories()

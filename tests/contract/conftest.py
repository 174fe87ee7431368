"""Every store, blocking and async, for the contract suite."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast.stores.base import Store
from holdfast.testing.contract import Driver
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


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A store's home, for the test alone."""
    if request.param == "postgres":
        found: Place = Postgres(_database(request.getfixturevalue("postgres"), "own"))
    elif request.param == "sqlite-file":
        found = File(request.getfixturevalue("tmp_path"))
    else:
        found = Memory()
    with found:
        yield found


@pytest.fixture(params=[f"{kind}-{mode}" for kind in KINDS for mode in DRIVERS])
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
    # The rules do not depend on the flush to the disk, which costs more time than all the rest.
    home = Memory() if kind == "sqlite-memory" else File(request.getfixturevalue("tmp_path"), "process")
    with home, home.open() as store:
        made = DRIVERS[mode](store)
        yield made
        await made.check_histories()

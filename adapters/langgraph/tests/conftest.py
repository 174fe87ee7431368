"""The places in which the adapter's tests run: each kind of store, direct and behind a server."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from adapters.langgraph.tests.kit import KINDS
from stepfast import open_store
from stepfast_langgraph import StepfastSaver
from tests import postgres_server
from tests.contract.http_places import Served

# Nothing here talks to anybody but the loopback.
os.environ["LANGSMITH_TRACING"] = "false"
os.environ["LANGCHAIN_TRACING_V2"] = "false"

_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "alone")


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_server.Server]:
    """One server for the whole run, which the test processes share."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid4().hex)
    server = postgres_server.start(Path(tempfile.gettempdir()) / f"stepfast-langgraph-{run}")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres_url(postgres: postgres_server.Server) -> str:
    """A database of this test process's own."""
    return postgres.database(f"tests_{_WORKER}")


@pytest.fixture(scope="session")
def http_over_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("served") / "store.db"
    with open_store(f"sqlite:///{path}?durability=process") as store:
        served = Served(store)
        yield served.url
        served.stop()


@pytest.fixture(scope="session")
def http_over_postgres(postgres: postgres_server.Server) -> Iterator[str]:
    with open_store(postgres.database(f"served_{_WORKER}")) as store:
        served = Served(store)
        yield served.url
        served.stop()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """An embedded store of this test's own."""
    return f"sqlite:///{tmp_path}/threads.db?durability=process"


@pytest.fixture(params=KINDS)
def store_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each kind of store in turn. Behind a server, every test is a tenant of its own; the key is in the environment."""
    kind: str = request.param
    if kind == "sqlite":
        url: str = request.getfixturevalue("sqlite_url")
    elif kind == "postgres":
        url = request.getfixturevalue("postgres_url")
    else:
        url = request.getfixturevalue(f"http_over_{kind.partition('+')[2]}")
        monkeypatch.setenv("STEPFAST_API_KEY", uuid4().hex.encode().hex())
    return url


@pytest.fixture
def saver(sqlite_url: str) -> Iterator[StepfastSaver]:
    """A saver on an embedded store."""
    with StepfastSaver(sqlite_url) as made:
        yield made


@pytest.fixture
def any_saver(store_url: str) -> Iterator[StepfastSaver]:
    """A saver on each kind of store in turn."""
    with StepfastSaver(store_url) as made:
        yield made

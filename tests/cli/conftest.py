"""Stores for the command line: embedded, PostgreSQL, and behind a live server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.cli.kit import Cli
from tests.server.live import Live, settings_for


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Commands set up the logs of their process, which here is the tests' own."""
    loggers = [logging.getLogger(name) for name in ("", "stepfast", "uvicorn", "uvicorn.error", "asyncio")]
    before = [(each.handlers[:], each.level, each.propagate) for each in loggers]
    yield
    for each, (handlers, level, propagate) in zip(loggers, before, strict=True):
        each.handlers[:] = handlers
        each.setLevel(level)
        each.propagate = propagate


@pytest.fixture
def embedded(tmp_path: Path) -> Cli:
    return Cli(f"sqlite:///{tmp_path / 'store.db'}", tmp_path)


@pytest.fixture
def postgres_cli(postgres_url: str, tmp_path: Path) -> Iterator[Cli]:
    name = f"c_{uuid4().hex[:12]}"
    mark = "&" if "?" in postgres_url else "?"
    yield Cli(f"{postgres_url}{mark}schema={name}", tmp_path)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One without keys for all tests of a module; their addresses differ."""
    folder = tmp_path_factory.mktemp("server")
    live = Live(settings_for(f"sqlite:///{folder / 'store.db'}")).start()
    yield live
    live.stop()


@pytest.fixture
def server_cli(shared_server: Live, tmp_path: Path) -> Cli:
    return Cli(shared_server.url, tmp_path)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Live]]:
    """A server of the test's own, with settings of its own."""
    started: list[Live] = []

    def start(**options: Any) -> Live:
        store = str(options.pop("store", f"sqlite:///{tmp_path / 'served.db'}"))
        live = Live(settings_for(store, **options)).start()
        started.append(live)
        return live

    yield start
    for live in started:
        live.stop()


@pytest.fixture(params=["embedded", "postgres", "server"])
def cli(request: pytest.FixtureRequest) -> Cli:
    """The same commands on each kind of URL."""
    name = {"embedded": "embedded", "postgres": "postgres_cli", "server": "server_cli"}[request.param]
    made: Cli = request.getfixturevalue(name)
    return made


@pytest.fixture
def address() -> str:
    """One that no other test uses."""
    return f"agent://acme/prod/a{uuid4().hex[:12]}"

"""Servers for these tests: one in this process without a socket, and real ones in processes of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from stepfast.server.app import App, build_app
from stepfast.server.settings import Settings
from stepfast.stores import Store, open_store
from tests.server.live import Live, settings_for

Starter = Callable[..., Live]
Running = Callable[..., Awaitable[tuple[App, httpx.AsyncClient]]]


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def live(store_url: str) -> Iterator[Starter]:
    """Start real servers: ``live()``, ``live(store_url=..., limits={...}, require_keys=True)``. All are stopped."""
    started: list[Live] = []

    def start(store: str | None = None, *, store_url: str = store_url, wait: bool = True, **options: Any) -> Live:
        server = Live(settings_for(store or store_url, **options))
        started.append(server)
        return server.start(wait)

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def pg_store_url(postgres_url: str) -> Iterator[str]:
    """A schema of this test's own in the shared PostgreSQL, for servers on several connections."""
    name = f"s_{uuid4().hex[:12]}"
    mark = "&" if "?" in postgres_url else "?"
    yield f"{postgres_url}{mark}schema={name}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with open_store(store_url) as opened:
        yield opened


@pytest.fixture
async def running(store: Store) -> AsyncIterator[Running]:
    """``app, client = await running(Settings(...))``: an app in this process, with its background tasks."""
    stops: list[Callable[[], Any]] = []

    async def start(settings: Settings | None = None) -> tuple[App, httpx.AsyncClient]:
        app = build_app(store, settings)
        lifespan = app._lifespan(app)
        await lifespan.__aenter__()
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8100")
        stops.append(client.aclose)
        stops.append(lambda: lifespan.__aexit__(None, None, None))
        return app, client

    yield start
    for stop in stops:
        await stop()

"""Every test of this folder runs on a SQLite file and on PostgreSQL, with blocking and with async workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from tests.worker.kit import Launch, Team, launching


@pytest.fixture(params=["sqlite-file", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite-file":
        yield f"sqlite:///{tmp_path}/stepfast.db"
        return
    server: str = request.getfixturevalue("postgres_url")
    schema = f"w_{uuid4().hex[:12]}"
    yield f"{server}{'&' if '?' in server else '?'}schema={schema}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def team(url: str, kind: str) -> Iterator[Team]:
    made = Team(kind, url)
    yield made
    made.close()


@pytest.fixture
def launch(url: str, kind: str, tmp_path: Path) -> Iterator[Launch]:
    """Start workers in processes of their own, which do not outlive the test."""
    with launching(url, tmp_path, kind) as started:
        yield started

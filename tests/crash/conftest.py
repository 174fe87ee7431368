"""What the crash tests share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepfast.owner import life_of, this_process
from stepfast.stores.sql import load_migrations, load_queries
from stepfast.stores.sqlite import SqliteStore
from stepfast.testing.processes import scratch
from tests.crash.proofs import prepare, proof

__all__ = ["proof"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    prepare(items, Path(__file__).parent)


@pytest.fixture(scope="session", autouse=True)
def _warm() -> None:
    """What is read once in a process is read before the forks, so that no life spends its lines on it."""
    load_queries("sqlite")
    load_migrations("sqlite")
    life_of(this_process().text())
    SqliteStore(":memory:").close()


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, where possible."""
    folder = scratch(None, "tests")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)

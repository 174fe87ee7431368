"""What tests of several folders share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from stepfast.deciding import current_frame
from tests import postgres_server

# Their assertions then say what was compared, as a test's own do.
pytest.register_assert_rewrite(
    *(
        f"stepfast.testing.contract_{part}"
        for part in ("decisions", "history", "intents", "journal", "kit", "laws", "leases", "values")
    )
)


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_server.Server]:
    """One server for the whole run, which the test processes share."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid4().hex)
    server = postgres_server.start(Path(tempfile.gettempdir()) / f"stepfast-tests-{run}")
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _no_run_is_left_current() -> Iterator[None]:
    """A run that a test leaves open, as a crash would, is not the current one of the next test."""
    yield
    current_frame.set(None)


@pytest.fixture(scope="session")
def postgres_url(postgres: postgres_server.Server) -> str:
    """A database of this test process's own."""
    return postgres.database(f"tests_{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}")

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepfast import _failpoints
from stepfast.testing.processes import scratch
from tests.testing import toys


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, where possible, for tests whose evidence would be kept."""
    folder = scratch(None, "tests")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _only_the_toys_failpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toys' names must not appear among those that the library's own tests count."""
    monkeypatch.setattr(_failpoints, "_declared", set(toys.FAILPOINTS))

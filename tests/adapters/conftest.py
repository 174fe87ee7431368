"""The fixtures of the kit's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.kit import Way


@pytest.fixture(params=["blocking", "awaited"])
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Way]:
    made = Way(tmp_path / "stepfast.db", request.param == "blocking")
    yield made
    made.sf.close()

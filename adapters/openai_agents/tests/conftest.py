"""What all tests of the adapter share: stores, and no tracing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.openai_agents.tests.kit import disable_tracing
from stepfast.adapters import close_shared
from tests.conftest import postgres, postgres_url

__all__ = ["postgres", "postgres_url"]

disable_tracing()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    yield f"sqlite:///{tmp_path}/stepfast.db"
    close_shared()

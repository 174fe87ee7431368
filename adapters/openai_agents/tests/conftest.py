"""What all tests of the adapter share: stores, and no tracing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from stepfast_openai_agents._clients import close_clients
from tests.conftest import postgres, postgres_url

__all__ = ["postgres", "postgres_url"]

if find_spec("agents") is not None:  # Swarm's tests, in their own environment, have no SDK
    from adapters.openai_agents.tests.kit import disable_tracing

    disable_tracing()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    yield f"sqlite:///{tmp_path}/stepfast.db"
    close_clients()

"""What all tests of the adapter share: stores, no telemetry, no sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.crewai.tests import kit  # switches telemetry and tracing off before CrewAI is imported
from tests.conftest import postgres, postgres_url

__all__ = ["postgres", "postgres_url"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:  # CrewAI and what it is made of warn of their own calls
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ImportWarning"))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/stepfast.db"


@pytest.fixture(autouse=True)
def only_this_machine() -> Iterator[None]:
    """CrewAI swallows what its telemetry raises, so what was refused is looked at in the end."""
    kit.refused.clear()
    yield
    assert kit.refused == []

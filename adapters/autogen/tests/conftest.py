"""What all tests of the adapter share. An environment holds one member of the AutoGen family: import none here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import postgres, postgres_url

__all__ = ["postgres", "postgres_url"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/stepfast.db"

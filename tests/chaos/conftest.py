"""What the long experiments share with the crash tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.conftest import _warm, memory
from tests.crash.proofs import prepare, proof

__all__ = ["_warm", "memory", "proof"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    prepare(items, Path(__file__).parent)

"""The bugs are planted in forks, as the crash tests' kills are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.proofs import prepare, proof

__all__ = ["proof"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    prepare(items, Path(__file__).parent)

"""What was proved, in numbers: printed by each test, noted in its report, and kept in a file where one is named.

STEPFAST_PROOFS=proofs.jsonl make test
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Proof = Callable[..., None]


@pytest.fixture
def proof(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Proof:
    """``proof("what", kills=41, …)`` tells what a test counted."""

    def tell(what: str, **counts: Any) -> None:
        line = json.dumps({"proof": what, **counts, "test": request.node.name})
        print(f"PROOF {line}")
        record_property("proof", line)
        named = os.environ.get("STEPFAST_PROOFS")
        if named:
            fd = os.open(Path(named), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(fd, f"{line}\n".encode())
            finally:
                os.close(fd)

    return tell


def prepare(items: list[pytest.Item], folder: Path) -> None:
    """These tests fork and kill, which some platforms cannot; and on a busy machine they may take their time."""
    for item in items:
        if not item.path.is_relative_to(folder):
            continue
        if not hasattr(os, "fork"):
            item.add_marker(pytest.mark.skip(reason="needs fork and SIGKILL: Linux or macOS"))
        if item.get_closest_marker("chaos") is None:
            item.add_marker(pytest.mark.timeout(400))


def bound(trials: int) -> str:
    """No failure in so many independent trials: what that says about the rate."""
    return f"0 in {trials}: below {3 / max(trials, 1):.3%} with 95 % confidence"

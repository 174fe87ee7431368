"""The agent of `crash.py` survives being killed anywhere, on every kind of store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import postgres_server
from tests.server.live import Live, settings_for

ROOT = Path(__file__).parents[3]
NOT_SQLITE = ("postgres", "http+sqlite", "http+postgres")


@pytest.fixture
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store that every life of the agent shares, behind a server process where the kind says so."""
    kind: str = request.param
    below = f"sqlite:///{tmp_path}/served.db"
    if kind.endswith("postgres"):
        server: postgres_server.Server = request.getfixturevalue("postgres")
        below = server.database(f"crash_{kind.replace('+', '_')}")
    if not kind.startswith("http"):
        yield below
        return
    live = Live(settings_for(below, access_log=False)).start()
    try:
        yield live.url
    finally:
        live.stop()


def kill_it(*arguments: str) -> int:
    """Run the harness in a process of its own (it forks); gives the number of kills."""
    command = [sys.executable, "-m", "adapters.langgraph.tests.crash", *arguments]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return sum(map(int, re.findall(r"(\d+) cuts", done.stdout)))


def test_nothing_finished_is_done_again_wherever_it_is_killed() -> None:
    assert kill_it("--points", "20", "--lines", "10") >= 20


@pytest.mark.parametrize("shared_url", NOT_SQLITE, indirect=True)
def test_the_same_holds_on_the_other_stores(shared_url: str) -> None:
    assert kill_it("--url", shared_url, "--points", "4") >= 2


@pytest.mark.parametrize("durability", ["async", pytest.param("exit", marks=pytest.mark.chaos)])
def test_in_the_other_durability_modes_it_ends_the_same(durability: str) -> None:
    assert kill_it("--durability", durability, "--points", "4") >= 2


@pytest.mark.chaos
def test_every_named_place_and_a_thousand_lines() -> None:
    assert kill_it("--lines", "1000") > 800


@pytest.mark.chaos
def test_the_recovery_is_killed_too() -> None:
    assert kill_it("--kills", "2") > 80


@pytest.mark.chaos
@pytest.mark.parametrize("shared_url", NOT_SQLITE, indirect=True)
def test_every_named_place_on_the_other_stores(shared_url: str) -> None:
    assert kill_it("--url", shared_url) > 30

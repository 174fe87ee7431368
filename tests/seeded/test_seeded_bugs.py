"""The tests are tested: each of these bugs, planted in the library, must make the tests named for it fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import postgres_server
from tests.crash.proofs import Proof
from tests.seeded.bugs import BUGS

ROOT = Path(__file__).parents[2]


class Zygote:
    """Runs tests, with or without a bug, in a fork of a process that is warm."""

    def __init__(self, server: postgres_server.Server) -> None:
        # What the forks count is not to be counted twice.
        left_out = ("PYTEST_", "STEPFAST_PROOFS")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        # The forks join the database server of this run, and have databases of their own on it.
        mine = os.environ.get("PYTEST_XDIST_WORKER", "alone")
        shared = {
            "PYTEST_XDIST_TESTRUNUID": server.url.rpartition("stepfast-tests-")[2],
            "PYTEST_XDIST_WORKER": f"seeded_{mine}",
            "STEPFAST_TEST_DRIVERS": "sqlite-memory-sync",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.seeded.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**kept, **shared},
            text=True,
        )

    def run(self, bug: str | None, tests: tuple[str, ...]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"bug": bug, "tests": tests}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def zygote(postgres: postgres_server.Server) -> Iterator[Zygote]:
    process = Zygote(postgres)
    yield process
    process.close()


@pytest.mark.parametrize("name", BUGS, ids=[name.replace(" ", "-") for name in BUGS])
def test_this_bug_is_caught(name: str, zygote: Zygote, proof: Proof) -> None:
    bug = BUGS[name]
    answer = zygote.run(name, bug.tests)
    assert answer["outcomes"] == dict.fromkeys(bug.tests, "failed"), f"not every test sees it:\n{answer['text']}"
    proof(f"seeded bug: {name}", caught_by=len(bug.tests))


PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_without_a_bug_the_same_tests_pass(part: int, zygote: Zygote) -> None:
    """In parts, which several processes share."""
    tests = tuple(dict.fromkeys(test for bug in BUGS.values() for test in bug.tests))[part::PARTS]
    answer = zygote.run(None, tests)
    assert answer["outcomes"] == dict.fromkeys(tests, "passed"), answer["text"]


def test_there_are_more_of_them_than_the_twelve_of_the_programme() -> None:
    assert len(BUGS) >= 16

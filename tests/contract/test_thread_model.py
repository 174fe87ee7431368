"""Threads against a plain model of them: many walks over a file; the contract has one over every store."""

from __future__ import annotations

from random import Random

import pytest

from stepfast.stores.sqlite import SqliteStore
from stepfast.testing.contract import BlockingDriver
from stepfast.testing.threads_model import walk


async def walk_many(seeds: range, steps: int) -> None:
    for seed in seeds:
        with SqliteStore(":memory:") as store:
            await walk(BlockingDriver(store), Random(seed), steps)


async def test_threads_are_those_of_the_model() -> None:
    await walk_many(range(20), 40)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
async def test_threads_are_those_of_the_model_for_long() -> None:
    await walk_many(range(20, 1000), 100)

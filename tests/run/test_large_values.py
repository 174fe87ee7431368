"""Values too large for a row, in pieces."""

# ruff: noqa: PT012 - what is raised leaves the run, so the run is inside the block

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stepfast import Damaged, Stepfast
from stepfast.vault import PIECE_SIZE
from tests.run.kit import Calls, Way, both


def pieces_in(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as store:
        return [size for (size,) in store.execute("SELECT length(data) FROM pieces ORDER BY number")]


@pytest.mark.parametrize("size", [70 * 1024, 5 * 1024 * 1024])
@both
async def test_a_large_result_comes_back_whole(way: Way, calls: Calls, size: int) -> None:
    sf = way.open()
    # Random bytes, which no compression makes small.
    data = os.urandom(size)
    large = calls.answering("large", lambda: {"data": data})
    async with way.crashing(sf, "r") as run:
        assert (await run.step(large))["data"] == data
    async with sf.run("r") as run:
        assert (await run.step(large))["data"] == data
    assert calls.names == ["large"]
    pieces = pieces_in(way.path)
    assert sum(pieces) >= size
    assert max(pieces) <= PIECE_SIZE


@both
async def test_large_arguments_states_and_items_work_too(way: Way, calls: Calls) -> None:
    sf = way.open()
    data = os.urandom(300_000)
    size = calls.answering("size", len)
    double = calls.answering("double", lambda n: data * n)
    async with way.crashing(sf, "r") as run:
        assert await run.step(size, data) == 300_000
        await run.checkpoint({"data": data})
        assert [value async for value in run.map(double, [1, 2])] == [data, data * 2]
    async with sf.run("r") as run:
        assert run.restored == {"data": data}
        assert await run.step(size, data) == 300_000
        assert [value async for value in run.map(double, [1, 2])] == [data, data * 2]
    assert calls.names == ["size", "double", "double"]


@both
async def test_a_missing_or_damaged_piece_is_said_and_the_step_is_not_run_again(way: Way, calls: Calls) -> None:
    sf = way.open()
    large = calls.answering("large", lambda: os.urandom(200_000))
    async with way.crashing(sf, "r") as run:
        await run.step(large)
    with closing(sqlite3.connect(way.path)) as store:
        store.execute("UPDATE pieces SET data = zeroblob(length(data))")
        store.commit()
    async with way.crashing(sf, "r") as run:
        with pytest.raises(Damaged):
            await run.step(large)
    with closing(sqlite3.connect(way.path)) as store:
        store.execute("DELETE FROM pieces")
        store.commit()
    async with way.crashing(sf, "r") as run:
        with pytest.raises(Damaged, match="missing"):
            await run.step(large)
    assert calls.names == ["large"]


def test_a_value_of_100_mb_works_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "stepfast.db"
    data = os.urandom(100 * 1024 * 1024)
    with Stepfast(path, durability="process") as sf:
        with pytest.raises(InterruptedError), sf.run("r") as run:
            run.step(lambda: data)
            raise InterruptedError
        with sf.run("r") as run:
            assert run.options(name="lambda").step(lambda: b"not called again") == data
    assert len(pieces_in(path)) == 101

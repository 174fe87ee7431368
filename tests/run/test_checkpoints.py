"""Checkpoints: versions of a state of one's own, checked before they are used."""

from __future__ import annotations

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepfast import Codec, Damaged, InvalidInput, NotFound, Stepfast, Suspended, TypeRegistry, UnknownType
from tests.run.kit import Calls, Way, both, counting, events_of


def versions(path: Path) -> list[tuple[int, str | None]]:
    with closing(sqlite3.connect(path)) as store:
        return store.execute("SELECT version, pin FROM checkpoints ORDER BY version").fetchall()


def damage(path: Path, *which: int) -> None:
    """Flip one bit in the middle of these versions' states, in the row or in the pieces."""
    with closing(sqlite3.connect(path)) as store:
        for version in which:
            blob, state = store.execute(
                "SELECT blob_id, state FROM checkpoints WHERE version = ?", [version]
            ).fetchone()
            if blob is None:
                store.execute("UPDATE checkpoints SET state = ? WHERE version = ?", [flipped(state), version])
            else:
                [piece] = store.execute("SELECT data FROM pieces WHERE blob_id = ? AND number = 0", [blob]).fetchone()
                store.execute("UPDATE pieces SET data = ? WHERE blob_id = ? AND number = 0", [flipped(piece), blob])
        store.commit()


def flipped(data: bytes, at: int | None = None) -> bytes:
    at = len(data) // 2 if at is None else at
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


@both
async def test_the_last_state_is_restored_after_a_crash(way: Way) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        assert run.restored is None
        assert await run.checkpoint({"cursor": 1}) == 1
        assert await run.checkpoint({"cursor": 2}) == 2
    async with way.crashing(sf, "r") as run:
        assert run.restored == {"cursor": 2}
        # A checkpoint is a step: the same call again gives the version it made.
        assert await run.checkpoint({"cursor": 1}) == 1
        assert await run.checkpoint({"cursor": 2}) == 2
        assert await run.checkpoint({"cursor": 3}) == 3
    async with sf.run("r") as run:
        assert run.restored == {"cursor": 3}
    async with sf.run("r") as run:
        assert run.restored == {"cursor": 3}
        assert await run.checkpoint({"cursor": 1}) == 1


@both
async def test_a_checkpoint_is_one_commit(way: Way) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        with counting() as passed:
            await run.checkpoint({"cursor": 1})
        assert passed["sqlite.after_commit"] == 1


@both
async def test_the_last_ones_are_kept_and_those_that_are_pinned(way: Way) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        await run.checkpoint(1)
        await run.checkpoint(2, pin="recovery")
        for state in range(3, 16):
            await run.checkpoint(state)
        assert versions(way.path) == [(2, "recovery"), *((v, None) for v in range(6, 16))]
        await run.checkpoint(16, keep=2)
        assert versions(way.path) == [(2, "recovery"), (15, None), (16, None)]


@both
async def test_a_name_pins_the_newest_that_took_it(way: Way) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        await run.checkpoint("a", pin="recovery")
        await run.checkpoint("b", pin="recovery")
        await run.checkpoint("c", pin="other")
        assert versions(way.path) == [(1, None), (2, "recovery"), (3, "other")]


@both
async def test_any_version_can_be_restored_by_hand(way: Way) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        with pytest.raises(NotFound):
            await run.restore()
        await run.checkpoint("a", pin="recovery")
        with pytest.raises(NotFound):
            await run.restore("previous")
        await run.checkpoint("b")
        await run.checkpoint("c")
        assert await run.restore() == "c"
        assert await run.restore("current") == "c"
        assert await run.restore("previous") == "b"
        assert await run.restore("recovery") == "a"
        assert await run.restore(2) == "b"
        with pytest.raises(NotFound, match="no checkpoint 7"):
            await run.restore(7)
        damage(way.path, 2)
        with pytest.raises(Damaged):
            await run.restore("previous")


@pytest.mark.parametrize("options", [{"pin": "current"}, {"pin": "previous"}, {"keep": 1}])
@both
async def test_what_would_leave_nothing_to_fall_back_to_is_refused(way: Way, options: dict[str, Any]) -> None:
    sf = way.open()
    with pytest.raises(InvalidInput, match=r"pin|keep"):
        async with sf.run("r") as run:
            await run.checkpoint({}, **options)
    assert versions(way.path) == []


@pytest.mark.parametrize("size", [10, 300_000], ids=["in the row", "in pieces"])
@both
async def test_a_damaged_current_falls_back_to_the_previous_and_says_so(way: Way, calls: Calls, size: int) -> None:
    sf = way.open()
    filler = os.urandom(size)
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a)
        await run.checkpoint({"cursor": 1, "filler": filler})
        await run.step(calls.b)
        await run.checkpoint({"cursor": 2, "filler": filler})
    damage(way.path, 2)
    async with sf.run("r") as run:
        assert run.restored["cursor"] == 1
        assert run.restored["filler"] == filler
        assert run.verdict.outcome == "resume"
        assert run.verdict.checkpoint == 1
        # The journal is not the checkpoint: falling back repeats nothing.
        await run.step(calls.a)
        await run.step(calls.b)
    assert calls.names == ["a", "b"]
    [told] = [e for e in await sf.events("r") if e["event_type"] == "intent.checkpoint_damaged"]
    assert told["details"]["subject"] == "checkpoint 2"


@pytest.mark.parametrize("at", [0, 1, 2, 3, 40])
@both
async def test_wherever_a_piece_is_damaged_the_previous_is_used(way: Way, at: int) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.checkpoint("small")
        await run.checkpoint(os.urandom(100_000))
    with closing(sqlite3.connect(way.path)) as store:
        [piece] = store.execute("SELECT data FROM pieces").fetchone()
        store.execute("UPDATE pieces SET data = ?", [flipped(piece, at)])
        store.commit()
    async with sf.run("r") as run:
        assert run.restored == "small"


@both
async def test_where_every_version_is_damaged_a_person_decides(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a)
        await run.checkpoint({"cursor": 1})
        await run.checkpoint({"cursor": 2})
    damage(way.path, 1, 2)
    for _ in range(2):
        with pytest.raises(Suspended):
            await sf.run("r", on_wait="suspend")
    intent = await sf.get_intent("r")
    assert (intent["status"], intent["waiting_reason"]) == ("WAITING", "WAITING_FOR_HUMAN")
    [decision] = await sf.decisions("r")
    assert decision["kind"] == "resume"
    assert decision["outcomes"] == ["continue", "fail"]
    assert "no version of it is whole" in decision["question"]
    await sf.answer("r", "continue")
    async with sf.run("r") as run:
        assert run.restored is None
        await run.step(calls.a)
    assert calls.names == ["a"]
    assert events_of(await sf.events("r")).count("checkpoint_damaged") >= 2


@both
async def test_checkpoints_are_listed_and_a_damaged_one_does_not_hide_the_run(way: Way) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.checkpoint("one", pin="recovery")
        await run.checkpoint("two", pending=["commit"])
    listed = await sf.checkpoints("r")
    assert [(c["version"], c["pins"]) for c in listed] == [(2, ["current"]), (1, ["previous", "recovery"])]
    assert (await sf.describe("r"))["pending"] == ["commit"]
    with closing(sqlite3.connect(way.path)) as store:
        [meta] = store.execute("SELECT meta FROM checkpoints WHERE version = 2").fetchone()
        store.execute("UPDATE checkpoints SET meta = ? WHERE version = 2", [flipped(meta)])
        store.commit()
    shown = await sf.describe("r")
    assert (shown["checkpoint"], shown["pending"]) == (2, [])
    async with sf.run("r") as run:
        assert run.restored == "one"


@both
async def test_a_run_that_goes_on_from_its_state_saves_it_anew(way: Way) -> None:
    """It does not repeat its first checkpoints, so those it takes now are new ones whatever they hold."""
    sf = way.open()
    for expected in ([0, 1], [2, 3], [4, 5]):
        async with way.crashing(sf, "r") as run:
            start = 0 if run.restored is None else run.restored["cursor"] + 1
            for cursor in (start, start + 1):
                await run.checkpoint({"cursor": cursor})
            assert [start, start + 1] == expected
    async with sf.run("r") as run:
        assert run.restored == {"cursor": 5}
        assert run.verdict.checkpoint == 6


@both
async def test_a_new_checkpoint_after_the_fall_back_is_the_current_one(way: Way) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        for state in ("one", "two"):
            await run.checkpoint(state)
    damage(way.path, 2)
    async with way.crashing(sf, "r") as run:
        assert run.restored == "one"
        for state in ("one", "two", "three"):
            await run.checkpoint(state)
    async with sf.run("r") as run:
        assert run.restored == "three"
        assert run.verdict.checkpoint == 3


def test_checkpoints_taken_side_by_side_have_versions_of_their_own(tmp_path: Path) -> None:
    with Stepfast(tmp_path / "stepfast.db") as sf, sf.run("r") as run, ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(run.checkpoint, {"n": n}, key=f"k{n}", keep=100) for n in range(40)]
        assert sorted(f.result() for f in futures) == list(range(1, 41))


@dataclass
class Strange:
    x: int


@both
async def test_a_state_this_process_does_not_know_is_no_damage_and_costs_nothing(way: Way) -> None:
    """The run is handed back, so that a process which knows the type can go on with it at once."""
    known = TypeRegistry()
    known.register(Strange)
    sf = way.open(codec=Codec(registry=known, strict=True))
    async with way.crashing(sf, "r") as run:
        await run.checkpoint("older")
        await run.checkpoint(Strange(1))
    async with way.crashing(sf, "r"):
        pass
    stranger = way.open(codec=Codec(registry=TypeRegistry(), strict=True), clock=sf.store.clock)
    lost = (await sf.get_intent("r"))["lost_deliveries"]
    for _ in range(5):
        with pytest.raises(UnknownType):
            await stranger.run("r")
    assert (await sf.get_intent("r"))["lost_deliveries"] == lost + 1  # that of the crash, and no other
    async with sf.run("r") as run:
        assert run.restored == Strange(1)


@both
async def test_a_state_that_cannot_be_stored_is_refused_by_its_place(way: Way) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        with pytest.raises(InvalidInput, match="cursor"):
            await run.checkpoint({"cursor": object()})
        assert await run.checkpoint({"cursor": 1}) == 1

"""The store: items whose time is over are absent at once, and swept without harm to others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.langgraph.tests.store_kit import KINDS, perform, rows_of
from stepfast import Clock, Conflict, open_store
from stepfast.threads import PutRecord
from stepfast_langgraph import StepfastStore


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timed(tmp_path: Path, clock: Clock) -> Iterator[StepfastStore]:
    """Items live ten minutes after they were last put or read; the clock is the test's."""
    with (
        open_store(f"sqlite:///{tmp_path}/s.db", clock=clock) as raw,
        StepfastStore(raw, ttl={"default_ttl": 10, "refresh_on_read": True}) as opened,
    ):
        yield opened


def test_an_item_is_absent_once_its_time_is_over(timed: StepfastStore, clock: Clock) -> None:
    timed.put(("n",), "default", {"v": 1})
    timed.put(("n",), "short", {"v": 2}, ttl=1)
    timed.put(("n",), "ever", {"v": 3}, ttl=None)
    clock.advance(61)
    assert {item.key for item in timed.search(("n",), refresh_ttl=False)} == {"default", "ever"}
    assert timed.get(("n",), "short") is None
    clock.advance(600)
    assert [item.key for item in timed.search(("n",))] == ["ever"]


def test_reading_renews_an_item_unless_told_not_to(timed: StepfastStore, clock: Clock) -> None:
    for key in ("got", "searched", "left", "seen"):
        timed.put(("n", key), "k", {"v": key})
    clock.advance(400)
    written = timed.get(("n", "got"), "k")
    timed.search(("n", "searched"))
    timed.get(("n", "seen"), "k", refresh_ttl=False)
    timed.search(("n", "seen"), refresh_ttl=False)
    clock.advance(400)
    assert {item.value["v"] for item in timed.search(("n",), refresh_ttl=False)} == {"got", "searched"}
    again = timed.get(("n", "got"), "k", refresh_ttl=False)
    assert again is not None
    assert written is not None
    assert again.updated_at == written.updated_at, "to be read is not to be changed"


def test_a_sweep_deletes_what_is_over_and_nothing_else(timed: StepfastStore, clock: Clock) -> None:
    timed.put(("n",), "old", {"v": 1})
    timed.put(("n",), "renewed", {"v": 1})
    timed.put(("n",), "for ever now", {"v": 1})
    timed.put(("n",), "deleted", {"v": 1})
    timed.delete(("n",), "deleted")
    clock.advance(300)
    timed.put(("n",), "for ever now", {"v": 1}, ttl=None)
    timed.get(("n",), "renewed")
    clock.advance(301)
    assert timed.sweep_ttl() == 1
    assert rows_of(timed, KINDS[0]) == ["n//for ever now", "n//renewed"]
    assert rows_of(timed, KINDS[2]) == ["n//renewed"]
    clock.advance(10_000)
    assert asyncio.run(timed.asweep_ttl()) == 1
    assert [item.key for item in timed.search(())] == ["for ever now"]


def test_an_item_put_again_while_a_sweep_looks_is_kept(timed: StepfastStore, clock: Clock) -> None:
    timed.put(("n",), "k", {"v": 1})
    clock.advance(601)
    sweep = timed._sweep()
    command = next(sweep)
    while not any(isinstance(op, PutRecord) for op in getattr(command, "ops", ())):
        command = sweep.send(perform(timed, command))
    timed.put(("n",), "k", {"v": 2})
    with pytest.raises(Conflict) as refused:
        perform(timed, command)
    with pytest.raises(StopIteration) as ended:
        sweep.throw(refused.value)
    assert ended.value.value == 0
    found = timed.get(("n",), "k")
    assert found is not None
    assert found.value == {"v": 2}


def test_a_sweeper_runs_until_it_is_stopped(timed: StepfastStore, clock: Clock) -> None:
    timed.put(("n",), "k", {"v": 1})
    clock.advance(601)
    timed.start_ttl_sweeper(sweep_interval_minutes=0.0001)
    with timed._place.store.watch(f"record:{KINDS[0]}") as watch:
        while rows_of(timed, KINDS[0]):
            watch.wait(1)
    timed.stop_ttl_sweeper()
    timed.stop_ttl_sweeper()

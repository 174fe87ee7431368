"""``on_conflict="wait"``: runs on one thread take turns, and a turn ends with its run, however that ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManager
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from adapters.langgraph.tests.kit import Counted, CountingStore, counting_graph, on
from adapters.langgraph.tests.racing import adding_graph, racers, until_stored
from stepfast import RunBusy, open_store
from stepfast.threads import GetRecord, PutRecord
from stepfast_langgraph import LostUpdate, StepfastSaver, _turns

RUNS = 4


@pytest.fixture
def waiting(store_url: str) -> Iterator[StepfastSaver]:
    with StepfastSaver(store_url, on_conflict="wait") as made:
        yield made


@pytest.fixture
def saver(sqlite_url: str) -> Iterator[StepfastSaver]:
    with StepfastSaver(sqlite_url, on_conflict="wait", wait_seconds=30) as made:
        yield made


def nobody_is_on(saver: StepfastSaver, thread: str) -> bool:
    """A run of another process could start at once."""
    opened = saver._inner.opened
    return opened.store.one(GetRecord(kind=_turns.KIND, record_id=thread), tenant=opened.tenant) is None


def test_parallel_runs_in_threads_all_count(waiting: StepfastSaver) -> None:
    graph, config = adding_graph(waiting), on()
    graph.update_state(config, {"total": 10}, as_node="add")
    with ThreadPoolExecutor(RUNS) as pool:
        list(pool.map(lambda _: graph.invoke({"go": 1}, config), range(RUNS)))
    assert graph.get_state(config).values["total"] == 50


async def test_parallel_runs_on_a_loop_all_count(waiting: StepfastSaver) -> None:
    graph, config = adding_graph(waiting), on()
    await graph.aupdate_state(config, {"total": 10}, as_node="add")
    await asyncio.gather(*(graph.ainvoke({"go": 1}, config) for _ in range(RUNS)))
    assert (await graph.aget_state(config)).values["total"] == 50


def test_parallel_runs_in_processes_all_count(store_url: str) -> None:
    with StepfastSaver(store_url) as saver:
        graph, config = adding_graph(saver), on()
        graph.update_state(config, {"total": 10}, as_node="add")
        with racers(RUNS, store_url, config["configurable"]["thread_id"], "wait") as runs:
            for run in runs:
                run.go()
            assert [run.says() for run in runs] == ["added"] * RUNS
        assert graph.get_state(config).values["total"] == 50


def test_the_turn_of_a_killed_process_is_taken_over(sqlite_url: str) -> None:
    with StepfastSaver(sqlite_url, on_conflict="wait") as saver:
        graph, config = adding_graph(saver), on("t")
        graph.update_state(config, {"total": 10}, as_node="add")
        with racers(1, sqlite_url, "t", "wait", holds=True) as [holder]:
            holder.go()
            assert holder.says() == "inside"
            assert not nobody_is_on(saver, "t")
            mine = threading.Thread(target=lambda: graph.invoke({"go": 1}, config))
            mine.start()
            mine.join(0.2)
            assert mine.is_alive()  # it waits
            holder.end()
            mine.join(60)
            assert not mine.is_alive()
        assert graph.get_state(config).values["total"] == 20


def test_a_turn_that_is_not_renewed_runs_out(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_turns, "LEASE_SECONDS", 0.3)
    with StepfastSaver(sqlite_url, on_conflict="wait") as saver:
        opened = saver._inner.opened
        elsewhere = b'{"pid": 1, "where": "another machine"}'
        op = PutRecord(kind=_turns.KIND, record_id="t", body=elsewhere, write_id="w")
        opened.store.one(op, tenant=opened.tenant)
        assert counting_graph(saver).invoke({"number": 1, "log": []}, on("t"))["number"] == 2


def test_a_turn_is_renewed_while_its_run_lasts(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_turns, "LEASE_SECONDS", 0.15)
    monkeypatch.setattr(_turns, "_where", lambda: "")  # as on two machines: only time tells whether one is alive
    first_in, second_may = threading.Event(), threading.Event()
    with (
        StepfastSaver(sqlite_url, on_conflict="wait") as one,
        StepfastSaver(sqlite_url, on_conflict="wait", wait_seconds=1.0) as other,
    ):

        def inside() -> None:
            first_in.set()
            assert second_may.wait(60)

        graph, config = adding_graph(one, inside), on("t")
        graph.update_state(config, {"total": 10}, as_node="add")
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(graph.invoke, {"go": 1}, config)
            assert first_in.wait(60)
            with pytest.raises(RunBusy, match="wait_seconds"):
                adding_graph(other).invoke({"go": 1}, config)
            second_may.set()
            assert run.result()["total"] == 20


def test_a_turn_ends_with_an_error_an_interrupt_and_a_stream_that_is_left(saver: StepfastSaver) -> None:
    def fails(state: Counted) -> dict[str, Any]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        counting_graph(saver, fails).invoke({"number": 1, "log": []}, on("t"))
    assert nobody_is_on(saver, "t")

    asking = counting_graph(saver, lambda state: {"number": interrupt("?"), "log": ["asked"]})
    asking.invoke({"number": 1, "log": []}, on("t"))
    assert nobody_is_on(saver, "t")
    assert asking.invoke(Command(resume=5), on("t"))["log"] == ["asked"]

    stream = counting_graph(saver, steps=5).stream({"number": 1, "log": []}, on("t"))
    next(stream)
    assert not nobody_is_on(saver, "t")
    stream.close()
    assert nobody_is_on(saver, "t")


async def test_a_turn_ends_with_a_cancelled_run(saver: StepfastSaver) -> None:
    inside = asyncio.Event()

    async def hang(state: Counted) -> dict[str, Any]:
        inside.set()
        await asyncio.Event().wait()
        return {}

    graph: Any = StateGraph(Counted)
    graph.add_node("hang", hang)
    graph.add_edge(START, "hang")
    run = asyncio.create_task(graph.compile(checkpointer=saver).ainvoke({"number": 1, "log": []}, on("t")))
    await inside.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    again = await counting_graph(saver).ainvoke({"number": 1, "log": []}, on("t"))
    assert again["number"] == 3


def test_a_run_does_not_wait_for_itself(saver: StepfastSaver) -> None:
    below = counting_graph(None)
    graph: Any = StateGraph(Counted)
    graph.add_node("sub", below)
    graph.add_node("looks", lambda state: {"log": [str(len(made.get_state(on("t")).values["log"]))]})
    graph.add_edge(START, "sub")
    graph.add_edge("sub", "looks")
    made: Any = graph.compile(checkpointer=saver)
    assert made.invoke({"number": 1, "log": []}, on("t"), durability="sync")["log"][-1] == "1"
    assert nobody_is_on(saver, "t")


def test_looking_at_a_state_waits_for_nobody(saver: StepfastSaver) -> None:
    graph = counting_graph(saver, steps=3)
    stream = graph.stream({"number": 1, "log": []}, on("t"))
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(graph.get_state, on("t")).result(30).values["number"] >= 1
        assert list(pool.submit(lambda: list(graph.get_state_history(on("t")))).result(30))
    assert len(list(stream)) == 2


def test_other_threads_of_the_store_do_not_wait(saver: StepfastSaver) -> None:
    graph = counting_graph(saver, steps=2)
    stream = graph.stream({"number": 1, "log": []}, on("t"))
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(graph.invoke, {"number": 1, "log": []}, on("another")).result(30)["number"] == 3
    stream.close()


def test_a_run_whose_end_cannot_be_seen_is_still_told_of_a_lost_update(saver: StepfastSaver) -> None:
    other = adding_graph(saver)
    other.update_state(on("t"), {"total": 10}, as_node="add")
    unseen: Any = {**on("t"), "callbacks": CallbackManager([])}

    def inside() -> None:
        until_stored(other, on("t"))
        other.invoke({"go": 1}, unseen)

    graph = adding_graph(saver, inside)
    with pytest.raises(LostUpdate):
        graph.invoke({"go": 1}, unseen)
    assert other.get_state(on("t")).values["total"] == 20


def test_a_turn_costs_two_commits(tmp_path: Path) -> None:
    store = CountingStore(open_store(tmp_path / "a.db"))
    with store, StepfastSaver(store, on_conflict="wait") as saver:
        counting_graph(saver, steps=3).invoke({"number": 1, "log": []}, on("t"))
        assert (
            sum(any(type(op).__name__ in ("PutRecord", "DeleteRecord") for op in batch) for batch in store.batches) == 2
        )

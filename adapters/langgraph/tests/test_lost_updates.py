"""Two runs on one thread: one of them is told, or waits its turn; no update is lost in silence."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from adapters.langgraph.tests.kit import checkpoint, counting_graph, on, put, until
from adapters.langgraph.tests.racing import adding_graph, racers, until_stored
from stepfast import Conflict
from stepfast_langgraph import LostUpdate, StepfastSaver
from stepfast_langgraph._parents import any_parent

RUNS = 4


def judge(graph: Any, config: Any, outcomes: list[Any]) -> None:
    """Each run that ended well has added its 10; every other one was told."""
    told = [one for one in outcomes if isinstance(one, LostUpdate)]
    assert len(outcomes) == RUNS
    assert not [one for one in outcomes if isinstance(one, BaseException) and one not in told], outcomes
    total = graph.get_state(config).values["total"]
    assert total == 10 + 10 * (RUNS - len(told))
    assert told or total == 50


def test_parallel_runs_in_threads_are_told_of_a_lost_update(any_saver: StepfastSaver) -> None:
    gate = threading.Barrier(RUNS)
    graph, config = adding_graph(any_saver), on()
    graph.update_state(config, {"total": 10}, as_node="add")

    def run() -> Any:
        gate.wait()
        try:
            return graph.invoke({"go": 1}, config)
        except LostUpdate as error:
            return error

    with ThreadPoolExecutor(RUNS) as pool:
        outcomes = [one.result() for one in [pool.submit(run) for _ in range(RUNS)]]
    judge(graph, config, outcomes)


async def test_parallel_runs_on_a_loop_are_told_of_a_lost_update(any_saver: StepfastSaver) -> None:
    graph, config = adding_graph(any_saver), on()
    await graph.aupdate_state(config, {"total": 10}, as_node="add")
    outcomes = await asyncio.gather(*(graph.ainvoke({"go": 1}, config) for _ in range(RUNS)), return_exceptions=True)
    await asyncio.to_thread(judge, graph, config, outcomes)


def test_parallel_runs_in_processes_are_told_of_a_lost_update(store_url: str) -> None:
    with StepfastSaver(store_url) as saver:
        graph, config = adding_graph(saver), on()
        graph.update_state(config, {"total": 10}, as_node="add")
        with racers(RUNS, store_url, config["configurable"]["thread_id"], "raise") as runs:
            for run in runs:
                run.go()
            said = [run.says() for run in runs]
        total = graph.get_state(config).values["total"]
        assert set(said) <= {"added", "lost"}
        assert total == 10 + 10 * said.count("added")
        assert total == 50 or "lost" in said


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_run_whose_thread_another_advanced_is_told(saver: StepfastSaver, durability: Any) -> None:
    config = on("t")
    other = adding_graph(saver)
    other.update_state(config, {"total": 10}, as_node="add")

    def inside() -> None:
        if durability != "exit":  # then nothing of the outer run is stored before it ends
            until_stored(other, config)
        other.invoke({"go": 1}, {**config, "callbacks": []})

    graph = adding_graph(saver, inside)
    with pytest.raises(LostUpdate) as caught:
        graph.invoke({"go": 1}, config, durability=durability)
    assert isinstance(caught.value, Conflict)
    assert caught.value.details["thread_id"] == "t"
    assert 'on_conflict="wait"' in caught.value.message
    assert other.get_state(config).values["total"] == 20


def test_two_first_runs_on_an_empty_thread_do_not_overwrite_each_other(saver: StepfastSaver) -> None:
    config = on("t")
    other = counting_graph(saver)

    def inside(_state: Any) -> dict[str, Any]:
        other.invoke({"number": 5, "log": []}, {**config, "callbacks": []})
        return {"number": 1, "log": ["outer"]}

    with pytest.raises(LostUpdate, match="was empty"):
        counting_graph(saver, inside).invoke({"number": 100, "log": []}, config, durability="exit")
    assert other.get_state(config).values["number"] == 6


def test_an_update_on_a_state_that_changed_meanwhile_is_told(saver: StepfastSaver) -> None:
    config = on("t")
    graph = adding_graph(saver)
    graph.update_state(config, {"total": 10}, as_node="add")
    read = saver.get_tuple(config)
    graph.invoke({"go": 1}, config)
    assert read is not None
    with pytest.raises(LostUpdate):
        put(saver, read.config, source="update", total=99)  # as update_state does, with what it read
    put(saver, on("t", checkpoint_id=str(read.checkpoint["id"])), source="update", total=99)  # addressed by its id
    assert graph.get_state(config).values["total"] == 99


def test_a_fork_that_somebody_asked_for_is_no_lost_update(saver: StepfastSaver) -> None:
    config = on("t")
    first = put(saver, config, x=1)
    second = put(saver, first, x=2)
    with pytest.raises(LostUpdate):
        put(saver, dict(first), x=3)
    old = saver.get_tuple(first)
    assert old is not None
    put(saver, old.config, x=3)
    put(saver, first, source="fork", x=4)
    put(saver, any_parent(first), x=5)
    assert len(list(saver.list(config))) == 5
    with pytest.raises(LostUpdate):
        put(saver, second, x=6)


def test_checkpoints_without_a_parent_may_follow_each_other_when_nobody_read(saver: StepfastSaver) -> None:
    for number in range(3):
        put(saver, on("t"), x=number)
    found = saver.get_tuple(on("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"x": 2}


def test_a_thread_deleted_under_a_run_is_told(saver: StepfastSaver) -> None:
    graph = adding_graph(saver, inside=lambda: saver.delete_thread("t"))
    config = on("t")
    graph.update_state(config, {"total": 10}, as_node="add")
    with pytest.raises(LostUpdate):
        graph.invoke({"go": 1}, config, durability="sync")


def test_a_lost_update_writes_nothing_but_keeps_the_writes_that_came_with_it(saver: StepfastSaver) -> None:
    config = on("t")
    first = put(saver, config, x=1)
    second = put(saver, first, x=2)
    writer = threading.Thread(target=lambda: saver.put_writes(second, [("c", 1)], "task"))
    saver._inner.patience.moment = 60.0
    writer.start()
    until(lambda: saver._inner.gather._waiting)
    with pytest.raises(LostUpdate):
        put(saver, first, x=3)
    writer.join(30)
    found = saver.get_tuple(config)
    assert not writer.is_alive()
    assert found is not None
    assert found.checkpoint["channel_values"] == {"x": 2}
    assert found.pending_writes == [("task", "c", 1)]


def test_two_processes_that_take_turns_by_themselves_go_on_with_each_others_state(store_url: str) -> None:
    config: Any = on()
    with StepfastSaver(store_url) as one, StepfastSaver(store_url) as other:
        for number in range(6):
            graph = counting_graph(one if number % 2 else other)
            graph.invoke({"number": 1, "log": [f"run {number}"]}, config)
        state = counting_graph(one).get_state(config)
        assert state.values["number"] == 12
        assert len(state.values["log"]) == 12
        made = checkpoint(items=["a"])
        saved = one.put(on(config["configurable"]["thread_id"], checkpoint_ns="x"), made, {}, made["channel_versions"])
        fork = put(other, any_parent(saved), items=["a", "b"])
        put(one, any_parent(saved), items=["a", "c"])
        found = one.get_tuple(fork)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"items": ["a", "b"]}

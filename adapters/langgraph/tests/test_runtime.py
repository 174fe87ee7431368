"""Real graphs: every story ends with this saver as it does with LangGraph's own in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from adapters.langgraph.tests.kit import CountingStore, counting_graph, on
from adapters.langgraph.tests.scenarios import STORIES, Driven, a_subgraph_asks, travels_in_time, updates_in_bulk
from stepfast import Store, open_store
from stepfast_langgraph import StepfastSaver


def told_with(saver: Any, story: Callable[..., Any], half: str, durability: str) -> Any:
    if half == "sync":
        return story(saver, lambda graph: Driven(graph, None, durability))
    loop = asyncio.new_event_loop()
    try:
        return story(saver, lambda graph: Driven(graph, loop, durability))
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


class Slow(CountingStore):
    """Holds back checkpoints until the gate is open."""

    def __init__(self, below: Store) -> None:
        super().__init__(below)
        self.gate = threading.Event()
        self.held = threading.Event()

    def submit(self, ops: Sequence[Any], done: Any, *, tenant: str = "local") -> None:
        def later() -> None:
            self.held.set()
            self.gate.wait(60)
            self.below.submit(ops, done, tenant=tenant)

        if any(getattr(op, "checkpoint", None) for op in ops):
            threading.Thread(target=later).start()
        else:
            super().submit(ops, done, tenant=tenant)


async def test_a_run_right_after_a_cancelled_one_is_not_taken_for_a_second_writer(tmp_path: Path) -> None:
    with Slow(open_store(tmp_path / "a.db")) as store:
        graph, config = counting_graph(StepfastSaver(store)), on("t")
        first = asyncio.create_task(graph.ainvoke({"number": 1, "log": []}, config))
        await asyncio.to_thread(store.held.wait, 60)
        while not first.done():  # at first LangGraph waits for its checkpoint; cancelled again, it leaves it behind
            first.cancel()
            await asyncio.wait([first], timeout=0.001)
        second = asyncio.create_task(graph.ainvoke({"number": 1, "log": []}, config))
        asyncio.get_running_loop().call_later(0.02, store.gate.set)
        assert (await second)["number"] >= 2


@pytest.mark.parametrize(
    ("half", "durability"), [("sync", "sync"), ("async", "async"), ("sync", "exit"), ("async", "exit")]
)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_every_story_ends_as_in_memory(
    saver: StepfastSaver, story: Callable[..., Any], half: str, durability: str
) -> None:
    expected = told_with(InMemorySaver(), story, half, durability)
    assert told_with(saver, story, half, durability) == expected


@pytest.mark.parametrize("story", [travels_in_time, updates_in_bulk, a_subgraph_asks], ids=lambda story: story.__name__)
def test_stories_end_as_in_memory_on_every_store(any_saver: StepfastSaver, story: Callable[..., Any]) -> None:
    expected = told_with(InMemorySaver(), story, "async", "async")
    thread = on()["configurable"]["thread_id"]
    assert told_with(any_saver, lambda saver, drive: story(saver, drive, thread), "async", "async") == expected

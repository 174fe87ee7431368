"""What it costs to tell where a run is, and that only its owner writes: checkpoints of a durable run are fenced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from adapters.langgraph.tests.durable_kit import Log, World, links
from adapters.langgraph.tests.kit import CountingStore, counting_graph
from stepfast import Fenced, RunFailed, Stepfast, open_store
from stepfast_langgraph import durable

GIVEN = {"log": ["in"]}
DONE = {"log": ["in", "one", "two", "three"]}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def sf(world: World) -> Iterator[Stepfast]:
    with Stepfast(world.url) as client:
        yield client


def test_telling_where_a_run_is_costs_next_to_nothing(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/h.db?durability=process") as below:
        counting = CountingStore(below)
        made = durable(counting_graph(None, steps=40), store=counting)
        made.run({"number": 0, "log": []}, "r", {"recursion_limit": 100})
        told = counting.count("AppendEvent") + counting.count("RenewLease")
        assert counting.count("PutThread") >= 40
        assert told <= 4
        assert Stepfast(store=below).describe("r")["step"] == 40


class Jump:
    """The clock that says when the lease was last proved, moved on by a node."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import time as real

        self.offset = 0.0
        monkeypatch.setattr("stepfast.reporting.time", self)
        self.monotonic = lambda: real.monotonic() + self.offset


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_a_run_that_was_canceled_stops_at_the_next_superstep(
    world: World, sf: Stepfast, monkeypatch: pytest.MonkeyPatch, durability: Any
) -> None:
    jump = Jump(monkeypatch)

    def cancel(_state: Any) -> Any:
        sf.cancel("r")
        jump.offset += 10
        return {"log": ["canceled"]}

    graph = StateGraph(Log)
    graph.add_node("cancel", cancel)
    graph.add_edge(START, "cancel")
    for name, before in (("two", "cancel"), ("three", "two")):
        graph.add_node(name, world.node(name))
        graph.add_edge(before, name)
    made = durable(graph.compile(), store=sf, durability=durability)
    with pytest.raises(RunFailed, match="ended from outside"):
        made.run(GIVEN, "r")
    with pytest.raises(RunFailed):
        await made.arun(GIVEN, "r")
    assert "three" not in world.effects.counts()
    assert sf.get_intent("r")["status"] == "CANCELED"


@pytest.mark.parametrize("stock", [False, True], ids=["own saver", "stock saver"])
def test_a_process_that_lost_its_run_writes_no_checkpoint(
    world: World, sf: Stepfast, monkeypatch: pytest.MonkeyPatch, stock: bool
) -> None:
    """Its successor finished the run while it was held up in a node."""
    jump = Jump(monkeypatch)
    memory = InMemorySaver() if stock else None

    def overtaken(_state: Any) -> Any:
        if world.effects.counts()["two"] == 0:
            world.effects.record("two")
            sf.store.clock.advance(1000)
            with Stepfast(world.url) as other:
                other.store.clock.advance(1000)
                assert durable(build(), store=other, wait=60).run(GIVEN, "r")["log"] == DONE["log"]
            jump.offset += 10
        else:
            world.effects.record("two")
        return {"log": ["two"]}

    def build() -> Any:
        graph = links(world, "one")
        graph.add_node("two", overtaken)
        graph.add_node("three", world.node("three"))
        graph.add_edge("one", "two")
        graph.add_edge("two", "three")
        return graph.compile(checkpointer=memory)

    made = durable(build(), store=sf)
    with pytest.raises((Fenced, RunFailed)):
        made.run(GIVEN, "r")
    state = made._carried(sf.store).get_state({"configurable": {"thread_id": "r"}})
    assert state.values == DONE
    assert world.effects.lines() == ["one", "two", "two", "three"]
    assert made.run(GIVEN, "r") == DONE

"""Runs of graphs as intents: by name, seen from outside, with the caller never asking whether they are new."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from adapters.langgraph.tests.durable_kit import Log, World, chain, links
from stepfast import Conflict, InvalidInput, RunBusy, RunFailed, Stepfast, current_run
from stepfast_langgraph import StepfastSaver, calls, durable

GIVEN = {"log": ["in"]}
DONE = {"log": ["in", "one", "two", "three"]}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def sf(world: World) -> Iterator[Stepfast]:
    with Stepfast(world.url) as client:
        yield client


def broken_once(world: World, error: BaseException, saver: Any = None) -> Any:
    """A graph whose second node raises the first time."""
    graph = links(world, "one")

    def two(_state: Any) -> Any:
        world.effects.record("two")
        if world.effects.counts()["two"] == 1:
            raise error
        return {"log": ["two"]}

    graph.add_node("two", two)
    graph.add_edge("one", "two")
    return graph.compile(checkpointer=saver)


# --- starting, resuming, repeating ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda _: None, lambda _: InMemorySaver(), StepfastSaver], ids=["none", "memory", "own"]
)
def test_a_run_gives_the_final_state_and_a_completed_one_gives_it_again(world: World, sf: Stepfast, make: Any) -> None:
    made = durable(chain(world, make(sf), "one", "two", "three"), store=sf)
    assert made.run(GIVEN, "r") == DONE
    assert made.run(GIVEN, "r") == DONE
    assert made.run(run_id="r") == DONE
    assert world.effects.lines() == ["one", "two", "three"]
    seen = sf.describe("r")
    assert (seen["status"], seen["step"], seen["last_step"]) == ("COMPLETED", 3, "three")
    assert seen["result"] == DONE
    assert seen["payload"] == GIVEN
    assert seen["labels"] == {"framework": "langgraph", "graph": "LangGraph", "thread_id": "r"}


async def test_the_same_on_an_event_loop(world: World, sf: Stepfast) -> None:
    made = durable(chain(world, None, "one", "two", "three"), store=sf)
    assert await made.arun(GIVEN, "r") == DONE
    assert await made.arun(GIVEN, "r") == DONE
    assert world.effects.lines() == ["one", "two", "three"]


def test_several_event_loops_share_one(world: World, sf: Stepfast) -> None:
    made = durable(chain(world, None, "one", "two"), store=sf)
    done: list[Any] = []

    async def several(number: int) -> None:
        done.extend(await asyncio.gather(*(made.arun(GIVEN, f"r{number}-{each}") for each in range(5))))

    loops = [threading.Thread(target=lambda number=number: asyncio.run(several(number))) for number in range(3)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    assert done == [{"log": ["in", "one", "two"]}] * 15


def test_a_graph_without_a_checkpointer_gets_one_on_the_store_of_its_runs(world: World, sf: Stepfast) -> None:
    durable(chain(world, None, "one"), store=sf).run(GIVEN, "r")
    with StepfastSaver(sf) as saver:
        found = saver.get_tuple({"configurable": {"thread_id": "r"}})
    assert found is not None
    assert found.checkpoint["channel_values"]["log"] == ["in", "one"]


def test_runs_are_where_the_graphs_own_saver_is(world: World) -> None:
    with StepfastSaver(world.url) as saver:
        durable(chain(world, saver, "one")).run(GIVEN, "r")
    with Stepfast(world.url) as client:
        assert client.get_intent("r")["status"] == "COMPLETED"


def test_a_stock_saver_keeps_its_threads_and_the_run_its_place(world: World, sf: Stepfast, tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "stock.db")) as saver:
        made = durable(broken_once(world, ZeroDivisionError(), saver), store=sf)
        with pytest.raises(ZeroDivisionError):
            made.run(GIVEN, "r")
        assert made.run(GIVEN, "r") == {"log": ["in", "one", "two"]}
    assert world.effects.lines() == ["one", "two", "two"]


def test_an_exception_hands_the_run_back_and_the_next_start_goes_on(world: World, sf: Stepfast) -> None:
    made = durable(broken_once(world, ConnectionError("down")), store=sf)
    with pytest.raises(ConnectionError):
        made.run(GIVEN, "r")
    seen = sf.describe("r")
    assert (seen["status"], seen["last_step"], seen["lost_deliveries"]) == ("IN_PROGRESS", "one", 0)
    assert made.run(GIVEN, "r") == {"log": ["in", "one", "two"]}
    assert world.effects.lines() == ["one", "two", "two"]


def test_keyboard_interrupt_hands_the_run_back(world: World, sf: Stepfast) -> None:
    made = durable(broken_once(world, KeyboardInterrupt()), store=sf)
    with pytest.raises(KeyboardInterrupt):
        made.run(GIVEN, "r")
    assert sf.describe("r")["lost_deliveries"] == 0
    assert made.run(GIVEN, "r") == {"log": ["in", "one", "two"]}


async def test_a_cancelled_task_hands_the_run_back(world: World, sf: Stepfast) -> None:
    reached = asyncio.Event()
    graph = links(world, "one")

    async def slow(_state: Any) -> Any:
        if not reached.is_set():
            reached.set()
            await asyncio.sleep(3600)
        return {"log": ["slow"]}

    graph.add_node("slow", slow)
    graph.add_edge("one", "slow")
    made = durable(graph.compile(), store=sf)
    running = asyncio.create_task(made.arun(GIVEN, "r"))
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sf.describe("r")["lost_deliveries"] == 0
    assert await made.arun(GIVEN, "r") == {"log": ["in", "one", "slow"]}
    assert world.effects.lines() == ["one"]


def test_a_failed_run_is_failed_until_it_is_revived(world: World, sf: Stepfast) -> None:
    graph = broken_once(world, ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        durable(graph, store=sf, on_error="fail").run(GIVEN, "r")
    assert sf.get_intent("r")["status"] == "FAILED"
    with pytest.raises(RunFailed):
        durable(graph, store=sf).run(GIVEN, "r")
    assert durable(graph, store=sf, on_failed="revive").run(GIVEN, "r") == {"log": ["in", "one", "two"]}
    assert world.effects.lines() == ["one", "two", "two"]


def test_a_run_that_somebody_has_is_busy(world: World, sf: Stepfast) -> None:
    graph = links(world, "one")
    made: Any = None

    def again(_state: Any) -> Any:
        with pytest.raises(RunBusy):
            made.run(GIVEN, "r")
        return {"log": ["two"]}

    graph.add_node("two", again)
    graph.add_edge("one", "two")
    made = durable(graph.compile(), store=sf)
    assert made.run(GIVEN, "r") == {"log": ["in", "one", "two"]}


def test_another_input_for_the_same_run_is_refused_or_set_aside(
    world: World, sf: Stepfast, caplog: pytest.LogCaptureFixture
) -> None:
    graph = broken_once(world, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        durable(graph, store=sf).run(GIVEN, "r")
    with pytest.raises(Conflict, match="different body"):
        durable(graph, store=sf).run({"log": ["other"]}, "r")
    with caplog.at_level(logging.WARNING, logger="stepfast"):
        result = durable(graph, store=sf, on_drift="warn").run({"log": ["other"]}, "r")
    assert result == {"log": ["in", "one", "two"]}
    assert "recorded input" in caplog.text
    assert durable(graph, store=sf, on_drift="accept").run({"log": ["other"]}, "r") == result


def test_a_run_stays_on_its_thread(world: World, sf: Stepfast) -> None:
    made = durable(broken_once(world, ZeroDivisionError()), store=sf)
    thread = {"configurable": {"thread_id": "t"}}
    with pytest.raises(ZeroDivisionError):
        made.run(GIVEN, "r", thread)
    with pytest.raises(Conflict, match="thread_id"):
        made.run(GIVEN, "r", {"configurable": {"thread_id": "u"}})
    assert made.run(GIVEN, "r") == {"log": ["in", "one", "two"]}
    assert made.run({"log": ["more"]}, "r2", thread)["log"] == ["in", "one", "two", "more", "one", "two"]


def test_a_run_can_begin_at_an_earlier_checkpoint_of_its_thread(world: World, sf: Stepfast) -> None:
    saver = StepfastSaver(sf)
    graph = chain(world, saver, "one", "two")
    made = durable(graph, store=sf)
    thread = {"configurable": {"thread_id": "t"}}
    made.run(GIVEN, "r", thread)
    (early,) = [each for each in graph.get_state_history(thread) if each.next == ("two",)]
    assert made.run({"log": ["again"]}, "r2", early.config)["log"] == ["in", "one", "again", "one", "two"]


def test_a_run_inside_a_node_is_a_run_of_its_own(world: World, sf: Stepfast) -> None:
    inner = durable(chain(world, None, "inner"), store=sf)

    def outer(_state: Any) -> Any:
        return {"log": inner.run(GIVEN, "inside")["log"]}

    graph = StateGraph(Log)
    graph.add_node("outer", outer)
    graph.add_edge(START, "outer")
    assert durable(graph.compile(), store=sf).run({"log": []}, "r") == {"log": ["in", "inner"]}
    assert sf.get_intent("inside")["result"] == {"log": ["in", "inner"]}


def test_messages_are_the_same_when_they_are_given_again(sf: Stepfast) -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda _: {"messages": [AIMessage("hello", id="a")]})
    graph.add_edge(START, "model")
    made = durable(graph.compile(), store=sf)
    given = {"messages": [HumanMessage("hi", id="h")]}
    first = made.run(given, "r")
    assert first == {"messages": [HumanMessage("hi", id="h"), AIMessage("hello", id="a")]}
    assert made.run(given, "r") == first


def test_a_run_may_keep_less_than_the_state_as_its_result(world: World, sf: Stepfast) -> None:
    made = durable(chain(world, None, "one", "two"), store=sf, result=lambda state: state["log"][-1])
    assert made.run(GIVEN, "r") == made.run(GIVEN, "r") == "two"
    assert sf.get_intent("r")["result"] == "two"


def test_a_store_that_was_opened_here_is_given_back(world: World) -> None:
    with durable(chain(world, None, "one"), store=world.url) as made:
        made.run(GIVEN, "r")
        assert asyncio.run(made.arun(GIVEN, "r2")) == {"log": ["in", "one"]}
    assert made.run(GIVEN, "r") == {"log": ["in", "one"]}  # and opened again where it is needed
    made.close()


def test_a_saver_whose_runs_wait_their_turn_serves_durable_runs(world: World) -> None:
    with StepfastSaver(world.url, on_conflict="wait", wait_seconds=20) as saver:
        made = durable(chain(world, saver, "one", "two"))
        thread = {"configurable": {"thread_id": "t"}}
        done = []
        runs = [
            threading.Thread(target=lambda n=n: done.append(made.run({"log": [str(n)]}, f"r{n}", thread)))
            for n in range(3)
        ]
        for run in runs:
            run.start()
        for run in runs:
            run.join()
        log = made.graph.get_state(thread).values["log"]
    assert len(done) == 3
    assert sorted(log) == sorted(["0", "1", "2", *["one", "two"] * 3])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"on_wait": "later"}, "on_wait"),
        ({"on_drift": "rerun"}, "on_drift"),
        ({"on_in_doubt": "maybe"}, "on_in_doubt"),
    ],
)
def test_a_wrong_option_is_named(world: World, change: Any, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        durable(chain(world, None, "one"), **change)


def test_what_is_missing_is_named(world: World, sf: Stepfast) -> None:
    with pytest.raises(InvalidInput, match="compile"):
        durable(StateGraph(Log))
    made = durable(chain(world, None, "one"), store=sf)
    with pytest.raises(InvalidInput, match="run_id"):
        made.run(GIVEN)
    for wrong in ({"on_wait": "suspended"}, {"durability": "never"}, {"config": ["thread"]}, {"run_id": 5}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            made.run(GIVEN, **{"run_id": "r", **wrong})
    assert sf.list_intents() == []


def test_a_run_can_be_named_by_its_input(world: World, sf: Stepfast) -> None:
    made = durable(chain(world, None, "one"), run_id=lambda given: f"for-{given['log'][0]}", store=sf)
    made.run(GIVEN)
    assert sf.get_intent("for-in")["status"] == "COMPLETED"


# --- the run inside its nodes --------------------------------------------------------------------------


def test_the_run_is_current_in_every_node_and_nowhere_else(world: World, sf: Stepfast) -> None:
    seen: list[Any] = []

    def look(_state: Any) -> Any:
        seen.append((current_run().run_id, threading.current_thread() is threading.main_thread()))
        return {"log": ["x"]}

    inner = StateGraph(Log)
    inner.add_node("deep", look)
    inner.add_edge(START, "deep")
    graph = StateGraph(Log)
    graph.add_node("left", look)
    graph.add_node("right", look)
    graph.add_node("inner", inner.compile())
    for name in ("left", "right", "inner"):
        graph.add_edge(START, name)
    made = durable(graph.compile(), store=sf)
    for _ in made.stream(GIVEN, "r"):
        assert current_run() is None
    assert current_run() is None
    assert [name for name, _ in seen] == ["r", "r", "r"]


async def test_the_run_is_current_in_every_node_on_an_event_loop(world: World, sf: Stepfast) -> None:
    seen: list[Any] = []

    async def look(_state: Any) -> Any:
        seen.append(current_run().run_id)
        return {"log": ["x"]}

    def look_blocking(_state: Any) -> Any:
        seen.append(current_run().run_id)
        return {"log": ["x"]}

    graph = StateGraph(Log)
    graph.add_node("left", look)
    graph.add_node("right", look_blocking)
    for name in ("left", "right"):
        graph.add_edge(START, name)
    made = durable(graph.compile(), store=sf)
    async for _ in made.astream(GIVEN, "r"):
        assert current_run() is None
    assert seen == ["r", "r"]


def test_steps_in_a_node_are_steps_of_the_run(world: World, sf: Stepfast) -> None:
    graph = StateGraph(Log)

    def node(_state: Any) -> Any:
        got = [calls.step(lambda name: (world.effects.record(name), name)[1], name) for name in "ab"]
        world.effects.record("node")
        if world.effects.counts()["node"] == 1:
            raise ZeroDivisionError
        return {"log": got}

    graph.add_node("node", node)
    graph.add_edge(START, "node")
    made = durable(graph.compile(), store=sf)
    with pytest.raises(ZeroDivisionError):
        made.run(GIVEN, "r")
    assert made.run(GIVEN, "r") == {"log": ["in", "a", "b"]}
    assert world.effects.lines() == ["a", "b", "node", "node"]
    # The last one says that the node has finished: progress, should the run be lost after it.
    assert [step["name"] for step in sf.steps("r")] == ["lambda", "lambda", "progress"]


# --- streams -------------------------------------------------------------------------------------------


SHAPES = [
    {"stream_mode": "values"},
    {"stream_mode": "updates"},
    {"stream_mode": ["updates"]},
    {"stream_mode": ["values", "custom"]},
    {"stream_mode": "updates", "subgraphs": True},
    {"stream_mode": ["updates", "values"], "subgraphs": True},
    {"stream_mode": "messages"},
    {"stream_mode": "values", "version": "v2"},
    {"stream_mode": ["updates", "values"], "version": "v2"},
    {},
]
if "version" not in signature(StateGraph(Log).add_node("a", print).set_entry_point("a").compile().stream).parameters:
    SHAPES = [shape for shape in SHAPES if "version" not in shape]  # an older langgraph


@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_a_stream_is_as_the_graph_gives_it(world: World, sf: Stepfast, shape: dict[str, Any]) -> None:
    graph = chain(world, None, "one", "two")
    made = durable(graph, store=sf)
    plain = list(graph.stream(GIVEN, **shape))
    assert list(made.stream(GIVEN, "r", **shape)) == plain
    assert [chunk async for chunk in made.astream(GIVEN, "r2", **shape)] == plain
    assert sf.get_intent("r")["result"] == sf.get_intent("r2")["result"] == {"log": ["in", "one", "two"]}


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if "values" in str(shape)], ids=str)
def test_the_stream_of_a_completed_run_is_its_final_state(world: World, sf: Stepfast, shape: dict[str, Any]) -> None:
    made = durable(chain(world, None, "one", "two"), store=sf)
    last = [chunk for chunk in made.stream(GIVEN, "r", **shape) if "three" not in str(chunk)][-1]
    assert list(made.stream(GIVEN, "r", **shape)) == [last]
    assert list(made.stream(GIVEN, "r", stream_mode="updates")) == []


def test_a_resumed_stream_goes_on_from_the_unfinished_superstep(world: World, sf: Stepfast) -> None:
    made = durable(broken_once(world, ZeroDivisionError()), store=sf)
    with pytest.raises(ZeroDivisionError):
        list(made.stream(GIVEN, "r"))
    assert list(made.stream(GIVEN, "r", stream_mode="updates")) == [{"two": {"log": ["two"]}}]


def test_a_stream_that_is_left_hands_the_run_back(world: World, sf: Stepfast) -> None:
    made = durable(chain(world, None, "one", "two", "three"), store=sf)
    for _ in made.stream(GIVEN, "r", stream_mode="updates"):
        break
    assert sf.describe("r")["lost_deliveries"] == 0
    assert made.run(GIVEN, "r") == DONE
    assert world.effects.counts()["one"] == 1


async def test_a_stream_that_is_left_on_an_event_loop_hands_the_run_back(world: World, sf: Stepfast) -> None:
    made = durable(chain(world, None, "one", "two", "three"), store=sf)
    stream: AsyncIterator[Any] = made.astream(GIVEN, "r", stream_mode="updates")
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert sf.describe("r")["lost_deliveries"] == 0
    assert await made.arun(GIVEN, "r") == DONE
    assert world.effects.counts()["one"] == 1


def test_a_stream_may_be_read_from_several_threads(world: World, sf: Stepfast) -> None:
    made = durable(chain(world, None, "one", "two"), store=sf)
    stream = made.stream(GIVEN, "r", stream_mode="updates")
    chunks: list[Any] = []
    while True:
        reader = threading.Thread(target=lambda: chunks.append(next(stream, None)))
        reader.start()
        reader.join()
        if chunks[-1] is None:
            break
    assert chunks == [{"one": {"log": ["one"]}}, {"two": {"log": ["two"]}}, None]
    assert sf.get_intent("r")["status"] == "COMPLETED"

"""Side effects inside a node: made once, and answered from the journal when the node is run again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, interrupt

from adapters.langgraph.tests.desk import Desk, asks_for, fails_once, say
from adapters.langgraph.tests.kit import CountingStore, on
from adapters.langgraph.tests.tool_agent import effects, run
from stepfast import Diverged, InvalidInput, Stepfast, idempotency_key, open_store
from stepfast_langgraph import StepfastSaver, calls, durable_tool

SHAPES = ["node", "node-async", "tools", "tools-async", "agent", "agent-async", "branches"]


@pytest.fixture
def desk(saver: StepfastSaver) -> Iterator[Desk]:
    with Stepfast(saver.url) as client:
        yield Desk(saver, client, [])


# --- after a crash ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_of_three_calls_only_the_one_that_was_cut_short_is_made_again(
    shape: str, sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "deadly").write_text("c")
    assert run(sqlite_url, tmp_path, shape, "start") is None
    ended = run(sqlite_url, tmp_path, shape)
    assert sorted(effects(tmp_path)) == ["a", "b", "c", "c"]
    assert " ".join(ended["told"]).startswith("did a did b did c")


def test_it_holds_on_every_store(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "deadly").write_text("c")
    shape = "tools"
    assert run(store_url, tmp_path, shape, "start") is None
    assert " ".join(run(store_url, tmp_path, shape)["told"]) == "did a did b did c"
    assert effects(tmp_path) == ["a", "b", "c", "c"]


def test_a_failed_node_finds_its_finished_calls_when_the_graph_is_resumed(desk: Desk) -> None:
    fail = fails_once()

    def node(_: Any) -> dict[str, Any]:
        told = [calls.step(desk.act, 1), calls.once(desk.act, 2)]
        fail()
        return say(" ".join(told))

    graph, config = desk.graph(node), on("t")
    with pytest.raises(ConnectionError):
        graph.invoke({"messages": []}, config)
    assert graph.invoke(None, config)["messages"][-1].content == "did 1 did 2"
    assert desk.happened == [1, 2]


@pytest.mark.parametrize("awaited", [False, True])
def test_a_node_that_is_retried_finds_its_finished_calls(desk: Desk, awaited: bool) -> None:
    left = [ConnectionError("one"), ConnectionError("two")]

    def node(_: Any) -> dict[str, Any]:
        told = [calls.step(desk.act, "x"), calls.step(desk.act, "x"), calls.once(desk.act, "y")]
        if left:
            raise left.pop()
        return say(" ".join(told))

    async def node_awaited(_: Any) -> dict[str, Any]:
        async def act(what: str) -> str:
            return desk.act(what)

        told = [await calls.step(act, "x"), await calls.step(act, "x"), await calls.once(act, "y")]
        if left:
            raise left.pop()
        return say(" ".join(told))

    policy = RetryPolicy(initial_interval=0.01, jitter=False, retry_on=ConnectionError)
    graph = desk.graph(node_awaited if awaited else node, retry_policy=policy)
    given: dict[str, Any] = {"messages": []}
    state = asyncio.run(graph.ainvoke(given, on("t"))) if awaited else graph.invoke(given, on("t"))
    assert state["messages"][-1].content == "did x did x did y"
    assert desk.happened == ["x", "x", "y"]


def test_a_fork_from_an_older_checkpoint_makes_its_calls_anew(desk: Desk) -> None:
    graph = desk.graph(lambda _: say(calls.step(desk.act, "first")), lambda _: say(calls.step(desk.act, "second")))
    config = on("t")
    graph.invoke({"messages": []}, config)
    before = next(s for s in graph.get_state_history(config) if s.next == ("n1",))
    graph.invoke(None, graph.update_state(before.config, say("other"), as_node="n0"))
    assert desk.happened == ["first", "second", "second"]


def test_a_second_turn_of_a_thread_makes_its_calls_anew(desk: Desk) -> None:
    graph = desk.graph(lambda _: say(calls.step(desk.act, "same")))
    for _ in range(2):
        graph.invoke({"messages": [("user", "go")]}, on("t"))
    assert desk.happened == ["same", "same"]


def test_a_call_with_other_input_than_was_recorded_stops_the_node(desk: Desk) -> None:
    fail, inputs = fails_once(), iter([1, 2])

    def node(_: Any) -> dict[str, Any]:
        told = calls.once(desk.act, next(inputs))
        fail()
        return say(told)

    graph, config = desk.graph(node), on("t")
    with pytest.raises(ConnectionError):
        graph.invoke({"messages": []}, config)
    with pytest.raises(Diverged):
        graph.invoke(None, config)
    assert desk.happened == [1]


# --- control flow --------------------------------------------------------------------------------------


@pytest.mark.parametrize("one_shot", [False, True])
def test_an_interrupt_in_a_tool_passes_and_the_tool_is_entered_again(desk: Desk, one_shot: bool) -> None:
    @tool
    def act(what: str) -> str:
        """Act, if somebody agrees."""
        return desk.act(f"{what}: {interrupt('may I?')}")

    graph, config = desk.graph(ToolNode([durable_tool(act, once=one_shot)])), on("t")
    state = graph.invoke(asks_for("act", {"what": "x"}), config)
    assert [i.value for i in state["__interrupt__"]] == ["may I?"]
    state = graph.invoke(Command(resume="yes"), config)
    assert state["messages"][-1].content == "did x: yes"
    assert desk.happened == ["x: yes"]


def test_calls_before_an_interrupt_are_not_made_again_after_it(desk: Desk) -> None:
    def node(_: Any) -> dict[str, Any]:
        first = calls.once(desk.act, 1)
        return say(f"{first} {interrupt('go on?')} {calls.step(desk.act, 2)}")

    graph, config = desk.graph(node), on("t")
    graph.invoke({"messages": []}, config)
    state = graph.invoke(Command(resume="yes"), config)
    assert state["messages"][-1].content == "did 1 yes did 2"
    assert desk.happened == [1, 2]


def test_calls_inside_a_call_are_kept_when_it_is_cut_short(desk: Desk) -> None:
    fail = fails_once()

    def outer() -> str:
        told = [calls.step(desk.act, "in 1"), calls.step(desk.act, "in 2")]
        fail()
        return " ".join(told)

    graph, config = desk.graph(lambda _: say(calls.step(outer))), on("t")
    with pytest.raises(ConnectionError):
        graph.invoke({"messages": []}, config)
    assert graph.invoke(None, config)["messages"][-1].content == "did in 1 did in 2"
    assert desk.happened == ["in 1", "in 2"]


def test_gathered_calls_take_their_places_in_order(desk: Desk) -> None:
    fail = fails_once()

    async def act(what: str, pause: float) -> str:
        await asyncio.sleep(pause)
        return desk.act(what)

    async def node(_: Any) -> dict[str, Any]:
        told = await asyncio.gather(calls.step(act, "slow", 0.05), calls.step(act, "fast", 0.0))
        fail()
        return say(" ".join(told))

    graph, config = desk.graph(node), on("t")
    with pytest.raises(ConnectionError):
        asyncio.run(graph.ainvoke({"messages": []}, config))
    state = asyncio.run(graph.ainvoke(None, config))
    assert state["messages"][-1].content == "did slow did fast"
    assert desk.happened == ["fast", "slow"]


def test_tasks_of_the_functional_api_have_journals_of_their_own(desk: Desk) -> None:
    fail = fails_once()

    @task
    def part(what: str) -> str:
        return calls.step(desk.act, what)

    @entrypoint(checkpointer=desk.saver)
    def entry(names: list[str]) -> str:
        told = [future.result() for future in [part(name) for name in names]]
        told.append(calls.step(desk.act, "own"))
        fail()
        return " ".join(told)

    whole: Any = entry
    config = on("t")
    with pytest.raises(ConnectionError):
        whole.invoke(["a", "a"], config)
    assert whole.invoke(None, config) == "did a did a did own"
    assert desk.happened == ["a", "a", "own"]


def test_a_subgraphs_nodes_have_journals_of_their_own(desk: Desk) -> None:
    fail = fails_once()

    def inner(_: Any) -> dict[str, Any]:
        told = calls.once(desk.act, "inner")
        fail()
        return say(told)

    builder: Any = StateGraph(MessagesState)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    below = builder.compile()

    def outer(state: Any) -> Any:
        calls.step(desk.act, "outer")
        return below.invoke(state)

    graph, config = desk.graph(outer), on("t")
    with pytest.raises(ConnectionError):
        graph.invoke({"messages": []}, config)
    assert graph.invoke(None, config)["messages"][-1].content == "did inner"
    assert desk.happened == ["outer", "inner"]


def test_a_node_whose_run_is_complete_may_still_make_a_new_call(desk: Desk) -> None:
    """A crash can lose that a node returned, and a node need not do the same again."""
    names = ["first"]

    def node(_: Any) -> dict[str, Any]:
        return say(*[calls.options(key=name, store=desk.client).step(desk.act, name) for name in names])

    graph, config = desk.graph(node), on("t")
    graph.invoke({"messages": []}, config)
    before = next(s for s in graph.get_state_history(config) if s.next == ("n0",))
    (intent,) = desk.client.list_intents()
    desk.client.wait_for(intent["run_id"], timeout=10)
    # A checkpointer that has never heard that the node returned.
    kept: Any = desk.saver.get_tuple(before.config)
    stale = InMemorySaver()
    stale.put(on("t", checkpoint_ns=""), kept.checkpoint, kept.metadata, kept.checkpoint["channel_versions"])
    names.append("second")
    desk._replace(saver=stale).graph(node).invoke(None, config)  # type: ignore[arg-type]
    assert desk.happened == ["first", "second"]


# --- where it is kept ----------------------------------------------------------------------------------


def test_a_step_costs_one_commit_and_a_one_shot_two_besides_two_for_the_task(sqlite_url: str) -> None:
    def node(_: Any) -> dict[str, Any]:
        for number in range(5):
            calls.step(str, number)
            calls.once(str, number)
        return say("done")

    with open_store(sqlite_url) as below:
        store = CountingStore(below)
        with StepfastSaver(store) as saver:
            Desk(saver, Stepfast(store=store), []).graph(node).invoke({"messages": []}, on("t"))
        assert store.count("RecordStep") + store.count("SettleStep") == 5 + 2 * 5
        assert store.count("OpenIntent") == store.count("FinishIntent") == 1


def test_a_tasks_run_is_completed_when_its_node_has_returned(desk: Desk) -> None:
    fail = fails_once()

    def second(_: Any) -> dict[str, Any]:
        calls.step(desk.act, 2)
        fail()
        return {}

    graph = desk.graph(lambda _: say(calls.step(desk.act, 1)), second)
    with pytest.raises(ConnectionError):
        graph.invoke({"messages": []}, on("t"))
    desk.saver.close()
    assert desk.runs() == {"n0": "COMPLETED", "n1": "IN_PROGRESS"}


def test_a_run_is_closed_by_itself_soon_after_its_task(desk: Desk) -> None:
    desk.graph(lambda _: say(calls.step(desk.act, 1))).invoke({"messages": []}, on("t"))
    name = desk.client.list_intents()[0]["run_id"]
    assert desk.client.wait_for(name, timeout=10)["status"] == "COMPLETED"


def test_a_node_that_was_interrupted_gives_its_run_back(desk: Desk) -> None:
    graph = desk.graph(lambda _: say(calls.step(desk.act, 1), interrupt("go on?")))
    graph.invoke({"messages": []}, on("t"))
    name = desk.client.list_intents()[0]["run_id"]
    with desk.client.run(name, wait=30) as run:  # RunBusy if it were kept
        assert run.steps() == ["act(1)"]


def test_the_idempotency_key_is_the_same_when_the_call_is_made_again(desk: Desk) -> None:
    keys: list[str] = []

    def act() -> None:
        keys.append(idempotency_key())
        if len(keys) == 1:
            raise ConnectionError

    graph, config = desk.graph(lambda _: {"messages": [str(calls.step(act))]}), on("t")
    with pytest.raises(ConnectionError):
        graph.invoke({"messages": []}, config)
    graph.invoke(None, config)
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_another_checkpointer_works_with_a_store_that_is_named(desk: Desk) -> None:
    fail = fails_once()

    def node(_: Any) -> dict[str, Any]:
        told = calls.options(store=desk.client).once(desk.act, 1)
        fail()
        return say(told)

    graph = desk._replace(saver=InMemorySaver()).graph(node)  # type: ignore[arg-type]
    with pytest.raises(ConnectionError):
        graph.invoke({"messages": []}, on("t"))
    assert graph.invoke(None, on("t"))["messages"][-1].content == "did 1"
    assert desk.happened == [1]


def test_inside_a_run_the_calls_are_steps_of_that_run(desk: Desk) -> None:
    fail = fails_once()

    def node(_: Any) -> dict[str, Any]:
        told = f"{calls.step(desk.act, 1)} {calls.once(desk.act, 2)}"
        fail()
        return say(told)

    graph, config = desk.graph(node), on("t")
    with pytest.raises(ConnectionError), desk.client.run("mine"):
        graph.invoke({"messages": []}, config)
    with desk.client.run("mine"):
        assert graph.invoke(None, config)["messages"][-1].content == "did 1 did 2"
    assert desk.happened == [1, 2]
    assert [i["run_id"] for i in desk.client.list_intents()] == ["mine"]


def test_inside_a_run_a_graph_needs_no_checkpointer(desk: Desk) -> None:
    fail = fails_once()

    def second(_: Any) -> dict[str, Any]:
        told = calls.once(desk.act, 2)
        fail()
        return say(told)

    graph = desk._replace(saver=None).graph(lambda _: say(calls.step(desk.act, 1)), second)  # type: ignore[arg-type]
    with pytest.raises(ConnectionError), desk.client.run("mine"):
        graph.invoke({"messages": []})
    with desk.client.run("mine"):
        assert graph.invoke({"messages": []})["messages"][-1].content == "did 2"
    assert desk.happened == [1, 2]


def test_a_plain_tool_in_an_event_loops_run_works_from_its_thread(sqlite_url: str) -> None:
    from stepfast import AsyncStepfast

    happened: list[str] = []

    @tool
    def act(what: str) -> str:
        """Act, blocking."""
        happened.append(what)
        return what

    async def main() -> Any:
        async with AsyncStepfast(sqlite_url) as client, client.run("mine"):
            graph = Desk(None, None, []).graph(ToolNode([durable_tool(act, once=True)]))  # type: ignore[arg-type]
            return await graph.ainvoke(asks_for("act", {"what": "x"}))

    assert asyncio.run(main())["messages"][-1].content == "x"
    assert happened == ["x"]


def test_without_a_checkpointer_a_step_is_a_plain_call_and_a_one_shot_is_refused(desk: Desk) -> None:
    plain = desk._replace(saver=None)  # type: ignore[arg-type]
    assert (
        plain.graph(lambda _: say(calls.step(desk.act, 1))).invoke({"messages": []})["messages"][-1].content == "did 1"
    )
    with pytest.raises(InvalidInput, match="checkpointer"):
        plain.graph(lambda _: say(calls.once(desk.act, 2))).invoke({"messages": []})
    assert calls.step(desk.act, 3) == "did 3"
    with pytest.raises(InvalidInput, match="one-shot"):
        calls.once(desk.act, 4)
    assert desk.happened == [1, 3]


def test_options_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(InvalidInput, match="retry_on"):
        durable_tool(print, retry_on=(OSError,))
    with pytest.raises(InvalidInput, match="on_in_doubt"):
        durable_tool(print, once=True, on_in_doubt="maybe")

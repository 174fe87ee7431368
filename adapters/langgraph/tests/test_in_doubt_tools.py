"""One-shot calls that started and were never confirmed: an interrupt of the graph and a decision of Stepfast."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt

from adapters.langgraph.tests.kit import on
from adapters.langgraph.tests.tool_agent import effects, run
from stepfast import (
    DID_NOT_HAPPEN,
    AlreadyAnswered,
    Happened,
    InvalidInput,
    RunFailed,
    StepFailed,
    Stepfast,
    Suspended,
    idempotency_key,
)
from stepfast_langgraph import StepfastSaver, calls, durable, durable_tool

SHAPES = ["node-once", "node-once-async", "tools-once", "tools-once-async", "agent-once", "branches-once"]


# --- killed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_a_killed_one_shot_interrupts_the_graph_and_is_made_again_when_somebody_says_so(
    shape: str, sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "deadly").write_text("c")
    assert run(sqlite_url, tmp_path, shape, "start") is None
    (stop,) = run(sqlite_url, tmp_path, shape)["stops"]
    assert sorted(effects(tmp_path)) == ["a", "b", "c"]
    assert (stop["kind"], stop["outcomes"]) == ("in_doubt", ["done", "retry", "fail"])
    with Stepfast(sqlite_url) as client:
        (decision,) = client.decisions()
        assert (decision["run_id"], decision["key"]) == (stop["run_id"], stop["decision"])
        assert client.get_intent(stop["run_id"])["status"] == "WAITING"
    ended = run(sqlite_url, tmp_path, shape, json.dumps({stop["id"]: "retry"}))
    assert " ".join(ended["told"]).startswith("did a did b did c")
    assert sorted(effects(tmp_path)) == ["a", "b", "c", "c"]
    with Stepfast(sqlite_url) as client:
        assert client.decisions() == []


def test_it_is_answered_through_the_graph_on_every_store(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "deadly").write_text("b")
    assert run(store_url, tmp_path, "node-once", "start") is None
    (stop,) = run(store_url, tmp_path, "node-once")["stops"]
    ended = run(store_url, tmp_path, "node-once", json.dumps({stop["id"]: {"outcome": "done", "value": "seen b"}}))
    assert ended["told"] == ["did a seen b did c"]
    assert effects(tmp_path) == ["a", "b", "c"]


@pytest.mark.parametrize("store_url", ["sqlite", "http+postgres"], indirect=True)
def test_it_is_answered_through_stepfast_too(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "deadly").write_text("b")
    assert run(store_url, tmp_path, "tools-once", "start") is None
    (stop,) = run(store_url, tmp_path, "tools-once")["stops"]
    with Stepfast(store_url) as client:
        client.answer(stop["run_id"], "done", stop["decision"], value="seen b", actor="maria")
    assert run(store_url, tmp_path, "tools-once")["told"] == ["did a", "seen b", "did c"]
    assert effects(tmp_path) == ["a", "b", "c"]


# --- in one process ------------------------------------------------------------------------------------


class Crash(BaseException):
    """Ends a call as the death of its process would: nothing of it is confirmed."""


class Desk(NamedTuple):
    """A saver on its store, a client beside it, what happened, and what is deadly."""

    saver: StepfastSaver
    client: Stepfast
    happened: list[Any]
    deadly: set[Any]

    def act(self, what: Any) -> str:
        self.happened.append(what)
        if what in self.deadly:
            self.deadly.remove(what)
            raise Crash
        return f"did {what}"

    def graph(self, node: Any, **options: Any) -> Any:
        builder: Any = StateGraph(MessagesState)
        builder.add_node("act", node, **options)
        builder.add_edge(START, "act")
        return builder.compile(checkpointer=self.saver)

    def tools(self, *names: str, **options: Any) -> Any:
        """A graph of tools, started with a call of each name, and crashed."""

        @tool
        def act(what: str) -> str:
            """Act."""
            return self.act(what)

        graph = self.graph(ToolNode([durable_tool(act, once=True, **options)]))
        asked = [{"name": "act", "args": {"what": name}, "id": f"call-{name}"} for name in names]
        self.crash(graph, {"messages": [AIMessage("", tool_calls=asked)]})
        return graph

    def crash(self, graph: Any, given: Any = None) -> None:
        with pytest.raises(Crash):
            graph.invoke({"messages": []} if given is None else given, CONFIG)


CONFIG = {**on("t"), "max_concurrency": 1}


@pytest.fixture
def desk(saver: StepfastSaver) -> Iterator[Desk]:
    with Stepfast(saver.url) as client:
        yield Desk(saver, client, [], set())


def say(*texts: str) -> dict[str, Any]:
    return {"messages": [AIMessage(" ".join(texts))]}


def told(state: Any) -> str:
    return str(state["messages"][-1].content)


def test_the_same_question_has_the_same_id_until_it_is_answered(desk: Desk) -> None:
    desk.deadly.add(1)
    graph = desk.graph(lambda _: say(calls.once(desk.act, 1)))
    desk.crash(graph)
    asked = [graph.invoke(None, CONFIG)["__interrupt__"] for _ in range(3)]
    assert len({i.id for stops in asked for i in stops}) == 1
    assert desk.happened == [1]
    state = graph.get_state(CONFIG)
    assert state.next == ("act",)
    assert [i.id for i in state.interrupts] == [asked[0][0].id]


def test_the_evidence_says_what_to_look_for_on_the_other_side(desk: Desk) -> None:
    keys: list[str] = []

    def pay(amount: int) -> None:
        keys.append(idempotency_key())
        raise Crash

    graph = desk.graph(lambda _: {"messages": [str(calls.once(pay, 7))]})
    desk.crash(graph)
    value = graph.invoke(None, CONFIG)["__interrupt__"][0].value
    assert value["idempotency_key"] == keys[0]
    assert (value["name"], "7" in value["arguments"]) == ("pay", True)


def test_a_plain_answer_is_enough_for_one_question(desk: Desk) -> None:
    desk.deadly.add(1)
    graph = desk.graph(lambda _: say(calls.once(desk.act, 1)))
    desk.crash(graph)
    graph.invoke(None, CONFIG)
    assert told(graph.invoke(Command(resume={"outcome": "done", "value": "seen"}), CONFIG)) == "seen"
    assert desk.happened == [1]


def test_an_answer_is_not_taken_for_the_next_question(desk: Desk) -> None:
    """LangGraph keeps a resume value that names no interrupt, and hands it to whoever asks next."""
    desk.deadly.update({1, 2})
    graph = desk.graph(lambda _: say(calls.once(desk.act, 1), calls.once(desk.act, 2)))
    desk.crash(graph)
    graph.invoke(None, CONFIG)
    with pytest.raises(Crash):
        graph.invoke(Command(resume={"outcome": "done", "value": "seen 1"}), CONFIG)
    (stop,), (again,) = (graph.invoke(None, CONFIG)["__interrupt__"] for _ in range(2))
    assert stop.id == again.id
    answer: Command[Any] = Command(resume={stop.id: {"outcome": "done", "value": "seen 2"}})
    assert told(graph.invoke(answer, CONFIG)) == "seen 1 seen 2"
    assert desk.happened == [1, 2]


def test_interrupts_of_the_node_keep_their_own_answers(desk: Desk) -> None:
    desk.deadly.add(1)

    def node(_: Any) -> dict[str, Any]:
        first = interrupt("first?")
        return say(first, calls.once(desk.act, 1), interrupt("second?"), calls.step(desk.act, 2))

    graph = desk.graph(node)
    (stop,) = graph.invoke({"messages": []}, CONFIG)["__interrupt__"]
    with pytest.raises(Crash):
        graph.invoke(Command(resume={stop.id: "one"}), CONFIG)
    (stop,) = graph.invoke(None, CONFIG)["__interrupt__"]
    assert stop.value == "first?"  # LangGraph forgot the answer with the crash
    (stop,) = graph.invoke(Command(resume={stop.id: "one"}), CONFIG)["__interrupt__"]
    assert stop.value["kind"] == "in_doubt"
    (stop,) = graph.invoke(Command(resume={stop.id: {"outcome": "done", "value": "paid"}}), CONFIG)["__interrupt__"]
    assert stop.value == "second?"
    assert told(graph.invoke(Command(resume="two"), CONFIG)) == "one paid two did 2"
    assert desk.happened == [1, 2]


def test_a_plain_answer_that_was_taken_is_not_seen_by_the_nodes_own_interrupt(desk: Desk) -> None:
    desk.deadly.update({1, 2})

    def node(_: Any) -> dict[str, Any]:
        paid = calls.once(desk.act, 1)
        calls.step(desk.act, 2)
        return say(paid, interrupt("really?"))

    graph = desk.graph(node)
    desk.crash(graph)
    graph.invoke(None, CONFIG)
    with pytest.raises(Crash):
        graph.invoke(Command(resume="retry"), CONFIG)
    (stop,) = graph.invoke(None, CONFIG)["__interrupt__"]
    assert stop.value == "really?"
    assert told(graph.invoke(Command(resume="yes"), CONFIG)) == "did 1 yes"
    assert desk.happened == [1, 1, 2, 2]


def test_two_answers_that_differ_the_first_stands_and_the_second_is_told(desk: Desk) -> None:
    desk.deadly.add(1)
    graph = desk.graph(lambda _: say(calls.once(desk.act, 1)))
    desk.crash(graph)
    (stop,) = graph.invoke(None, CONFIG)["__interrupt__"]
    desk.client.answer(stop.value["run_id"], "done", stop.value["decision"], value="seen", actor="maria")
    with pytest.raises(AlreadyAnswered, match="maria"):
        graph.invoke(Command(resume={stop.id: "retry"}), CONFIG)
    assert told(graph.invoke(None, CONFIG)) == "seen"
    assert desk.happened == [1]


def test_the_same_answer_from_both_sides_is_fine(desk: Desk) -> None:
    desk.deadly.add(1)
    graph = desk.graph(lambda _: say(calls.once(desk.act, 1)))
    desk.crash(graph)
    (stop,) = graph.invoke(None, CONFIG)["__interrupt__"]
    desk.client.answer(stop.value["run_id"], "retry", stop.value["decision"], actor="maria")
    assert told(graph.invoke(Command(resume={stop.id: "retry"}), CONFIG)) == "did 1"


def test_an_answer_given_through_the_graph_is_seen_by_stepfast(desk: Desk) -> None:
    desk.deadly.add(1)
    graph = desk.graph(lambda _: say(calls.once(desk.act, 1)))
    desk.crash(graph)
    (stop,) = graph.invoke(None, CONFIG)["__interrupt__"]
    graph.invoke(Command(resume={stop.id: "retry"}), CONFIG)
    (decision,) = desk.client.decisions(stop.value["run_id"], pending=False)
    assert (decision["outcome"], decision["actor"]) == ("retry", "langgraph")


def test_an_answer_that_says_nothing_is_refused_and_the_question_stays(desk: Desk) -> None:
    desk.deadly.add(1)
    graph = desk.graph(lambda _: say(calls.once(desk.act, 1)))
    desk.crash(graph)
    (stop,) = graph.invoke(None, CONFIG)["__interrupt__"]
    with pytest.raises(InvalidInput, match="'done', 'retry', 'fail'"):
        graph.invoke(Command(resume={stop.id: "yes"}), CONFIG)
    assert told(graph.invoke(Command(resume={stop.id: "retry"}), CONFIG)) == "did 1"


def test_fail_ends_the_task_for_good(desk: Desk) -> None:
    desk.deadly.add(1)
    graph = desk.graph(lambda _: say(calls.once(desk.act, 1)))
    desk.crash(graph)
    (stop,) = graph.invoke(None, CONFIG)["__interrupt__"]
    with pytest.raises(RunFailed):
        graph.invoke(Command(resume={stop.id: "fail"}), CONFIG)
    with pytest.raises(RunFailed):
        graph.invoke(None, CONFIG)
    assert desk.happened == [1]


@pytest.mark.parametrize("awaited", [False, True])
def test_a_branch_in_doubt_does_not_repeat_the_branches_beside_it(desk: Desk, awaited: bool) -> None:
    desk.deadly.add("b")

    async def act(what: str) -> str:
        return desk.act(what)

    def branch(given: Any) -> dict[str, Any]:
        return say(calls.once(desk.act, given["what"]))

    async def branch_awaited(given: Any) -> dict[str, Any]:
        return say(await calls.once(act, given["what"]))

    builder: Any = StateGraph(MessagesState)
    if awaited:
        builder.add_node("branch", branch_awaited)
    else:
        builder.add_node("branch", branch)
    builder.add_conditional_edges(START, lambda _: [Send("branch", {"what": name}) for name in "abc"])
    graph = builder.compile(checkpointer=desk.saver)

    def go(given: Any) -> Any:
        return asyncio.run(graph.ainvoke(given, CONFIG)) if awaited else graph.invoke(given, CONFIG)

    with pytest.raises(Crash):
        go({"messages": []})
    (stop,) = go(None)["__interrupt__"]
    assert desk.client.get_intent(stop.value["run_id"])["labels"]["langgraph.node"] == "branch"
    desk.client.answer(stop.value["run_id"], "done", value="seen b", actor="maria")
    assert [m.content for m in go(None)["messages"]] == ["did a", "seen b", "did c"]
    assert sorted(desk.happened) == ["a", "b", "c"]


def test_two_tools_of_one_node_in_doubt_are_answered_one_by_one_or_together(desk: Desk) -> None:
    desk.deadly.update({"b", "c"})
    graph = desk.tools("a", "b", "c")
    stops: dict[str, Any] = {}
    state: Any = None
    for _ in range(3):
        state = graph.invoke(Command(resume=dict.fromkeys(stops, "retry")) if stops else None, CONFIG)
        if "__interrupt__" not in state:
            break
        stops |= {i.id: i for i in state["__interrupt__"]}
    assert [m.content for m in state["messages"][1:]] == ["did a", "did b", "did c"]
    assert sorted(desk.happened) == ["a", "b", "b", "c", "c"]


def test_calls_beside_one_in_doubt_come_to_their_end(desk: Desk) -> None:
    desk.deadly.add("a")

    async def act(what: str, pause: float) -> str:
        await asyncio.sleep(pause)
        return desk.act(what)

    async def node(_: Any) -> dict[str, Any]:
        return say(*await asyncio.gather(calls.once(act, "a", 0.0), calls.step(act, "b", 0.1)))

    graph = desk.graph(node)
    with pytest.raises(Crash):
        asyncio.run(graph.ainvoke({"messages": []}, CONFIG))
    assert desk.happened == ["a"]
    (stop,) = asyncio.run(graph.ainvoke(None, CONFIG))["__interrupt__"]
    assert desk.happened == ["a", "b"]
    answer: Command[Any] = Command(resume={stop.id: {"outcome": "done", "value": "seen a"}})
    assert told(asyncio.run(graph.ainvoke(answer, CONFIG))) == "seen a did b"
    assert desk.happened == ["a", "b"]


# --- without a person ------------------------------------------------------------------------------------


def test_retry_makes_the_call_again_unasked(desk: Desk) -> None:
    desk.deadly.add("a")
    graph = desk.tools("a", on_in_doubt="retry")
    assert told(graph.invoke(None, CONFIG)) == "did a"
    assert desk.happened == ["a", "a"]


def test_fail_tells_the_model_that_the_outcome_is_unknown(desk: Desk) -> None:
    desk.deadly.add("a")
    graph = desk.tools("a", on_in_doubt="fail")
    state = graph.invoke(None, CONFIG)
    assert state["messages"][-1].status == "error"
    assert "outcome is unknown" in told(state)
    assert desk.happened == ["a"]


def test_fail_raises_in_a_node(desk: Desk) -> None:
    desk.deadly.add(1)
    graph = desk.graph(lambda _: say(calls.options(on_in_doubt="fail").once(desk.act, 1)))
    desk.crash(graph)
    for _ in range(2):
        with pytest.raises(StepFailed, match="unknown"):
            graph.invoke(None, CONFIG)
    assert desk.happened == [1]


@pytest.mark.parametrize(
    ("answer", "expected", "times"), [(Happened("found"), "found", 1), (DID_NOT_HAPPEN, "did a", 2)]
)
def test_a_probe_gets_what_the_model_gave_and_settles_it(desk: Desk, answer: Any, expected: str, times: int) -> None:
    asked: list[tuple[str, str]] = []

    def probe(what: str) -> Any:
        asked.append((what, idempotency_key()))
        return answer

    desk.deadly.add("a")
    graph = desk.tools("a", on_in_doubt=probe)
    assert told(graph.invoke(None, CONFIG)) == expected
    assert [what for what, _ in asked] == ["a"]
    assert len(desk.happened) == times


def test_a_probe_that_does_not_know_leaves_it_to_a_person(desk: Desk) -> None:
    desk.deadly.add("a")
    graph = desk.tools("a", on_in_doubt=lambda what: None)
    (stop,) = graph.invoke(None, CONFIG)["__interrupt__"]
    assert told(graph.invoke(Command(resume={stop.id: "retry"}), CONFIG)) == "did a"


# --- in a run around the graph -----------------------------------------------------------------------------


def test_in_a_durable_graph_it_is_a_decision_of_its_run(desk: Desk) -> None:
    desk.deadly.add(1)
    whole = durable(desk.graph(lambda _: say(calls.once(desk.act, 1))), store=desk.client)
    with pytest.raises(Crash):
        whole.run({"messages": []}, "order-7")
    with pytest.raises(Suspended):
        whole.run(None, "order-7")
    (decision,) = desk.client.decisions("order-7")
    assert decision["outcomes"] == ["done", "retry", "fail"]
    desk.client.answer("order-7", "done", value="seen", actor="maria")
    assert told(whole.run(None, "order-7")) == "seen"
    assert desk.happened == [1]


def test_in_a_durable_graph_it_is_answered_by_a_command_too(desk: Desk) -> None:
    desk.deadly.add(1)
    whole = durable(desk.graph(lambda _: say(calls.once(desk.act, 1))), store=desk.client)
    with pytest.raises(Crash):
        whole.run({"messages": []}, "order-7")
    with pytest.raises(Suspended):
        whole.run(None, "order-7")
    assert told(whole.run(Command(resume="retry"), "order-7")) == "did 1"
    assert desk.happened == [1, 1]


def test_in_a_run_of_ones_own_the_graph_asks(desk: Desk) -> None:
    desk.deadly.add(1)
    graph = desk.graph(lambda _: say(calls.once(desk.act, 1)))
    with pytest.raises(Crash), desk.client.run("mine"):
        graph.invoke({"messages": []}, CONFIG)
    with desk.client.run("mine"):
        (stop,) = graph.invoke(None, CONFIG)["__interrupt__"]
        assert told(graph.invoke(Command(resume={stop.id: "retry"}), CONFIG)) == "did 1"
    assert desk.happened == [1, 1]

"""Graphs that wait for people: interrupts and breakpoints as decisions of their run, answered from anywhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from adapters.langgraph.tests.durable_kit import Log, World, asking, chain
from stepfast import InvalidInput, NotFound, Stepfast, Suspended, current_run
from stepfast_langgraph import StepfastSaver, calls, durable
from tests.cli.kit import Cli

GIVEN = {"log": ["in"]}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def sf(world: World) -> Iterator[Stepfast]:
    with Stepfast(world.url) as client:
        yield client


def suspended(made: Any, given: Any = GIVEN, run_id: str = "r", **options: Any) -> Suspended:
    with pytest.raises(Suspended) as waiting:
        made.run(given, run_id, **options)
    return waiting.value


def branches(world: World) -> Any:
    """Two branches that ask at the same time."""

    def branch(name: str) -> Any:
        def node(_state: Any) -> Any:
            answer = interrupt(f"{name}?")
            world.effects.record(f"{name} {answer}")
            return {"log": [f"{name} {answer}"]}

        return node

    graph = StateGraph(Log)
    for name in ("left", "right"):
        graph.add_node(name, branch(name))
        graph.add_edge(START, name)
    return graph.compile()


def test_an_interrupt_is_a_decision_of_the_run(world: World, sf: Stepfast) -> None:
    made = durable(asking(world, None), store=sf)
    waiting = suspended(made)
    (asked,) = sf.decisions("r")
    assert waiting.decisions == [asked["key"]]
    assert asked["question"] == "Send it?"
    assert asked["evidence"]["node"] == "ask"
    assert asked["evidence"]["value"] == {"question": "Send it?", "amount": 12}
    assert asked["outcomes"] == ["approved", "rejected", "answered"]
    seen = sf.describe("r")
    assert (seen["status"], seen["waiting_reason"]) == ("WAITING", "WAITING_FOR_HUMAN")
    assert (seen["step"], seen["last_step"]) == (1, "draft")
    assert suspended(made).decisions == [asked["key"]]


@pytest.mark.parametrize(
    ("answer", "resumed"),
    [
        ({"outcome": "approved"}, True),
        ({"outcome": "rejected"}, False),
        ({"outcome": "answered", "comment": "later"}, "later"),
        ({"outcome": "answered", "value": {"to": "ada"}}, {"to": "ada"}),
        ({"outcome": "approved", "value": 3}, 3),
    ],
)
def test_the_answer_is_what_the_graph_resumes_with(world: World, sf: Stepfast, answer: Any, resumed: Any) -> None:
    made = durable(asking(world, None), store=sf)
    suspended(made)
    sf.answer("r", **answer)
    assert made.run(GIVEN, "r")["log"] == ["in", "draft", f"answer {resumed}", "send"]
    assert sf.get_intent("r")["status"] == "COMPLETED"
    assert world.effects.lines() == ["draft", f"answered {resumed}", "send"]


def test_a_person_answers_at_the_command_line(world: World, sf: Stepfast, tmp_path: Path) -> None:
    made = durable(asking(world, None), store=sf)
    suspended(made)
    cli = Cli(world.url, tmp_path)
    listed = cli("intents", "list").stdout
    assert "WAITING" in listed
    assert "draft (1)" in listed
    (task,) = cli.json("tasks", "list")["tasks"]
    assert (task["kind"], task["title"]) == ("ask", "Send it?")
    cli("tasks", "submit", task["task_id"], "--outcome", "answered", "--value", '"tomorrow"')
    assert made.run(GIVEN, "r")["log"][2] == "answer tomorrow"
    assert "send (3)" in cli("intents", "list").stdout


async def test_command_resume_answers_as_in_langgraph(world: World, sf: Stepfast) -> None:
    made = durable(asking(world, None), store=sf)
    suspended(made)
    assert made.run(Command(resume="yes"), "r")["log"] == ["in", "draft", "answer yes", "send"]
    assert made.run(Command(resume="no"), "r")["log"][2] == "answer yes"
    with pytest.raises(Suspended):
        await made.arun(GIVEN, "r2")
    assert (await made.arun(Command(resume="yes"), "r2"))["log"] == ["in", "draft", "answer yes", "send"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_every_durability_of_langgraph_waits_for_answers(world: World, sf: Stepfast, durability: Any) -> None:
    made = durable(asking(world, None), store=sf, durability=durability)
    suspended(made)
    assert made.run(Command(resume="yes"), "r")["log"] == ["in", "draft", "answer yes", "send"]
    assert world.effects.lines() == ["draft", "answered yes", "send"]


def test_command_resume_for_a_run_that_is_not_there_or_does_more_is_refused(world: World, sf: Stepfast) -> None:
    made = durable(asking(world, None), store=sf)
    with pytest.raises(NotFound):
        made.run(Command(resume="yes"), "r")
    with pytest.raises(InvalidInput, match="update_state"):
        made.run(Command(resume="yes", update={"log": ["more"]}), "r")
    assert sf.list_intents() == []


def test_branches_ask_all_at_once_and_go_on_when_all_are_answered(world: World, sf: Stepfast) -> None:
    made = durable(branches(world), store=sf)
    waiting = suspended(made)
    asked = {each["question"]: each["key"] for each in sf.decisions("r")}
    assert set(asked) == {"left?", "right?"}
    assert sorted(waiting.decisions) == sorted(asked.values())
    sf.answer("r", "approved", asked["right?"])
    assert suspended(made).decisions == [asked["left?"]]
    assert world.effects.lines() == []
    sf.answer("r", "rejected", asked["left?"])
    assert made.run(GIVEN, "r")["log"] == ["in", "left False", "right True"]


def test_command_resume_names_the_interrupts_where_there_are_several(world: World, sf: Stepfast) -> None:
    made = durable(branches(world), store=sf)
    suspended(made)
    with pytest.raises(InvalidInput, match="2 interrupts"):
        made.run(Command(resume="x"), "r")
    ids = {each["question"]: each["evidence"]["interrupt_id"] for each in sf.decisions("r")}
    suspended(made, Command(resume={ids["left?"]: "L"}))
    assert made.run(Command(resume={ids["right?"]: "R"}), "r")["log"] == ["in", "left L", "right R"]


def test_several_interrupts_of_one_node_are_asked_one_after_another(world: World, sf: Stepfast) -> None:
    def node(_state: Any) -> Any:
        return {"log": [interrupt("same?"), interrupt("same?")]}

    graph = StateGraph(Log)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    made = durable(graph.compile(), store=sf)
    suspended(made)
    suspended(made, Command(resume="one"))
    assert made.run(Command(resume="two"), "r")["log"] == ["in", "one", "two"]
    assert len(sf.decisions("r", pending=False)) == 2


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
async def test_a_run_that_blocks_goes_on_when_the_answer_comes(world: World, sf: Stepfast, on_loop: bool) -> None:
    made = durable(asking(world, None), store=sf, on_wait="block")

    def answer() -> None:
        for event in sf.observe("r"):
            if event["event_type"] == "intent.waiting":
                sf.answer("r", "approved")
                return

    async def first() -> Any:
        return await made.arun(GIVEN, "r") if on_loop else await asyncio.to_thread(made.run, GIVEN, "r")

    with pytest.raises(Suspended):  # so that the run is there to be observed
        made.run(GIVEN, "r", on_wait="suspend")
    teller = threading.Thread(target=answer)
    teller.start()
    assert (await first())["log"] == ["in", "draft", "answer True", "send"]
    teller.join()


def test_a_thread_that_was_resumed_by_hand_needs_no_answer(world: World, sf: Stepfast) -> None:
    saver = StepfastSaver(sf)
    graph = asking(world, saver)
    made = durable(graph, store=sf)
    suspended(made)
    graph.invoke(Command(resume="by hand"), {"configurable": {"thread_id": "r"}})
    assert made.run(GIVEN, "r")["log"] == ["in", "draft", "answer by hand", "send"]
    assert world.effects.lines() == ["draft", "answered by hand", "send"]


def test_an_interrupt_in_a_graph_inside_a_node_is_asked_too(world: World, sf: Stepfast) -> None:
    inner = StateGraph(Log)
    inner.add_node("deep", lambda _: {"log": [interrupt("deep?")]})
    inner.add_edge(START, "deep")
    graph = StateGraph(Log)
    graph.add_node("outer", lambda state: {"log": inner_graph.invoke({"log": []})["log"]})
    graph.add_edge(START, "outer")
    inner_graph = inner.compile()
    made = durable(graph.compile(), store=sf)
    suspended(made)
    (asked,) = sf.decisions("r")
    assert (asked["question"], asked["evidence"]["node"]) == ("deep?", "outer")
    assert made.run(Command(resume="yes"), "r")["log"] == ["in", "yes"]


def test_a_value_that_does_not_equal_itself_is_asked_about_by_its_kind(world: World, sf: Stepfast) -> None:
    graph = StateGraph(Log)
    graph.add_node("node", lambda _: {"log": [interrupt({"amount": float("nan")})]})
    graph.add_edge(START, "node")
    made = durable(graph.compile(), store=sf)
    suspended(made)
    assert sf.decisions("r")[0]["evidence"]["value"] == "<builtins.dict>"
    suspended(made)
    assert made.run(Command(resume="fine"), "r")["log"] == ["in", "fine"]


@pytest.mark.parametrize(("when", "stops"), [("interrupt_before", "before"), ("interrupt_after", "after")])
def test_a_breakpoint_waits_for_a_word(world: World, sf: Stepfast, when: str, stops: str) -> None:
    made = durable(chain(world, None, "one", "two", "three"), store=sf)
    options = {when: ["two"]}
    suspended(made, **options)
    (asked,) = sf.decisions("r")
    assert f"{stops} two" in asked["question"]
    assert asked["outcomes"] == ["continue"]
    suspended(made, **options)
    ran = ["one"] if stops == "before" else ["one", "two"]
    assert world.effects.lines() == ran
    sf.answer("r", "continue")
    assert made.run(GIVEN, "r", **options)["log"] == ["in", "one", "two", "three"]
    assert world.effects.lines() == ["one", "two", "three"]


def test_an_approval_of_tool_calls_is_answered_in_their_words(world: World, sf: Stepfast) -> None:
    def node(_state: Any) -> Any:
        requests = [{"name": "send", "args": {"to": "ada"}, "description": "Send to ada?"}]
        answer = interrupt({"action_requests": requests, "review_configs": []})
        return {"log": [answer["decisions"][0]]}

    graph = StateGraph(Log)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    made = durable(graph.compile(), store=sf)
    for run_id, outcome, decision in [
        ("yes", "approved", {"type": "approve"}),
        ("no", "rejected", {"type": "reject", "message": "not ada"}),
    ]:
        suspended(made, run_id=run_id)
        assert sf.decisions(run_id)[0]["question"] == "Send to ada?"
        sf.answer(run_id, outcome, comment="not ada")
        assert made.run(GIVEN, run_id)["log"] == ["in", decision]


def test_an_agent_that_needs_approval_for_a_tool_waits_for_it(sf: Stepfast) -> None:
    sent: list[str] = []

    @tool
    def send_mail(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return "sent"

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, _tools: Any, **_options: Any) -> Any:
            return self

    call = {"name": "send_mail", "args": {"to": "ada"}, "id": "1"}
    model = Scripted(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("It is sent.")]))
    asks = HumanInTheLoopMiddleware(interrupt_on={"send_mail": True})
    made = durable(create_agent(model, [send_mail], middleware=[asks]), store=sf)
    given = {"messages": [("user", "mail ada")]}
    suspended(made, given)
    (asked,) = sf.decisions("r")
    assert "send_mail" in asked["question"]
    assert sent == []
    sf.answer("r", "approved")
    assert made.run(given, "r")["messages"][-1].content == "It is sent."
    assert sent == ["ada"]


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
async def test_a_node_may_ask_by_the_run_itself(sf: Stepfast, on_loop: bool) -> None:
    def ask(_state: Any) -> Any:
        return {"log": [current_run().ask("Core?", key="core").outcome]}

    async def ask_awaited(_state: Any) -> Any:
        return {"log": [(await current_run().ask("Core?", key="core")).outcome]}

    graph = StateGraph(Log)
    graph.add_node("ask", ask_awaited if on_loop else ask)
    graph.add_edge(START, "ask")
    made = durable(graph.compile(), store=sf)

    async def go() -> Any:
        return await made.arun(GIVEN, "r") if on_loop else made.run(GIVEN, "r")

    with pytest.raises(Suspended):
        await go()
    assert sf.get_intent("r")["status"] == "WAITING"
    sf.answer("r", "approved")
    assert await go() == {"log": ["in", "approved"]}


@pytest.mark.parametrize(("policy", "answer", "paid"), [("ask", "done", 1), ("ask", "retry", 2), ("retry", None, 2)])
def test_a_one_shot_call_in_doubt_is_a_question_of_the_run(
    world: World, sf: Stepfast, policy: Any, answer: str | None, paid: int
) -> None:
    class Lost(BaseException):
        """What ends a call without telling how it went."""

    def pay() -> str:
        world.effects.record("paid")
        if world.effects.counts()["paid"] == 1:
            raise Lost
        return "receipt 2"

    graph = StateGraph(Log)
    graph.add_node("pay", lambda _: {"log": [calls.options(key="pay").once(pay)]})
    graph.add_edge(START, "pay")
    made = durable(graph.compile(), store=sf, on_in_doubt=policy)
    with pytest.raises(Lost):
        made.run(GIVEN, "r")
    if answer is not None:
        suspended(made)
        (asked,) = sf.decisions("r")
        assert asked["question"] == "Did pay happen? It was started and never confirmed."
        assert asked["outcomes"] == ["done", "retry", "fail"]
        sf.answer("r", answer, value="receipt 1" if answer == "done" else None)
    assert made.run(GIVEN, "r")["log"] == ["in", f"receipt {paid}"]
    assert world.effects.counts()["paid"] == paid

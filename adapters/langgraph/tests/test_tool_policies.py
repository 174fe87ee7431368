"""Tools of durable graphs follow their policies: what says nothing is asked about, wherever the tool node stands."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from adapters.langgraph.tests.desk import asks_for
from adapters.langgraph.tests.durable_kit import World
from stepfast import DID_NOT_HAPPEN, Happened, InvalidInput, Stepfast, Suspended
from stepfast.adapters import policies as kit
from stepfast.testing.processes import Child
from stepfast_langgraph import composite, current_run, durable, durable_tool, idempotency_key, idempotent, once


class Crash(BaseException):
    """Ends a call as the death of its process would: nothing of it is confirmed."""


class Scripted(BaseChatModel):
    """Calls the tool once, and then says what it gave."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        told = [str(message.content) for message in messages if message.type == "tool"]
        calls = [{"name": "act", "args": {"what": "x"}, "id": "call-0"}]
        answer = AIMessage("; ".join(told), tool_calls=[] if told else calls)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def graph_of(tools: list[Any], shape: str = "node", saver: Any = None) -> Any:
    """A graph that has a model's call of ``act`` carried out, in a node, a subgraph or an agent."""
    if shape == "agent":
        return create_agent(Scripted(), tools, checkpointer=saver)
    builder: Any = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode(tools))
    builder.add_edge(START, "tools")
    if shape == "node":
        return builder.compile(checkpointer=saver)
    inner = builder.compile()
    outer: Any = StateGraph(MessagesState)
    # A subgraph that is a node, or one that a node calls: nothing shows the latter from outside.
    outer.add_node("inner", inner if shape == "subgraph" else lambda state: inner.invoke(state))
    outer.add_edge(START, "inner")
    return outer.compile(checkpointer=saver)


ASKED = asks_for("act", {"what": "x"})


def said(state: Any) -> str:
    return str(state["messages"][-1].content)


class Hand:
    """A tool that acts, and crashes the first time."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.happened: list[str] = []
        self.keys: list[str] = []
        self.errors = [Crash() if error is None else error]

    def act(self, what: str) -> str:
        """Act."""
        self.happened.append(what)
        self.keys.append(idempotency_key() if current_run() else "")
        if self.errors:
            raise self.errors.pop()
        return f"did {what}"

    def tool(self, awaited: bool = False) -> BaseTool:
        async def act(what: str) -> str:
            """Act."""
            return self.act(what)

        return tool("act")(act if awaited else self.act)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def sf(world: World) -> Iterator[Stepfast]:
    with Stepfast(world.url) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _nothing_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "_announced", set())


# --- a tool that says nothing ------------------------------------------------------------------------------


def act_and_die(world: World, what: str) -> str:
    world.effects.record(what)
    world.die("act")
    return f"did {what}"


def child(folder: Path, shape: str, awaited: bool, policies: Any) -> None:
    world = World(folder)

    @tool
    def act(what: str) -> str:
        """Act."""
        return act_and_die(world, what)

    @tool("act")
    async def act_awaited(what: str) -> str:
        """Act."""
        return act_and_die(world, what)

    made = durable(graph_of([act_awaited if awaited else act], shape), store=world.url, policies=policies)
    try:
        state = asyncio.run(made.arun(ASKED, "r")) if awaited else made.run(ASKED, "r")
    except Suspended as waiting:
        ended: Any = waiting.decisions
    else:
        ended = said(state)
    (folder / "ended").write_text(json.dumps(ended))


def live(world: World, shape: str, awaited: bool = False, policies: Any = None) -> Any:
    """What came of one life; None if it was killed."""
    (world.folder / "ended").unlink(missing_ok=True)
    life = Child(lambda _note: child(world.folder, shape, awaited, policies)).wait(60)
    if life.code == -signal.SIGKILL:
        return None
    assert life.code == 0, life
    return json.loads((world.folder / "ended").read_text())


@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "async"])
@pytest.mark.parametrize("shape", ["node", "subgraph", "agent"])
def test_a_tool_that_says_nothing_is_asked_about_after_a_kill(world: World, shape: str, awaited: bool) -> None:
    assert live(world, shape, awaited) is None
    (key,) = live(world, shape, awaited)
    assert live(world, shape, awaited) == [key], "each start says the same"
    assert world.effects.lines() == ["x"], "it must not be repeated unasked"
    with Stepfast(world.url) as sf:
        (decision,) = sf.decisions("r")
        assert decision["question"] == "Did act happen? It was started and never confirmed."
        sf.answer("r", "done", key, value="seen x", actor="maria")
    assert "seen x" in live(world, shape, awaited)
    assert world.effects.lines() == ["x"]


@pytest.mark.parametrize("policies", [{"act": "retry"}, {"a*": "idempotent"}], ids=["by name", "by pattern"])
def test_a_tool_that_may_be_repeated_is_called_again_after_a_kill(world: World, policies: Any) -> None:
    assert live(world, "node", policies=policies) is None
    assert live(world, "node", policies=policies) == "did x"
    assert world.effects.lines() == ["x", "x"]


def test_a_finished_call_is_not_repeated_although_its_node_is(sf: Stepfast) -> None:
    happened = []

    @tool
    def act(what: str) -> str:
        """Act."""
        happened.append(what)
        return f"did {what}"

    left = [Crash()]

    @tool
    def fail(what: str) -> str:
        """Fail."""
        if left:
            raise left.pop()
        return "did not fail"

    asked = [{"name": name, "args": {"what": "x"}, "id": name} for name in ("act", "fail")]
    made = durable(graph_of([act, fail]), store=sf, policies={"fail": "retry"})
    one_by_one = {"max_concurrency": 1}
    with pytest.raises(Crash):
        made.run({"messages": [AIMessage("", tool_calls=asked)]}, "r", one_by_one)
    state = made.run(None, "r", one_by_one)
    assert [m.content for m in state["messages"][1:]] == ["did x", "did not fail"]
    assert happened == ["x"]


def test_one_line_names_the_tools_without_a_policy(sf: Stepfast, caplog: pytest.LogCaptureFixture) -> None:
    def named(name: str) -> BaseTool:
        @tool(name)
        def act(what: str) -> str:
            """Act."""
            return what

        return act

    tools = [named("act"), named("silent"), idempotent(named("safe")), named("search_web"), durable_tool(named("kept"))]
    made = durable(graph_of(tools, "subgraph"), store=sf, policies={"search_*": "retry"})
    with caplog.at_level(logging.WARNING, "stepfast"):
        made.run(ASKED, "r1")
        made.run(ASKED, "r2")
    (line,) = [record.message for record in caplog.records if "without a policy" in record.message]
    assert line.startswith("tools without a policy: act, silent. ")


def test_a_tool_of_a_hidden_graph_is_named_when_it_is_called(sf: Stepfast, caplog: pytest.LogCaptureFixture) -> None:
    hand = Hand()
    hand.errors.clear()
    with caplog.at_level(logging.WARNING, "stepfast"):
        assert said(durable(graph_of([hand.tool()], "hidden"), store=sf).run(ASKED, "r")) == "did x"
    assert [r.message for r in caplog.records if r.message.startswith("tools without a policy: act. ")]


def test_outside_of_a_durable_run_a_tool_is_as_it_was(sf: Stepfast) -> None:
    hand = Hand()
    graph = graph_of([hand.tool()], saver=InMemorySaver())
    durable(graph, store=sf)
    config: Any = {"configurable": {"thread_id": "t"}}
    with pytest.raises(Crash):
        graph.invoke(ASKED, config)
    assert said(graph.invoke(None, config)) == "did x"
    assert hand.happened == ["x", "x"]
    assert sf.list_intents() == []


# --- the words ---------------------------------------------------------------------------------------------


def crashed(sf: Stepfast, hand: Hand, made: Any = None, **options: Any) -> Any:
    whole = durable(graph_of([made or hand.tool()]), store=sf, **options)
    with pytest.raises(Crash):
        whole.run(ASKED, "r")
    return whole


MARKS: dict[str, Callable[[Hand], Any]] = {
    "a tool": lambda hand: idempotent(hand.tool()),
    "a function": lambda hand: tool("act")(idempotent(hand.act)),
    "hints of MCP": lambda hand: hand.tool().model_copy(update={"metadata": {"readOnlyHint": True}}),
}


@pytest.mark.parametrize("made", MARKS.values(), ids=MARKS)
def test_an_idempotent_tool_is_called_again_with_the_same_key(sf: Stepfast, made: Callable[[Hand], Any]) -> None:
    hand = Hand()
    whole = crashed(sf, hand, made(hand))
    assert said(whole.run(None, "r")) == "did x"
    assert len(hand.keys) == 2
    assert len(set(hand.keys)) == 1


def test_on_in_doubt_is_for_tools_that_say_nothing(sf: Stepfast) -> None:
    hand = Hand()
    assert said(crashed(sf, hand, on_in_doubt="retry").run(None, "r")) == "did x"
    marked = Hand()
    whole = durable(graph_of([once(marked.tool())]), store=sf, on_in_doubt="retry")
    with pytest.raises(Crash):
        whole.run(ASKED, "r2")
    with pytest.raises(Suspended):
        whole.run(None, "r2")
    assert marked.happened == ["x"]


def test_fail_tells_the_model_that_the_outcome_is_unknown(sf: Stepfast) -> None:
    hand = Hand()
    state = crashed(sf, hand, policies={"act": "fail"}).run(None, "r")
    message = state["messages"][-1]
    assert message.status == "error"
    assert "its outcome is unknown" in message.content
    assert hand.happened == ["x"]


@pytest.mark.parametrize("policy", ["retry", "fail"])
def test_a_policy_that_was_changed_meanwhile_counts(sf: Stepfast, policy: Any) -> None:
    hand = Hand()
    crashed(sf, hand)
    state = durable(graph_of([hand.tool()]), store=sf, policies={"act": policy}).run(None, "r")
    assert said(state) == (
        "did x" if policy == "retry" else "act was started and never confirmed. It was not repeated."
    )


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize(
    ("found", "said_at_last", "times"), [(Happened("seen x"), "seen x", 1), (DID_NOT_HAPPEN, "did x", 2)]
)
async def test_a_probe_gets_the_models_arguments(
    world: World, found: Any, said_at_last: str, times: int, awaited: bool
) -> None:
    asked: list[Any] = []

    def probe(what: str) -> Any:
        asked.append(what)
        return found

    async def probe_awaited(what: str) -> Any:
        return probe(what)

    hand = Hand()
    made = once(hand.tool(awaited), reconcile=probe_awaited if awaited else probe)
    whole = durable(graph_of([made]), store=world.url)
    with pytest.raises(Crash):
        await whole.arun(ASKED, "r")
    assert said(await whole.arun(None, "r")) == said_at_last
    assert (asked, len(hand.happened)) == (["x"], times)
    whole.close()


def test_a_composite_tool_is_entered_again_and_keeps_what_is_finished_inside(sf: Stepfast) -> None:
    inner_hand, left = Hand(), [Crash()]
    inner_hand.errors.clear()
    inner = graph_of([inner_hand.tool()])

    @tool
    def delegate(what: str) -> str:
        """Have it done."""
        done = said(inner.invoke(ASKED))
        if left:
            raise left.pop()
        return done

    asked = asks_for("delegate", {"what": "x"})
    made = durable(graph_of([composite(delegate)]), store=sf)
    with pytest.raises(Crash):
        made.run(asked, "r")
    assert said(made.run(None, "r")) == "did x"
    assert inner_hand.happened == ["x"]


def test_wrong_words_are_refused_where_they_are_given() -> None:
    graph = graph_of([Hand().tool()])
    for wrong in (
        {"policies": {"act": "maybe"}},
        {"policies": ["act"]},
        {"on_in_doubt": "maybe"},
        {"on_wait": "suspended"},
        {"on_drift": "acept"},
        {"on_error": "explode"},
        {"on_failed": "forget"},
        {"durability": "never"},
        {"labels": {"name": 5}},
        {"ttl_seconds": 0},
        {"lease_seconds": 0},
        {"wait": "long"},
        {"result": "state"},
        {"config": 5},
        {"run_id": 5},
    ):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            durable(graph, **wrong)  # type: ignore[arg-type]


# --- errors --------------------------------------------------------------------------------------------------


def test_an_error_of_a_tool_is_treated_as_langgraph_does(sf: Stepfast) -> None:
    hand = Hand(ConnectionError("the line is down"))
    whole = durable(graph_of([hand.tool()]), store=sf)
    with pytest.raises(ConnectionError):
        whole.run(ASKED, "r")
    assert said(whole.run(None, "r")) == "did x"
    assert hand.happened == ["x", "x"]


@pytest.mark.parametrize("on_wait", ["suspend", "block"])
def test_an_error_of_a_one_shot_tool_leaves_it_in_doubt(sf: Stepfast, on_wait: Any) -> None:
    hand = Hand(ConnectionError("the line is down"))
    whole = durable(graph_of([once(hand.tool())]), store=sf, on_wait=on_wait)
    if on_wait == "suspend":
        with pytest.raises(Suspended):
            whole.run(ASKED, "r")
        sf.answer("r", "retry")
        assert said(whole.run(None, "r")) == "did x"
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(whole.run, ASKED, "r")
            while not (sf.list_intents() and sf.decisions("r")):
                time.sleep(0.01)
            sf.answer("r", "retry")
            assert said(running.result(30)) == "did x"
    assert hand.happened == ["x", "x"]


def test_each_doubt_is_a_question_of_its_own(sf: Stepfast) -> None:
    """A call that was repeated on somebody's word, and is cut short again, is not repeated on that same word."""
    hand = Hand()
    hand.errors.append(Crash())
    whole = crashed(sf, hand)
    with pytest.raises(Suspended):
        whole.run(None, "r")
    (first,) = sf.decisions("r")
    sf.answer("r", "retry", first["key"])
    with pytest.raises(Crash):
        whole.run(None, "r")
    with pytest.raises(Suspended):
        whole.run(None, "r")
    (second,) = sf.decisions("r")
    assert first["key"] != second["key"]
    assert hand.happened == ["x", "x"]
    sf.answer("r", "done", second["key"], value="seen x")
    assert said(whole.run(None, "r")) == "seen x"


def test_arguments_that_do_not_fit_leave_no_doubt(sf: Stepfast) -> None:
    hand = Hand()
    whole = durable(graph_of([once(hand.tool())]), store=sf)
    message = whole.run(asks_for("act", {"other": 1}), "r")["messages"][-1]
    assert (message.status, hand.happened) == ("error", [])


def test_an_error_that_is_an_answer_is_recorded(sf: Stepfast) -> None:
    @tool
    def act(what: str) -> str:
        """Act."""
        raise ToolException("no such thing")

    act.handle_tool_error = True
    state = durable(graph_of([once(act)]), store=sf).run(ASKED, "r")
    assert (said(state), state["messages"][-1].status) == ("no such thing", "error")


def test_an_interrupt_inside_a_tool_passes(sf: Stepfast) -> None:
    @tool
    def act(what: str) -> str:
        """Act."""
        return f"{what}: {interrupt('go on?')}"

    whole = durable(graph_of([act]), store=sf)
    with pytest.raises(Suspended):
        whole.run(ASKED, "r")
    assert said(whole.run(Command(resume="yes"), "r")) == "x: yes"


def test_an_artifact_that_cannot_be_stored_is_left_out(sf: Stepfast, caplog: pytest.LogCaptureFixture) -> None:
    @tool(response_format="content_and_artifact")
    def act(what: str) -> tuple[str, Any]:
        """Act."""
        return f"did {what}", object()

    with caplog.at_level(logging.WARNING, "stepfast"):
        state = durable(graph_of([act], saver=InMemorySaver()), store=sf).run(ASKED, "r")
    message = state["messages"][-1]
    assert isinstance(message, ToolMessage)
    assert (message.content, message.artifact) == ("did x", None)
    assert [r.message for r in caplog.records if "artifact of act" in r.message]

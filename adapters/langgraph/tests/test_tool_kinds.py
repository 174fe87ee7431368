"""Tools of every kind, made durable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from langchain.tools import ToolRuntime
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, ToolException, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, InjectedStore, ToolNode
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command

from adapters.langgraph.tests.desk import Desk, asks_for, fails_once
from adapters.langgraph.tests.kit import on
from stepfast import Stepfast
from stepfast_langgraph import StepfastSaver, durable_tool

SHAPES = ["node", "node-async", "tools", "tools-async", "agent", "agent-async", "branches"]


@pytest.fixture
def desk(saver: StepfastSaver) -> Iterator[Desk]:
    with Stepfast(saver.url) as client:
        yield Desk(saver, client, [])


def twice(desk: Desk, made: Any, *args: dict[str, Any], awaited: bool = False, store: Any = None) -> list[ToolMessage]:
    """What a tool told in a node that fails after its tools, and is then resumed."""
    fail = fails_once()
    tools = ToolNode([made], handle_tool_errors=True)

    def node(state: Any, config: RunnableConfig) -> Any:
        told = tools.invoke(state, config)
        fail()
        return told

    async def node_awaited(state: Any, config: RunnableConfig) -> Any:
        told = await tools.ainvoke(state, config)
        fail()
        return told

    builder: Any = StateGraph(MessagesState)
    builder.add_node("tools", node_awaited if awaited else node)
    builder.add_edge(START, "tools")
    graph, config = builder.compile(checkpointer=desk.saver, store=store), on("t")

    def go(given: Any) -> Any:
        return asyncio.run(graph.ainvoke(given, config)) if awaited else graph.invoke(given, config)

    with pytest.raises(ConnectionError):
        go(asks_for(made.name, *args))
    return [m for m in go(None)["messages"] if isinstance(m, ToolMessage)]


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("one_shot", [False, True])
def test_many_calls_side_by_side_are_kept_apart(desk: Desk, one_shot: bool, awaited: bool) -> None:
    def act(name: str, key: int) -> str:
        """Act, with parameters that are called like options."""
        time.sleep(0.01)
        return desk.act((name, key))

    async def act_awaited(name: str, key: int) -> str:
        """The same on the loop."""
        await asyncio.sleep(0.01)
        return desk.act((name, key))

    given = [{"name": "n", "key": number % 4} for number in range(8)]
    made = durable_tool(tool("act")(act_awaited if awaited else act), once=one_shot)
    told = twice(desk, made, *given, awaited=awaited)
    assert [m.content for m in told] == [f"did ('n', {number % 4})" for number in range(8)]
    assert len(desk.happened) == 8
    assert [m.tool_call_id for m in told] == [f"call-{number}" for number in range(8)]


@pytest.mark.parametrize("awaited", [False, True])
def test_what_the_graph_injects_is_handed_on_and_does_not_count_as_input(desk: Desk, awaited: bool) -> None:
    @tool
    def act(
        what: str,
        state: Annotated[Any, InjectedState],
        store: Annotated[Any, InjectedStore()],
        call_id: Annotated[str, InjectedToolCallId],
    ) -> str:
        """Act."""
        store.put(("seen",), "it", {"messages": len(state["messages"])})
        return desk.act(f"{what} in {call_id}")

    kept = InMemoryStore()
    told = twice(desk, durable_tool(act, once=True), {"what": "x"}, awaited=awaited, store=kept)
    assert told[0].content == "did x in call-0"
    assert desk.happened == ["x in call-0"]
    assert kept.get(("seen",), "it").value == {"messages": 1}  # type: ignore[union-attr]


def test_a_tools_runtime_is_handed_on(desk: Desk) -> None:
    @tool
    def act(what: str, runtime: ToolRuntime) -> str:
        """Act."""
        return desk.act(f"{what} {runtime.tool_call_id} {len(runtime.state['messages'])}")

    assert twice(desk, durable_tool(act), {"what": "x"})[0].content == "did x call-0 1"
    assert len(desk.happened) == 1


def test_an_artifact_comes_back_with_its_content(desk: Desk) -> None:
    @tool(response_format="content_and_artifact")
    def act(what: str) -> tuple[str, dict[str, Any]]:
        """Act."""
        return desk.act(what), {"rows": (1, 2)}

    told = twice(desk, durable_tool(act, once=True), {"what": "x"})
    assert (told[0].content, told[0].artifact) == ("did x", {"rows": (1, 2)})
    assert desk.happened == ["x"]


def test_a_tool_may_give_a_command_or_a_message(desk: Desk) -> None:
    @tool
    def go(what: str, call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Act, and change the state."""
        message = ToolMessage(desk.act(what), tool_call_id=call_id, artifact={"a": 1})
        return Command(update={"messages": [message]}) if what == "command" else message

    told = twice(desk, durable_tool(go), {"what": "command"}, {"what": "message"})
    assert [m.content for m in told] == ["did command", "did message"]
    assert sorted(desk.happened) == ["command", "message"]


@pytest.mark.parametrize("one_shot", [False, True])
def test_an_error_that_is_shown_to_the_model_is_a_finished_call(desk: Desk, one_shot: bool) -> None:
    @tool
    def act(what: str) -> str:
        """Act."""
        desk.act(what)
        raise ToolException("no such thing")

    told = twice(desk, durable_tool(act, once=one_shot), {"what": "x"})
    assert told[0].status == "error"
    assert "no such thing" in str(told[0].content)
    assert desk.happened == ["x"]


@pytest.mark.parametrize("awaited", [False, True])
def test_a_tool_class_of_ones_own_works(desk: Desk, awaited: bool) -> None:
    class Acting(BaseTool):
        name: str = "acting"
        description: str = "Acts."
        prefix: str = "p"

        def _run(self, what: str) -> str:
            return desk.act(self.prefix + what)

    made = durable_tool(Acting(prefix="q"))
    assert isinstance(made, Acting)
    assert twice(desk, made, {"what": "x"}, awaited=awaited)[0].content == "did qx"
    assert desk.happened == ["qx"]


def test_a_plain_function_becomes_a_tool(desk: Desk) -> None:
    def act(what: str) -> str:
        """Act."""
        return desk.act(what)

    made = durable_tool(act)
    assert (made.name, made.description, list(made.args)) == ("act", "Act.", ["what"])
    assert made.invoke({"what": "outside of a graph"}) == "did outside of a graph"


def test_arguments_that_do_not_fit_leave_no_record(desk: Desk) -> None:
    @tool
    def act(number: int) -> str:
        """Act."""
        return desk.act(number)

    told = twice(desk, durable_tool(act, once=True), {"number": "many"}, {"number": 2})
    assert [m.status for m in told] == ["error", "success"]
    assert desk.happened == [2]

"""Scenes for the crash matrix: an agent with tools, parallel branches and a subgraph; and a durable run that asks."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send, interrupt

from stepfast import DID_NOT_HAPPEN, Happened, Stepfast
from stepfast.testing import Stage, scene
from stepfast_langgraph import StepfastSaver, calls, durable, durable_tool

TOPICS = ("sea", "sky")
CALLS = [("look_up", {"what": "price"}), ("charge", {"who": "ada"}), ("look_up", {"what": "stock"})]


class State(TypedDict):
    """The outer graph's: a trail of what each node says it has done, and the agent's messages."""

    trail: Annotated[list[str], operator.add]
    messages: Annotated[list[BaseMessage], add_messages]


class Scripted(BaseChatModel):
    """Asks for some calls, and then says what they gave."""

    stage: Any
    wanted: list[tuple[str, dict[str, str]]] = CALLS

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        told = [str(message.content) for message in messages if message.type == "tool"]
        # Only with sync durability has LangGraph stored what a model is shown.
        shown = messages if self.stage.options.get("durability", "sync") == "sync" else None
        with self.stage.model("tell" if told else "call", shown) as receipt:
            calls = [{"name": name, "args": args, "id": f"{receipt}-{n}"} for n, (name, args) in enumerate(self.wanted)]
            answer = AIMessage("; ".join(told), id=receipt, tool_calls=[] if told else calls)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def the_graph(stage: Stage, saver: StepfastSaver) -> Any:
    def charged(who: str) -> Any:
        answer = stage.answer_of("charge")
        return DID_NOT_HAPPEN if answer is None else Happened(answer)

    @tool
    def look_up(what: str) -> str:
        """Look something up."""
        return stage.effect("look_up", f"found {what}")

    @tool
    def charge(who: str) -> str:
        """Charge somebody."""
        return stage.effect("charge", f"charged {who}")

    def draft() -> str:
        return stage.effect("draft")

    def polish() -> str:
        return stage.effect("polish")

    tools = [durable_tool(look_up), durable_tool(charge, once=True, on_in_doubt=charged)]

    def plan(_: State) -> Any:
        return {"trail": [stage.effect("plan")], "messages": [("human", "buy it")]}

    def research(given: dict[str, str]) -> Any:
        return {"trail": [stage.effect(f"research {given['topic']}")]}

    def write(_: State) -> Any:
        return {"trail": [calls.step(draft), calls.step(polish), stage.effect("print")]}

    builder: Any = StateGraph(State)
    builder.add_node("plan", plan)
    builder.add_node("research", research)
    builder.add_node("agent", create_agent(Scripted(stage=stage), tools))
    builder.add_node("write", write)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda _: [Send("research", {"topic": topic}) for topic in TOPICS])
    builder.add_edge("research", "agent")
    builder.add_edge("agent", "write")
    return builder.compile(checkpointer=saver)


def in_thread(stage: Stage) -> list[str]:
    """The calls whose answers the thread holds, in any checkpoint or pending write."""
    with StepfastSaver(stage.url) as saver:
        found = list(saver.list({"configurable": {"thread_id": stage.run_id}}))
    return stage.shown_in([(each.checkpoint["channel_values"], each.pending_writes) for each in found])


def kept(stage: Stage) -> list[str]:
    """These, and the calls that the journals of the thread's tasks hold."""
    with Stepfast(stage.url) as sf:
        runs = [run for run in sf.list_intents(limit=200) if stage.run_id in (run["run_id"] or "")]
        steps = [each for run in runs for each in sf.steps(run["intent_id"]) if each["status"] == "FINISHED"]
    recorded = Counter[str](each["name"] for each in steps)
    return list((Counter(in_thread(stage)) | recorded).elements())


def buy(stage: Stage) -> Any:
    config = {"configurable": {"thread_id": stage.run_id}}
    with StepfastSaver(stage.url) as saver:
        graph = the_graph(stage, saver)
        # Whether it is to go on is not for `next` to say: that leaves out nodes that have finished in a superstep
        # that has not. On a thread that has ended, to go on is to do nothing.
        begun = graph.get_state(config).created_at is not None
        state = graph.invoke(
            None if begun else {"trail": []}, config, durability=stage.options.get("durability", "sync")
        )
    return [sorted(state["trail"]), [m.content for m in state["messages"] if m.type == "ai" and m.content]]


@scene(once=["charge"], at_once=3, finished=kept)
def agent(stage: Stage) -> Any:
    return buy(stage)


@scene(once=["charge"], at_once=9, finished=in_thread)
def not_sync(stage: Stage) -> Any:
    """LangGraph stores what a superstep did while the next one is at work already: only what is stored is kept."""
    return buy(stage)


@scene(at_once=99, finished=in_thread)
def at_exit(stage: Stage) -> Any:
    """A killed run left nothing to go on from: it starts over, and what it does is new work."""
    return buy(stage)


@scene(once=["send"], at_once=2, finished=kept)
def asking(stage: Stage) -> Any:
    """A durable run of the functional API: tasks side by side, a question, and a one-shot."""

    def send() -> str:
        return stage.effect("send")

    @task
    def work(name: str) -> str:
        return calls.once(send) if name == "send" else stage.effect(name)

    @entrypoint()
    def flow(given: list[str]) -> Any:
        done = [part.result() for part in [work(name) for name in given]]
        return [done, interrupt("Send it?"), work("send").result()]

    return durable(flow, store=stage.url, max_delivery_attempts=20).run(["left", "right"], stage.run_id)


@scene(once=["charge", "mail"], at_once=3, finished=kept)
def silent(stage: Stage) -> Any:
    """A durable agent with tools as they are: one may be repeated, the others are asked about."""

    @tool
    def look_up(what: str) -> str:
        """Look something up."""
        return stage.effect("look_up", f"found {what}")

    @tool
    def charge(who: str) -> str:
        """Charge somebody."""
        return stage.effect("charge", f"charged {who}")

    @tool
    def mail(who: str) -> str:
        """Write to somebody."""
        return stage.effect("mail", f"wrote to {who}")

    wanted = [("look_up", {"what": "price"}), ("charge", {"who": "ada"}), ("mail", {"who": "bob"})]
    made = create_agent(Scripted(stage=stage, wanted=wanted), [look_up, charge, mail])
    agent = durable(made, store=stage.url, policies={"look_*": "retry", "*": "ask"}, max_delivery_attempts=20)
    state = agent.run({"messages": [("human", "buy it")]}, stage.run_id)
    return [m.content for m in state["messages"] if m.type == "ai" and m.content]

"""Graphs with side effects in a process of its own, so that a test can kill it in the middle of a call.

Each effect is a line in the file *effects* of a folder. An effect that is named in the file *deadly* takes place, and
then the process is gone.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send

from stepfast import Stepfast
from stepfast_langgraph import StepfastSaver, calls, durable_tool

CALLS = [{"name": "act", "args": {"what": name}, "id": f"call-{name}"} for name in "abc"]


class Scripted(BaseChatModel):
    """Asks for three calls, and then says what they gave."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        told = [message.content for message in messages if message.type == "tool"]
        answer = AIMessage(" ".join(map(str, told))) if told else AIMessage("", tool_calls=CALLS)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def effect(folder: Path, what: str) -> str:
    """Something that happens in the world, and on which the process may die."""
    with (folder / "effects").open("a") as lines:
        lines.write(f"{what}\n")
    deadly = folder / "deadly"
    if deadly.exists() and what in deadly.read_text().split():
        deadly.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"did {what}"


def others_are_recorded(url: str) -> None:
    """Wait until two calls are on record: those side by side with a deadly one have then come to their end."""
    with Stepfast(url) as client:
        while sum(s["status"] == "FINISHED" for i in client.list_intents() for s in client.steps(i["intent_id"])) < 2:
            time.sleep(0.01)


def _tool(url: str, folder: Path, one_shot: bool, awaited: bool = False) -> Any:
    def act(what: str) -> str:
        """Act."""
        return effect(folder, what)

    async def act_awaited(what: str) -> str:
        """Act."""
        if what == "c":
            await asyncio.to_thread(others_are_recorded, url)
        return effect(folder, what)

    made = tool("act")(act_awaited if awaited else act)
    return durable_tool(made, once=one_shot)


def graph_of(url: str, shape: str, folder: Path, saver: Any) -> tuple[Any, Any]:
    """A graph that makes the calls a, b and c, and the input it starts with."""
    kind, _, how = shape.partition("-")
    one_shot = "once" in how

    def make(function: Callable[..., Any], *args: Any, inputs: Any = None) -> Any:
        chosen = calls.options(inputs=inputs)
        return (chosen.once if one_shot else chosen.step)(function, *args)

    def node(_: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(" ".join(make(effect, folder, name, inputs=name) for name in "abc"))]}

    async def node_awaited(_: Any) -> dict[str, Any]:
        async def act(name: str) -> str:
            return effect(folder, name)

        return {"messages": [AIMessage(" ".join([await make(act, name) for name in "abc"]))]}

    def branch(given: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(make(effect, folder, given["what"], inputs=given["what"]))]}

    builder: Any = StateGraph(MessagesState)
    if kind == "agent":
        made = create_agent(Scripted(), [_tool(url, folder, one_shot, "async" in how)], checkpointer=saver)
        return made, {"messages": [("user", "go")]}
    if kind == "tools":
        builder.add_node("act", ToolNode([_tool(url, folder, one_shot, "async" in how)]))
        builder.add_edge(START, "act")
        return builder.compile(checkpointer=saver), {"messages": [AIMessage("", tool_calls=CALLS)]}
    if kind == "branches":
        builder.add_node("branch", branch)
        builder.add_conditional_edges(START, lambda _: [Send("branch", {"what": name}) for name in "abc"])
        return builder.compile(checkpointer=saver), {"messages": []}
    if "async" in how:
        builder.add_node("act", node_awaited)
    else:
        builder.add_node("act", node)
    builder.add_edge(START, "act")
    return builder.compile(checkpointer=saver), {"messages": []}


def main(url: str, folder: Path, shape: str, what: str, key: str | None) -> None:
    """``what``: *start*, *resume*, or the JSON of what to resume with."""
    if key is not None:
        os.environ["STEPFAST_API_KEY"] = key
    with StepfastSaver(url) as saver:
        graph, given = graph_of(url, shape, folder, saver)
        if what != "start":
            given = None if what == "resume" else Command(resume=json.loads(what))
        options: dict[str, Any] = {"durability": "sync"}
        one_by_one = {"configurable": {"thread_id": str(folder)}, "max_concurrency": 1}
        if "async" in shape:
            state = asyncio.run(graph.ainvoke(given, one_by_one, **options))
        else:
            state = graph.invoke(given, one_by_one, **options)
        stops = state.get("__interrupt__") or ()
        told = [m.content for m in state["messages"] if m.type in ("ai", "tool") and m.content]
        ended = {"told": told, "stops": [{"id": i.id, **i.value} for i in stops]}
        (folder / "ended").write_text(json.dumps(ended))


# Its children have everything imported, and none of the threads that a test process has.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


def run(url: str, folder: Path, shape: str, what: str = "resume") -> Any:
    """What came of it in a process of its own; None if that was killed."""
    ended = folder / "ended"
    ended.unlink(missing_ok=True)
    process = _processes.Process(target=main, args=(url, folder, shape, what, os.environ.get("STEPFAST_API_KEY")))
    process.start()
    process.join(60)
    if process.exitcode == -signal.SIGKILL:
        return None
    assert process.exitcode == 0, f"it ended with {process.exitcode}"
    return json.loads(ended.read_text())


def effects(folder: Path) -> list[str]:
    """What took place, in order."""
    return (folder / "effects").read_text().split()

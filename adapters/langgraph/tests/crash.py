"""A ReAct agent with tools, parallel branches and a subgraph, killed at every boundary and started again.

``python -m adapters.langgraph.tests.crash [--url URL] [--points N] [--lines N] [--kills N] [--durability MODE]``.
Without a URL every life has an embedded store in its own folder. It runs in a process of its own, because the
harness forks. What it prints is what it covered; it ends with 1 if any cut broke anything.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import random
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send

from stepfast import DID_NOT_HAPPEN, Happened
from stepfast.testing import CrashTestFailed, Effects, every_failpoint, every_line, explore
from stepfast_langgraph import StepfastSaver, durable_tool, step

TOPICS = ("sea", "sky")
CALLS = [
    {"name": "look_up", "args": {"what": "price"}, "id": "call-1"},
    {"name": "charge", "args": {"who": "ada"}, "id": "call-2"},
    {"name": "look_up", "args": {"what": "stock"}, "id": "call-3"},
]
ANSWER = "found price; charged ada; found stock"
TRAIL = sorted(["plan", *(f"research:{topic}" for topic in TOPICS), "wrote", "end"])
# What a crash may leave done twice: done, and killed before it could be recorded.
ONCE_ONLY = "charge:ada"


class State(TypedDict):
    """The outer graph's: a trail of what each node says it has done, and the agent's messages."""

    trail: Annotated[list[str], operator.add]
    messages: Annotated[list[BaseMessage], add_messages]


class Scripted(BaseChatModel):
    """Asks for three calls, and then says what they gave; every call of it is an effect."""

    folder: str

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        told = [str(message.content) for message in messages if message.type == "tool"]
        Effects(Path(self.folder)).record(f"model:{len(told)}")
        answer = AIMessage("; ".join(told)) if told else AIMessage("", tool_calls=CALLS)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def the_graph(folder: Path, saver: StepfastSaver) -> Any:
    effects = Effects(folder)

    def charged(who: str) -> Any:
        return Happened(f"charged {who}") if f"charge:{who}" in effects.counts() else DID_NOT_HAPPEN

    @tool
    def look_up(what: str) -> str:
        """Look something up."""
        effects.record(f"look_up:{what}")
        return f"found {what}"

    @tool
    def charge(who: str) -> str:
        """Charge somebody."""
        effects.record(f"charge:{who}")
        return f"charged {who}"

    tools = [durable_tool(look_up), durable_tool(charge, once=True, on_in_doubt=charged)]
    agent = create_agent(Scripted(folder=str(folder)), tools)

    def act(label: str) -> str:
        effects.record(label)
        return label

    def plan(_: State) -> dict[str, Any]:
        return {"trail": [act("plan")], "messages": [("human", "buy it")]}

    def research(given: dict[str, str]) -> dict[str, Any]:
        return {"trail": [act(f"research:{given['topic']}")]}

    def write(_: State) -> dict[str, Any]:
        for part in ("one", "two", "three"):
            step(act, f"write:{part}")
        return {"trail": [act("wrote")]}

    def end(_: State) -> dict[str, Any]:
        return {"trail": [act("end")]}

    builder = StateGraph(State)
    for name, node in (("plan", plan), ("research", research), ("write", write), ("end", end)):
        builder.add_node(name, node)  # type: ignore[call-overload]
    builder.add_node("agent", agent)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda _: [Send("research", {"topic": topic}) for topic in TOPICS])
    builder.add_edge("research", "agent")
    builder.add_edge("agent", "write")
    builder.add_edge("write", "end")
    builder.add_edge("end", END)
    return builder.compile(checkpointer=saver)


class Play:
    """The scenario and its laws, on one kind of store."""

    def __init__(self, url: str | None, durability: str) -> None:
        self._url = url
        self._durability = durability

    def _open(self, folder: Path) -> tuple[StepfastSaver, dict[str, Any]]:
        saver = StepfastSaver(self._url or f"sqlite:///{folder}/store.db")
        return saver, {"configurable": {"thread_id": f"{folder.parent.name}-{folder.name}"}}

    def scenario(self, folder: Path) -> None:
        saver, config = self._open(folder)
        with saver:
            graph = the_graph(folder, saver)
            # Whether it is to go on is not for `next` to say: that leaves out nodes that have finished in a superstep
            # that has not. On a thread that has ended, to go on is to do nothing.
            begun = graph.get_state(config).created_at is not None
            graph.invoke(None if begun else {"trail": []}, config, durability=self._durability)

    def at_the_cut(self, folder: Path) -> None:
        """What the store shows as finished now must not be done again: note how often it was done so far."""
        saver, config = self._open(folder)
        with saver:
            kept = kept_labels(saver, config["configurable"]["thread_id"])
        done = Effects(folder).counts()
        missing = [label for label in kept if label not in done]
        assert not missing, f"the store shows {missing}, which never happened"
        (folder / "at_the_cut").write_text(json.dumps({label: done[label] for label in kept}))

    def check(self, folder: Path) -> None:
        saver, config = self._open(folder)
        with saver:
            state = the_graph(folder, saver).get_state(config)
        done = Effects(folder).counts()
        assert not state.tasks, f"not finished: {state.tasks}"
        assert sorted(state.values["trail"]) == TRAIL, state.values["trail"]
        answers = [m.content for m in state.values["messages"] if m.type == "ai" and m.content]
        assert answers == [ANSWER], answers
        # In exit mode a killed run left nothing to go on from: it starts over, and what it does is new work.
        assert done[ONCE_ONLY] == 1 or self._durability == "exit", f"charged {done[ONCE_ONLY]} times"
        cut = folder / "at_the_cut"
        if cut.exists():
            repeated = {
                label: (before, done[label])
                for label, before in json.loads(cut.read_text()).items()
                if done[label] != before
            }
            assert not repeated, f"finished, and done again: {repeated}"


def kept_labels(saver: StepfastSaver, thread_id: str) -> set[str]:
    """The nodes, model calls and tools whose results the thread holds, in any checkpoint or pending write."""
    found: set[str] = set()
    for kept in saver.list({"configurable": {"thread_id": thread_id}}):
        written = [(channel, value) for _, channel, value in kept.pending_writes or []]
        for channel, value in [*kept.checkpoint["channel_values"].items(), *written]:
            if channel == "trail":
                found.update(value)
            elif channel == "messages":
                messages = value if isinstance(value, list) else [value]
                found.update(filter(None, map(_label_of, messages)))
    return found


def _label_of(message: Any) -> str | None:
    kind = getattr(message, "type", None)
    if kind == "ai":
        return "model:0" if message.tool_calls else f"model:{len(CALLS)}"
    if kind == "tool":
        verb, _, what = str(message.content).partition(" ")
        return f"{'look_up' if verb == 'found' else 'charge'}:{what}"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m adapters.langgraph.tests.crash")
    parser.add_argument("--url", help="a shared store; each life is a thread of its own there")
    parser.add_argument("--points", type=int, help="how many of the named places; default all")
    parser.add_argument("--lines", type=int, default=0, help="and so many of the adapter's executed lines")
    parser.add_argument("--kills", type=int, default=1, help="2: the recovery is killed too")
    parser.add_argument("--durability", default="sync", choices=("sync", "async", "exit"))
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args(arguments)
    os.environ["LANGSMITH_TRACING"] = "false"
    play = Play(chosen.url, chosen.durability)
    kill = partial(
        explore,
        play.scenario,
        play.check,
        after_kill=play.at_the_cut if chosen.durability != "exit" else None,
        kills=chosen.kills,
        seed=chosen.seed,
        jobs=chosen.jobs,
    )
    try:
        print("failpoints:", kill(at=every_failpoint(), max_points=chosen.points), f"seed {chosen.seed}")
        if chosen.lines:
            print("lines:", kill(at=every_line("stepfast_langgraph"), max_points=chosen.lines))
    except CrashTestFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Graphs of a user's program whose threads and runs lie in the stored fixtures; ``effect`` counts what they do."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import numpy as np
import pandas as pd
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import CachePolicy, interrupt
from typing_extensions import TypedDict

from tests.old_stores import shop

Colour, Order = shop.Colour, shop.Order

Effect = Callable[[str], None]


class Chat(TypedDict, total=False):
    messages: Annotated[list[BaseMessage], add_messages]
    notes: Annotated[list[Any], operator.add]
    data: dict[str, Any]


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def data() -> dict[str, Any]:
    return {
        "order": Order("4711", 1250, ["new"], Colour.BLUE),
        "tuple": (1, "two"),
        "set": {1, 2},
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        "array": np.arange(6, dtype="int16").reshape(2, 3),
        "frame": pd.DataFrame({"city": ["Oslo", "Bern"], "degrees": [3.5, 7.0]}),
        "error": ValueError("no", 3),
        "long": "a line of a long text\n" * 300,
    }


def chat(effect: Effect) -> Any:
    def answer(state: Any) -> Any:
        number = len(state["messages"])
        effect(f"answer {number}")
        return {
            "messages": [AIMessage(f"That was number {number}.", id=f"ai-{number}")],
            "notes": [("note", number)],
            "data": data(),
        }

    graph: Any = StateGraph(Chat)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    return graph


def said(number: int) -> dict[str, Any]:
    return {"messages": [HumanMessage(f"hello {number}", id=f"human-{number}")]}


def asking(effect: Effect) -> Any:
    """Asks a person in its second node."""

    def draft(state: Any) -> Any:
        effect("draft")
        return {"log": ["draft"]}

    def publish(state: Any) -> Any:
        answer = interrupt({"ask": "Publish it?", "order": Order("8", 8)})
        effect("publish")
        return {"log": [f"published: {answer}"]}

    return _chain(draft, publish)


def branches(effect: Effect) -> Any:
    """One branch has finished while the other asks."""

    def quick(state: Any) -> Any:
        effect("quick")
        return {"log": ["quick"]}

    def slow(state: Any) -> Any:
        answer = interrupt("Go on?")
        effect("slow")
        return {"log": [f"slow: {answer}"]}

    def join(state: Any) -> Any:
        effect("join")
        return {"log": ["join"]}

    graph: Any = StateGraph(Log)
    for node in (quick, slow, join):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "quick")
    graph.add_edge(START, "slow")
    graph.add_edge(["quick", "slow"], "join")
    graph.add_edge("join", END)
    return graph


def nested(effect: Effect) -> Any:
    """A graph in a node, which asks."""

    def before(state: Any) -> Any:
        effect("before")
        return {"log": ["before"]}

    def after(state: Any) -> Any:
        effect("after")
        return {"log": ["after"]}

    inner = asking(effect).compile()
    graph: Any = StateGraph(Log)
    graph.add_node("before", before)
    graph.add_node("inner", inner)
    graph.add_node("after", after)
    graph.add_edge(START, "before")
    graph.add_edge("before", "inner")
    graph.add_edge("inner", "after")
    return graph


def three(effect: Effect) -> Any:
    """Three nodes, each with an effect."""

    def first(state: Any) -> Any:
        effect("first")
        return {"log": ["first"]}

    def second(state: Any) -> Any:
        effect("second")
        return {"log": ["second"]}

    def third(state: Any) -> Any:
        effect("third")
        return {"log": ["third"]}

    return _chain(first, second, third)


def calling(effect: Effect, step: Any, once: Any) -> Any:
    """A finished call, and a one-shot call, in one node."""

    def fetch(topic: str, order: Any) -> str:
        effect("fetch")
        return f"all about {topic}"

    def charge(text: str, cents: int) -> str:
        effect("charge")
        return f"receipt for {text}, {cents}"

    def work(state: Any) -> Any:
        text = step(fetch, state["log"][0], Order("9", 9))
        return {"log": [once(charge, text, 42)]}

    return _chain(work)


def tools(effect: Effect, durable_tool: Any) -> Any:
    """Two tool calls of a model's answer, one-shot."""

    @tool
    def act(what: str) -> str:
        """Act."""
        effect(f"act {what}")
        return f"did {what}"

    def model(state: Any) -> Any:
        if state["messages"][-1].type == "tool":
            effect("model at the end")
            return {"messages": [AIMessage("All done.", id="ai-end")]}
        effect("model")
        calls = [{"name": "act", "args": {"what": what}, "id": f"call-{what}", "type": "tool_call"} for what in "a"]
        return {"messages": [AIMessage("", tool_calls=calls, id="ai-calls")]}

    graph: Any = StateGraph(Chat)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode([durable_tool(act, once=True)]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    graph.add_edge("tools", "model")
    return graph


def cached(effect: Effect) -> Any:
    def slow(state: Any) -> Any:
        effect("slow")
        return {"log": [state["log"][0] * 2]}

    slow.__module__ = "graphs"  # LangGraph knows a cached node by its module, which had this name when it was stored
    graph: Any = StateGraph(Log)
    graph.add_node("slow", slow, cache_policy=CachePolicy())
    graph.add_edge(START, "slow")
    return graph


def embed(texts: Any) -> list[list[float]]:
    return [[float(len(text)), float(text.count("a")), 1.0] for text in texts]


def _chain(*nodes: Any) -> Any:
    graph: Any = StateGraph(Log)
    last = START
    for node in nodes:
        graph.add_node(node.__name__, node)
        graph.add_edge(last, node.__name__)
        last = node.__name__
    return graph


def plain(value: Any) -> Any:
    """A value of a state as JSON can hold it, the same with every version of the frameworks."""
    if isinstance(value, BaseMessage):
        return {
            "type": value.type,
            "id": value.id,
            "content": value.content,
            "tool_calls": [
                {"name": c["name"], "args": c["args"], "id": c["id"]} for c in getattr(value, "tool_calls", ())
            ],
        }
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), value.tolist()]
    if isinstance(value, pd.DataFrame):
        return ["frame", value.to_dict("list")]
    if isinstance(value, str) and len(value) > 100:
        return f"{value[:20]}… {len(value)} {zlib.crc32(value.encode())}"
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return repr(value)


def history(graph: Any, config: Any) -> list[Any]:
    """Every state of a thread, newest first."""
    return [
        {
            "values": plain(state.values),
            "next": list(state.next),
            "source": state.metadata["source"],
            "step": state.metadata["step"],
            "id": state.config["configurable"]["checkpoint_id"],
            "created_at": state.created_at,
            "tasks": [
                [task.name, repr(task.error) if task.error else None, plain([i.value for i in task.interrupts])]
                for task in state.tasks
            ],
        }
        for state in graph.get_state_history(config)
    ]

"""A place for tests of side effects: a saver on its store, a client beside it, and a list of what happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from stepfast import Stepfast
from stepfast_langgraph import StepfastSaver


class Desk(NamedTuple):
    """A saver on its store, a client beside it, and what happened in the world."""

    saver: StepfastSaver
    client: Stepfast
    happened: list[Any]

    def act(self, what: Any) -> str:
        self.happened.append(what)
        return f"did {what}"

    def graph(self, *nodes: Any, **options: Any) -> Any:
        builder: Any = StateGraph(MessagesState)
        before = START
        for number, node in enumerate(nodes):
            builder.add_node(f"n{number}", node, **options)
            builder.add_edge(before, f"n{number}")
            before = f"n{number}"
        return builder.compile(checkpointer=self.saver)

    def runs(self) -> dict[str, str]:
        return {i["labels"]["langgraph.node"]: i["status"] for i in self.client.list_intents()}


def say(*texts: str) -> dict[str, Any]:
    """A node's output."""
    return {"messages": [AIMessage(" ".join(texts))]}


def asks_for(name: str, *args: dict[str, Any]) -> dict[str, Any]:
    """What a model asks for: a call of a tool with each of these arguments."""
    asked = [{"name": name, "args": given, "id": f"call-{n}"} for n, given in enumerate(args)]
    return {"messages": [AIMessage("", tool_calls=asked)]}


def fails_once() -> Callable[[], None]:
    """A function that raises the first time."""
    left = [ConnectionError("the line is down")]

    def fail() -> None:
        if left:
            raise left.pop()

    return fail

"""Graphs that leave a trace of every node, and die where they are told to: what the tests of durable runs share."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt

from stepfast import Suspended
from stepfast.testing.processes import Child, Effects, Ended, Note
from stepfast_langgraph import StepfastSaver, durable

Graph = Any


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    parts: list[str]


class World:
    """A folder in which children work, one after another: their store, their effects, and what killed them."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self.folder = folder
        self.url = url or f"sqlite:///{folder}/runs.db?durability=process"
        self.effects = Effects(folder)

    def die(self, where: str) -> None:
        """The process that first comes here ends here, without a word."""
        try:
            (self.folder / f"died-{where}").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def saver(self) -> StepfastSaver:
        return StepfastSaver(self.url)

    def wait_for_writes(self, thread_id: str, count: int) -> None:
        """Until so many finished tasks of the superstep under way are on record."""
        with self.saver() as saver:
            while True:
                found = saver.get_tuple({"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}})
                if found is not None and len({write[0] for write in found.pending_writes or ()}) >= count:
                    return
                time.sleep(0.005)

    def node(self, name: str, *, dies: bool = False, before: Callable[[], None] | None = None) -> Callable[[Any], Any]:
        """A node that has an effect, dies after it the first time if it is to, and logs its name."""

        def run(_state: Any) -> dict[str, list[str]]:
            if before is not None:
                before()
            self.effects.record(name)
            if dies:
                self.die(name)
            return {"log": [name]}

        return run


def chain(world: World, saver: Any, *names: str, dies: str = "") -> Graph:
    """Nodes one after another."""
    return links(world, *names, dies=dies).compile(checkpointer=saver)


def links(world: World, *names: str, dies: str = "") -> StateGraph[Any]:
    """The same, to add more to."""
    graph = StateGraph(Log)
    before = START
    for name in names:
        graph.add_node(name, world.node(name, dies=name == dies))
        graph.add_edge(before, name)
        before = name
    return graph


def fan(world: World, saver: Any) -> Graph:
    """Two branches at a time; the second dies when the first has finished."""
    graph = StateGraph(Log)
    graph.add_node("left", world.node("left"))
    graph.add_node("right", world.node("right", dies=True, before=lambda: world.wait_for_writes("r", 1)))
    graph.add_node("join", world.node("join"))
    for side in ("left", "right"):
        graph.add_edge(START, side)
        graph.add_edge(side, "join")
    return graph.compile(checkpointer=saver)


def sends(world: World, saver: Any) -> Graph:
    """A node for each part, by Send; one dies when the two others have finished."""

    def work(state: Any) -> dict[str, list[str]]:
        part = state["part"]
        if part == "c":
            world.wait_for_writes("r", 2)
        return world.node(f"part {part}", dies=part == "c")(state)

    graph = StateGraph(Log)
    graph.add_node("split", world.node("split"))
    graph.add_node("work", work)
    graph.add_node("join", world.node("join"))
    graph.add_edge(START, "split")
    graph.add_conditional_edges("split", lambda _: [Send("work", {"part": part}) for part in "abc"], ["work"])
    graph.add_edge("work", "join")
    return graph.compile(checkpointer=saver)


def nested(world: World, saver: Any) -> Graph:
    """A graph in a node of another; the inner one dies in its second node."""
    inner = chain(world, None, "inner 1", "inner 2", "inner 3", dies="inner 2")
    graph = StateGraph(Log)
    graph.add_node("first", world.node("first"))
    graph.add_node("inside", inner)
    graph.add_node("last", world.node("last"))
    graph.add_edge(START, "first")
    graph.add_edge("first", "inside")
    graph.add_edge("inside", "last")
    return graph.compile(checkpointer=saver)


def functional(world: World, saver: Any) -> Graph:
    """The functional API: three tasks, of which the last dies when the others are on record."""

    @task
    def work(name: str) -> str:
        if name == "three":
            world.wait_for_writes("r", 2)
        world.node(name, dies=name == "three")(None)
        return name

    @entrypoint(checkpointer=saver)
    def flow(given: dict[str, Any]) -> dict[str, Any]:
        return {"log": [*given["log"], *(work(name).result() for name in ("one", "two", "three"))]}

    return flow


def asking(world: World, saver: Any, *, dies: bool = False) -> Graph:
    """A node that asks a person, and may die when it has the answer."""

    def ask(_state: Any) -> dict[str, list[str]]:
        answer = interrupt({"question": "Send it?", "amount": 12})
        world.effects.record(f"answered {answer}")
        if dies:
            world.die("answered")
        return {"log": [f"answer {answer}"]}

    graph = StateGraph(Log)
    graph.add_node("draft", world.node("draft"))
    graph.add_node("ask", ask)
    graph.add_node("send", world.node("send"))
    graph.add_edge(START, "draft")
    graph.add_edge("draft", "ask")
    graph.add_edge("ask", "send")
    graph.add_edge("send", END)
    return graph.compile(checkpointer=saver)


Make = Callable[[World, Any], Graph]


def attempt(world: World, make: Make, given: Any, run_id: str = "r", *, on_loop: bool = False, **options: Any) -> Ended:
    """One process that starts or resumes the run; notes its result, or that it waits."""

    def body(note: Note) -> None:
        made = durable(make(world, world.saver()), max_delivery_attempts=10)
        try:
            if on_loop:
                note({"result": asyncio.run(made.arun(given, run_id, **options))})
            else:
                note({"result": made.run(given, run_id, **options)})
        except Suspended as waiting:
            note({"waits": waiting.decisions})

    return Child(body).wait(60)


def outcome(ended: Ended) -> Any:
    """What a process that lived noted last."""
    assert ended.code == 0, ended.why
    return ended.notes[-1]

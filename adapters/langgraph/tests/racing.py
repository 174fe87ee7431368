"""Runs in processes of their own, which start quickly: they are forked from one that has imported all it takes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypedDict

from langgraph.graph import START, StateGraph

from adapters.langgraph.tests.kit import on, put, until
from stepfast_langgraph import LostUpdate, StepfastSaver

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["adapters.langgraph.tests.racing", "stepfast_langgraph._turns"])


class State(TypedDict):
    total: int
    go: int


def adding_graph(saver: Any, inside: Any = None) -> Any:
    """Adds 10 to what it read, not with a reducer: an update that is lost is missing at the end."""

    def add(state: State) -> dict[str, int]:
        if inside is not None:
            inside()
        return {"total": state["total"] + 10}

    graph: Any = StateGraph(State)
    graph.add_node("add", add)
    graph.add_edge(START, "add")
    return graph.compile(checkpointer=saver)


def until_stored(graph: Any, config: Any) -> None:
    """Wait for the checkpoint before the node: LangGraph saves it in the background, while the node runs already."""
    until(lambda: graph.get_state(config).next == ("add",))


def run(url: str, api_key: str | None, thread: str, mode: Any, holds: bool, pipe: Any) -> None:
    """The program of such a process: says when it is ready, waits for the word, runs, and says how that ended.

    One that ``holds`` stays inside its node until it is killed.
    """

    def inside() -> None:
        pipe.send("inside")
        pipe.recv()

    with StepfastSaver(url, api_key=api_key, on_conflict=mode) as saver:
        graph = adding_graph(saver, inside if holds else None)
        pipe.send("ready")
        pipe.recv()
        try:
            graph.invoke({"go": 1}, {"configurable": {"thread_id": thread}}, durability="sync")
        except LostUpdate:
            pipe.send("lost")
        else:
            pipe.send("added")


class Racer:
    """One such process, and the pipe to it."""

    def __init__(self, url: str, thread: str, mode: str, holds: bool = False) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        key = os.environ.get("STEPFAST_API_KEY") if url.startswith("http") else None
        self.process = _CONTEXT.Process(target=run, args=(url, key, thread, mode, holds, theirs))
        self.process.start()
        theirs.close()

    def says(self) -> str:
        assert self._pipe.poll(60), "it said nothing"
        said: str = self._pipe.recv()
        return said

    def go(self) -> None:
        self._pipe.send("go")

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self._pipe.close()


@contextmanager
def racers(count: int, url: str, thread: str, mode: str, holds: bool = False) -> Iterator[list[Racer]]:
    made = [Racer(url, thread, mode, holds) for _ in range(count)]
    try:
        for one in made:
            assert one.says() == "ready"
        yield made
    finally:
        for one in made:
            one.end()


def _put_and_die(url: str, pipe: Any) -> None:
    saver = StepfastSaver(url, gather_seconds=0.05)
    saved = put(saver, on("t"), x=1)
    saver.put_writes(saved, [("c", 1)], "task")
    pipe.send("returned")
    os.kill(os.getpid(), signal.SIGKILL)


def put_and_die(url: str) -> None:
    """A process puts a checkpoint and writes, and is killed as soon as both calls have returned."""
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_put_and_die, args=(url, theirs))
    process.start()
    theirs.close()
    assert ours.recv() == "returned"
    process.join()
    assert process.exitcode == -signal.SIGKILL
    ours.close()

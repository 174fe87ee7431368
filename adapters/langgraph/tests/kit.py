"""What the tests of this adapter share: savers, small graphs, stores that count."""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict
from uuid import uuid4

from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import END, START, StateGraph

from stepfast import Store
from stepfast_langgraph import StepfastSaver

KINDS = ("sqlite", "postgres", "http+sqlite", "http+postgres")


class Counted(TypedDict):
    """A number that is added up, and a log that grows."""

    number: Annotated[int, operator.add]
    log: Annotated[list[str], operator.add]


def on(thread_id: Any = None, **more: Any) -> Any:
    """A config that names a thread."""
    return {"configurable": {"thread_id": thread_id or uuid4().hex, **more}}


def counting_graph(saver: Any, step: Callable[[Counted], dict[str, Any]] | None = None, steps: int = 1) -> Any:
    """A graph that runs one node ``steps`` times; by default each adds 1."""

    def plain(state: Counted) -> dict[str, Any]:
        return {"number": 1, "log": [f"step {len(state['log'])}"]}

    graph: Any = StateGraph(Counted)
    graph.add_node("step", step or plain)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: END if len(state["log"]) % steps == 0 else "step")
    return graph.compile(checkpointer=saver)


def until(condition: Callable[[], Any]) -> None:
    """Wait for what another thread is about to bring about."""
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends, "it never came"
        time.sleep(0.001)


def checkpoint(**values: Any) -> Any:
    """A checkpoint as LangGraph would make it."""
    versions = dict.fromkeys(values, "00000000000000000000000000000001.0.5")
    return {
        "v": 4,
        "id": str(uuid6(clock_seq=-1)),
        "ts": "2026-11-16T12:00:00+00:00",
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {},
        "updated_channels": None,
    }


def put(saver: StepfastSaver, config: Any, source: str = "loop", step: int = 0, **values: Any) -> Any:
    """Put a checkpoint with these values after the one that the config names."""
    made = checkpoint(**values)
    metadata: Any = {"source": source, "step": step, "parents": {}}
    return saver.put(config, made, metadata, made["channel_versions"])


class CountingStore(Store):
    """Passes everything on, and counts the batches that write."""

    def __init__(self, below: Store) -> None:
        super().__init__(below.url, below.clock)
        self.below = below
        self.tenant = below.tenant
        self.signals = below.signals
        self.batches: list[list[Any]] = []
        self._lock = threading.Lock()

    @property
    def commits(self) -> int:
        return sum(1 for batch in self.batches if any(not op.reads for op in batch))

    def count(self, kind: str) -> int:
        """How many operations of a kind there were."""
        return sum(type(op).__name__ == kind for batch in self.batches for op in batch)

    def _note(self, ops: Sequence[Any]) -> None:
        with self._lock:
            self.batches.append(list(ops))

    def execute(self, ops: Sequence[Any], *, tenant: str = "local") -> list[Any]:
        self._note(ops)
        return self.below.execute(ops, tenant=tenant)

    def submit(self, ops: Sequence[Any], done: Any, *, tenant: str = "local") -> None:
        self._note(ops)
        self.below.submit(ops, done, tenant=tenant)

    def close(self) -> None:
        self.below.close()

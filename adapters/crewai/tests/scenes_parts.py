"""Scenes for the crash matrix: memory, knowledge, planning, MCP and streams."""

import asyncio
import math
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crewai import Agent, Crew, Task
from crewai.flow.flow import Flow, listen, start
from crewai.flow.persistence import persist
from crewai.llms.base_llm import llm_call_context
from crewai.memory.types import MemoryRecord, ScopeInfo
from crewai.memory.unified_memory import Memory
from pydantic import PrivateAttr

from adapters.crewai.tests.kit import ScriptedLLM, call, outputs, text
from adapters.crewai.tests.scenes import kickoff, llm_of, look, tools_of
from stepfast.adapters import close_shared
from stepfast.testing import Stage, scene
from stepfast_crewai import StepfastFlowPersistence, durable


def embed(texts: list[str]) -> list[list[float]]:
    """A vector that counts words, so that equal texts are close and others are not."""
    vectors = [[0.0] * 32 for _ in texts]
    for vector, each in zip(vectors, texts, strict=True):
        for word in each.lower().split():
            vector[zlib.crc32(word.encode()) % 32] += 1.0
    return vectors


class Shelf:
    """A memory's storage in a file: importing CrewAI's own starts threads, and the matrix forks."""

    def __init__(self, path: Path, boundary: Callable[[str], None]) -> None:
        self.path = path
        self.boundary = boundary

    def _read(self) -> dict[str, MemoryRecord]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        records = [MemoryRecord.model_validate_json(line) for line in lines]
        return {record.id: record for record in records}

    def save(self, records: list[MemoryRecord]) -> None:
        self.boundary("memory.before")
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(each.model_dump_json() for each in [*self._read().values(), *records]))
        new.replace(self.path)
        self.boundary("memory.after")

    def get_record(self, record_id: str) -> MemoryRecord | None:
        return self._read().get(record_id)

    def search(self, query_embedding: list[float], limit: int = 10, **_: Any) -> list[tuple[MemoryRecord, float]]:
        def likeness(record: MemoryRecord) -> float:
            [vector] = embed([record.content])
            product = sum(a * b for a, b in zip(vector, query_embedding, strict=True))
            return product / max(math.hypot(*vector) * math.hypot(*query_embedding), 1e-9)

        found = [(record, likeness(record)) for record in self._read().values()]
        return sorted(found, key=lambda each: -each[1])[:limit]

    def list_records(self, *_: Any, **__: Any) -> list[MemoryRecord]:
        return list(self._read().values())

    def list_scopes(self, *_: Any) -> list[str]:
        return sorted({record.scope for record in self._read().values()})

    def list_categories(self, *_: Any, **__: Any) -> dict[str, int]:
        return {}

    def get_scope_info(self, scope: str) -> ScopeInfo:
        return ScopeInfo(path=scope, record_count=len(self._read()))


def remembering(messages: list[dict[str, Any]], receipt: str) -> Any:
    """What a memory's LLM says: the memories in a result, and where one of them belongs."""
    said = text(messages)
    if "Result: " in said:
        price = "price known" in said
        return {"memories": ["price is a fact", "forty-two coins"] if price else ["levy holds", "seven percent due"]}
    return {"suggested_scope": "/facts", "categories": ["facts"], "importance": 0.5}


@scene(at_once=3)
def remembered(stage: Stage) -> Any:
    """Two tasks with memory: what the first found is recalled for the second, and every memory is written once."""
    tools = tools_of(stage)

    def clerk(messages: list[dict[str, Any]], receipt: str) -> Any:
        topic = "price" if "Find the price" in text(messages) else "tax"
        if topic == "tax":
            assert "price is a fact" in text(messages)
        return f"{topic} known" if outputs(messages) else look(topic, receipt=receipt)

    librarian = llm_of(stage, "librarian", remembering)
    librarian.model = "librarian"
    memory = Memory(llm=librarian, storage=Shelf(stage.folder / "memory", stage.boundary), embedder=embed)
    llm = llm_of(stage, "clerk", clerk)
    agent = Agent(role="clerk", goal="find", backstory="finds", llm=llm, tools=[tools["price"], tools["tax"]])
    tasks = [
        Task(description=f"Find the {topic} of a lamp.", expected_output="it", agent=agent)
        for topic in ("price", "tax")
    ]
    found = kickoff(stage, Crew(agents=[agent], tasks=tasks, memory=memory))
    return [found.raw, sorted(record.content for record in memory.list_records())]


@scene()
def persisted(stage: Stage) -> Any:
    """A flow with @persist on the store of the run: its state is there when the flow has ended."""
    os.environ["CREWAI_STORAGE_DIR"] = str(stage.folder / "crewai")
    kept = StepfastFlowPersistence(stage.url)

    @persist(kept)
    class Adding(Flow):  # type: ignore[type-arg]
        _skip_auto_memory: bool = True
        suppress_flow_events: bool = True

        @start()
        def first(self) -> int:
            stage.effect("first")
            self.state["total"] = 1
            return 1

        @listen(first)
        def second(self, before: int) -> int:
            stage.effect("second")
            self.state["total"] += before
            return int(self.state["total"])

    flow = Adding()
    with durable(flow, run_id=stage.run_id, store=stage.url, max_delivery_attempts=20) as runs:
        total = runs.kickoff()
    state = kept.load_state(flow.state["id"])
    close_shared()
    return [total, state and state["total"]]


class Streaming(ScriptedLLM):
    """Emits its answers word by word."""

    _boundary: Any = PrivateAttr(default=None)

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        with llm_call_context():
            answer = super().call(messages, *args, **kwargs)
            for word in answer.split() if isinstance(answer, str) else ():
                self._emit_stream_chunk_event(word, kwargs.get("from_task"), kwargs.get("from_agent"))
                self._boundary("piece")
        return answer


@scene(once=["charge"], at_once=2)
def streamed(stage: Stage) -> Any:
    """A crew that streams, killed between its pieces too: what its consumer gets in the end is the whole result."""
    tools = tools_of(stage)

    def clerk(messages: list[dict[str, Any]]) -> Any:
        with stage.model("clerk", messages) as receipt:
            if "Charge" in text(messages):
                done = outputs(messages)
                return f"all of it: {done[-1]}" if done else call(("charge", {"amount": 42}), receipt=receipt)
            return "the price is known" if outputs(messages) else look("price", receipt=receipt)

    llm = Streaming(clerk)
    llm._boundary = stage.boundary
    agent = Agent(role="clerk", goal="pay", backstory="pays", llm=llm, tools=[tools["price"], tools["charge"]])
    tasks = [
        Task(description=words, expected_output="it", agent=agent) for words in ("Find the price.", "Charge the card.")
    ]
    os.environ["CREWAI_STORAGE_DIR"] = str(stage.folder / "crewai")
    crew = Crew(agents=[agent], tasks=tasks, stream=True)
    with durable(crew, run_id=stage.run_id, store=stage.url, max_delivery_attempts=20) as runs:
        if stage.options.get("way", "kickoff") == "kickoff":
            stream = runs.kickoff()
            pieces = [str(piece) for piece in stream]
        else:
            stream, pieces = asyncio.run(_consumed(runs))
    assert "known" in "".join(pieces)
    return [stream.result.raw, "".join(pieces).replace(" ", "")[-18:]]


async def _consumed(runs: Any) -> tuple[Any, list[str]]:
    stream = await runs.akickoff()
    return stream, [str(piece) async for piece in stream]

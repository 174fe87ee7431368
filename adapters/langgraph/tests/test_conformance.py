"""LangGraph's own conformance suite: every capability detected and passed, on every store, by both halves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate

from stepfast_langgraph import StepfastSaver

TESTS = 81  # as many as the suite has in the version that is pinned
CAPABILITIES = 8


class Blocking(BaseCheckpointSaver[str]):
    """The blocking half, as the suite sees it: it only knows async methods."""

    def __init__(self, saver: StepfastSaver) -> None:
        super().__init__()
        self.saver = saver

    async def aget_tuple(self, config: Any) -> Any:
        return self.saver.get_tuple(config)

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[Any]:
        for found in self.saver.list(config, **options):
            yield found

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        return self.saver.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self.saver.put_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        self.saver.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Any) -> None:
        self.saver.delete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.saver.copy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
        self.saver.prune(thread_ids, strategy=strategy)


@pytest.mark.parametrize("half", ["async", "sync"])
async def test_every_capability_is_detected_and_passes(store_url: str, half: str) -> None:
    # Writes of these tests have no checkpoint after them, so each would wait the whole moment for one.
    with StepfastSaver(store_url, gather_seconds=0.0) as saver:
        tested = saver if half == "async" else Blocking(saver)

        @checkpointer_test(name=f"StepfastSaver, {half}")
        async def ours() -> AsyncIterator[Any]:
            yield tested

        report = await validate(ours)
    results = report.to_dict()["results"]
    assert len(results) == CAPABILITIES
    wrong = {name: result for name, result in results.items() if not (result["detected"] and result["passed"])}
    assert not wrong, "\n".join(text for result in wrong.values() for text in result["failures"])
    assert sum(result["tests_passed"] for result in results.values()) == TESTS

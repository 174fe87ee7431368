"""The saver of a graph that runs as an intent: each checkpoint carries the run's mark, and none is written by a
process that has lost the run.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointMetadata, CheckpointTuple

from stepfast import Run

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from ._trip import Trip

current_trip: ContextVar[Trip | None] = ContextVar("stepfast_langgraph_trip", default=None)


class CarriedSaver(BaseCheckpointSaver[Any]):
    """Any saver, watched over while a durable run is under way; without one it is that saver and nothing more."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        super().__init__(serde=saver.serde)
        self.saver = saver
        self._takes_path = "task_path" in inspect.signature(saver.put_writes).parameters

    def __getattr__(self, name: str) -> Any:
        if name == "saver":  # asked for before there is one, by whoever copies
            raise AttributeError(name)
        return getattr(self.saver, name)

    # --- what is watched over ----------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: dict[str, Any],
    ) -> RunnableConfig:
        trip = current_trip.get()
        if trip is not None:
            if isinstance(trip.run, Run):
                trip.run.report(trip.doing, step=trip.step)
            metadata = trip.mark(config, metadata)
        return self.saver.put(config, checkpoint, metadata, new_versions)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: dict[str, Any],
    ) -> RunnableConfig:
        trip = current_trip.get()
        if trip is not None:
            if not isinstance(trip.run, Run):
                await trip.run.report(trip.doing, step=trip.step)
            metadata = trip.mark(config, metadata)
        return await self.saver.aput(config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        trip = current_trip.get()
        if trip is not None and isinstance(trip.run, Run):
            trip.run.report(trip.doing, step=trip.step)
        path = (task_path,) if self._takes_path else ()
        self.saver.put_writes(config, writes, task_id, *path)
        if trip is not None and isinstance(trip.run, Run) and trip.gets_on(writes, task_id, task_path):
            trip.progress.record(None, key=task_id, name="progress")

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        trip = current_trip.get()
        if trip is not None and not isinstance(trip.run, Run):
            await trip.run.report(trip.doing, step=trip.step)
        path = (task_path,) if self._takes_path else ()
        await self.saver.aput_writes(config, writes, task_id, *path)
        if trip is not None and not isinstance(trip.run, Run) and trip.gets_on(writes, task_id, task_path):
            await trip.progress.record(None, key=task_id, name="progress")

    # --- what is passed on as it is ------------------------------------------------------------------

    @property
    def config_specs(self) -> list[Any]:
        return self.saver.config_specs

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.saver.get_tuple(config)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self.saver.aget_tuple(config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        return self.saver.list(config, filter=filter, before=before, limit=limit)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        async for found in self.saver.alist(config, filter=filter, before=before, limit=limit):
            yield found

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self.saver.get_next_version(current, channel)

    def with_allowlist(self, *args: Any, **kwargs: Any) -> CarriedSaver:
        return CarriedSaver(self.saver.with_allowlist(*args, **kwargs))


def _pass_on(name: str) -> Any:
    """A method that the base class has, too, so that it is not looked up in the saver by itself."""

    def method(self: CarriedSaver, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.saver, name)(*args, **kwargs)

    method.__name__ = name
    return method


for _name in (
    *("delete_thread", "delete_for_runs", "copy_thread", "prune", "get_delta_channel_history"),
    *("adelete_thread", "adelete_for_runs", "acopy_thread", "aprune", "aget_delta_channel_history"),
):
    if hasattr(BaseCheckpointSaver, _name):  # an older one has fewer
        setattr(CarriedSaver, _name, _pass_on(_name))

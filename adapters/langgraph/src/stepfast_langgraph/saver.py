"""StepfastSaver: LangGraph's checkpointer on a Stepfast store, sync and async in one object."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from random import random
from types import TracebackType
from typing import Any, Literal, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

from stepfast import Codec, InvalidInput, KeyRing
from stepfast import inputs as check
from stepfast.adapters import StoreLike, choice, open_any
from stepfast.threads import Threads, seconds_of

from . import _deleting, _delta, _reading, _writing
from ._inner import Inner
from ._parents import LostUpdate
from ._patience import Patience, from_task, from_thread
from ._types import make_codec

__all__ = ["LostUpdate", "StepfastSaver"]


class StepfastSaver(BaseCheckpointSaver[str]):
    """Checkpoints that grow with the change, in an embedded file, on PostgreSQL or on a Stepfast server.

    ``store`` is a URL or path, an open `Store`, `Stepfast` or `AsyncStepfast`, or None for the default store. Values
    are turned into bytes by ``codec``, or by one of its own that encrypts with ``keyring``. A thread expires ``ttl``
    (seconds or a timedelta) after it was last written. Both halves may be used at once, from any thread and event loop.

    Two runs on one thread: the second to write gets `LostUpdate`, or with ``on_conflict="wait"`` waits at its first
    read until the first has ended, for ``wait_seconds`` at most. What a task wrote waits ``gather_seconds`` at most for
    the checkpoint that follows, so that both are one commit. Keys of ``configurable`` and ``metadata`` whose names look
    like those of secrets are not stored, save the names in ``allow_metadata``.
    """

    def __init__(
        self,
        store: StoreLike = None,
        *,
        codec: Codec | None = None,
        keyring: KeyRing | None = None,
        api_key: str | None = None,
        ttl: float | timedelta | None = None,
        on_conflict: Literal["raise", "wait"] = "raise",
        wait_seconds: float = 600.0,
        gather_seconds: float = 0.005,
        allow_metadata: Collection[str] = (),
    ) -> None:
        super().__init__()
        choice("on_conflict", on_conflict, ("raise", "wait"))
        check.seconds("wait_seconds", wait_seconds, optional=False)
        check.seconds("gather_seconds", gather_seconds, optional=False)
        if isinstance(allow_metadata, str) or not isinstance(allow_metadata, Collection):
            raise InvalidInput(
                f"allow_metadata: must be a collection of names, such as ('key',), not {allow_metadata!r}."
            )
        ttl_seconds = seconds_of(ttl)
        turns = None
        if on_conflict == "wait":
            from ._turns import Turns

            turns = Turns(wait_seconds)
        self._inner = Inner(
            open_any(store, codec=codec, keyring=keyring, api_key=api_key, make_codec=make_codec),
            ttl_seconds=ttl_seconds,
            patience=Patience(gather_seconds),
            allowed=allow_metadata,
            turns=turns,
        )
        if turns is not None:
            turns.attach(self._inner)

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> Self:
        """A saver to be used in ``with`` or ``async with``, as the stock ones are."""
        return cls(conn_string, **options)

    def setup(self) -> None:
        """Nothing to do: a store brings its own tables up to date when it is opened."""

    async def asetup(self) -> None:
        """Nothing to do, as `setup`."""

    @property
    def url(self) -> str:
        """Where the store is; it holds no secret."""
        return self._inner.opened.store.url

    @property
    def threads(self) -> Threads:
        """The threads of this store: list, search, count, size, time to live."""
        return Threads(self._inner.opened.store, self._inner.tenant)

    def close(self) -> None:
        """Give back what this saver opened; a store or client that it was given stays open."""
        if self._inner.turns is not None:
            self._inner.turns.close()
        self._inner.opened.close()

    async def aclose(self) -> None:
        """As `close`, from an event loop."""
        if self._inner.turns is not None:
            self._inner.turns.close()
        await self._inner.opened.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def get_next_version(self, current: Any, channel: None) -> str:
        """Text that grows, in the form the stock savers use, so that threads can move between them."""
        if current is None:
            number = 0
        elif isinstance(current, str):
            number = int(current.split(".")[0])
        else:
            number = int(current)
        return f"{number + 1:032}.{random():016}"  # noqa: S311 - it keeps branches apart, not secrets

    # --- reading ----------------------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that a config names, or the newest of its namespace; None if there is none."""
        return self._inner.run(_reading.get_tuple(self._inner, config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._inner.arun(_reading.get_tuple(self._inner, config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name for it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first; of all threads of this store's tenant if ``config`` is None.

        ``filter`` compares top-level keys of the metadata. A walk that pauses blocks nobody.
        """
        listing = _reading.Listing(self._inner, config, filter, before, limit)
        while not listing.ended:
            yield from self._inner.run(listing.page())

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name for it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        listing = _reading.Listing(self._inner, config, filter, before, limit)
        while not listing.ended:
            for found in await self._inner.arun(listing.page()):
                yield found

    def get_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, Any]:
        """For each channel what was written since its nearest stored value, and that value as ``seed``."""
        return self._inner.run(_delta.history(self._inner, config, channels))

    async def aget_delta_channel_history(self, *, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, Any]:
        return await self._inner.arun(_delta.history(self._inner, config, channels))

    # --- writing ----------------------------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint after the one that ``config`` names, with all writes that wait on its thread.

        `LostUpdate` if another run advanced the thread since that parent was read; `Unencodable` names the channel
        and the type of what cannot be stored. Either way nothing was written.
        """
        return self._inner.run(
            _writing.put(self._inner, config, checkpoint, metadata, new_versions, from_thread(config))
        )

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await self._inner.arun(
            _writing.put(self._inner, config, checkpoint, metadata, new_versions, from_task(config))
        )

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote; returns when it is durable, alone or with the checkpoint that follows."""
        self._inner.run(_writing.put_writes(self._inner, config, writes, task_id, task_path, from_thread(config)))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self._inner.arun(_writing.put_writes(self._inner, config, writes, task_id, task_path, from_task(config)))

    # --- deleting and copying ---------------------------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its checkpoints and writes."""
        self._inner.run(_deleting.delete_thread(self._inner, str(thread_id)))

    async def adelete_thread(self, thread_id: str) -> None:
        await self._inner.arun(_deleting.delete_thread(self._inner, str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of these runs, in whatever threads. What stays keeps its state."""
        self._inner.run(_deleting.delete_for_runs(self._inner, run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._inner.arun(_deleting.delete_for_runs(self._inner, run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Give a thread a second name with the same past; from then on they go their own ways."""
        self._inner.run(_deleting.copy_thread(self._inner, str(source_thread_id), str(target_thread_id)))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._inner.arun(_deleting.copy_thread(self._inner, str(source_thread_id), str(target_thread_id)))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", keep_last: int | None = None) -> None:
        """Keep the newest checkpoint of each namespace (or the ``keep_last`` newest), or with "delete" nothing.

        What stays keeps its state, of every kind of channel.
        """
        self._inner.run(_deleting.prune(self._inner, thread_ids, strategy, keep_last))

    async def aprune(
        self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", keep_last: int | None = None
    ) -> None:
        await self._inner.arun(_deleting.prune(self._inner, thread_ids, strategy, keep_last))

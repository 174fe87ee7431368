"""How checkpoints are read back: one, or the history of a thread, page by page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple

from holdfast import InvalidInput
from holdfast.threads import Item, ListCheckpoints, Page, ReadThread, Writes

from ._delta import CUT
from ._flow import Flow, Signal, Wait
from ._heads import decode_write
from ._inner import Inner, after_pending
from ._metadata import asked, matches
from ._parents import Read, place_of
from ._values import History

_PAGE = 100
_ARRIVALS = 16
_ARRIVAL_SECONDS = 0.25  # it cannot arrive while a blocking call holds up its event loop


def get_tuple(inner: Inner, config: RunnableConfig) -> Flow[CheckpointTuple | None]:
    thread_id, ns, wanted = place_of(config)
    if inner.turns is not None:
        yield from inner.turns.take(config, thread_id)
    if wanted is None:
        yield from _let_arrive(inner, thread_id)
    ops = [ReadThread(thread_id=thread_id, ns=ns, checkpoint_id=wanted)]
    if wanted is not None:  # has the thread moved past it?
        ops.append(ReadThread(thread_id=thread_id, ns=ns, values=False))
    view, *latest = yield from after_pending(inner, thread_id, ops)
    if view is None:
        line = inner.lines.line(thread_id, ns, inner.lines.new_home(thread_id))
    else:
        line = inner.lines.learn(thread_id, ns, view)
    if view is None or view.checkpoint is None:
        if wanted is None:
            inner.reads.found_nothing(thread_id, ns)
        return None
    found = view.checkpoint
    head = inner.lines.open_head(view.home, found)
    with line.lock:
        values = line.lanes.read(head.refs, view.pieces)
        line.remember(found.checkpoint_id, head.refs, head.checkpoint["channel_versions"])
        line.learn_delta(head.metadata)
    newest = latest[0].checkpoint if latest and latest[0] is not None else None
    older = newest is not None and newest.checkpoint_id != found.checkpoint_id
    checkpoint_id = inner.reads.remember(found.checkpoint_id, Read.OLDER if older else Read.HEAD)
    head.checkpoint.pop(CUT, None)
    head.checkpoint["channel_values"] = values
    return CheckpointTuple(
        _config(thread_id, ns, checkpoint_id),
        cast(Checkpoint, head.checkpoint),
        cast(CheckpointMetadata, head.metadata),
        _config(thread_id, ns, found.parent_id) if found.parent_id is not None else None,
        pending(inner, view.home, view.writes),
    )


def _let_arrive(inner: Inner, thread_id: str) -> Flow[None]:
    """Let the checkpoints of a run that was cancelled in this process arrive, so as not to build on older ones."""
    for _ in range(_ARRIVALS):
        ended = inner.gather.under_way(thread_id)
        if ended is None or not (yield Wait(ended, _ARRIVAL_SECONDS)):
            return
        yield Wait(Signal(), 0.0)  # on an event loop, the next one is sent now


def pending(inner: Inner, home: str, writes: Sequence[Writes]) -> list[tuple[str, str, Any]]:
    """What tasks wrote beside a checkpoint, in the order in which LangGraph applies it."""
    found = []
    for group in writes:
        place = inner.lines.place(home, group.ns, group.checkpoint_id)
        for write in group.writes:
            value = decode_write(inner.codec, place, group.task_id, write.idx, write.channel, write.value)
            found.append((group.task_id, write.channel, value))
    return found


def _config(thread_id: str, ns: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}


class Listing:
    """A walk over checkpoints, newest first. Between two pages it holds nothing of the store's."""

    def __init__(
        self,
        inner: Inner,
        config: RunnableConfig | None,
        where: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> None:
        if limit is not None and limit < 0:
            raise InvalidInput(f"limit: must be at least 0, not {limit}.")
        self._inner = inner
        self._where = where
        self._left = limit
        self._cursor = ""
        self._histories: dict[tuple[str, str, str], History] = {}
        self._thread_id: str | None = None
        self._ns: str | None = None
        self._wanted: str | None = None
        if config is not None:
            self._thread_id, self._ns, self._wanted = place_of(config)
            if config["configurable"].get("checkpoint_ns") is None:
                self._ns = None
        self._before = (before or {}).get("configurable", {}).get("checkpoint_id") or None
        self._asked = asked(where, inner.codec.encrypts)
        self._sifts = len(self._asked) < len(where or {})
        self.ended = limit == 0

    def page(self) -> Flow[list[CheckpointTuple]]:
        """The next few; `ended` says whether there can be more."""
        size = _PAGE if self._left is None or self._sifts else min(self._left, _PAGE)
        op = ListCheckpoints(
            thread_id=self._thread_id,
            ns=self._ns,
            where=self._asked,
            checkpoint_id=self._wanted,
            before=self._before,
            limit=size,
            cursor=self._cursor,
        )
        page: Page
        [page] = yield from after_pending(self._inner, self._thread_id or "", [op])
        homes = {item.thread_id: item.home for item in page.items}
        for piece in page.pieces:
            self._history(piece.thread_id, piece.ns, homes[piece.thread_id]).add([piece.piece])
        found = []
        for item in page.items:
            if self._left == 0:
                break
            one = self._open(item)
            if one is not None:
                found.append(one)
                if self._left is not None:
                    self._left -= 1
        self._cursor = page.cursor
        self.ended = not page.cursor or self._left == 0
        return found

    def _history(self, thread_id: str, ns: str, home: str) -> History:
        key = (thread_id, ns, home)
        if key not in self._histories:
            self._histories[key] = History(self._inner.codec, self._inner.tenant, home, ns)
        return self._histories[key]

    def _open(self, item: Item) -> CheckpointTuple | None:
        inner, found = self._inner, item.checkpoint
        head = inner.lines.open_head(item.home, found)
        if not matches(head.metadata, self._where):
            return None
        head.checkpoint.pop(CUT, None)
        head.checkpoint["channel_values"] = self._history(item.thread_id, found.ns, item.home).values(head.refs)
        # Whoever goes on from a listed checkpoint has chosen it, as a subgraph does that is replayed.
        checkpoint_id = inner.reads.remember(found.checkpoint_id, Read.OLDER, listed=True)
        return CheckpointTuple(
            _config(item.thread_id, found.ns, checkpoint_id),
            cast(Checkpoint, head.checkpoint),
            cast(CheckpointMetadata, head.metadata),
            _config(item.thread_id, found.ns, found.parent_id) if found.parent_id is not None else None,
            pending(inner, item.home, item.writes),
        )

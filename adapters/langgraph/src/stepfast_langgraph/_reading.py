"""How checkpoints are read back: one, or the history of a thread, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple

from stepfast import Damaged, InvalidInput
from stepfast.flow import Do, Flow, Signal, Wait
from stepfast.stored_names import GRAPH_DELTA_KEY
from stepfast.threads import Checkpoint as StoredCheckpoint
from stepfast.threads import Item, ListCheckpoints, Page, ReadPieces, ReadThread, View, Writes

from ._heads import Head, decode_write
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
    known = inner.lines.find(thread_id, ns)
    opened = None
    if known is not None and known.lanes.size:
        opened = yield from _open(inner, thread_id, ns, wanted, whole=False)
    if opened is None:
        opened = yield from _open(inner, thread_id, ns, wanted, whole=True)
    if not isinstance(opened, Opened):
        if wanted is None:
            inner.reads.found_nothing(thread_id, ns)
        return None
    view, found, head, values, latest = opened
    newest = latest[0].checkpoint if latest and latest[0] is not None else None
    older = newest is not None and newest.checkpoint_id != found.checkpoint_id
    checkpoint_id = inner.reads.remember(found.checkpoint_id, Read.OLDER if older else Read.HEAD)
    head.checkpoint.pop(GRAPH_DELTA_KEY, None)
    head.checkpoint["channel_values"] = values
    return CheckpointTuple(
        _config(thread_id, ns, checkpoint_id),
        cast(Checkpoint, head.checkpoint),
        cast(CheckpointMetadata, head.metadata),
        _config(thread_id, ns, found.parent_id) if found.parent_id is not None else None,
        pending(inner, view.home, view.writes),
    )


class Nothing(Enum):
    THERE = 0


class Opened(NamedTuple):
    """A checkpoint with its values."""

    view: View
    found: StoredCheckpoint
    head: Head
    values: dict[str, Any]
    latest: list[View | None]


def _open(inner: Inner, thread_id: str, ns: str, wanted: str | None, *, whole: bool) -> Flow[Opened | Nothing | None]:
    """Read a checkpoint: with all its elements if ``whole``, else only those that this process does not know.

    None if what it knows is not enough after all, be it that it was forgotten or deleted meanwhile.
    """
    ops = [ReadThread(thread_id=thread_id, ns=ns, checkpoint_id=wanted, values=whole)]
    if wanted is not None:  # has the thread moved past it?
        ops.append(ReadThread(thread_id=thread_id, ns=ns, values=False))
    view, *latest = yield from after_pending(inner, thread_id, ops)
    if view is None:
        inner.lines.line(thread_id, ns, inner.lines.new_home(thread_id))
        return Nothing.THERE
    line = inner.lines.learn(thread_id, ns, view)
    found = view.checkpoint
    if found is None:
        return Nothing.THERE
    head = inner.lines.open_head(view.home, found)
    pieces = view.pieces
    if not whole:
        with line.lock:
            spans = line.lanes.missing(head.refs)
        if spans:
            more = ReadPieces(thread_id=thread_id, ns=ns, spans=spans)
            still = ReadThread(thread_id=thread_id, ns=ns, checkpoint_id=found.checkpoint_id, values=False)
            pieces, again = yield Do([more, still])
            if again is None or again.born != view.born:
                return None
    try:
        with line.lock:
            values = line.lanes.read(head.refs, pieces)
            line.remember(found.checkpoint_id, head.refs, head.checkpoint["channel_versions"])
            line.learn_delta(head.metadata)
    except Damaged:
        if whole:
            raise
        return None
    return Opened(view, found, head, values, latest)


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
        self._histories: dict[tuple[str, str, int], History] = {}
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

    def page(self) -> Flow[Iterator[CheckpointTuple]]:
        """The next few; `ended` says whether there can be more when all have been taken."""
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
        threads = {item.thread_id: item for item in page.items}
        for piece in page.pieces:
            self._history(threads[piece.thread_id], piece.ns).add([piece.piece])
        self._cursor = page.cursor
        self.ended = not page.cursor
        return self._opened(page.items)

    def _opened(self, items: list[Item]) -> Iterator[CheckpointTuple]:
        # One by one: whoever only walks over them never holds the values of many at once.
        for item in items:
            one = self._open(item)
            if one is not None:
                if self._left is not None:
                    self._left -= 1
                    self.ended = self.ended or self._left == 0
                yield one
                if self._left == 0:
                    return

    def _history(self, item: Item, ns: str) -> History:
        inner, key = self._inner, (item.thread_id, ns, item.born)
        history = self._histories.get(key)
        if history is None:
            line = inner.lines.find(item.thread_id, ns)
            lanes = line.lanes if line is not None and line.born == item.born else None
            history = self._histories[key] = History(inner.codec, inner.tenant, item.home, ns, lanes)
        return history

    def _open(self, item: Item) -> CheckpointTuple | None:
        inner, found = self._inner, item.checkpoint
        head = inner.lines.open_head(item.home, found)
        if not matches(head.metadata, self._where):
            return None
        head.checkpoint.pop(GRAPH_DELTA_KEY, None)
        head.checkpoint["channel_values"] = self._history(item, found.ns).values(head.refs)
        # Whoever goes on from a listed checkpoint has chosen it, as a subgraph does that is replayed.
        checkpoint_id = inner.reads.remember(found.checkpoint_id, Read.OLDER, listed=True)
        return CheckpointTuple(
            _config(item.thread_id, found.ns, checkpoint_id),
            cast(Checkpoint, head.checkpoint),
            cast(CheckpointMetadata, head.metadata),
            _config(item.thread_id, found.ns, found.parent_id) if found.parent_id is not None else None,
            pending(inner, item.home, item.writes),
        )

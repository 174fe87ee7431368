"""Channels that LangGraph rebuilds from their writes (DeltaChannel), and what a cut in their history must keep.

Such a channel has no value in most checkpoints: its value is the nearest older one that is stored, the *seed*, and all
that was written since, along the parents. When old checkpoints are deleted, the oldest that stay take over what their
channels need from them, seed and writes, in their own head; nothing else of the old ones is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig

from stepfast.flow import Do, Flow
from stepfast.stored_names import GRAPH_DELTA_KEY
from stepfast.threads import Checkpoint, Item, NewCheckpoint, PutThread, ReadPath, ReadPieces, ReadThread

from ._heads import Head, decode_write, encode_head
from ._inner import Inner, after_pending
from ._parents import place_of
from ._values import History, Ref, spans_of

_PATH = 256


class Past:
    """What one channel is made of: the newest write first, until its seed is found."""

    def __init__(self) -> None:
        self.writes: list[tuple[str, Any]] = []
        self.seed: Ref | None = None
        self.ended = False

    def end(self, seed: Ref | None) -> None:
        self.seed, self.ended = seed, True


def walk(inner: Inner, thread_id: str, home: str, target: Checkpoint, channels: Iterable[str]) -> Flow[dict[str, Past]]:
    """Follow the parents of a checkpoint until each channel has its seed, or there is no older one."""
    pasts = {channel: Past() for channel in channels}
    _take_cut(inner.lines.open_head(home, target), pasts)
    last = target
    while last.parent_id is not None and not all(past.ended for past in pasts.values()):
        [path] = yield Do([ReadPath(thread_id=thread_id, ns=target.ns, checkpoint_id=last.checkpoint_id, limit=_PATH)])
        _follow(inner, path, pasts)
        if len(path) < _PATH:
            break
        last = path[-1].checkpoint
    return pasts


def _follow(inner: Inner, path: Sequence[Item], pasts: Mapping[str, Past]) -> None:
    for item in path:
        wanted = {channel: past for channel, past in pasts.items() if not past.ended}
        if not wanted:
            return
        head = inner.lines.open_head(item.home, item.checkpoint)
        place = inner.lines.place(item.home, item.checkpoint.ns, item.checkpoint.checkpoint_id)
        for group in reversed(item.writes):
            for write in reversed(group.writes):
                past = wanted.get(write.channel)
                if past is not None:
                    value = decode_write(inner.codec, place, group.task_id, write.idx, write.channel, write.value)
                    past.writes.append((group.task_id, value))
        for channel, past in wanted.items():
            if channel in head.refs:
                past.end(head.refs[channel])
        _take_cut(head, wanted)


def _take_cut(head: Head, pasts: Mapping[str, Past]) -> None:
    for channel, (seed, writes) in head.checkpoint.get(GRAPH_DELTA_KEY, {}).items():
        past = pasts.get(channel)
        if past is not None and not past.ended:
            past.writes.extend((task_id, value) for task_id, value in reversed(writes))
            past.end(seed)


def history(inner: Inner, config: RunnableConfig, channels: Sequence[str]) -> Flow[dict[str, dict[str, Any]]]:
    """For each channel its writes, oldest first, and its seed if there is one."""
    if not channels:
        return {}
    thread_id, ns, wanted = place_of(config)
    told: dict[str, dict[str, Any]] = {channel: {"writes": []} for channel in channels}
    read = ReadThread(thread_id=thread_id, ns=ns, checkpoint_id=wanted, values=False)
    path: list[Item] = []
    if wanted is None:
        [view] = yield from after_pending(inner, thread_id, [read])
    else:
        up = ReadPath(thread_id=thread_id, ns=ns, checkpoint_id=wanted, limit=_PATH)
        [view, path] = yield from after_pending(inner, thread_id, [read, up])
    if view is None or view.checkpoint is None:
        return told
    pasts = {channel: Past() for channel in channels}
    _take_cut(inner.lines.open_head(view.home, view.checkpoint), pasts)
    _follow(inner, path, pasts)
    open_still = [channel for channel, past in pasts.items() if not past.ended]
    if open_still and (wanted is None or len(path) == _PATH):
        # The usual case never comes here: LangGraph names the checkpoint, and stores a value every few steps.
        pasts.update((yield from walk(inner, thread_id, view.home, view.checkpoint, open_still)))
    seeds = {channel: past.seed for channel, past in pasts.items() if past.seed is not None}
    values = yield from _values(inner, thread_id, ns, view.home, seeds)
    for channel, past in pasts.items():
        told[channel]["writes"] = [(task_id, channel, value) for task_id, value in reversed(past.writes)]
        if channel in values:
            told[channel]["seed"] = values[channel]
    return told


def _values(inner: Inner, thread_id: str, ns: str, home: str, refs: Mapping[str, Ref]) -> Flow[dict[str, Any]]:
    if not refs:
        return {}
    known = History(inner.codec, inner.tenant, home, ns)
    spans = spans_of(refs)
    if spans:
        [pieces] = yield Do([ReadPieces(thread_id=thread_id, ns=ns, spans=spans)])
        known.add(pieces)
    return known.values(refs)


def cut(inner: Inner, item: Item) -> Flow[PutThread | None]:
    """Let a checkpoint whose parents will go keep what its channels need of them; None if that is nothing."""
    found = item.checkpoint
    head = inner.lines.open_head(item.home, found)
    counters = head.metadata.get("counters_since_delta_snapshot") or {}
    channels = [channel for channel in counters if channel not in head.refs]
    if not channels:
        return None
    pasts = yield from walk(inner, item.thread_id, item.home, found, channels)
    kept = {
        channel: [past.seed, [[task_id, value] for task_id, value in reversed(past.writes)]]
        for channel, past in pasts.items()
        if past.writes or past.seed is not None
    }
    if not kept:
        return None
    head.checkpoint[GRAPH_DELTA_KEY] = kept
    refs = {**head.refs, **{channel: past.seed for channel, past in pasts.items() if past.seed is not None}}
    place = inner.lines.place(item.home, found.ns, found.checkpoint_id, found.parent_id)
    return PutThread(
        thread_id=item.thread_id,
        home=item.home,
        ns=found.ns,
        checkpoint=NewCheckpoint(
            ns=found.ns,
            checkpoint_id=found.checkpoint_id,
            parent_id=found.parent_id,
            run_id=found.run_id,
            meta=found.meta,
            spans=spans_of(refs),
            head=encode_head(inner.codec, place, head.checkpoint, head.metadata, head.refs),
        ),
        fork=True,
    )

"""How a checkpoint, and what tasks wrote beside it, are put into a thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, ChannelVersions, Checkpoint, CheckpointMetadata

from stepfast import Conflict, InvalidInput
from stepfast.flow import Do, Flow, Wait
from stepfast.threads import NewCheckpoint, PutThread, ReadPieces, ReadThread, Write, Writes

from ._gather import Ticket
from ._heads import encode_head, encode_write
from ._inner import RETRIES, Inner, commit, find_home, insist, sealed
from ._lines import Known, Line
from ._metadata import kept, shown
from ._parents import follows_any, lost_update, place_of
from ._patience import MOMENTS, Caller

_EMPTY = Known({}, {})
_LAST = ("__error__", "__interrupt__", "__error_source_node__")  # no checkpoint follows these at once


def put(
    inner: Inner,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
    caller: Caller,
) -> Flow[RunnableConfig]:
    thread_id, ns, parent = place_of(config)
    checkpoint_id = checkpoint["id"]
    told = kept(config, metadata, inner.allowed)
    if isinstance(told.get("parents"), dict):
        told["parents"] = {name: str(value) for name, value in told["parents"].items()}
    fork = follows_any(config) or inner.reads.may_fork(thread_id, ns, parent, told.get("source"))
    run_id = told.get("run_id")
    for attempt in range(RETRIES):
        line, before = yield from _base(inner, thread_id, ns, parent)
        versions = checkpoint["channel_versions"]
        changed = {
            channel
            for channel in checkpoint["channel_values"]
            if channel in new_versions or versions.get(channel) != before.versions.get(channel)
        }
        yield from _learn_old(thread_id, ns, line, before, changed)
        with line.lock:
            written = line.lanes.write(checkpoint["channel_values"], changed, before.refs)
        home = line.lanes.home
        place = inner.lines.place(home, ns, checkpoint_id, parent)
        new = NewCheckpoint(
            ns=ns,
            checkpoint_id=checkpoint_id,
            parent_id=parent,
            run_id=run_id if isinstance(run_id, str) else None,
            meta=shown(told, inner.codec.encrypts),
            spans=written.spans,
            head=encode_head(inner.codec, place, cast("Mapping[str, Any]", checkpoint), told, written.refs),
        )
        inner.patience.checkpoint_came(thread_id, caller)
        tickets = inner.gather.take(thread_id)
        try:
            op = PutThread(
                thread_id=thread_id,
                home=home,
                ns=ns,
                pieces=written.pieces,
                checkpoint=new,
                fork=fork,
                writes=sealed(inner, tickets, home),
                ttl_seconds=inner.ttl_seconds,
            )
            with inner.gather.committing(thread_id):
                [done] = yield from insist([op])
        except Conflict as error:
            inner.gather.give_back(tickets)
            stale = error.details.get("stale")
            if stale == "head":
                raise lost_update(thread_id, ns, parent, error) from error
            if stale not in ("lane", "home") or attempt == RETRIES - 1:
                raise
            inner.lines.forget(thread_id)  # another process wrote: look again where its lanes end
        except BaseException:
            inner.gather.give_back(tickets)
            raise
        else:
            inner.gather.settle(tickets)
            if line.born not in (0, done.born):  # begun again under the same name and home
                inner.lines.forget(thread_id)
                break
            with line.lock:
                line.born = done.born
                line.lanes.accept(written)
                line.remember(checkpoint_id, written.refs, versions)
                line.learn_delta(told)
            break
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}


def _base(inner: Inner, thread_id: str, ns: str, parent: str | None) -> Flow[tuple[Line, Known]]:
    """The line to write on, and what the parent holds."""
    line = inner.lines.find(thread_id, ns)
    known = line.known(parent) if line is not None and parent is not None else None
    if line is not None and (known is not None or parent is None):
        return line, known or _EMPTY
    [view] = yield Do([ReadThread(thread_id=thread_id, ns=ns, checkpoint_id=parent, values=False)])
    if view is None:
        return inner.lines.line(thread_id, ns, inner.lines.new_home(thread_id)), _EMPTY
    line = inner.lines.learn(thread_id, ns, view)
    if parent is None or view.checkpoint is None:
        return line, _EMPTY
    head = inner.lines.open_head(view.home, view.checkpoint)
    with line.lock:
        line.remember(parent, head.refs, head.checkpoint["channel_versions"])
        line.learn_delta(head.metadata)
    return line, Known(head.refs, head.checkpoint["channel_versions"])


def _learn_old(thread_id: str, ns: str, line: Line, before: Known, changed: set[str]) -> Flow[None]:
    """Read the elements of old lists that this process does not know, so that only what is new is written."""
    with line.lock:
        spans = line.lanes.unknown(before.refs, changed)
    if spans:
        [pieces] = yield Do([ReadPieces(thread_id=thread_id, ns=ns, spans=spans)])
        with line.lock:
            line.lanes.learn(pieces)


def put_writes(
    inner: Inner,
    config: RunnableConfig,
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
    caller: Caller,
) -> Flow[None]:
    thread_id, ns, checkpoint_id = place_of(config)
    if checkpoint_id is None:
        raise InvalidInput(
            'config["configurable"]["checkpoint_id"]: missing. Writes belong to a checkpoint; take the config that '
            "put() returned. Nothing was written."
        )
    if not writes:
        return
    home = yield from find_home(inner, thread_id)
    place = inner.lines.place(home, ns, checkpoint_id)
    rows = []
    for position, (channel, value) in enumerate(writes):
        idx = WRITES_IDX_MAP.get(channel, position)
        rows.append(Write(idx, channel, encode_write(inner.codec, place, task_id, idx, channel, value)))
    ticket = Ticket(
        thread_id,
        home,
        Writes(ns=ns, checkpoint_id=checkpoint_id, task_id=task_id, task_path=task_path, writes=rows),
    )
    waiting = inner.gather.add(ticket)
    line = inner.lines.find(thread_id, ns)
    delta = line.delta if line is not None else ()
    # LangGraph lets the checkpoint wait for the writes of a DeltaChannel: if these waited too, both would in vain.
    alone = any(row.channel in _LAST or row.channel in delta for row in rows)
    try:
        if inner.patience.writes_came(thread_id, caller, waiting) and not alone:
            for _ in range(MOMENTS):
                yield Wait(ticket.signal, inner.patience.moment)
                if not inner.gather.is_worth_waiting(ticket):
                    break
            inner.patience.waited(thread_id, in_vain=not ticket.taken)
    except BaseException:  # cancelled or interrupted: what a task wrote is kept all the same
        yield from _see_through(inner, ticket)
        raise
    yield from _see_through(inner, ticket)


def _see_through(inner: Inner, ticket: Ticket) -> Flow[None]:
    """Wait until whoever took a ticket has settled it, or commit it with all that waits beside it."""
    while not ticket.done:
        signal = ticket.signal
        tickets = [] if ticket.taken else inner.gather.take(ticket.thread_id)
        if ticket in tickets:
            try:
                yield from commit(inner, ticket.thread_id, tickets)
            except BaseException:
                inner.gather.discard(ticket)
                raise
        elif tickets:  # somebody else took ours in between
            yield from commit(inner, ticket.thread_id, tickets)
        elif not ticket.done:
            yield Wait(signal, None)

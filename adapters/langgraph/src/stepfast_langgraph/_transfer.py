"""Threads from a stock saver's database to a Stepfast store, and back.

A checkpoint follows its parent and comes with its writes, which are put first: a checkpoint that is there is there
with all that belongs to it. So a transfer that was cut off is started again, and goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, cast

from langgraph.checkpoint.base import CheckpointTuple
from msgspec import Struct

from stepfast import CodecError, Conflict, StepfastError, StoreError, StoreUnavailable, Unencodable
from stepfast.threads import Item, ListCheckpoints, ListThreads

from ._heads import decode_write
from ._parents import any_parent
from ._stock import End, Header, TaskWrites, as_called, config_of
from .saver import StepfastSaver

State = Literal["copied", "there already", "went on there", "failed"]


class Moved(Struct, frozen=True, kw_only=True):
    """What became of one thread."""

    thread_id: str
    state: State
    checkpoints: int = 0
    writes: int = 0
    error: str = ""


class Held(End):
    """A Stepfast store as one side of a transfer."""

    def __init__(self, saver: StepfastSaver) -> None:
        self.name = saver.url
        self._saver = saver
        self._inner = saver._inner
        self._kept: tuple[str, dict[tuple[str, str], Item]] = ("", {})

    def threads(self) -> Iterator[str]:
        cursor = ""
        while True:
            page = self._inner.opened.store.execute([ListThreads(cursor=cursor)], tenant=self._inner.tenant)[0]
            yield from (each.thread_id for each in page.items)
            cursor = page.cursor
            if not cursor:
                return

    def headers(self, thread_id: str) -> list[Header]:
        found: list[Item] = []
        cursor = ""
        while True:
            op = ListCheckpoints(thread_id=thread_id, values=False, limit=500, cursor=cursor)
            page = self._inner.opened.store.execute([op], tenant=self._inner.tenant)[0]
            found += page.items
            cursor = page.cursor
            if not cursor:
                break
        self._kept = (thread_id, {(each.checkpoint.ns, each.checkpoint.checkpoint_id): each for each in found})
        return [
            Header(each.checkpoint.ns, each.checkpoint.checkpoint_id, each.checkpoint.parent_id)
            for each in sorted(found, key=lambda each: each.checkpoint.seq)
        ]

    def read(self, thread_id: str, header: Header) -> CheckpointTuple:
        found = self._saver.get_tuple(config_of(thread_id, header.ns, header.checkpoint_id))
        if found is None:
            raise StoreUnavailable(f"checkpoint {header.checkpoint_id} was deleted while it was read. Begin again.")
        return found

    def writes(self, thread_id: str, header: Header) -> list[TaskWrites]:
        whose, items = self._kept
        if whose != thread_id:
            self.headers(thread_id)
            items = self._kept[1]
        item = items[header.ns, header.checkpoint_id]
        place = self._inner.lines.place(item.home, header.ns, header.checkpoint_id)
        codec = self._inner.codec
        found = []
        for group in item.writes:
            writes = [
                (each.idx, each.channel, decode_write(codec, place, group.task_id, each.idx, each.channel, each.value))
                for each in group.writes
            ]
            found.append(TaskWrites(group.task_id, group.task_path, writes))
        return found

    def put(self, thread_id: str, header: Header, found: CheckpointTuple, changed: dict[str, Any]) -> None:
        config = any_parent(config_of(thread_id, header.ns, header.parent_id))
        self._saver.put(config, found.checkpoint, found.metadata, changed)

    def put_writes(self, thread_id: str, header: Header, group: TaskWrites) -> None:
        config = config_of(thread_id, header.ns, header.checkpoint_id)
        self._saver.put_writes(config, as_called(group.writes), group.task_id, group.task_path)


def transfer(
    source: End,
    target: End | None,
    thread_ids: Sequence[str] = (),
    *,
    progress: Callable[[str, int, int], None] = lambda thread_id, done, of: None,
) -> Iterator[Moved]:
    """Copy threads, all of the source's unless some are named; without a target all is read and nothing is written.

    A thread that cannot be copied is told as failed and does not keep the others. ``progress`` is called with a
    thread and how many of its checkpoints are done.
    """
    for thread_id in thread_ids or source.threads():
        try:
            yield _move(source, target, thread_id, lambda done, of, name=thread_id: progress(name, done, of))  # type: ignore[misc]
        except StoreError:
            raise
        except StepfastError as error:
            yield Moved(thread_id=thread_id, state="failed", error=error.message)


def _move(source: End, target: End | None, thread_id: str, progress: Callable[[int, int], None]) -> Moved:
    wanted = parents_first(source.headers(thread_id))
    if not wanted:
        return Moved(thread_id=thread_id, state="failed", error=f"{source.name} has no such thread.")
    there = {(each.ns, each.checkpoint_id) for each in target.headers(thread_id)} if target is not None else set()
    left = [each for each in wanted if (each.ns, each.checkpoint_id) not in there]
    ahead = there - {(each.ns, each.checkpoint_id) for each in wanted}
    if ahead:
        if not left:
            return Moved(thread_id=thread_id, state="went on there")
        raise Conflict(
            f"it went on in both places: {len(left)} checkpoints are only in {source.name}, {len(ahead)} only in the "
            "target. Delete the one that is not wanted."
        )
    written = 0
    if not left:
        # Tasks may have written since beside the newest ones: an answer to an interrupt, for example.
        for header in {each.ns: each for each in wanted}.values():
            written += _put_writes(source, target, thread_id, header)
        return Moved(thread_id=thread_id, state="there already", writes=written)
    versions: dict[tuple[str, str | None], dict[str, Any]] = {}
    progress(0, len(left))
    for number, header in enumerate(left, start=1):
        written += _put_writes(source, target, thread_id, header)
        found = _at(thread_id, header, source.read, thread_id, header)
        now = dict(found.checkpoint["channel_versions"])
        before = versions.get((header.ns, header.parent_id), {})
        changed = {channel: version for channel, version in now.items() if before.get(channel) != version}
        versions[header.ns, header.checkpoint_id] = now
        if target is not None:
            _at(thread_id, header, target.put, thread_id, header, found, changed)
        progress(number, len(left))
    return Moved(thread_id=thread_id, state="copied", checkpoints=len(left), writes=written)


def _put_writes(source: End, target: End | None, thread_id: str, header: Header) -> int:
    groups = _at(thread_id, header, source.writes, thread_id, header)
    for group in groups if target is not None else ():
        _at(thread_id, header, cast(End, target).put_writes, thread_id, header, group)
    return sum(len(group.writes) for group in groups)


def _at(thread_id: str, header: Header, call: Callable[..., Any], *given: Any) -> Any:
    """Errors of one value say where it is."""
    try:
        return call(*given)
    except (CodecError, Unencodable) as error:
        where = f"thread {thread_id!r}, checkpoint {header.checkpoint_id}"
        raise type(error)(error.message if thread_id in error.message else f"{where}: {error.message}") from error
    except (TypeError, ValueError, NotImplementedError) as error:  # what a stock serializer raises
        raise CodecError(f"thread {thread_id!r}, checkpoint {header.checkpoint_id}: {error}") from error


def parents_first(headers: Iterable[Header]) -> list[Header]:
    """In the order given, save that a parent comes before its children: clocks that were set back mix them up."""
    waiting = {(each.ns, each.checkpoint_id): each for each in headers}
    ordered: list[Header] = []
    while waiting:
        line = [next(iter(waiting.values()))]
        while (parent := waiting.get((line[-1].ns, line[-1].parent_id or ""))) is not None and parent not in line:
            line.append(parent)
        ordered += [waiting.pop((each.ns, each.checkpoint_id)) for each in reversed(line)]
    return ordered

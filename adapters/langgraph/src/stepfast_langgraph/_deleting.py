"""How threads, runs and old checkpoints are deleted, and threads copied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from stepfast import InvalidInput
from stepfast.flow import Do, Flow
from stepfast.threads import CopyThread, DeleteThread, DropCheckpoints, FindRuns, Item, ListCheckpoints

from ._delta import cut
from ._inner import Inner, after_pending

_PAGE = 500
Named = tuple[str, str]  # namespace and checkpoint id


def delete_thread(inner: Inner, thread_id: str) -> Flow[None]:
    waiting = inner.gather.take(thread_id)
    try:
        yield Do([DeleteThread(thread_id=thread_id)])
    except BaseException:
        inner.gather.give_back(waiting)
        raise
    inner.gather.settle(waiting)  # they came before, and went with the thread
    inner.lines.forget(thread_id)
    inner.reads.forget(thread_id)


def copy_thread(inner: Inner, source: str, target: str) -> Flow[None]:
    yield from after_pending(inner, source, [CopyThread(source=source, target=target)])
    inner.lines.forget(target)


def delete_for_runs(inner: Inner, run_ids: Sequence[str]) -> Flow[None]:
    if not run_ids:
        return
    [rows] = yield Do([FindRuns(run_ids=[str(run_id) for run_id in run_ids])])
    found: dict[str, set[Named]] = defaultdict(set)
    for row in rows:
        found[row.thread_id].add((row.ns, row.checkpoint_id))
    for thread_id, names in found.items():
        yield from _drop(inner, thread_id, lambda _items, names=names: names)  # type: ignore[misc]


def prune(inner: Inner, thread_ids: Sequence[str], strategy: str, keep_last: int | None) -> Flow[None]:
    if strategy not in ("keep_latest", "delete"):
        raise InvalidInput(f"strategy: {strategy!r} is not known. Use 'keep_latest' or 'delete'. Nothing was deleted.")
    if keep_last is not None and (keep_last < 1 or strategy == "delete"):
        raise InvalidInput("keep_last: must be at least 1, and goes with 'keep_latest'. Nothing was deleted.")
    for thread_id in thread_ids:
        if strategy == "delete":
            yield from delete_thread(inner, str(thread_id))
        else:
            yield from _drop(inner, str(thread_id), lambda items: _all_but_last(items, keep_last or 1))


def _all_but_last(items: Sequence[Item], count: int) -> set[Named]:
    """Everything but the newest few of each namespace."""
    seen: dict[str, int] = defaultdict(int)
    names = set()
    for item in items:
        seen[item.checkpoint.ns] += 1
        if seen[item.checkpoint.ns] > count:
            names.add((item.checkpoint.ns, item.checkpoint.checkpoint_id))
    return names


def _drop(inner: Inner, thread_id: str, choose: Callable[[Sequence[Item]], Collection[Named]]) -> Flow[None]:
    items: list[Item] = []
    cursor = ""
    while True:
        op = ListCheckpoints(thread_id=thread_id, limit=_PAGE, cursor=cursor, values=False)
        [page] = yield from after_pending(inner, thread_id, [op])
        items += page.items
        cursor = page.cursor
        if not cursor:
            break
    names = set(choose(items))
    if not names:
        return
    keeping = []
    for item in items:
        found = item.checkpoint
        if (found.ns, found.checkpoint_id) not in names and (found.ns, found.parent_id) in names:
            op_keep = yield from cut(inner, item)
            if op_keep is not None:
                keeping.append(op_keep)
    yield Do([*keeping, DropCheckpoints(thread_id=thread_id, drop=sorted(names))])
    inner.lines.forget(thread_id)

"""A thread written turn by turn, copied and cut back, and what must be left of it after every cut."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from stepfast import Stepfast
from stepfast.ops import CopyThread, DropCheckpoints, ListCheckpoints, Op, ReadThread
from stepfast.testing import Effects
from stepfast.testing.contract_threads import turn, wrote
from tests.crash.stage import STORE, Seen, Stage

TURNS = 3


def do(sf: Stepfast, op: Op[Any]) -> Any:
    return sf.store.execute([op], tenant=sf.store.tenant)[0]


def turns_of(sf: Stepfast, name: str) -> int:
    """How many turns a thread has; each is there with all of its messages and its write, or not at all."""
    view = do(sf, ReadThread(thread_id=name))
    if view is None:
        return 0
    assert view.checkpoint is not None, "a turn is written whole"
    number = int(view.checkpoint.checkpoint_id.removeprefix("c"))
    assert [piece.data for piece in view.pieces] == [f"message {n + 1}".encode() for n in range(number)]
    assert [one.task_id for one in view.writes] == [f"task {number}"]
    return number


def thread(stage: Stage) -> None:
    told = Effects(stage.folder, "turns")
    copy = f"copy of {stage.tag}"
    with stage.client() as sf:
        done = turns_of(sf, stage.tag)
        assert {str(n) for n in range(1, done + 1)} >= set(told.lines()), "a turn was acknowledged and lost"
        for n in range(done + 1, TURNS + 1):
            do(sf, turn(stage.tag, n, writes=[wrote(f"task {n}", (0, b"x"), at=f"c{n}")]))
            told.record(str(n))
        if not turns_of(sf, copy):
            do(sf, CopyThread(source=stage.tag, target=copy))
        do(sf, DropCheckpoints(thread_id=copy, drop=[("", "c1")]))


def whole(stage: Stage, _seen: Seen) -> None:
    with stage.client() as sf:
        for name, left in ((stage.tag, ["c3", "c2", "c1"]), (f"copy of {stage.tag}", ["c3", "c2"])):
            assert turns_of(sf, name) == TURNS
            page = do(sf, ListCheckpoints(thread_id=name))
            assert [item.checkpoint.checkpoint_id for item in page.items] == left
    if stage.embedded:
        assert strays(stage) == []


def strays(stage: Stage) -> list[tuple[Any, ...]]:
    """Rows on a line that no thread sees."""
    with closing(sqlite3.connect(stage.folder / STORE)) as db:
        return [
            (table, *row)
            for table in ("thread_checkpoints", "thread_writes", "thread_pieces", "thread_lines")
            for row in db.execute(f"SELECT line FROM {table} WHERE line NOT IN (SELECT line FROM thread_views)")
        ]

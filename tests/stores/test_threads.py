"""Threads where the store itself matters: rows shared and let go, damage, journeys, and bytes at rest."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stepfast.errors import Conflict, Damaged, InvalidInput
from stepfast.ops import (
    CopyThread,
    DeleteThread,
    DropCheckpoints,
    ListCheckpoints,
    ListThreads,
    Op,
    PutThread,
    ReadPath,
    ReadPieces,
    ReadThread,
)
from stepfast.ops.threads import NewCheckpoint, Piece, Span
from stepfast.stores import postgres_link
from stepfast.stores.base import Store
from stepfast.stores.postgres_link import Link
from stepfast.stores.sqlite import SqliteStore
from stepfast.testing.contract_threads import HOME, turn, wrote
from tests.stores.conftest import Opener

ROWS = ("thread_checkpoints", "thread_writes", "thread_pieces", "thread_lines")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def file(path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(path, durability="process") as store:
        yield store


def talk(store: Store, thread: str, turns: int, start: int = 1) -> None:
    for n in range(start, start + turns):
        store.one(turn(thread, n, writes=[wrote(f"task {n}", (0, b"x"), at=f"c{n}")]))


def counts(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as db:
        return {table: db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in ROWS}


# Sharing


def test_a_copy_costs_no_row_of_what_it_shares(file: SqliteStore, path: Path) -> None:
    talk(file, "t", 20)
    before = counts(path)
    for n in range(5):
        file.one(CopyThread(source="t", target=f"u{n}"))
    after = counts(path)
    assert {name: after[name] for name in ROWS[:3]} == {name: before[name] for name in ROWS[:3]}
    assert after["thread_lines"] == before["thread_lines"] + 6, "one for each copy, and one for what the source writes"


def test_no_row_outlives_the_last_thread_that_sees_it(file: SqliteStore, path: Path) -> None:
    talk(file, "t", 5)
    file.one(CopyThread(source="t", target="u"))
    talk(file, "u", 2, start=6)
    file.one(CopyThread(source="u", target="v"))
    talk(file, "t", 1, start=6)
    file.one(DropCheckpoints(thread_id="v", drop=[("", "c1")]))
    for name in ("t", "u", "v"):
        assert set(counts(path).values()) != {0}
        assert file.one(DeleteThread(thread_id=name))
    assert set(counts(path).values()) == {0}


def test_a_thousand_turns_of_a_small_message_stay_below_three_megabytes(path: Path) -> None:
    with SqliteStore(path, durability="process") as store:
        for n in range(1000):
            new = NewCheckpoint(
                ns="",
                checkpoint_id=f"1f0{n:05x}-6a9e-6b12-8001-02fc00000001",
                parent_id=f"1f0{n - 1:05x}-6a9e-6b12-8001-02fc00000001" if n else None,
                meta=f'{{"source":"loop","step":{n},"parents":{{}}}}',
                spans=[Span("messages", 0, n + 1)],
                head=bytes(600),
            )
            task = f"{n:08x}-6a9e-5b12-8001-02fc00000001"
            writes = wrote(task, (0, bytes(741)), at=new.checkpoint_id, path="~__pregel_pull, chat")
            pieces = [Piece("messages", n, 1, bytes(741))]
            store.one(PutThread(thread_id="t", home=HOME, pieces=pieces, checkpoint=new, writes=[writes]))
    assert path.stat().st_size < 3_000_000


# Damage


@pytest.mark.parametrize(
    ("statement", "op"),
    [
        ("UPDATE thread_checkpoints SET spans = '[['", ReadThread(thread_id="t")),
        ("UPDATE thread_checkpoints SET spans = '[[1,2,3]]'", ListCheckpoints(thread_id="t")),
        ("UPDATE thread_checkpoints SET head = 'text'", ReadThread(thread_id="t")),
        ("UPDATE thread_checkpoints SET at = x'00'", ReadPath(thread_id="t", checkpoint_id="c2")),
        ("UPDATE thread_checkpoints SET meta = '{'", ListCheckpoints(thread_id="t", where={"step": 1})),
        ("UPDATE thread_writes SET body = x'ff'", ReadThread(thread_id="t")),
        ("UPDATE thread_writes SET slot = 'x'", ListCheckpoints(thread_id="t")),
        ("UPDATE thread_pieces SET data = 7", ReadThread(thread_id="t")),
        ("UPDATE thread_pieces SET count = x'01'", ReadPieces(thread_id="t", spans=[Span("messages", 0, 2)])),
        ("UPDATE threads SET tips = '{'", ReadThread(thread_id="t")),
        ("UPDATE threads SET tips = '{'", turn("t", 3)),
        ("UPDATE threads SET seq = 'x'", turn("t", 3)),
        ("UPDATE threads SET home = x'00'", ListThreads()),
        ("UPDATE threads SET meta = '{'", ListThreads(where={"step": 1})),
    ],
)
def test_a_damaged_row_is_told_and_never_taken_for_good(
    file: SqliteStore, path: Path, statement: str, op: Op[Any]
) -> None:
    talk(file, "t", 2)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(statement)
    with pytest.raises(Damaged):
        file.one(op)


def test_a_thread_of_too_many_rows_says_so(file: SqliteStore, path: Path) -> None:
    talk(file, "t", 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE threads SET seq = 134217726")
    file.one(turn("t", 2, pieces=[], checkpoint=None, writes=[wrote("last", (0, b"x"))]))
    with pytest.raises(InvalidInput, match="begin another"):
        file.one(turn("t", 2))


# PostgreSQL


@pytest.fixture
def journeys(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many statements each journey to the server had."""
    made: list[int] = []
    many, one = Link.many, Link.one

    def counted_many(self: Link, batch: Any, **options: Any) -> Any:
        made.append(len(batch))
        return many(self, batch, **options)

    def counted_one(self: Link, *args: Any, **options: Any) -> Any:
        made.append(1)
        return one(self, *args, **options)

    monkeypatch.setattr(postgres_link, "_PLANS_SECONDS", 3600.0)  # no journey to forget plans, however slow this is
    monkeypatch.setattr(Link, "many", counted_many)
    monkeypatch.setattr(Link, "one", counted_one)
    return made


def test_a_commit_is_two_journeys_and_a_read_is_one(open_store: Opener, journeys: list[int]) -> None:
    store = open_store()
    talk(store, "t", 2)
    del journeys[:]
    talk(store, "t", 1, start=3)
    assert len(journeys) == 2
    del journeys[:]
    assert store.one(ReadThread(thread_id="t")) is not None
    assert len(journeys) == 1
    del journeys[:]
    assert len(store.one(ReadPath(thread_id="t", checkpoint_id="c3"))) == 2
    assert len(journeys) == 1


def test_processes_that_begin_a_thread_at_once_begin_one(open_store: Opener) -> None:
    stores = [open_store() for _ in range(4)]
    answers: list[Any] = [None] * len(stores)
    start = threading.Barrier(len(stores))

    def begin(number: int) -> None:
        start.wait(20)
        try:
            answers[number] = stores[number].one(turn("t", 1, home=f"home {number}"))
        except Conflict as error:
            answers[number] = error.details["stale"]

    threads = [threading.Thread(target=begin, args=(n,)) for n in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count("home") == 3
    view = stores[0].one(ReadThread(thread_id="t"))
    assert view is not None
    assert view.home == f"home {next(n for n, answer in enumerate(answers) if answer != 'home')}"


def test_two_that_let_go_of_a_shared_line_at_once_leave_none_of_it(
    open_store: Opener, pg_url: str, schema: str
) -> None:
    first, second = open_store(), open_store()
    for _ in range(5):
        talk(first, "t", 2)
        first.one(CopyThread(source="t", target="u"))
        both = [
            threading.Thread(target=store.one, args=(DeleteThread(thread_id=name),))
            for store, name in ((first, "t"), (second, "u"))
        ]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
    assert first.one(ListThreads()).items == []
    with psycopg.connect(pg_url) as connection:
        for table in ROWS:
            assert connection.execute(f"SELECT COUNT(*) FROM {schema}.{table}").fetchone() == (0,)

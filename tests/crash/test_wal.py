"""SQLite before 3.51.3 may corrupt a log that is copied while another connection commits: under our lock none does."""

from __future__ import annotations

import os
import random
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from stepfast.ops import CreateIntent, ListIntents, NewIntent, ReadEvents
from stepfast.stores import files
from stepfast.stores.sqlite import SqliteStore
from stepfast.testing import Log, ack, trace
from stepfast.testing.contract_kit import check_history
from stepfast.testing.processes import Child, in_shards
from tests.crash.hooks import checkpoint_often
from tests.crash.proofs import Proof
from tests.crash.stage import STORE

# Who holds the lock, call by call


def announce_the_lock() -> None:
    """Tell the tracer when this process has the lock and when it is about to give it up; and that it really has it."""
    import fcntl

    lock, unlock = files._lock, files._unlock

    def locked(fd: int) -> None:
        lock(fd)
        other = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            ack(f"held {os.getpid()}")
        else:
            ack("the lock is not held")
        finally:
            os.close(other)

    def unlocked(fd: int) -> None:
        ack(f"free {os.getpid()}")
        unlock(fd)

    files._lock, files._unlock = locked, unlocked


def new_intent(number: int) -> CreateIntent:
    return CreateIntent(
        new=NewIntent(intent_id=f"intent-{number:08d}", intent_type="t", to_agent="agent://x", payload=bytes(200))
    )


def busy_writer(folder: Path, seed: int) -> None:
    """Commits, checkpoints, reads and reopens, as processes that share a file do."""
    for turn in range(3):
        with SqliteStore(folder / STORE) as store:
            for number in range(6):
                store.one(new_intent(seed * 1000 + turn * 10 + number))
                store.one(ListIntents())


def three_writers(folder: Path) -> None:
    announce_the_lock()
    checkpoint_often(4)
    children = [Child(lambda _, seed=seed: busy_writer(folder, seed)) for seed in range(2)]  # type: ignore[misc]
    busy_writer(folder, 2)
    for child in children:
        ended = child.wait(60)
        assert ended.code == 0, ended.why


def check_every_write_is_locked(log: Log) -> tuple[int, int]:
    """Writes and syncs of the file and its log, and how often the lock changed hands."""
    holder: str | None = None
    writes = turns = 0
    for call in log.calls:
        if call.op == "ack":
            word, _, who = call.data.decode().partition(" ")
            if word == "held":
                assert holder is None, f"{who} took the lock from {holder}"
                holder, turns = who, turns + 1
            else:
                assert word == "free", call.data
                assert holder == who, f"{who} gave up the lock of {holder}"
                holder = None
        elif call.path in (STORE, f"{STORE}-wal") and call.op in ("write", "truncate", "sync", "unlink", "rename"):
            assert holder == str(call.tid), f"{call.syscall} of {call.path} by {call.tid}, while {holder} has the lock"
            writes += 1
    return writes, turns


@pytest.mark.skipif(sys.platform != "linux", reason="needs ptrace as Linux has it")
def test_every_write_and_sync_happens_under_the_lock(memory: Path, proof: Proof) -> None:
    log = trace(three_writers, memory)
    assert log.code == 0, log.error
    writes, turns = check_every_write_is_locked(log)
    copied = sum(call.op == "write" and call.path == STORE for call in log.calls)
    assert copied > 50, "the log was to be copied into the main file often"
    with closing(sqlite3.connect(memory / STORE)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT count(*) FROM intents").fetchone() == (54,)
    proof("writes under the lock", writes=writes, of_them_checkpoints=copied, turns=turns, processes=3)


# Many processes at once


def hammer(folder: Path, shard: int, seconds: float, seed: int) -> tuple[int, int]:
    """Commit as fast as it goes, opening the file anew now and then; how many were acknowledged."""
    checkpoint_often(2)
    dice = random.Random(f"{seed}/{shard}")
    ends = time.monotonic() + seconds
    done = opened = 0
    while time.monotonic() < ends:
        opened += 1
        with SqliteStore(folder / STORE, durability="process") as store:
            for _ in range(dice.randrange(1, 200)):
                store.one(new_intent(shard * 10_000_000 + done))
                done += 1
    return done, opened


def stress(folder: Path, processes: int, seconds: float, seed: int) -> tuple[int, int]:
    Child(lambda _: SqliteStore(folder / STORE).close()).wait(60)
    notes = in_shards(processes, lambda shard, note: note(hammer(folder, shard, seconds, seed)))
    commits, opened = sum(note[0] for note in notes), sum(note[1] for note in notes)
    with closing(sqlite3.connect(folder / STORE)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT count(*) FROM intents").fetchone() == (commits,)
        assert db.execute("SELECT count(*) FROM events").fetchone() == (3 * commits,)
        assert db.execute("SELECT count(*) FROM intents WHERE seq <> 3").fetchone() == (0,)
    with SqliteStore(folder / STORE) as store:
        for intent in store.one(ListIntents()):
            check_history(intent, store.one(ReadEvents(intent_id=intent.intent_id)))
    return commits, opened


def test_many_processes_on_one_file_leave_it_whole(memory: Path, proof: Proof) -> None:
    commits, opened = stress(memory, processes=4, seconds=4.0, seed=1)
    proof("stress of one file", processes=4, commits=commits, opened=opened, sqlite=sqlite3.sqlite_version)


@pytest.mark.chaos
def test_many_processes_on_one_file_leave_it_whole_for_long(memory: Path, proof: Proof) -> None:
    total = 0
    rounds = 30
    for turn in range(rounds):
        folder = memory / f"round-{turn}"
        folder.mkdir()
        commits, _ = stress(folder, processes=5, seconds=8.0, seed=turn)
        total += commits
    proof("stress of one file, long", rounds=rounds, commits=total, corrupt=0, sqlite=sqlite3.sqlite_version)

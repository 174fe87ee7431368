"""Small durable programs on plain SQLite, right ones and wrong ones, for the harness to tell apart."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

from stepfast._failpoints import failpoint
from stepfast.testing import Effects, ack

FAILPOINTS = frozenset({"toy.started", "toy.acted", "toy.finished"})
CHARGES = ("charge:1", "charge:2", "charge:3")


def opened(folder: Path, journal: str = "wal", synchronous: str = "full") -> sqlite3.Connection:
    db = sqlite3.connect(folder / "toy.db", isolation_level=None, timeout=0.2)
    db.execute(f"PRAGMA journal_mode={journal}")
    db.execute(f"PRAGMA synchronous={synchronous}")
    db.execute("CREATE TABLE IF NOT EXISTS steps (key TEXT PRIMARY KEY, done INTEGER NOT NULL DEFAULT 0)")
    return db


def careful(folder: Path) -> None:
    """Each charge is recorded as started, made, and recorded as done; one in doubt is looked up."""
    effects = Effects(folder)
    with closing(opened(folder)) as db:
        for key in CHARGES:
            row = db.execute("SELECT done FROM steps WHERE key = ?", (key,)).fetchone()
            if row is None:
                db.execute("INSERT INTO steps (key) VALUES (?)", (key,))
                failpoint("toy.started")
            if row != (1,) and not effects.counts()[key]:
                effects.record(key)
                failpoint("toy.acted")
            if row != (1,):
                db.execute("UPDATE steps SET done = 1 WHERE key = ?", (key,))
                failpoint("toy.finished")


def forgetful(folder: Path) -> None:
    """Wrong: nothing says that a charge was begun, so it is repeated when its record did not get through."""
    with closing(opened(folder)) as db:
        for key in CHARGES:
            if db.execute("SELECT 1 FROM steps WHERE key = ?", (key,)).fetchone() is None:
                Effects(folder).record(key)
                failpoint("toy.acted")
                db.execute("INSERT INTO steps (key, done) VALUES (?, 1)", (key,))
                failpoint("toy.finished")


def hasty(folder: Path) -> None:
    """Wrong: it tells its caller that a step is kept before the commit."""
    acks = Effects(folder, "acks")
    with closing(opened(folder)) as db:
        for key in CHARGES:
            if db.execute("SELECT 1 FROM steps WHERE key = ?", (key,)).fetchone() is None:
                db.execute("BEGIN IMMEDIATE")
                db.execute("INSERT INTO steps (key, done) VALUES (?, 1)", (key,))
                acks.record(key)
                failpoint("toy.acted")
                db.execute("COMMIT")


def restless(folder: Path) -> None:
    """Wrong: it does something each time it is started, finished or not."""
    careful(folder)
    Effects(folder).record("hello")


def charged_once(folder: Path) -> None:
    with closing(opened(folder)) as db:
        assert db.execute("SELECT count(*) FROM steps WHERE done = 1").fetchone() == (len(CHARGES),)
    counts = Effects(folder).counts()
    assert {key: counts[key] for key in CHARGES} == dict.fromkeys(CHARGES, 1)


def acks_kept(folder: Path) -> None:
    with closing(opened(folder)) as db:
        kept = {key for (key,) in db.execute("SELECT key FROM steps")}
    assert set(Effects(folder, "acks").lines()) <= kept, "an acknowledged step is lost"


# A ledger for power cuts: many small commits, each acknowledged.


def ledger(folder: Path, journal: str = "wal", synchronous: str = "full", rows: int = 12) -> None:
    with closing(opened(folder, journal, synchronous)) as db:
        for number in range(rows):
            db.execute("INSERT INTO steps (key) VALUES (?)", (f"{number}:" + "x" * 300,))
            ack(str(number))


def ledger_kept(folder: Path, acked: tuple[str, ...]) -> None:
    with closing(sqlite3.connect(folder / "toy.db")) as db:
        kept: set[str] = set()
        if db.execute("SELECT 1 FROM sqlite_schema").fetchone():
            kept = {key.partition(":")[0] for (key,) in db.execute("SELECT key FROM steps")}
        assert set(acked) <= kept, f"acknowledged and lost: {sorted(set(acked) - kept)}"
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


# Rows that know their own checksum, for flipped bits.


def sealed_rows(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, body BLOB, seal BLOB)")
        for number in range(120):
            body = f"row {number} ".encode() * 20
            db.execute("INSERT INTO rows VALUES (?, ?, ?)", (number, body, hashlib.sha256(body).digest()))


def read_rows(path: Path, sealed: bool) -> str:
    """``exact`` or ``refused``; AssertionError if a wrong row was served."""
    try:
        with closing(sqlite3.connect(path)) as db:
            rows = db.execute("SELECT number, body, seal FROM rows ORDER BY number").fetchall()
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return "refused"
    if sealed and any(not isinstance(body, bytes) or hashlib.sha256(body).digest() != seal for _, body, seal in rows):
        return "refused"
    if sealed and [number for number, _, _ in rows] != list(range(120)):
        return "refused"
    assert [body for _, body, _ in rows] == [f"row {number} ".encode() * 20 for number in range(120)]
    return "exact"

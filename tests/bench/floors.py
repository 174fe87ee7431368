"""The floors: what the database itself takes to make a row durable, with nothing of ours around it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

GROUP = 16
ROW = b"x" * 200  # about what the row of a no-op step holds
_NUMBERS = count(1)

_TABLE = "CREATE TABLE IF NOT EXISTS bare (id TEXT PRIMARY KEY, body {})"


def _key() -> str:
    # As step keys lie in their index: one common beginning, then a number as text.
    return f"01980000-0000-7000-8000-000000000000/step:noop#{next(_NUMBERS)}"


class SqliteFloor:
    """WAL and synchronous=FULL, by the standard library."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute(_TABLE.format("BLOB") + " WITHOUT ROWID")

    def single(self, commits: int) -> float:
        """One row per commit; gives seconds per row."""
        execute = self._connection.execute
        began = time.perf_counter()
        for _ in range(commits):
            execute("BEGIN IMMEDIATE")
            execute("INSERT INTO bare VALUES (?, ?)", (_key(), ROW))
            execute("COMMIT")
        return (time.perf_counter() - began) / commits

    def grouped(self, rows: int) -> float:
        """GROUP rows per commit; gives seconds per row."""
        execute = self._connection.execute
        began = time.perf_counter()
        for size in _groups(rows):
            execute("BEGIN IMMEDIATE")
            for _ in range(size):
                execute("INSERT INTO bare VALUES (?, ?)", (_key(), ROW))
            execute("COMMIT")
        return (time.perf_counter() - began) / rows

    def close(self) -> None:
        self._connection.close()


class PostgresFloor:
    """A prepared statement on an autocommit connection."""

    def __init__(self, url: str) -> None:
        import psycopg

        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(_TABLE.format("BYTEA").encode())

    def single(self, commits: int) -> float:
        with closing(self._connection.cursor()) as cursor:
            began = time.perf_counter()
            for _ in range(commits):
                cursor.execute("INSERT INTO bare VALUES (%s, %s)", (_key(), ROW), prepare=True)
            return (time.perf_counter() - began) / commits

    def grouped(self, rows: int) -> float:
        statement = "INSERT INTO bare SELECT * FROM unnest(%s::text[], %s::bytea[])"
        with closing(self._connection.cursor()) as cursor:
            began = time.perf_counter()
            for size in _groups(rows):
                cursor.execute(statement, ([_key() for _ in range(size)], [ROW] * size), prepare=True)
            return (time.perf_counter() - began) / rows

    def close(self) -> None:
        self._connection.close()


Floor = SqliteFloor | PostgresFloor


def _groups(rows: int) -> Iterator[int]:
    while rows > 0:
        yield min(rows, GROUP)
        rows -= GROUP

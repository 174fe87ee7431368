"""Changes to the embedded store that only a test makes, in a process that it forked for that."""

from __future__ import annotations

import sqlite3

from stepfast.stores.sqlite import SqliteStore


def checkpoint_often(pages: int) -> None:
    """Let every connection copy its log into the main file after so many pages, not after a thousand."""
    connect = SqliteStore._connect

    def connected(self: SqliteStore) -> sqlite3.Connection:
        connection = connect(self)
        connection.execute(f"PRAGMA wal_autocheckpoint={pages}")
        return connection

    SqliteStore._connect = connected  # type: ignore[method-assign]

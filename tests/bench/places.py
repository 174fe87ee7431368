"""Where stores lie: on a disk and in memory, SQLite and PostgreSQL, with the same durability for everybody."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.bench.floors import Floor, PostgresFloor, SqliteFloor
from tests.bench.peers import Dbos

StoreName = Literal["SQLite", "PostgreSQL"]
MediumName = Literal["disk", "tmpfs"]

_IN_MEMORY = ("tmpfs", "ramfs")
_SHARED_MEMORY = Path("/dev/shm")
_ROOT = Path(__file__).parents[2]


def filesystem_of(folder: Path) -> str:
    """The type of file system a folder lies on, where the system tells."""
    try:
        mounts = Path("/proc/mounts").read_text()
    except OSError:
        return "unknown"
    found, kind = -1, "unknown"
    for line in mounts.splitlines():
        _, mounted, this, *_ = line.split()
        if folder.resolve().is_relative_to(mounted) and len(mounted) > found:
            found, kind = len(mounted), this
    return kind


def folder_on_disk() -> Path:
    """A fresh folder that a flush really costs something in: beside the checkout if the usual place is in memory."""
    usual = Path(tempfile.gettempdir())
    if filesystem_of(usual) in _IN_MEMORY:
        usual = _ROOT / "build"
        usual.mkdir(exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="stepfast-bench-", dir=usual))


def folder_in_memory() -> Path | None:
    if _SHARED_MEMORY.is_dir() and filesystem_of(_SHARED_MEMORY) in _IN_MEMORY:
        return Path(tempfile.mkdtemp(prefix="stepfast-bench-", dir=_SHARED_MEMORY))
    return None


def flush_cost(folder: Path, times: int = 40) -> float:
    """Seconds that writing 4 KiB over old ones and flushing them takes: the median."""
    data = os.urandom(4096)
    taken = []
    path = folder / "flush"
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        for _ in range(times):
            began = time.perf_counter()
            os.pwrite(fd, data, 0)
            os.fsync(fd)
            taken.append(time.perf_counter() - began)
    finally:
        os.close(fd)
        path.unlink()
    return statistics.median(taken)


@dataclass
class Place:
    """A medium and a kind of store; gives fresh stores and their floor."""

    medium: MediumName
    store: StoreName
    folder: Path
    server: Any = None

    def url(self, name: str) -> str:
        if self.store == "SQLite":
            return f"sqlite:///{self.folder / name}.db"
        url: str = self.server.database(name)
        return url

    def floor(self, name: str) -> Floor:
        return SqliteFloor(self.folder / f"{name}.db") if self.store == "SQLite" else PostgresFloor(self.url(name))


class Medium:
    """A folder and, from the first time it is asked for, a PostgreSQL server in it."""

    def __init__(self, name: MediumName, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self._server: Any = None
        self._dbos: dict[StoreName, Dbos] = {}
        self.server_facts: dict[str, str] = {}

    def dbos(self, store: StoreName) -> Dbos:
        """One process for each store, from the first time it is asked for."""
        if store not in self._dbos:
            self._dbos[store] = Dbos(self.place(store).url("dbos"))
        return self._dbos[store]

    def place(self, store: StoreName) -> Place:
        if store == "PostgreSQL" and self._server is None:
            self._start()
        return Place(self.name, store, self.folder, self._server)

    def _start(self) -> None:
        import psycopg

        from tests import postgres_server

        self._server = postgres_server.start(self.folder / "pg", fsync=True)
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            for name in ("server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_sync_method"):
                row = connection.execute(f"SHOW {name}".encode()).fetchone()
                self.server_facts[name] = row[0] if row else "?"
        if self.server_facts["fsync"] != "on" or self.server_facts["synchronous_commit"] != "on":
            raise RuntimeError(f"PostgreSQL is not durable here: {self.server_facts}")

    def _stop(self) -> None:
        import psycopg

        # Its last checkpoint would flush gigabytes that are deleted a moment later.
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        self._server.stop()

    def close(self) -> None:
        for peer in self._dbos.values():
            peer.close()
        if self._server is not None:
            self._stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def machine() -> dict[str, str]:
    return {
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
    }


def load() -> str:
    if sys.platform == "win32":
        return "unknown"
    return " ".join(f"{n:.1f}" for n in os.getloadavg())

"""The lock that all writers of a file share, where processes fork and die."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from stepfast.stores.sqlite import SqliteStore


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_child_does_not_keep_the_lock_of_a_parent_that_was_killed_amid_a_commit(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    SqliteStore(path).close()
    told, tell = os.pipe()
    parent = os.fork()
    if parent == 0:
        store = SqliteStore(path)
        assert store._lock is not None
        store._lock.acquire()
        if os.fork() == 0:
            os.write(tell, f"{os.getpid()}\n".encode())
        signal.pause()
        os._exit(1)
    child = int(os.read(told, 64))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    try:
        with SqliteStore(path) as store:
            assert store.check() > 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(told)
        os.close(tell)

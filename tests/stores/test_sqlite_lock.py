"""The lock that all writers of a file share, where processes fork and die."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
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


def test_a_store_that_is_collected_inside_a_transaction_of_another_does_not_wait_for_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with SqliteStore(path) as other:
        collected = SqliteStore(path)
        lock = collected._lock
        assert lock is not None

        def transaction() -> None:
            nonlocal collected
            other._hold()
            try:
                del collected
                gc.collect()
            finally:
                other._let_go()

        thread = threading.Thread(target=transaction, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), "the transaction waits for itself"
        assert lock._fd >= 0, "its files are closed under the lock only"
    assert lock._fd < 0, "they are closed with the next store"

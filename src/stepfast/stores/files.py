"""Files of the embedded store: where it lies, who may read it, and the lock all its writers share."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from weakref import WeakSet

from stepfast.errors import StoreUnavailable

if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int) -> None:
        while True:
            try:
                msvcrt.locking(fd, msvcrt.LK_LOCK, 1)
                return
            except OSError:
                continue

    def _try_lock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    def _unlock(fd: int) -> None:
        os.lseek(fd, 0, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX)

    def _try_lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)


def default_store_path() -> Path:
    """The user's data folder, as each system has it."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "stepfast" / "stepfast.db"


def prepare(path: Path) -> None:
    """Make sure that the file can be opened safely: folder there, ours alone, no link in its place."""
    if path.is_symlink():
        raise StoreUnavailable(f"{path} is a symbolic link; a store must be a plain file. Name the file itself.")
    if path.is_dir():
        raise StoreUnavailable(f"{path} is a folder; name a file in it, such as sqlite:///{path}/stepfast.db.")
    try:
        missing = [parent for parent in (path.parent, *path.parent.parents) if not parent.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
            sync_folder(folder.parent)
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o600))
            sync_folder(path.parent)
    except OSError as error:
        raise StoreUnavailable(f"the store {path} cannot be created: {error.strerror}. Name another place.") from None


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive a power cut; a no-op where folders cannot be synced."""
    if sys.platform == "win32":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_locks: WeakSet[WriterLock] = WeakSet()


def _drop_inherited() -> None:
    """A forked child shares its parent's lock until it closes its copy: a parent killed amid a commit would
    otherwise hold the store for as long as the child lives."""
    for lock in list(_locks):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited)


class WriterLock:
    """One lock for all commits and checkpoints on a file, over all threads and processes.

    SQLite before 3.51.3 can corrupt a WAL file when one connection checkpoints while another
    commits; under this lock the two never meet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_CREAT | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError as error:
            raise StoreUnavailable(
                f"the store's lock {path} cannot be opened: {error.strerror}; check the rights and the mount."
            ) from None
        _locks.add(self)

    def acquire(self) -> None:
        try:
            _lock(self._fd)
        except OSError as error:
            raise StoreUnavailable(f"{self.path} cannot be locked: {error.strerror}; nothing was written.") from error

    def try_acquire(self) -> bool:
        """Take the lock if it is free now."""
        try:
            _try_lock(self._fd)
        except OSError:
            return False
        return True

    def release(self) -> None:
        _unlock(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

"""Who holds an embedded run, and whether that process is still alive.

A process is known by its host, boot, pid namespace, pid and start time. Only when all of that is
ours to judge do we call an owner dead; otherwise its lease has to run out.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

Life = Literal["alive", "dead", "unknown"]


class Owner(msgspec.Struct, frozen=True):
    host: str
    boot: str
    space: str
    pid: int
    start: str
    session: str = ""  # of several stores in one process, the one whose stream a server watches

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


# Made here, where no two threads meet: msgspec crashes if two of them are the first to use a class.
_decode = msgspec.json.Decoder(Owner).decode


def this_process(session: str = "") -> Owner:
    pid = os.getpid()
    return Owner(_host(), _boot(), _space(), pid, _start_of(pid) or "", session)


def life_of(text: str | None) -> Life:
    """What this process can tell about an owner."""
    try:
        owner = _decode(text or "")
    except msgspec.DecodeError:
        return "unknown"
    if owner.host != _host() or not owner.boot:
        return "unknown"
    if owner.boot != _boot():
        return "dead"
    if owner.space != _space() or not owner.start:
        return "unknown"
    return "alive" if _start_of(owner.pid) == owner.start else "dead"


@cache
def _host() -> str:
    import platform

    name = platform.node()
    try:
        return f"{name}/{Path('/etc/machine-id').read_text().strip()}"
    except OSError:
        return name


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return _ask(["sysctl", "-n", "kern.boottime"]) if sys.platform == "darwin" else ""


@cache
def _space() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


@cache
def _has_proc() -> bool:
    return Path("/proc/self/stat").exists()


def _start_of(pid: int) -> str | None:
    """When a process started, in whatever unit the system has; None if there is no such process."""
    if _has_proc():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in ("Z", "X") else fields[19]
    if os.name == "posix":
        return _ask(["ps", "-o", "lstart=", "-p", str(pid)]) or None
    return None


def _ask(command: list[str]) -> str:
    import subprocess

    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


class InUse:
    """What this process works on: a lease of its own that is not among it was left behind, not held."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """A forked child has none of its parent's runs, nor may it wait for a lock of its parent's threads."""
        self._lock = threading.Lock()
        self._tokens: set[str] = set()
        self._open: dict[int, str] = {}

    @contextmanager
    def asking(self, token: str) -> Iterator[str]:
        """From before a lease is asked for until there is a session: nobody here is to take it meanwhile."""
        with self._lock:
            self._tokens.add(token)
        try:
            yield token
        finally:
            with self._lock:
                self._tokens.discard(token)

    def add(self, session: object, intent_id: str) -> None:
        with self._lock:
            self._open[id(session)] = intent_id

    def discard(self, session: object) -> None:
        with self._lock:
            self._open.pop(id(session), None)

    def covers(self, intent_id: str, token: str | None) -> bool:
        with self._lock:
            return token in self._tokens or intent_id in self._open.values()


in_use = InUse()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=in_use.forget)

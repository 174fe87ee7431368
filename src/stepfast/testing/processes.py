"""Child processes for tests: forked from a warmed parent, watched, and ended.

Also the two things a killed process leaves behind for its judge: its effects and its story.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

Body = Callable[[Path], object]
Note = Callable[[Any], None]

_HARNESS = Path(__file__).parent


class Unsupported(RuntimeError):
    """This platform cannot run the test asked for."""


class CrashTestFailed(AssertionError):
    """A scenario did not survive; the text says where it was cut, what broke, and where the evidence lies."""

    def __init__(self, message: str, *, where: str = "", stage: str = "", folder: Path | None = None) -> None:
        super().__init__(message)
        self.where = where
        self.stage = stage
        self.folder = folder


class Effects:
    """A witness outside the store: one durable line for each thing done to the world.

    >>> effects = Effects(folder)
    >>> effects.record("charge:42")
    >>> assert effects.counts()["charge:42"] == 1
    """

    NAME = "effects"

    def __init__(self, folder: Path, name: str = NAME) -> None:
        self.path = folder / name

    def record(self, effect: str) -> None:
        """Append a line in one write and sync it: after this returns, the effect has happened."""
        if not effect or "\n" in effect:
            raise ValueError(f"an effect is one line of text, not {effect!r}")
        line = effect.encode() + b"\n"
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.write(fd, line) != len(line):
                raise OSError(f"a short write tore the effect {effect!r}")
            os.fsync(fd)
        finally:
            os.close(fd)

    def lines(self) -> list[str]:
        """The effects in the order in which they happened."""
        if not self.path.exists():
            return []
        text = self.path.read_bytes()
        if text and not text.endswith(b"\n"):
            raise CrashTestFailed(f"the last line of {self.path.name} is torn: {text[-80:]!r}")
        return text.decode().splitlines()

    def counts(self) -> Counter[str]:
        return Counter(self.lines())


# Processes


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code (minus the signal if one killed it) and what it said."""

    code: int
    notes: list[Any]
    error: str

    @property
    def why(self) -> str:
        return self.error or (f"killed by signal {-self.code}" if self.code < 0 else f"exit code {self.code}")


def require_fork() -> None:
    if not hasattr(os, "fork"):
        raise Unsupported("crash tests fork and SIGKILL processes: they need Linux or macOS")


class Child:
    """A forked process that runs one function and speaks through an unnamed file, which outlives it."""

    def __init__(self, body: Callable[[Note], object]) -> None:
        require_fork()
        self.said = _unnamed_file()
        self.over: int | None = None
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        with warnings.catch_warnings():
            # Python 3.12 warns of forking beside other threads; the module's docstring asks for none.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            _live(body, self.said.fileno())

    def wait(self, timeout: float) -> Ended:
        """The end of the child, which is killed if it has not come in time."""
        status = self._status(timeout)
        late = status is None
        if status is None:
            self.kill()
            _, status = os.waitpid(self.pid, 0)
        return self.ended(status, f"still running after {timeout:g} s: killed" if late else "")

    def ended(self, status: int, late: str = "") -> Ended:
        self.said.seek(0)
        notes = [json.loads(line) for line in self.said]
        self.said.close()
        errors = [note["error"] for note in notes if isinstance(note, dict) and "error" in note]
        return Ended(os.waitstatus_to_exitcode(status), notes, "\n".join([late] * bool(late) + errors))

    def stopped(self, timeout: float) -> bool:
        """Wait until the child has stopped itself; False if it ended instead."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                return True
            if pid:
                self.over = status
                return False
            time.sleep(0.0005)
        return False

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _status(self, timeout: float) -> int | None:
        if self.over is not None:
            return self.over
        deadline = time.monotonic() + timeout
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                fd = os.pidfd_open(self.pid)
                try:
                    poll = select.poll()
                    poll.register(fd, select.POLLIN)
                    poll.poll(timeout * 1000)
                finally:
                    os.close(fd)
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return status
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.001)


def _unnamed_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("stepfast-notes"), "r+b")
    return tempfile.TemporaryFile()


def _live(body: Callable[[Note], object], fd: int) -> NoReturn:
    code = 1

    def note(value: Any) -> None:
        os.write(fd, json.dumps(value).encode() + b"\n")

    try:
        body(note)
        code = 0
    except SystemExit as leaving:
        code = 0 if leaving.code in (None, 0) else 1
        if code:
            note({"error": f"SystemExit: {leaving.code}"})
    except BaseException as error:
        note({"error": story_of(error)})
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def story_of(error: BaseException) -> str:
    """The traceback from where the harness called the test's own code."""
    trace = error.__traceback__
    inner = trace
    while inner is not None and Path(inner.tb_frame.f_code.co_filename).parent == _HARNESS:
        inner = inner.tb_next
    return "".join(traceback.format_exception(type(error), error, inner or trace))


def in_shards(jobs: int, body: Callable[[int, Note], object], timeout: float = 3600.0) -> list[Any]:
    """Run ``body(0) … body(jobs - 1)`` side by side in children and give all they noted."""

    def worker(number: int) -> Callable[[Note], object]:
        def work(note: Note) -> object:
            gc.freeze()  # spares the workers' own forks from copying every page that a collection touches
            return body(number, note)

        return work

    children: list[Child] = []
    try:
        children.extend(Child(worker(number)) for number in range(jobs))
        ended = [child.wait(timeout) for child in children]
    except BaseException:
        for child in children:
            with contextlib.suppress(ChildProcessError, ValueError):  # it was waited for already
                child.kill()
                child.wait(5)
        raise
    for end in ended:
        if end.code:
            raise RuntimeError(f"a worker of the crash harness itself failed: {end.why}")
    return [note for end in ended for note in end.notes]


def scratch(folder: Path | None, name: str) -> Path:
    """A new folder under the given one, or else in memory where the system has such a place."""
    require_fork()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    return Path(tempfile.mkdtemp(prefix=f"stepfast-{name}-", dir=memory if usable else None))


# Trials

"""The other side of `dbos_peer`: asks a child process for blocks, and stops it while others have their turn."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path

SETTINGS = (
    "own process, stopped outside its blocks; log_level ERROR, no OTLP, no Conductor, otherwise its defaults; "
    "its SQLite file is put into WAL mode, which it does not do itself and which makes it faster"
)


def dbos_version() -> str | None:
    """None where it is not installed."""
    return metadata.version("dbos") if util.find_spec("dbos") is not None else None


class Dbos:
    program = "tests.bench.dbos_peer"

    def __init__(self, url: str) -> None:
        if url.startswith("sqlite:///"):
            with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
            connection.close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.program, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self._answer()
        self._pause()

    def lone(self, steps: int) -> float:
        return self._ask("lone", steps)

    def many(self, runs: int, steps: int, concurrency: int) -> float:
        return self._ask("many", runs, steps, concurrency)

    def record(self, steps: int) -> float:
        """Go through a workflow that `replay` goes through again."""
        return self._ask("record", steps)

    def replay(self, steps: int) -> float:
        return self._ask("replay", steps)

    def _ask(self, *order: str | int) -> float:
        if sys.platform != "win32":
            os.kill(self._process.pid, signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        self._pause()
        return answer

    def _answer(self) -> float:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the DBOS process ended with {self._process.wait()}")
        return float(json.loads(line))

    def _pause(self) -> None:
        if sys.platform != "win32":
            os.kill(self._process.pid, signal.SIGSTOP)

    def close(self) -> None:
        """Its store goes with the folder it lies in, so there is nothing to be saved."""
        self._process.kill()
        self._process.communicate()

"""A real server in a process of its own, to be asked, stopped and killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import httpx
import msgspec

from stepfast.server.settings import Limits, Settings

_PROGRAM = """
import sys, msgspec
from stepfast.server.serve import run
from stepfast.server.settings import Settings
run(msgspec.json.decode(sys.argv[1].encode(), type=Settings))
"""


class Live:
    """``url`` is its address; the same object can be started again on the same port."""

    def __init__(self, settings: Settings, env: dict[str, str] | None = None) -> None:
        self.settings = settings
        self.env = env or {}
        self.lines: list[str] = []
        self.log: list[str] = []
        self.url = ""
        self.process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []

    def start(self, wait: bool = True) -> Live:
        """Start it and wait until it is ready."""
        assert self.process is None, "it runs already"
        self.lines, self.log = [], []
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, msgspec.json.encode(self.settings).decode()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.env},
        )
        self._readers = [
            threading.Thread(target=_gather, args=(pipe, lines), daemon=True)
            for pipe, lines in ((self.process.stdout, self.lines), (self.process.stderr, self.log))
        ]
        for reader in self._readers:
            reader.start()
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, seconds: float = 30.0) -> None:
        until = time.monotonic() + seconds
        while True:
            said = re.search(r"https?://\S+", "\n".join(self.lines))
            if said:
                self.url = said.group()
                try:
                    if httpx.get(f"{self.url}/ready", verify=False, timeout=5).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"the server did not start: {self.lines} {self.log}")
            time.sleep(0.02)
        if not self.settings.port:  # so that it comes back at the same address
            self.settings = msgspec.structs.replace(self.settings, port=int(self.url.rpartition(":")[2]))

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill9(self) -> None:
        """End it as a power cut would."""
        self.signal(signal.SIGKILL)
        self._reap()

    def stop(self, seconds: float = 30.0) -> int:
        """Ask it to shut down; gives its exit status."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self._reap(seconds)

    def restart(self) -> Live:
        self.stop()
        return self.start()

    def _reap(self, seconds: float = 30.0) -> int:
        assert self.process is not None
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not stop: {self.log[-20:]}") from None
        finally:
            for reader in self._readers:
                reader.join(5)
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe is not None:
                    pipe.close()
            self.process = None
        return status


def _gather(pipe: Any, lines: list[str]) -> None:
    lines.extend(line.rstrip("\n") for line in pipe)


def settings_for(store: str, *, limits: dict[str, Any] | None = None, **options: Any) -> Settings:
    """On a free port of this machine; a short time for shutdown, since tests do not wait for stragglers."""
    options = {"port": 0, "shutdown_seconds": 5.0, **options}
    return Settings(store=store, limits=Limits(**(limits or {})), **options)

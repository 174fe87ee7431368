"""What the tests of workers are written with: workers of both kinds in this process, and real ones in their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepfast import AsyncStepfast, Run, Stepfast
from tests.run.kit import Blocking, Ready

# Each store and each kind of worker once, where all four together would prove nothing more.
PAIRS = pytest.mark.parametrize(
    ("url", "kind"), [("sqlite-file", "sync"), ("postgres", "async")], indirect=True, ids=["sqlite-sync", "pg-async"]
)
ADDRESS = "agent://acme/prod/pipeline"
SECONDS = 30.0  # the most that anything here may take; only a failure waits that long


def wait_until(holds: Callable[[], Any], what: str) -> Any:
    until = time.monotonic() + SECONDS
    while not (found := holds()):
        assert time.monotonic() < until, f"it never came to this: {what}"
        time.sleep(0.005)
    return found


# Workers in this process


class Hand:
    """A running worker, blocking or on an event loop in a thread of its own."""

    def __init__(self, kind: str, url: str, address: str, handler: Any, client: dict[str, Any], **options: Any) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kind = kind
        if kind == "sync":
            self.sf: Any = Stepfast(url, **client)
            self.worker: Any = self.sf.worker(address, **options)(self._blocking(handler))
            self.worker.start()
            return
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop")
        self._thread.start()
        self.sf = AsyncStepfast(url, **client)
        self.worker = self.sf.worker(address, **options)(handler)
        self._loop.call_soon_threadsafe(self.worker.start)

    @staticmethod
    def _blocking(handler: Any) -> Any:
        def call(run: Any, payload: Any) -> Any:
            scenario = handler(Blocking(run), payload)
            try:
                scenario.send(None)
            except StopIteration as end:
                return end.value
            scenario.close()
            raise AssertionError("a handler of a blocking worker waited for an event loop")

        return call

    def wait(self, event: threading.Event) -> Any:
        """Inside a handler: wait for a word of the test, without standing in the way of other handlers."""
        return Ready(event.wait(SECONDS)) if self._loop is None else asyncio.to_thread(event.wait, SECONDS)

    def do(self, made: Any) -> Any:
        """What this kind of client answers."""
        if self._loop is None:
            return made
        return asyncio.run_coroutine_threadsafe(made, self._loop).result(SECONDS)

    def stop(self, timeout: float | None = None) -> None:
        self.do(self.worker.stop(timeout))

    def close(self) -> None:
        self.stop(0.0)
        self.do(self.sf.close())
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class Team:
    """Hires workers, and sees to it that none outlives the test."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url
        self.sf = Stepfast(url)
        self._hands: list[Hand] = []

    def hire(
        self,
        handler: Callable[..., Coroutine[Any, Any, Any]],
        address: str = ADDRESS,
        client: dict[str, Any] | None = None,
        **options: Any,
    ) -> Hand:
        self._hands.append(Hand(self.kind, self.url, address, handler, client or {}, **options))
        return self._hands[-1]

    def wait(self, event: threading.Event) -> Any:
        return self._hands[0].wait(event)

    def send(self, payload: Any = None, to: str = ADDRESS, **more: Any) -> str:
        return self.sf.send_intent({"intent_type": "t.v1", "to_agent": to, "payload": payload, **more})

    def result(self, intent_id: str) -> Any:
        ended = self.sf.wait_for(intent_id, timeout=SECONDS)
        assert ended["status"] == "COMPLETED", ended
        return ended["result"]

    def take(self) -> Run:
        """Claim the next intent oneself."""
        run = self.sf.claim(ADDRESS)
        assert run is not None
        return run

    def history(self, intent_id: str) -> list[str]:
        return [e["event_type"].removeprefix("intent.") for e in self.sf.events(intent_id)]

    def close(self) -> None:
        for hand in self._hands:
            hand.close()
        self.sf.close()


class Outage:
    """A store that is away while ``on``: nothing is applied, and whoever asks is told so."""

    def __init__(self, store: Any, error: Callable[[], Exception]) -> None:
        self.on = False
        self.refused = 0
        execute, submit = store.execute, store.submit

        def executed(ops: Any, **more: Any) -> Any:
            if self.on:
                self.refused += 1
                raise error()
            return execute(ops, **more)

        def submitted(ops: Any, done: Any, **more: Any) -> None:
            if self.on:
                self.refused += 1
                done(error())
            else:
                submit(ops, done, **more)

        store.execute, store.submit = executed, submitted


# Workers in processes of their own


class Program:
    """``tests.worker.programs`` in a process of its own, which speaks in lines of JSON."""

    def __init__(self, url: str, folder: Path, kind: str, options: dict[str, Any]) -> None:
        self._errors = (folder / f"program-{id(self)}.log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.worker.programs", url, str(folder), kind, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        self.pid = self._process.pid

    def hear(self, word: str) -> Any:
        """Wait until the program says a word; what it says besides comes back."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the program ended ({self._process.wait()}) and did not say {word!r}:\n{self._log()}"
        said, what = json.loads(line)
        assert said == word, f"the program said {said!r} ({what!r}), not {word!r}"
        return what

    def say(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go on\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        """Wait for its good end."""
        try:
            assert self._process.wait(SECONDS) == 0, self._log()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the program did not end:\n{self._log()}") from None

    def _log(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(BrokenPipeError):
                stream.close()


Launch = Callable[..., Program]


@contextlib.contextmanager
def launching(url: str, folder: Path, kind: str) -> Iterator[Launch]:
    programs: list[Program] = []

    def launch(**options: Any) -> Program:
        programs.append(Program(url, folder, kind, options))
        return programs[-1]

    try:
        yield launch
    finally:
        for program in programs:
            program.close()

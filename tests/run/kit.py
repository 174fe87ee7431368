"""What the tests of runs are written with: one scenario for both clients, simulated crashes, real children."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from stepfast import AsyncStepfast, Run, Scope, StepCalls, Stepfast, _failpoints
from stepfast.deciding import current_frame

LEASE_SECONDS = 30.0

_AWAITED_OF_A_RUN = {
    "step",
    "once",
    "ask",
    "pose",
    "settle",
    "record",
    "report",
    "checkpoint",
    "rewind",
    "restore",
    "patched",
    "drive",
}
_NOT_AWAITED_OF_A_CLIENT = {"run", "observe"}


class Crash(BaseException):
    """The end of a simulated process."""


class Boom(Exception):
    """What a user's function raises."""


# One scenario, both ways


class Ready:
    """An answer that is there already, for who awaits it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, Any]:
        return self.value
        yield


class Blocking:
    """A blocking client, run or scope that a scenario may write to as if it had to be awaited."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not inspect.ismethod(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            shown = Blocking(result) if isinstance(result, Run | Scope | StepCalls) else result
            if isinstance(self.inner, Stepfast):
                awaited = name not in _NOT_AWAITED_OF_A_CLIENT and not name.startswith("_")
            else:
                awaited = name in _AWAITED_OF_A_RUN
            if awaited:
                return Ready(shown)
            return _each(shown) if name in ("map", "observe") else shown

        return call

    def __await__(self) -> Generator[Any, None, Any]:
        return self
        yield

    async def __aenter__(self) -> Blocking:
        self.inner.__enter__()
        return self

    async def __aexit__(self, *exc: Any) -> Any:
        return self.inner.__exit__(*exc)


class _each:  # noqa: N801 - reads as the word it is
    def __init__(self, values: Iterator[Any]) -> None:
        self.values = values

    def __aiter__(self) -> _each:
        return self

    async def __anext__(self) -> Any:
        for value in self.values:
            return value
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.values.close()  # type: ignore[attr-defined]


def drive(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario over a blocking client, with no event loop anywhere."""
    try:
        scenario.send(None)
    except StopIteration:
        return
    scenario.close()
    raise AssertionError("a scenario over a blocking client waited for an event loop")


def both(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a scenario, once over Stepfast and once over AsyncStepfast: see the fixture ``way``."""

    @functools.wraps(test)
    def run(way: Way, **fixtures: Any) -> None:
        if way.blocks:
            contextvars.copy_context().run(drive, test(way, **fixtures))
        else:
            asyncio.run(test(way, **fixtures))

    return run


class Way:
    """How a scenario is run, and the store it runs on."""

    def __init__(self, name: str, folder: Path) -> None:
        self.blocks = name == "sync"
        self.folder = folder
        self.path = folder / "stepfast.db"
        self.url = f"sqlite:///{self.path}"
        self._clients: list[Any] = []

    def open(self, **options: Any) -> Any:
        """A client of the store, closed with the test. No power cut is tested here, so none is waited for."""
        options = {"durability": "process", **options}
        made = (Stepfast if self.blocks else AsyncStepfast)(self.url, **options)
        self._clients.append(made)
        return Blocking(made) if self.blocks else made

    def function(self, function: Callable[..., Any], name: str | None = None) -> Any:
        """A plain function as this way's users would write it."""
        if name is not None:
            function.__name__ = name
        if self.blocks:
            return function

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call

    @contextlib.asynccontextmanager
    async def crashing(self, sf: Any, run_id: str, **options: Any) -> AsyncIterator[Any]:
        """Open a run and lose it without a word, as a crash would: it is neither finished nor handed back."""
        opened = await sf.run(run_id, **{"max_delivery_attempts": 100, **options})
        try:
            yield opened
        except Crash:
            pass
        self.lose(sf, opened)

    def lose(self, sf: Any, run: Any) -> None:
        """The process that holds this run is gone, and its lease has run out."""
        sf._core.heart.discard(run._session)
        current_frame.set(None)
        sf.store.clock.advance(LEASE_SECONDS + 1)

    def __enter__(self) -> Way:
        return self

    def __exit__(self, *_exc: object) -> None:
        for client in self._clients:
            client._core.close()


class Calls:
    """Functions that tell how often they were called, and with what."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.made: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        """A function of that name; it gives ``[name, its arguments]``, or what ``answers`` says."""
        return self.answering(name, lambda *args: [name, *args])

    def answering(self, name: str, answer: Callable[..., Any]) -> Any:
        def call(*args: Any) -> Any:
            self.made.append((name, *args))
            return answer(*args)

        return self.way.function(call, name)

    def raising(self, name: str, error: BaseException) -> Any:
        def refuse(*_args: Any) -> NoReturn:
            raise error

        return self.answering(name, refuse)

    @property
    def names(self) -> list[str]:
        return [name for name, *_ in self.made]


async def collect(values: Any) -> list[Any]:
    return [value async for value in values]


@contextlib.contextmanager
def counting() -> Iterator[Counter[str]]:
    """How often each failpoint of this process is passed; ``sqlite.after_commit`` counts the commits."""
    passed: Counter[str] = Counter()
    lock = threading.Lock()

    def hook(name: str) -> None:
        with lock:
            passed[name] += 1

    _failpoints.install(hook)
    try:
        yield passed
    finally:
        _failpoints.uninstall()


@contextlib.contextmanager
def in_thread(work: Callable[[], Any]) -> Iterator[None]:
    """Do something beside the scenario; its failure is the test's."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="beside")
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if failures:
        raise failures[0]


def answer_when_asked(url: str, run_id: str, *words: Any, **more: Any) -> None:
    """Another client that waits until a run waits, and answers it."""
    with Stepfast(url) as other:
        for event in other.observe(run_id):
            if event["event_type"] == "intent.waiting":
                other.answer(run_id, *words, **more)
                return


def events_of(history: list[dict[str, Any]]) -> list[str]:
    return [event["event_type"].removeprefix("intent.") for event in history]


# Real processes


class Nursery:
    """The process that children are forked from."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.run.nursery", str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )

    def ask(self, message: list[Any] | int, streams: list[int]) -> None:
        socket.send_fds(self._requests, [json.dumps(message).encode()], streams)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._requests.close()


class Child:
    """A process of its own that runs a function of ``tests.run.children`` and speaks in lines of JSON."""

    def __init__(self, nursery: Nursery, function: str, url: str, folder: Path, *args: Any) -> None:
        hears, says = os.pipe()
        heard, said = os.pipe()
        told, tells = os.pipe()
        self._errors = (folder / f"{function}-{id(self)}.log").open("w+")
        self._nursery = nursery
        nursery.ask([function, url, str(folder), args], [hears, said, self._errors.fileno(), tells])
        for theirs in (hears, said, tells):
            os.close(theirs)
        self._in, self.out, self._fate = os.fdopen(says, "w"), os.fdopen(heard), os.fdopen(told)
        self.pid = int(self._fate.readline())
        self.code: int | None = None

    def hear(self, word: str) -> Any:
        """Wait until the child says a word; what it says besides comes back."""
        said, what = self.hear_any()
        assert said == word, f"the child said {said!r} ({what!r}), not {word!r}"
        return what

    def hear_any(self) -> tuple[str, Any]:
        line = self.out.readline()
        assert line, f"the child ended ({self.wait()}) and said nothing more:\n{self._log()}"
        word, what = json.loads(line)
        return word, what

    def say(self, word: str = "go on") -> None:
        self._in.write(word + "\n")
        self._in.flush()

    def kill(self) -> None:
        """As a crash does: no clean-up of any kind."""
        self._nursery.ask(self.pid, [])
        self.wait()

    def stop(self) -> None:
        """Freeze it, and come back when it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        assert self._fate.readline() == "stopped\n"

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def wait(self) -> int:
        while self.code is None:
            told = self._fate.readline()
            self.code = None if told == "stopped\n" else int(told)
        return self.code

    def end(self) -> None:
        """Wait for its good end."""
        assert self.wait() == 0, self._log()

    def _log(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def close(self) -> None:
        if self.code is None:
            self.kill()
        for stream in (self._in, self.out, self._fate, self._errors):
            with contextlib.suppress(BrokenPipeError):
                stream.close()


Spawn = Callable[..., Child]


@pytest.fixture(name="way", params=["sync", "async"])
def make_way(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Way]:
    """Both ways to run a scenario, one after the other."""
    with Way(request.param, tmp_path) as made:
        yield made


@pytest.fixture(name="calls")
def make_calls(way: Way) -> Calls:
    return Calls(way)


@pytest.fixture(name="nursery", scope="session")
def make_nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(name="spawn")
def make_spawn(tmp_path: Path, nursery: Nursery) -> Iterator[Spawn]:
    """Start children that do not outlive the test."""
    children: list[Child] = []

    def start(function: str, url: str, *args: Any) -> Child:
        children.append(Child(nursery, function, url, tmp_path, *args))
        return children[-1]

    yield start
    for child in children:
        child.close()

"""What people do with Stepfast, in blocks that can be timed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import Any

from stepfast import AsyncStepfast, Run, Stepfast

_NUMBERS = count(1)


def noop(number: int) -> int:
    return number


class Stopped(Exception):
    """Leaves a run unfinished."""


class Lone:
    """One run, open from the first block to the last, and one caller."""

    def __init__(self, url: str) -> None:
        self._client = Stepfast(url)
        self._run: Run = self._client.run(f"lone-{next(_NUMBERS)}")

    def steps(self, number: int) -> float:
        return self._timed(number, lambda n: self._run.step(noop, n))

    def one_shots(self, number: int) -> float:
        """Recorded as started before, and as finished after: two commits."""
        return self._timed(number, lambda n: self._run.once(noop, n))

    def intents_and_steps(self, number: int) -> float:
        """An intent is created, then a step is done: two commits."""

        def work(n: int) -> None:
            self._client.send_intent({"intent_type": "bench.v1", "to_agent": "agent://bench", "payload": n})
            self._run.step(noop, n)

        return self._timed(number, work)

    def _timed(self, number: int, work: Callable[[int], Any]) -> float:
        began = time.perf_counter()
        for n in range(number):
            work(n)
        return (time.perf_counter() - began) / number

    def close(self) -> None:
        self._run.__exit__(None, None, None)
        self._client.close()


class Threads:
    """Many runs of few steps, by threads that share a client; gives seconds per step, opening and ending included."""

    def __init__(self, url: str, concurrency: int) -> None:
        self._client = Stepfast(url)
        self._pool = ThreadPoolExecutor(concurrency, "bench")

    def block(self, runs: int, steps: int) -> float:
        def one(name: str) -> None:
            with self._client.run(name) as run:
                for n in range(steps):
                    run.step(noop, n)

        names = [f"many-{next(_NUMBERS)}" for _ in range(runs)]
        began = time.perf_counter()
        list(self._pool.map(one, names))
        return (time.perf_counter() - began) / (runs * steps)

    def close(self) -> None:
        self._pool.shutdown()
        self._client.close()


class Tasks:
    """The same by tasks of one event loop."""

    def __init__(self, url: str, concurrency: int) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncStepfast(url)
        self._concurrency = concurrency

    def block(self, runs: int, steps: int) -> float:
        return self._runner.run(self._block(runs, steps))

    async def _block(self, runs: int, steps: int) -> float:
        names = iter([f"many-{next(_NUMBERS)}" for _ in range(runs)])

        async def worker() -> None:
            for name in names:
                async with self._client.run(name) as run:
                    for n in range(steps):
                        await run.step(noop, n)

        began = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(self._concurrency)))
        return (time.perf_counter() - began) / (runs * steps)

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


class Reopened:
    """A run of many finished steps that has not ended; each block opens it and makes all its calls again."""

    def __init__(self, url: str, steps: int) -> None:
        self._client = Stepfast(url)
        self._steps = steps
        self._name = f"reopened-{next(_NUMBERS)}"
        self._calls = 0
        self._go_through()
        if self._calls != steps:
            raise AssertionError(f"{self._calls} calls were made for {steps} steps")

    def _work(self, number: int) -> int:
        self._calls += 1
        return number

    def _go_through(self) -> tuple[float, float]:
        began = opened = ended = time.perf_counter()
        with suppress(Stopped), self._client.run(self._name) as run:
            opened = time.perf_counter()
            for n in range(self._steps):
                run.step(self._work, n)
            ended = time.perf_counter()
            raise Stopped
        return opened - began, ended - began

    def block(self) -> float:
        """Seconds from the open to the answer of the last call."""
        made = self._calls
        taken = self._go_through()[1]
        if self._calls != made:
            raise AssertionError("a finished step was run again")
        return taken

    def open_only(self) -> float:
        return self._go_through()[0]

    def close(self) -> None:
        self._client.close()

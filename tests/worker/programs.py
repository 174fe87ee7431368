"""A worker process: ``python -m tests.worker.programs URL FOLDER sync|async OPTIONS``.

Its handler makes five steps, each of which leaves a line in the file of effects. ``hang_at``: in that step, after
the effect, it says so and waits for a line on its standard input before it goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from typing import Any

from stepfast import AsyncStepfast, Stepfast
from tests.worker.kit import ADDRESS

URL, FOLDER, KIND = sys.argv[1:4]
OPTIONS: dict[str, Any] = json.loads(sys.argv[4])
STEPS = OPTIONS.pop("steps", 5)
HANG_AT = OPTIONS.pop("hang_at", 0)
LEASE = OPTIONS.pop("lease_seconds", 30.0)


def say(word: str, what: Any = None) -> None:
    os.write(1, json.dumps([word, what]).encode() + b"\n")  # whole, whoever else speaks


def effect(name: str) -> None:
    """A durable line in the file that `stepfast.testing.Effects` reads."""
    fd = os.open(f"{FOLDER}/effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{name}\n".encode())
    os.fsync(fd)
    os.close(fd)


def work(name: str, number: int) -> int:
    effect(f"{name}:{number}")
    if number == HANG_AT:
        say("at", number)
        os.read(0, 100)
    return number


async def work_async(name: str, number: int) -> int:
    effect(f"{name}:{number}")
    if number == HANG_AT:
        say("at", number)
        loop, told = asyncio.get_running_loop(), asyncio.Event()

        def hear() -> None:
            os.read(0, 100)
            loop.call_soon_threadsafe(told.set)

        threading.Thread(target=hear, daemon=True).start()  # one that nobody waits for at the end
        await told.wait()
    return number


def run_blocking() -> None:
    with Stepfast(URL, lease_seconds=LEASE) as sf:

        @sf.worker(ADDRESS, **OPTIONS)
        def handle(run: Any, payload: Any) -> Any:
            return [run.step(work, payload, number) for number in range(1, STEPS + 1)]

        say("ready")
        handle.run()


async def run_on_a_loop() -> None:
    async with AsyncStepfast(URL, lease_seconds=LEASE) as sf:

        @sf.worker(ADDRESS, **OPTIONS)
        async def handle(run: Any, payload: Any) -> Any:
            return [await run.options(name="work").step(work_async, payload, number) for number in range(1, STEPS + 1)]

        say("ready")
        await handle.run()


if __name__ == "__main__":
    before = signal.getsignal(signal.SIGTERM)
    run_blocking() if KIND == "sync" else asyncio.run(run_on_a_loop())
    assert signal.getsignal(signal.SIGTERM) is before
    say("stopped")

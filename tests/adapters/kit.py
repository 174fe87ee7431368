"""One scene for both kinds of clients: it is a flow, and what it calls answers at once or by a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import Any

from stepfast import AsyncStepfast, Run, Stepfast
from stepfast.adapters import Attempt, Request, Settings, adrive, digest, drive

Scene = Callable[[Attempt, Any], Any]


class Crash(BaseException):
    """The end of a simulated process."""


class Way:
    """Plays scenes with a blocking client, or with one for event loops."""

    def __init__(self, path: Path, blocks: bool) -> None:
        self.path = path
        self.blocks = blocks
        self.attempts: list[Attempt] = []
        self.sf = Stepfast(path)

    def says(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function as the framework has it: plain, or a coroutine function."""
        if self.blocks:
            return function

        async def call(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return function(*args, **kwargs)

        return call

    def play(self, scene: Scene, *, settings: Settings | None = None, may_raise: bool = False, passes: int = 5) -> Any:
        """Open the run, drive the scene over it, complete it with what the scene returns."""
        settings = settings or Settings()

        def make(run: Any) -> Attempt:
            self.attempts.append(Attempt(run, settings, tools_may_raise=may_raise))
            return self.attempts[-1]

        def blocking() -> Any:
            with Stepfast(self.path) as sf, sf.run("r", **settings.run_options("test")) as run:
                value = drive(run, lambda attempt: run.drive(scene(attempt, run)), passes=passes, make=make)
                run.complete(value)
                return value

        async def awaited() -> Any:
            async with AsyncStepfast(self.path) as sf, sf.run("r", **settings.run_options("test")) as run:
                value = await adrive(run, lambda attempt: run.drive(scene(attempt, run)), passes=passes, make=make)
                run.complete(value)
                return value

        return copy_context().run(blocking) if self.blocks else asyncio.run(awaited())


def request(*items: str, model: str = "m", **sections: Any) -> Request:
    return Request({"model": model, **sections}, [f"message {digest(item)}" for item in items])


__all__ = ["Crash", "Run", "Scene", "Way", "request"]

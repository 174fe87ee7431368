"""Answers on their way to an event loop.

The batch that a `SteadyFuture` stands for is on its way to the disk, whatever becomes of the task
that awaits it. A cancelled task does not take the future down: it is woken with CancelledError once
the outcome is there, and can still read it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

Outcome = list[Any] | BaseException


class SteadyFuture(asyncio.Future[list[Any]]):
    def cancel(self, msg: Any = None) -> bool:
        return False

    def settle(self, outcome: Outcome) -> None:
        if self.done():
            return
        if isinstance(outcome, BaseException):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)


class Mailbox:
    """Carries the answers of a whole group to the running loop with one wake-up: each costs a system call."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._post: deque[tuple[SteadyFuture, Outcome]] = deque()
        self._called = False

    def is_of_this_loop(self) -> bool:
        return asyncio.get_running_loop() is self._loop

    def future(self) -> SteadyFuture:
        return SteadyFuture(loop=self._loop)

    def answer(self, future: SteadyFuture) -> Callable[[Outcome], None]:
        def done(outcome: Outcome) -> None:
            self._post.append((future, outcome))
            if not self._called:
                self._called = True
                self._loop.call_soon_threadsafe(self._deliver)

        return done

    def _deliver(self) -> None:
        self._called = False  # before emptying: whoever posts from now on calls again
        post = self._post
        while post:
            future, outcome = post.popleft()
            future.settle(outcome)

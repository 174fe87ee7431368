"""One pass of a framework over a durable run, and the loop that makes another pass where a call was left in doubt."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from stepfast.adapters.context import ContextKeeper
from stepfast.adapters.settings import Settings
from stepfast.adapters.usage import Meter
from stepfast.errors import StepfastError, Suspension
from stepfast.flow import Flow
from stepfast.run import AsyncRun, Run

__all__ = ["Attempt", "Doubt", "Stopped", "adrive", "drive"]

T = TypeVar("T")
A = TypeVar("A", bound="Attempt")


class Stopped(BaseException):
    """Leaves a framework's loop at its next boundary; the attempt has the reason. An adapter's callers never see it."""


class Doubt(BaseException):
    """Leaves a one-shot step open, because it is not known what it did; its cause is what the tool raised."""


class Attempt:
    """One pass of a framework over a durable run, from its beginning.

    Most frameworks catch what is raised inside a tool, show it to the model, cancel the tools beside it, or hang. So
    the reason to stop is kept here, a placeholder is returned to the framework, and the next boundary (a model call, a
    session's write, another tool) raises `Stopped`. ``tools_may_raise`` is for frameworks that let a BaseException
    pass at the tool boundary: there `Stopped` is raised at once.
    """

    def __init__(self, run: Run | AsyncRun, settings: Settings | None = None, *, tools_may_raise: bool = False) -> None:
        self.run: Any = run
        self.settings = settings or Settings()
        self.tools_may_raise = tools_may_raise
        self.stopped_by: BaseException | None = None
        self.in_doubt: BaseException | None = None
        self.pending: Any = None  # what the adapter returns to a caller with on_wait="return"
        self.live = False  # this pass has made a call that no earlier one had recorded
        self.keeper: ContextKeeper | None = ContextKeeper(run.codec)
        self.meter = Meter(self.settings.prices)
        self._lock = threading.Lock()
        self._under_way = 0
        self._landed = threading.Condition()

    def check(self) -> None:
        """Raise `Stopped` once the run has stopped; called at every boundary."""
        if self.stopped_by is not None or self.in_doubt is not None:
            raise Stopped

    def stop(self, error: BaseException) -> None:
        """Stop the run with an error; the first one counts, except that any other one replaces a suspension."""
        with self._lock:
            if self.stopped_by is None or isinstance(self.stopped_by, Suspension):
                self.stopped_by = error

    def doubt(self, error: BaseException) -> None:
        """Stop this pass because a one-shot call was left in doubt; it is settled before the next pass."""
        with self._lock:
            self.in_doubt = error

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Let an error of the journal stop the run, however the framework would treat an exception at this place."""
        try:
            yield
        except (StepfastError, Suspension) as error:
            self.stop(error)
            raise Stopped from error

    @contextmanager
    def flying(self) -> Iterator[None]:
        """Mark a call as under way for the length of a ``with`` block; see `settled`."""
        with self._landed:
            self._under_way += 1
        try:
            yield
        finally:
            with self._landed:
                self._under_way -= 1
                self._landed.notify_all()

    def settled(self, timeout: float | None = None) -> bool:
        """Wait until no call is under way; whether that is so.

        For frameworks that call from several threads or tasks: where one has stopped the run, the others go on for a
        moment, and the outcome of their calls can only be recorded before the run is closed.
        """
        with self._landed:
            return self._landed.wait_for(lambda: self._under_way == 0, timeout)

    def reporting(self, agent: str, doing: str, step: int | None = None) -> Flow[None]:
        """Return the flow that shows agent, turn and activity to those who look at the run from outside."""
        if not self.run.replaying:
            with self.guarded():
                yield from self.run.reporting(f"{agent}: {doing}" if agent else doing, step=step)

    @contextmanager
    def concluding(self) -> Iterator[None]:
        """Raise the reason to stop at the end of a block; for frameworks that need one pass only."""
        try:
            yield
            self.check()
        except BaseException as error:
            self.conclude(error, last=True)

    def conclude(self, error: BaseException, *, last: bool) -> None:
        """Raise the reason why this pass ended with ``error``; return if another pass is due."""
        if self.stopped_by is not None:
            raise self.stopped_by from None
        if self.in_doubt is None:
            if isinstance(error, Stopped):
                raise AssertionError("stopped without a reason") from error
            raise error
        if last:
            raise self.in_doubt


def drive(
    run: Run,
    one_pass: Callable[[A], T],
    *,
    passes: int = 5,
    make: Callable[[Run], A] = Attempt,  # type: ignore[assignment]
) -> T:
    """Let a framework pass over a run until a pass ends without a call in doubt, and return its result.

    Raises what stopped the run. ``make`` makes the attempt of each pass. After ``passes`` the error of the call in
    doubt is raised: a probe that always says that nothing happened, of a tool that always fails, gets no further.
    """
    for number in range(1, passes + 1):
        attempt = make(run)
        try:
            value = one_pass(attempt)
            attempt.check()
            return value
        except BaseException as error:
            attempt.conclude(error, last=number == passes)
        run.settle()
    raise AssertionError("the last pass returns or raises")


async def adrive(
    run: AsyncRun,
    one_pass: Callable[[A], Awaitable[T]],
    *,
    passes: int = 5,
    make: Callable[[AsyncRun], A] = Attempt,  # type: ignore[assignment]
) -> T:
    """`drive` for an event loop."""
    for number in range(1, passes + 1):
        attempt = make(run)
        try:
            value = await one_pass(attempt)
            attempt.check()
            return value
        except BaseException as error:
            attempt.conclude(error, last=number == passes)
        await run.settle()
    raise AssertionError("the last pass returns or raises")

"""Where the caller stands: context variables, threads that lose them, and generators that keep them to themselves."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, Generic, ParamSpec, TypeVar

__all__ = ["Standing", "apart", "apart_async", "carried"]

T = TypeVar("T")
P = ParamSpec("P")


class Standing(Generic[T]):
    """One kind of place that code can stand in; an adapter makes one of these, for its own kind.

    The places follow tasks by themselves, and threads where their function is `carried`.
    """

    def __init__(self, name: str) -> None:
        self._current: ContextVar[T | None] = ContextVar(name, default=None)

    def here(self) -> T | None:
        """Return the place that the caller stands in; None outside of any."""
        return self._current.get()

    @contextmanager
    def standing(self, place: T | None) -> Iterator[None]:
        """Stand in a place for the length of a ``with`` block."""
        token = self._current.set(place)
        try:
            yield
        finally:
            self._current.reset(token)

    def stay(self, place: T | None) -> None:
        """Stand in a place for the rest of this task or thread."""
        self._current.set(place)


def carried(function: Callable[P, T]) -> Callable[P, T]:
    """Return ``function``, to be called in a copy of the present context wherever that happens.

    For thread pools and executors that do not copy context variables themselves. Coroutine functions stay coroutine
    functions, and may be awaited on another loop.
    """
    context = copy_context()
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            # A copy for each call: a context can be entered by one caller at a time.
            inside = context.copy()
            return await _Within(inside, inside.run(function, *args, **kwargs))

        return call_async  # type: ignore[return-value]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return context.copy().run(function, *args, **kwargs)

    return call


def apart(context: Context, inner: Generator[T, None, None]) -> Iterator[T]:
    """Yield the values of a generator, each made in ``context``.

    A generator runs in the context of the code that asks for the next value. Without this, a run that is open inside
    a generator is also the current run of its consumer between two values, and is lost if another thread asks.
    """
    try:
        while True:
            try:
                value = context.run(next, inner)
            except StopIteration:
                return
            yield value
    finally:
        context.run(inner.close)


async def apart_async(context: Context, inner: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """`apart` for an event loop. A value is made in the task that asks for it, so that cancelling it ends the work."""
    try:
        while True:
            try:
                value = await _Within(context, inner.__anext__())
            except StopAsyncIteration:
                return
            yield value
    finally:
        await _Within(context, inner.aclose())


class _Within(Awaitable[Any]):
    """Awaits in the caller's task, but in another context."""

    def __init__(self, context: Context, inner: Awaitable[Any]) -> None:
        self._context = context
        self._inner = inner

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self._inner.__await__()
        step, given = steps.send, None
        while True:
            try:
                awaited = self._context.run(step, given)
            except StopIteration as stop:
                return stop.value
            try:
                step, given = steps.send, (yield awaited)
            except GeneratorExit:
                self._context.run(steps.close)
                raise
            except BaseException as error:
                step, given = steps.throw, error

"""Generators that keep their context variables to themselves.

A generator runs in the context of whoever asks it for the next value. A run that is open inside one would be the
current run of its consumer, too, between two values; and would be gone if another thread asked for the next.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Generator, Iterator
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


def apart(context: Context, inner: Generator[T, None, None]) -> Iterator[T]:
    """The same values, each made in ``context``."""
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
    """The same for an event loop; each value is made in the task that asks for it, so that its end ends the work."""
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

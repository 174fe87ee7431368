"""Where the caller stands: in tasks, in threads that lose context variables, and behind generators."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from stepfast.adapters import Standing, apart, apart_async, carried

place: Standing[str] = Standing("test_place")


def test_a_place_ends_with_its_block() -> None:
    assert place.here() is None
    with place.standing("a"):
        with place.standing("b"):
            assert place.here() == "b"
        assert place.here() == "a"
        with place.standing(None):
            assert place.here() is None
    assert place.here() is None


async def test_a_place_follows_tasks_and_a_stay_ends_with_its_task() -> None:
    async def visit() -> str | None:
        seen = place.here()
        place.stay("elsewhere")
        return seen

    with place.standing("a"):
        assert await asyncio.create_task(visit()) == "a"
        assert place.here() == "a"


def test_two_kinds_of_places_do_not_meet() -> None:
    other: Standing[int] = Standing("test_other")
    with place.standing("a"), other.standing(1):
        assert (place.here(), other.here()) == ("a", 1)


def test_a_carried_function_keeps_its_place_in_threads() -> None:
    def look(add: str) -> str:
        """Look."""
        return f"{place.here()}{add}"

    with ThreadPoolExecutor(4) as pool:
        with place.standing("a"):
            function = carried(look)
            assert pool.submit(look, "!").result() == "None!"
        assert [f.result() for f in [pool.submit(function, str(n)) for n in range(20)]] == [f"a{n}" for n in range(20)]
    assert function.__doc__ == "Look."


def test_a_carried_coroutine_function_keeps_its_place_on_another_loop() -> None:
    async def look() -> str | None:
        await asyncio.sleep(0)
        return place.here()

    with place.standing("a"):
        function = carried(look)
    assert inspect.iscoroutinefunction(function)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: asyncio.run(function())).result() == "a"


def test_a_generator_apart_leaves_its_consumer_where_it_is() -> None:
    def values() -> Generator[str | None, None, None]:
        place.stay("inside")
        try:
            yield place.here()
            yield place.here()
        finally:
            closed.append(place.here())

    closed: list[str | None] = []
    given = apart(copy_context(), values())
    assert next(given) == "inside"
    assert place.here() is None
    given.close()  # type: ignore[attr-defined]
    assert closed == ["inside"]


async def test_an_async_generator_apart_leaves_its_consumer_where_it_is() -> None:
    async def values() -> AsyncGenerator[str | None, None]:
        place.stay("inside")
        yield place.here()
        await asyncio.sleep(0)
        yield place.here()

    seen = [(value, place.here()) async for value in apart_async(copy_context(), values())]
    assert seen == [("inside", None)] * 2

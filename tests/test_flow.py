"""The interpreter of flows: commands of an adapter's own, streams, and signals between threads and event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest

from stepfast import AsyncStore, InvalidInput, Store, open_store
from stepfast.flow import (
    END,
    Abandoned,
    Call,
    Close,
    Emit,
    Flow,
    Next,
    Signal,
    Sleep,
    Wait,
    drive,
    drive_async,
    stream,
    stream_async,
)


class Double(NamedTuple):
    """A command as an adapter would write one."""

    number: int

    def perform(self, store: Store, tenant: str) -> str:
        assert isinstance(store, Store)
        return f"blocking {tenant} {2 * self.number}"

    async def aperform(self, store: AsyncStore, tenant: str) -> str:
        assert isinstance(store, AsyncStore)
        await asyncio.sleep(0)
        if self.number < 0:
            raise ValueError(self.number)
        return f"awaited {tenant} {2 * self.number}"


@pytest.fixture
def store(tmp_path: Any) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/flow.db") as opened:
        yield opened


def doubled(number: int) -> Flow[Any]:
    return (yield Double(number))


async def test_an_adapters_command_is_performed_blocking_and_awaited(store: Store) -> None:
    assert drive(doubled(4), store, "t") == "blocking t 8"
    assert await drive_async(doubled(4), AsyncStore(store), "t") == "awaited t 8"
    with pytest.raises(ValueError, match="-1"):
        await drive_async(doubled(-1), AsyncStore(store), "t")


def counted(items: Any, log: list[str]) -> Flow[str]:
    try:
        while (item := (yield Next(items))) is not END:
            yield Emit(item * 10)
    except Abandoned:
        log.append("abandoned")
        raise
    finally:
        yield Close(items)
        yield Sleep(0.001)
        log.append("cleaned up")
    return "all"


def numbers(log: list[str]) -> Iterator[int]:
    try:
        yield from (1, 2, 3)
    finally:
        log.append("closed")


async def anumbers(log: list[str]) -> AsyncIterator[int]:
    try:
        for number in (1, 2, 3):
            yield number
    finally:
        log.append("closed")


async def test_a_flow_emits_on_its_way(store: Store) -> None:
    log: list[str] = []
    assert list(stream(counted(numbers(log), log), store, "t")) == [10, 20, 30]
    assert [each async for each in stream_async(counted(anumbers(log), log), AsyncStore(store), "t")] == [10, 20, 30]
    assert log == ["closed", "cleaned up"] * 2


def nested(items: Any, log: list[str]) -> Flow[str]:
    return (yield from counted(items, log))


async def test_a_stream_that_is_closed_lets_its_flow_clean_up(store: Store) -> None:
    log: list[str] = []
    chunks = stream(nested(numbers(log), log), store, "t")
    assert next(chunks) == 10
    chunks.close()
    assert log == ["abandoned", "closed", "cleaned up"]
    log.clear()
    awaited = stream_async(nested(anumbers(log), log), AsyncStore(store), "t")
    assert await anext(awaited) == 10
    await awaited.aclose()
    assert log == ["abandoned", "closed", "cleaned up"]


async def test_a_coroutine_function_needs_an_event_loop(store: Store) -> None:
    async def answer() -> int:
        return 42

    def asks() -> Flow[Any]:
        return (yield Call(answer))

    assert await drive_async(asks(), AsyncStore(store), "t") == 42
    with pytest.raises(InvalidInput, match="coroutine function"):
        drive(asks(), store, "t")


async def test_a_signal_reaches_threads_and_event_loops(store: Store) -> None:
    signal = Signal()

    def waits(seconds: float | None) -> Flow[bool]:
        return (yield Wait(signal, seconds))

    assert drive(waits(0.01), store, "t") is False
    assert await drive_async(waits(0.01), AsyncStore(store), "t") is False
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(drive(waits(30), store, "t")))
    thread.start()
    waiting = asyncio.ensure_future(drive_async(waits(30), AsyncStore(store), "t"))
    await asyncio.sleep(0.01)
    signal.give()
    assert await waiting is True
    await asyncio.to_thread(thread.join)
    assert answers == [True]
    assert signal.given
    assert drive(waits(0), store, "t") is True

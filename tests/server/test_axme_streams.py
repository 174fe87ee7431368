"""Streams over real sockets: what is on the wire byte by byte, and how streams end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from stepfast.ops import AppendEvent
from stepfast.platform_api import AsyncPlatformAPI
from stepfast.server.keys import create_key, revoke_key
from stepfast.stores import AsyncStore, open_store
from tests.server.listening import Reader, until
from tests.server.live import Live

Starter = Callable[..., Live]
ASK = {"intent_type": "intent.demo.v1", "to_agent": "agent://acme/prod/worker", "payload": {}}


class Wire:
    """A server, requests to it, and readers that are all closed at the end."""

    def __init__(self, server: Live) -> None:
        self.server = server
        self.api = AsyncPlatformAPI(server.url, "any")
        self.readers: list[Reader] = []

    def follow(self, intent_id: str, **params: Any) -> Reader:
        return self.read(f"/v1/intents/{intent_id}/events/stream", **params)

    def read(self, path: str, **params: Any) -> Reader:
        reader = Reader(self.server.url, path, **params)
        self.readers.append(reader)
        return reader

    async def close(self) -> None:
        for reader in self.readers:
            await reader.cut()
        await self.api.close()


@pytest.fixture
async def wire(live: Starter) -> AsyncIterator[Wire]:
    made = Wire(live())
    yield made
    await made.close()


async def test_a_stream_replays_goes_on_and_ends_with_the_ending(wire: Wire) -> None:
    intent_id = await wire.api.send_intent(ASK)
    reader = await wire.follow(intent_id, wait_seconds=30).until(lambda r: len(r.frames) == 3)
    await wire.api.resume_intent(intent_id, {"action": "complete", "text": "a\u2028b\u0085\x0b"})
    assert await reader.end() == "properly"
    assert [event for event, _ in reader.frames] == [
        "intent.created",
        "intent.submitted",
        "intent.delivered",
        "intent.completed",
    ]
    assert reader.frames[-1][1]["result"] == {"text": "a\u2028b\u0085\x0b"}
    assert reader.raw.isascii()
    for frame in reader.raw.decode().strip().split("\n\n"):
        lines = frame.splitlines()
        assert lines == [": ka"] or [line.partition(": ")[0] for line in lines] == ["id", "event", "data"]


async def test_a_stream_ends_with_its_time_and_says_where_it_was(wire: Wire) -> None:
    intent_id = await wire.api.send_intent(ASK)
    began = time.monotonic()
    reader = wire.follow(intent_id, wait_seconds=1, since=1)
    assert await reader.end() == "properly"
    assert 0.9 < time.monotonic() - began < 10
    assert [(event, data.get("seq", data.get("next_seq"))) for event, data in reader.frames] == [
        ("intent.submitted", 2),
        ("intent.delivered", 3),
        ("stream.timeout", 3),
    ]
    assert reader.raw.endswith(b'event: stream.timeout\ndata: {"ok":true,"next_seq":3}\n\n')


async def test_a_finished_intent_with_nothing_to_tell_holds_the_stream(wire: Wire) -> None:
    intent_id = await wire.api.send_intent(ASK)
    await wire.api.resolve_intent(intent_id, {"status": "CANCELED"})
    began = time.monotonic()
    reader = wire.follow(intent_id, since=4, wait_seconds=1)
    assert await reader.end() == "properly"
    assert time.monotonic() - began > 0.9
    assert [event for event, _ in reader.frames] == ["stream.timeout"]


async def test_a_wrong_wait_is_brought_into_range_and_a_wrong_id_is_a_404(wire: Wire) -> None:
    intent_id = await wire.api.send_intent(ASK)
    for wait in (0, -5):
        reader = wire.follow(intent_id, wait_seconds=wait)
        assert await reader.end() == "properly"
        assert reader.status == 200
    reader = wire.follow("nothing")
    assert await reader.end() == "properly"
    assert reader.status == 404
    assert b'"detail"' in reader.raw


async def test_comments_keep_a_quiet_stream_alive(wire: Wire) -> None:
    intent_id = await wire.api.send_intent(ASK)
    reader = wire.follow(intent_id, wait_seconds=60, since=3)
    await reader.until(lambda r: r.raw.count(b": ka\n\n") >= 2, 15)
    assert reader.frames == []


async def test_a_long_history_comes_in_order_and_whole(wire: Wire, store_url: str) -> None:
    intent_id = await wire.api.send_intent(ASK)
    with open_store(store_url) as store:
        notes = [
            AppendEvent(intent_id=intent_id, lease=None, note_id=str(n), event_type="intent.note", details={"n": n})
            for n in range(600)
        ]
        store.execute(notes)
    await wire.api.resolve_intent(intent_id, {"status": "CANCELED"})
    reader = wire.follow(intent_id)
    assert await reader.end() == "properly"
    assert [data["seq"] for _, data in reader.frames] == list(range(1, 605))


async def test_a_shutdown_ends_every_stream_properly(wire: Wire) -> None:
    intent_id = await wire.api.send_intent(ASK)
    readers = [
        wire.follow(intent_id, wait_seconds=60),
        wire.read("/v1/agents/nobody/intents/stream", wait_seconds=60),
        wire.read("/v1/agents/worker/intents/stream", wait_seconds=60),
    ]
    await readers[2].intents()
    for reader in readers:
        await reader.opened.wait()
    assert await asyncio.to_thread(wire.server.stop) == 0
    for reader in readers:
        assert await reader.end() == "properly"
        assert reader.frames[-1][0] == "stream.timeout"


async def test_streams_of_a_revoked_key_end_at_once(live: Starter, store_url: str) -> None:
    with open_store(store_url) as opened:
        store = AsyncStore(opened)
        _, workspace = await create_key(store, "acme", "prod")
        key, token = await create_key(store, "acme", "prod", role="agent", agent="agent://acme/prod/worker")
        server = live(require_keys=True)
        async with AsyncPlatformAPI(server.url, workspace) as api:
            intent_id = await api.send_intent(ASK)
            listener = Reader(server.url, "/v1/agents/worker/intents/stream", token, wait_seconds=60)
            await listener.intents()
            follower = Reader(server.url, f"/v1/intents/{intent_id}/events/stream", token, wait_seconds=60)
            await follower.opened.wait()
            await revoke_key(store, key.key_id)
            for reader in (listener, follower):
                assert await reader.end(5) == "properly"
            other = Reader(server.url, "/v1/agents/worker/intents/stream", workspace, wait_seconds=60)
            [delivery] = await other.intents(seconds=5)
            assert delivery["intent_id"] == intent_id
            assert (await api.get_intent(intent_id))["intent"]["lost_deliveries"] == 0
            for reader in (listener, follower, other):
                await reader.cut()


async def test_a_key_may_have_so_many_streams(live: Starter) -> None:
    server = live(limits={"streams_per_key": 2})
    readers = [Reader(server.url, "/v1/agents/a/intents/stream", wait_seconds=30) for _ in range(2)]
    for reader in readers:
        await reader.opened.wait()
    async with httpx.AsyncClient(base_url=server.url) as http:
        refused = await http.get("/v1/agents/a/intents/stream")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        await readers.pop().cut()

        async def served() -> bool:
            answer = await http.get("/v1/agents/a/intents/stream", params={"wait_seconds": 1})
            return answer.status_code == 200

        await until(served)
    await readers.pop().cut()


@pytest.mark.parametrize(("address", "status"), [("%00", 404), ("a%0Ab", 404), ("x" * 400, 422)])
async def test_an_odd_address_is_told(wire: Wire, address: str, status: int) -> None:
    reader = wire.read(f"/v1/agents/{address}/intents/stream", wait_seconds=1)
    await reader.end()
    assert reader.status == status

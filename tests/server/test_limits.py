"""How often a key may ask, and how many streams it may hold open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from stepfast import wire
from stepfast.errors import InvalidInput
from stepfast.server import keys
from stepfast.server.errors import Closing, RateLimited
from stepfast.server.limits import Buckets
from stepfast.server.settings import Limits, Settings, limits_from
from stepfast.stores import AsyncStore, Store, open_store
from tests.server.conftest import Running, Starter
from tests.server.test_guard import is_error
from tests.server.test_keys import with_key


def test_limits_are_read_from_the_environment() -> None:
    assert limits_from({"PATH": "x"}) == Limits()
    given = {"STEPFAST_LIMIT_BODY_BYTES": "2048", "STEPFAST_LIMIT_RECEIPT_SECONDS": "2.5"}
    assert limits_from(given) == Limits(body_bytes=2048, receipt_seconds=2.5)
    for name, value in (("NONSENSE", "1"), ("DEPTH", "many"), ("DEPTH", "0"), ("NODES", "-1")):
        with pytest.raises(InvalidInput, match="STEPFAST_LIMIT_"):
            limits_from({f"STEPFAST_LIMIT_{name}": value})


class Watch:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def test_a_bucket_gives_its_burst_then_its_rate_and_says_when_to_come_back() -> None:
    watch = Watch()
    buckets = Buckets(2.0, 3, now=watch)
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 1]
    assert buckets.take("b") == 0
    watch.time += 0.5
    assert [buckets.take("a"), buckets.take("a")] == [0, 1]
    watch.time += 1000
    assert [buckets.take("a") for _ in range(4)] == [0, 0, 0, 1]
    slow = Buckets(0.01, 1, now=watch)
    assert [slow.take("a"), slow.take("a")] == [0, 100]


def test_invented_names_do_not_fill_the_memory() -> None:
    watch = Watch()
    buckets = Buckets(1.0, 2, most=100, now=watch)
    for number in range(10_000):
        buckets.take(f"n{number}")
    assert len(buckets._levels) <= 100


async def test_too_many_requests_are_429_with_whole_seconds_to_wait(running: Running, store: Store) -> None:
    shop = AsyncStore(store)
    _, one = await keys.create_key(shop, "acme", "prod")
    _, other = await keys.create_key(shop, "acme", "prod")
    _, client = await running(Settings(limits=Limits(requests_per_second=0.5, burst=3)))
    for _ in range(3):
        assert (await client.get("/v1/whoami", headers=with_key(one))).status_code == 200
    answer = await client.get("/v1/whoami", headers=with_key(one))
    is_error(answer, 429, "rate_limit_exceeded")
    assert answer.headers["retry-after"] == "2"
    hot = await client.post("/v1/ops", headers=with_key(one))
    assert (hot.status_code, hot.headers["retry-after"]) == (429, "2")
    assert (await client.get("/v1/whoami", headers=with_key(other))).status_code == 200
    assert (await client.get("/health")).status_code == 200


async def test_a_request_beyond_the_limit_is_refused_before_its_body_is_read(running: Running) -> None:
    _, client = await running(Settings(limits=Limits(requests_per_second=0.01, burst=1)))
    assert (await client.get("/v1/whoami")).status_code == 200
    read = 0

    async def body() -> AsyncIterator[Any]:
        nonlocal read
        read += 1
        yield b"{}"

    is_error(await client.post("/v1/service-accounts", content=body()), 429)
    assert (await client.post("/v1/ops", content=body())).status_code == 429
    assert read == 0


async def test_a_key_has_only_so_many_streams_and_gets_a_place_back(running: Running, store: Store) -> None:
    shop = AsyncStore(store)
    one, _ = await keys.create_key(shop, "acme", "prod")
    other, _ = await keys.create_key(shop, "acme", "prod")
    app, _ = await running(Settings(limits=Limits(streams_per_key=2)))
    platform = app.platform
    streams = [platform.open_stream({"state": {"caller": one.caller()}}) for _ in range(2)]
    with pytest.raises(RateLimited) as refused:
        platform.open_stream({"state": {"caller": one.caller()}})
    assert int(refused.value.headers["retry-after"]) >= 1
    platform.open_stream({"state": {"caller": other.caller()}})
    streams[0].close()
    streams[0].close()  # twice is once
    platform.open_stream({"state": {"caller": one.caller()}})
    assert platform.open_streams(one.key_id) == 2
    assert platform.open_streams() == 3
    assert platform.metrics.registry.get_sample_value("stepfast_open_streams") == 3


async def test_a_server_that_closes_ends_streams_and_opens_none(running: Running) -> None:
    app, _ = await running()
    platform = app.platform
    scope = {"state": {"caller": keys.LOCAL_CALLER}}
    stream = platform.open_stream(scope)
    assert not await stream.wait(0.01)
    asyncio.get_running_loop().call_later(0.01, platform.close_streams)
    assert await stream.wait(10)
    assert stream.reason == "closing"
    with pytest.raises(Closing):
        platform.open_stream(scope)


def test_the_stream_limit_holds_on_the_wire(live: Starter, store_url: str) -> None:
    async def make() -> Any:
        with open_store(store_url) as opened:
            return (await keys.create_key(AsyncStore(opened), "acme", "prod"))[1]

    headers = with_key(asyncio.run(make()))
    server = live(limits={"streams_per_key": 1})

    def session(name: str) -> bytes:
        return wire.encode_session(wire.Session(name, "", []))

    with httpx.Client(base_url=server.url, timeout=30, headers=headers) as client:
        with client.stream("POST", "/v1/ops/session", content=session("s1")) as first:
            lines = first.iter_lines()
            next(lines)
            refused = client.post("/v1/ops/session", content=session("s2"))
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
        # The first has gone; its place is free as soon as the server has seen it.
        status = 0
        for _ in range(500):
            with client.stream("POST", "/v1/ops/session", content=session("s3")) as second:
                status = second.status_code
            if status == 200:
                break
        assert status == 200


async def test_whoami_tells_the_limits(running: Running) -> None:
    _, client = await running(Settings(limits=Limits(streams_per_key=7)))
    assert (await client.get("/v1/whoami")).json()["limits"]["streams_per_key"] == 7

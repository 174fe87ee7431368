"""Deliveries over real sockets: each intent to one listener, handed on when it dies, and never burnt for nothing."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from stepfast import Stepfast
from stepfast.clock import new_id
from stepfast.errors import Conflict, Fenced
from stepfast.ops import Claim, CreateIntent, NewIntent
from stepfast.platform_api import AsyncPlatformAPI
from stepfast.server.delivery import Hub
from stepfast.server.keys import create_key
from stepfast.server.settings import Settings
from stepfast.stored_names import RUN_TYPE
from stepfast.stores import AsyncStore, open_store
from tests.server.listening import Reader, until
from tests.server.live import Live

Starter = Callable[..., Live]
SOON = 5.0  # the promise is a second; machines that run tests have other things to do


class Wire:
    """A server and its agents. Every listener is cut at the end."""

    def __init__(self, server: Live, key: str = "any") -> None:
        self.server = server
        self.key = key
        self.api = AsyncPlatformAPI(server.url, key)
        self.readers: list[Reader] = []

    async def send(self, to_agent: str = "worker", **more: Any) -> str:
        return await self.api.send_intent(
            {"intent_type": "intent.demo.v1", "to_agent": to_agent, "payload": {}, **more}
        )

    def listen(self, address: str = "worker", *, key: str | None = None, wait: int = 60, **params: Any) -> Reader:
        path = f"/v1/agents/{address.removeprefix('agent://')}/intents/stream"
        reader = Reader(self.server.url, path, key or self.key, wait_seconds=wait, **params)
        self.readers.append(reader)
        return reader

    async def intent(self, intent_id: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.api.get_intent(intent_id))["intent"]
        return found

    async def types(self, intent_id: str) -> list[str]:
        found = (await self.api.list_intent_events(intent_id))["events"]
        return [event["event_type"].removeprefix("intent.") for event in found]

    async def complete(self, delivery: dict[str, Any], **more: Any) -> None:
        await self.api.resume_intent(delivery["intent_id"], {"action": "complete", **more})

    async def restart(self, *, kill: bool = False) -> None:
        await asyncio.to_thread(self.server.kill9 if kill else self.server.stop)
        await asyncio.to_thread(self.server.start)

    async def close(self) -> None:
        for reader in self.readers:
            await reader.cut()
        await self.api.close()


@pytest.fixture
async def wire(live: Starter) -> AsyncIterator[Wire]:
    made = Wire(live())
    yield made
    await made.close()


@pytest.fixture
async def hasty(live: Starter) -> AsyncIterator[Wire]:
    """A server with short leases."""
    made = Wire(live(lease_seconds=2.0))
    yield made
    await made.close()


# --- to whom -------------------------------------------------------------------------------------


async def test_a_delivery_carries_what_agents_read(wire: Wire) -> None:
    listener = wire.listen("org/ws/worker")
    intent_id = await wire.send("agent://org/ws/worker", max_delivery_attempts=5)
    [delivery] = await listener.intents()
    assert delivery["intent_id"] == intent_id
    assert delivery["status"] == "DELIVERED"
    assert delivery["event_type"] == "intent.delivered"
    assert delivery["delivery_attempt"] == 1
    assert delivery["max_delivery_attempts"] == 5
    assert delivery["redelivered"] is False
    assert delivery["intent_type"] == "intent.demo.v1"
    assert delivery["to_agent"] == "agent://org/ws/worker"
    assert f"id: {delivery['seq']}\nevent: intent.delivered\ndata: ".encode() in listener.raw
    assert (await wire.intent(intent_id))["status"] == "IN_PROGRESS"
    await wire.api.resume_intent(intent_id, {"action": "complete", "attempt_token": delivery["attempt_token"]})


async def test_each_intent_goes_to_one_of_the_listeners_and_one_at_a_time(wire: Wire) -> None:
    listeners = [wire.listen() for _ in range(5)]
    for listener in listeners:
        await listener.opened.wait()
    sent = await asyncio.gather(*(wire.send() for _ in range(40)))
    done: set[str] = set()

    def open_ones(listener: Reader) -> list[str]:
        return [each["intent_id"] for each in listener.delivered if each["intent_id"] not in done]

    async def work(listener: Reader) -> None:
        while len(done) < len(sent):
            assert len(open_ones(listener)) <= 1
            for intent_id in open_ones(listener):
                await wire.api.resume_intent(intent_id, {"action": "complete"})
                done.add(intent_id)
            await asyncio.sleep(0.005)

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(listener) for listener in listeners))
    given = [each["intent_id"] for listener in listeners for each in listener.delivered]
    assert sorted(given) == sorted(sent)


@pytest.mark.parametrize(
    ("listens", "sent_to", "comes"),
    [
        ("name", "agent://org/ws/name", True),
        ("name", "name", True),
        ("org/ws/name", "name", True),
        ("org/ws/name", "agent://name", True),
        ("agent%3A%2F%2Forg%2Fws%2Fname", "org/ws/name", True),
        ("org/ws/name", "agent://other/ws/name", False),
        ("name", "agent://org/ws/names", False),
    ],
)
async def test_addresses_match_however_they_are_written(wire: Wire, listens: str, sent_to: str, comes: bool) -> None:
    listener = wire.listen(listens, wait=2)
    await wire.send(sent_to)
    if comes:
        await listener.intents(seconds=SOON)
    else:
        assert await listener.end() == "properly"
        assert listener.delivered == []


async def test_a_filter_for_ended_intents_gets_no_work(wire: Wire) -> None:
    await wire.send()
    listener = wire.listen(wait=1, status="COMPLETED,FAILED")
    assert await listener.end() == "properly"
    assert listener.delivered == []
    await wire.listen(wait=5, status="CREATED,DELIVERED").intents(seconds=SOON)
    refused = wire.listen(status="NONSENSE")
    await refused.end()
    assert refused.status == 422


async def test_runs_of_programs_are_nobodys_delivery(wire: Wire, store_url: str) -> None:
    with open_store(store_url) as store:
        new = NewIntent(intent_id=new_id(), intent_type=RUN_TYPE, to_agent="run://local/worker")
        store.one(CreateIntent(new=new))
    listener = wire.listen(wait=2)
    assert await listener.end() == "properly"
    assert listener.delivered == []


async def test_an_agent_key_receives_for_its_own_address_alone(live: Starter, store_url: str) -> None:
    with open_store(store_url) as opened:
        store = AsyncStore(opened)
        _, workspace = await create_key(store, "acme", "prod")
        _, mine = await create_key(store, "acme", "prod", role="agent", agent="agent://acme/prod/worker")
        _, other = await create_key(store, "acme", "prod", role="agent", agent="agent://acme/prod/other")
        _, foreign = await create_key(store, "else", "where")
    wire = Wire(live(require_keys=True), workspace)
    try:
        denied = wire.listen("worker", key=other)
        await denied.end()
        assert denied.status == 403
        stranger = wire.listen("worker", key=foreign, wait=3)
        await stranger.opened.wait()
        listener = wire.listen("worker", key=mine)
        await listener.opened.wait()
        intent_id = await wire.send("agent://acme/prod/worker")
        assert (await listener.intents(seconds=SOON))[0]["intent_id"] == intent_id
        await stranger.end()
        assert stranger.delivered == []
    finally:
        await wire.close()


async def test_a_killed_agent_gets_nothing_until_it_is_resumed(wire: Wire) -> None:
    intent_id = await wire.send("agent://local/local/worker")
    await wire.api.mesh.kill("agent://local/local/worker")
    listener = wire.listen(wait=2)
    assert await listener.end() == "properly"
    assert listener.delivered == []
    await wire.api.mesh.resume("agent://local/local/worker")
    assert (await wire.listen().intents(seconds=SOON))[0]["intent_id"] == intent_id


# --- the end of a delivery -------------------------------------------------------------------------


async def test_a_broken_connection_hands_the_intent_on_at_once(wire: Wire) -> None:
    intent_id = await wire.send()
    first = wire.listen()
    [lost] = await first.intents()
    second = wire.listen()
    await second.opened.wait()
    await first.cut()
    began = time.monotonic()
    [delivery] = await second.intents(seconds=SOON)
    print(f"handed on after {time.monotonic() - began:.3f} s")
    assert delivery["intent_id"] == intent_id
    assert delivery["seq"] > lost["seq"]
    assert delivery["status"] == "IN_PROGRESS"
    assert delivery["redelivered"] is True
    assert delivery["delivery_attempt"] == 2
    intent = await wire.intent(intent_id)
    assert intent["lost_deliveries"] == 1
    with pytest.raises(Fenced):
        await wire.api.resume_intent(intent_id, {"action": "complete", "attempt_token": lost["attempt_token"]})
    await wire.api.resume_intent(intent_id, {"action": "complete", "attempt_token": delivery["attempt_token"]})


async def test_without_a_token_the_first_answer_counts(wire: Wire) -> None:
    intent_id = await wire.send()
    first = wire.listen()
    await first.intents()
    second = wire.listen()
    await first.cut()
    await second.intents()
    await wire.api.resume_intent(intent_id, {"action": "complete", "by": "the first, late"})
    with pytest.raises(Conflict):
        await wire.api.resume_intent(intent_id, {"action": "complete", "by": "the second"})
    assert (await wire.intent(intent_id))["result"] == {"by": "the first, late"}
    await wire.send()
    assert len(await second.intents(2)) == 2


async def test_after_all_attempts_it_fails_and_can_be_revived(wire: Wire) -> None:
    intent_id = await wire.send(max_delivery_attempts=2)
    for _ in range(2):
        listener = wire.listen()
        await listener.intents()
        await listener.cut()
    event = await wire.api.wait_for(intent_id, timeout_seconds=20)
    assert event["event_type"] == "intent.failed"
    kinds = await wire.types(intent_id)
    assert kinds[-2:] == ["delivery_failed", "failed"]
    failed = (await wire.api.list_intent_events(intent_id))["events"][-2]
    assert failed["details"]["delivery_attempt"] == 2
    assert "2 of 2 deliveries were lost" in (await wire.intent(intent_id))["reason"]
    revived = (await wire.api.revive_intent(intent_id))["intent_id"]
    [delivery] = await wire.listen().intents()
    assert delivery["intent_id"] == revived
    await wire.complete(delivery)


async def test_a_stream_whose_time_is_over_burns_nothing(wire: Wire) -> None:
    intent_id = await wire.send()
    listener = wire.listen(wait=1)
    [delivery] = await listener.intents()
    await listener.until(lambda r: r.frames[-1][0] == "stream.timeout")
    other = wire.listen(wait=2)
    assert await other.end() == "properly"
    assert other.delivered == []
    assert listener.ended is None  # the agent is at work: as long as this is open, it lives
    await wire.complete(delivery)
    assert await listener.end() == "properly"
    intent = await wire.intent(intent_id)
    assert (intent["status"], intent["lost_deliveries"], intent["delivery_attempt"]) == ("COMPLETED", 0, 1)


async def test_a_listener_that_dies_after_its_time_is_noticed_too(wire: Wire) -> None:
    await wire.send()
    listener = wire.listen(wait=1)
    await listener.intents()
    await listener.until(lambda r: r.frames[-1][0] == "stream.timeout")
    second = wire.listen()
    await second.opened.wait()
    await listener.cut()
    [delivery] = await second.intents(seconds=SOON)
    assert delivery["delivery_attempt"] == 2


async def test_a_handler_that_returns_without_an_answer_is_tried_again_later(wire: Wire) -> None:
    intent_id = await wire.send()
    listener = wire.listen(wait=1)
    [first] = await listener.intents()
    await listener.until(lambda r: r.frames[-1][0] == "stream.timeout")
    again = wire.listen(since=first["seq"])
    [second] = await again.intents()
    assert second["seq"] > first["seq"]
    assert second["delivery_attempt"] == 2
    events = (await wire.api.list_intent_events(intent_id))["events"]
    lost = next(each for each in events if each["event_type"] == "intent.delivery_lost")
    assert lost["details"]["reason"] == "the handler returned without an answer"
    assert await listener.end() == "properly"
    await wire.complete(second)


async def test_a_second_worker_does_not_take_what_the_first_has(wire: Wire) -> None:
    await wire.send()
    await wire.listen().intents()
    for since in (0, 12345):
        other = wire.listen(wait=1, since=since)
        assert await other.end() == "properly"
        assert other.delivered == []


async def test_the_next_comes_on_the_same_stream_when_this_one_is_settled(wire: Wire) -> None:
    sent = [await wire.send() for _ in range(4)]
    listener = wire.listen()
    endings: list[Any] = [
        lambda i: wire.api.resume_intent(i, {"action": "complete"}),
        lambda i: wire.api.resolve_intent(i, {"status": "CANCELED"}),
        lambda i: wire.api.resume_intent(i, {"status": "pending_human_approval"}),
        lambda i: wire.api.resume_intent(i, {"action": "fail"}),
    ]
    for number, end in enumerate(endings, 1):
        delivery = (await listener.intents(number))[-1]
        assert delivery["intent_id"] == sent[number - 1]
        await end(delivery["intent_id"])
    seqs = [each["seq"] for each in listener.delivered]
    assert seqs == sorted(set(seqs))


async def test_an_ending_by_another_process_frees_the_listener(wire: Wire, store_url: str) -> None:
    await wire.send()
    listener = wire.listen()
    [delivery] = await listener.intents()
    with Stepfast(store_url) as sf:
        sf.cancel(delivery["intent_id"])
    await wire.send()
    await listener.intents(2, seconds=SOON)


async def test_an_idle_listener_that_leaves_burns_nothing(wire: Wire) -> None:
    for _ in range(20):
        listener = wire.listen()
        await listener.opened.wait()
        await listener.cut()
    intent_id = await wire.send()
    [delivery] = await wire.listen().intents(seconds=SOON)
    assert delivery["delivery_attempt"] == 1
    await wire.complete(delivery)
    assert (await wire.intent(intent_id))["lost_deliveries"] == 0


# --- servers that end ------------------------------------------------------------------------------


async def test_a_restart_of_the_server_burns_nothing_and_doubles_nothing(hasty: Wire) -> None:
    intent_id = await hasty.send()
    listener = hasty.listen()
    [delivery] = await listener.intents()
    await hasty.restart()
    assert await listener.end() == "properly"
    # Longer than the lease: the agent is busy, and says nothing.
    other = hasty.listen(wait=4)
    assert await other.end() == "properly"
    assert other.delivered == []
    await hasty.complete(delivery, n=1)
    intent = await hasty.intent(intent_id)
    assert (intent["status"], intent["lost_deliveries"]) == ("COMPLETED", 0)


async def test_after_a_restart_a_handler_without_an_answer_is_still_known(hasty: Wire) -> None:
    await hasty.send()
    [first] = await hasty.listen().intents()
    await hasty.restart()
    [second] = await hasty.listen(since=first["seq"]).intents(seconds=10)
    assert second["intent_id"] == first["intent_id"]
    assert second["seq"] > first["seq"]


async def test_what_a_killed_server_delivered_comes_again_without_loss(hasty: Wire) -> None:
    intent_id = await hasty.send()
    [first] = await hasty.listen().intents()
    await hasty.restart(kill=True)
    [second] = await hasty.listen().intents(seconds=15)
    assert second["intent_id"] == first["intent_id"]
    assert second["delivery_attempt"] == 2
    assert (await hasty.intent(intent_id))["lost_deliveries"] == 0
    await hasty.complete(second)


async def test_an_answer_after_a_killed_server_counts(hasty: Wire) -> None:
    [first] = await (await _busy(hasty)).intents()
    await hasty.restart(kill=True)
    await hasty.complete(first, late=True)
    assert (await hasty.intent(first["intent_id"]))["result"] == {"late": True}


async def _busy(wire: Wire) -> Reader:
    await wire.send()
    listener = wire.listen()
    await listener.intents()
    return listener


async def test_a_busy_listener_keeps_its_lease_for_as_long_as_it_lives(hasty: Wire) -> None:
    listener = await _busy(hasty)
    other = hasty.listen(wait=7)
    assert await other.end() == "properly"  # three leases later
    assert other.delivered == []
    await hasty.complete(listener.delivered[0])


async def test_signs_of_life_prolong_a_lease_without_a_stream(live: Starter, store_url: str) -> None:
    with open_store(store_url) as opened:
        store = AsyncStore(opened)
        _, workspace = await create_key(store, "acme", "prod")
        _, mine = await create_key(store, "acme", "prod", role="agent", agent="agent://acme/prod/worker")
    wire = Wire(live(require_keys=True, lease_seconds=2.0), workspace)
    try:
        await wire.send("agent://acme/prod/worker")
        [first] = await wire.listen(key=mine).intents()
        await wire.restart(kill=True)
        async with AsyncPlatformAPI(wire.server.url, mine) as agent:
            await agent.get_intent(first["intent_id"])
        other = wire.listen(wait=5)
        assert await other.end() == "properly"
        assert other.delivered == []
        await wire.complete(first)
    finally:
        await wire.close()


async def test_two_servers_on_one_store_share_the_work(live: Starter, pg_store_url: str) -> None:
    one, two = (Wire(live(store_url=pg_store_url, lease_seconds=3.0)) for _ in range(2))
    try:
        first, second = one.listen(), two.listen()
        for listener in (first, second):
            await listener.opened.wait()
        sent = [await one.send(), await two.send()]
        await first.intents(seconds=SOON)
        await second.intents(seconds=SOON)
        assert {first.delivered[0]["intent_id"], second.delivered[0]["intent_id"]} == set(sent)
        # An answer given to the other server frees the listener at once.
        await two.complete(first.delivered[0])
        third = await two.send()
        assert (await first.intents(2, seconds=SOON))[1]["intent_id"] == third
        # One server dies with a delivery; the other hands it on, and leaves its own alone.
        await asyncio.to_thread(one.server.kill9)
        fresh = two.listen()
        [taken] = await fresh.intents(seconds=15)
        assert taken["intent_id"] == third
        assert (await two.intent(third))["lost_deliveries"] == 0
        assert len(second.delivered) == 1
        for delivery in (taken, second.delivered[0]):
            await two.complete(delivery)
    finally:
        await one.close()
        await two.close()


async def test_a_handler_that_is_busy_for_ever_loses_its_lease_in_the_end(running: Callable[..., Any]) -> None:
    app, client = await running(Settings(lease_seconds=1.0))
    app.platform.part(Hub).hold_seconds = 1.5
    asked = {"intent_type": "t.v1", "to_agent": "worker", "payload": {}}
    intent_id = (await client.post("/v1/intents", json=asked)).json()["intent_id"]

    def listen(wait: int) -> tuple[list[dict[str, Any]], asyncio.Task[None]]:
        """A reader that stays connected and never says a word."""
        told: list[dict[str, Any]] = []
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/agents/worker/intents/stream",
            "raw_path": b"",
            "query_string": f"wait_seconds={wait}".encode(),
            "headers": [(b"host", b"127.0.0.1")],
        }

        async def send(message: dict[str, Any]) -> None:
            told.append(message)

        return told, asyncio.create_task(app(scope, asyncio.Event().wait, send))

    told, task = listen(1)
    async with asyncio.timeout(20):
        await task
    assert not told[-1]["more_body"]
    assert b"stream.timeout" in b"".join(each.get("body", b"") for each in told)
    told, task = listen(30)
    await until(lambda: b"intent.delivered" in b"".join(each.get("body", b"") for each in told))
    intent = (await client.get(f"/v1/intents/{intent_id}")).json()["intent"]
    assert (intent["delivery_attempt"], intent["lost_deliveries"]) == (2, 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_stream_is_asked_for_by_get_alone(wire: Wire) -> None:
    async with httpx.AsyncClient(base_url=wire.server.url) as http:
        await wire.send()
        assert (await http.head("/v1/agents/worker/intents/stream")).status_code == 404
        assert (await wire.listen().intents())[0]["delivery_attempt"] == 1


# --- many ----------------------------------------------------------------------------------------


async def test_a_thousand_idle_listeners_cost_next_to_nothing(wire: Wire) -> None:
    host, _, port = wire.server.url.removeprefix("http://").partition(":")

    async def listen(name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /v1/agents/{name}/intents/stream?wait_seconds=60 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        await reader.readuntil(b": ka\n\n")
        return reader, writer

    open_ones = []
    for start in range(0, 1000, 50):
        open_ones += await asyncio.gather(*(listen(f"agent-{n}") for n in range(start, start + 50)))
    began = time.monotonic()
    intent_id = await wire.send("agent-777")
    async with asyncio.timeout(SOON):
        await open_ones[777][0].readuntil(intent_id.encode())
    print(f"one of a thousand listeners was given its intent after {time.monotonic() - began:.3f} s")
    before = _cpu_seconds(wire.server.pid)
    await asyncio.sleep(3)  # the measure itself, not a wait for anything
    used = _cpu_seconds(wire.server.pid) - before
    print(f"a thousand idle listeners use {used / 3:.3f} of a processor")
    assert used / 3 < 0.5
    for _, writer in open_ones:
        writer.close()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_a_claim_of_another_worker_is_respected(wire: Wire, store_url: str) -> None:
    intent_id = await wire.send()
    with open_store(store_url) as store:
        [[held]] = store.execute([Claim(to_agent="worker", token="t", owner="somebody", lease_seconds=60)])
        assert held.intent_id == intent_id
        listener = wire.listen(wait=2)
        assert await listener.end() == "properly"
        assert listener.delivered == []


async def test_until_gives_what_it_waited_for() -> None:
    assert await until(lambda: 7) == 7

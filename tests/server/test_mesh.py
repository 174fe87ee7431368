"""Heartbeats, who is alive, and the kill switch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from axme import AxmeAuthError, AxmeHttpError  # type: ignore[import-untyped]

from stepfast.ops import Claim, GetIntent
from stepfast.server import keys
from stepfast.server.mesh import Mesh
from stepfast.server.settings import Settings
from stepfast.stores import Store, open_store
from stepfast.stores.base import AsyncStore
from tests.server.conftest import Starter
from tests.server.sdk_agents import Agent, sdk, until

Running = Callable[..., Any]
ADDRESS = "agent://acme/prod/payer"


async def make_keys(store: Store) -> tuple[str, str]:
    """A workspace's key, and one of its agent "payer"."""
    shared = AsyncStore(store)
    account = await keys.create_account(shared, "acme", "prod", "payer", display_name="Payer")
    _, boss = await keys.create_key(shared, "acme", "prod")
    _, payer = await keys.create_key(
        shared, "acme", "prod", role="agent", agent=account.address, account_id=account.account_id
    )
    return boss, payer


def of(key: str) -> dict[str, str]:
    return {"x-api-key": key}


# --- signs of life ----------------------------------------------------------------------------------------


async def test_a_heartbeat_is_known_by_its_key_and_adds_up_what_it_counts(running: Running, store: Store) -> None:
    boss, payer = await make_keys(store)
    _, client = await running(Settings())
    listed = (await client.get("/v1/mesh/agents", headers=of(boss))).json()["agents"]
    assert [(a["address"], a["health_status"], a["last_heartbeat_at"]) for a in listed] == [(ADDRESS, "unknown", None)]
    beat = (await client.post("/v1/mesh/heartbeat", headers=of(payer))).json()
    assert (beat["ok"], beat["health_status"], beat["address"]) == (True, "healthy", ADDRESS)
    for metrics in ({"intents_total": 1, "avg_latency_ms": 10}, {"intents_total": 3, "avg_latency_ms": 30, "x": 1}):
        await client.post("/v1/mesh/heartbeat", headers=of(payer), json={"metrics": metrics})
    [agent] = (await client.get("/v1/mesh/agents?health=healthy", headers=of(boss))).json()["agents"]
    assert agent["metrics"] == {"intents_total": 4, "avg_latency_ms": 25}
    assert agent["display_name"] == "Payer"
    for bad in ({"metrics": 5}, {"metrics": {"intents_total": -1}}, {"metrics": {"cost_usd": "much"}}):
        assert (await client.post("/v1/mesh/heartbeat", headers=of(payer), json=bad)).status_code == 422
    assert (await client.get("/v1/mesh/agents?health=fine", headers=of(boss))).status_code == 422


async def test_health_follows_the_age_of_the_last_beat(running: Running, store: Store) -> None:
    boss, payer = await make_keys(store)
    _, client = await running(Settings())
    await client.post("/v1/mesh/heartbeat", headers=of(payer))
    for seconds, health in ((89, "healthy"), (2, "degraded"), (205, "degraded"), (10, "unreachable")):
        store.clock.advance(seconds)
        shown = (await client.get(f"/v1/mesh/agents/{ADDRESS}", headers=of(boss))).json()["agent"]
        assert shown["health_status"] == health
    await client.post("/v1/mesh/heartbeat", headers=of(payer))
    events = (await client.get("/v1/mesh/events", headers=of(boss))).json()["events"]
    assert [event["event_type"] for event in events] == ["agent.recovered", "agent.joined"]


async def test_an_agents_key_sees_itself_only_and_pulls_no_switch(running: Running, store: Store) -> None:
    boss, payer = await make_keys(store)
    await keys.create_account(AsyncStore(store), "acme", "prod", "other")
    _, client = await running(Settings())
    assert len((await client.get("/v1/mesh/agents", headers=of(boss))).json()["agents"]) == 2
    [mine] = (await client.get("/v1/mesh/agents", headers=of(payer))).json()["agents"]
    assert mine["address"] == ADDRESS
    assert (await client.get("/v1/mesh/agents/other", headers=of(payer))).status_code == 404
    assert (await client.post("/v1/mesh/agents/payer/kill", headers=of(payer))).status_code == 403


# --- the kill switch --------------------------------------------------------------------------------------


async def test_a_killed_agent_gets_nothing_and_sends_nothing_until_it_is_resumed(
    running: Running, store: Store
) -> None:
    boss, payer = await make_keys(store)
    app, client = await running(Settings())
    body = {"intent_type": "pay.v1", "to_agent": "agent://acme/prod/payer", "payload": {}}
    from_it = {**body, "to_agent": "somebody"}
    [agent] = (await client.get("/v1/mesh/agents", headers=of(boss))).json()["agents"]
    for name in (agent["address_id"], ADDRESS, "payer", "agent%3A%2F%2Facme%2Fprod%2Fpayer"):
        killed = (await client.post(f"/v1/mesh/agents/{name}/kill", headers=of(boss))).json()
        assert (killed["ok"], killed["agent"]["health_status"]) == (True, "killed")
        for key, message in ((boss, body), (payer, from_it)):
            refused = await client.post("/v1/intents", json=message, headers=of(key))
            assert refused.status_code == 403, refused.text
            assert refused.json()["error"]["code"] == "agent_killed"
        assert (await client.post("/v1/mesh/heartbeat", headers=of(payer))).json()["health_status"] == "killed"
        assert await app.platform.part(Mesh).is_killed("acme/prod", "payer")
        resumed = (await client.post(f"/v1/mesh/agents/{name}/resume", headers=of(boss))).json()
        assert resumed["agent"]["health_status"] == "healthy"
        for key, message in ((boss, body), (payer, from_it)):
            assert (await client.post("/v1/intents", json=message, headers=of(key))).status_code == 200
    events = (await client.get("/v1/mesh/events?event_type=agent.killed&limit=3", headers=of(boss))).json()["events"]
    assert [event["address"] for event in events] == [ADDRESS] * 3
    assert (await client.post("/v1/mesh/agents/nobody/resume", headers=of(boss))).status_code == 404


async def test_pulling_the_switch_twice_is_pulling_it_once(running: Running, store: Store) -> None:
    _, client = await running(Settings())
    for _ in range(3):
        assert (await client.post("/v1/mesh/agents/ghost/kill")).json()["health_status"] == "killed"
    assert len((await client.get("/v1/mesh/events")).json()["events"]) == 1
    [agent] = (await client.get("/v1/mesh/agents?health=killed")).json()["agents"]
    assert agent["address"] == "ghost"


async def test_the_switch_holds_on_every_server_and_after_a_restart(running: Running, store: Store) -> None:
    _, one = await running(Settings())
    app, _ = await running(Settings())
    mesh = app.platform.part(Mesh)
    assert not await mesh.is_killed("local", "payer")
    await one.post("/v1/mesh/agents/payer/kill")
    for _ in range(200):
        if await mesh.is_killed("local", "payer"):
            break
        store.clock.advance(0.01)
    assert await mesh.is_killed("local", "agent://local/local/payer")
    later, _ = await running(Settings())
    assert await later.platform.part(Mesh).is_killed("local", "payer")


# --- with the SDK -----------------------------------------------------------------------------------------


def test_the_sdks_mesh_client_works_unchanged(live: Starter) -> None:
    server = live()
    with sdk(server.url) as axme, httpx.Client(base_url=server.url) as http:
        assert axme.mesh.heartbeat()["ok"]
        http.post("/v1/mesh/heartbeat", headers={"x-owner-agent": "writer"})
        [agent] = axme.mesh.list_agents()["agents"]
        assert agent["address"] == "writer"
        axme.mesh.kill(agent["address_id"])
        assert axme.mesh.get_agent("writer")["agent"]["health_status"] == "killed"
        intent = {"intent_type": "a.v1", "to_agent": "agent://local/local/writer", "payload": {}}
        with pytest.raises(AxmeAuthError):
            axme.send_intent(intent)
        axme.mesh.resume(agent["address_id"])
        assert axme.send_intent(intent)
        assert [e["event_type"] for e in axme.mesh.list_events(limit=2)["events"]] == ["agent.resumed", "agent.killed"]
        with pytest.raises(AxmeHttpError) as missing:
            axme.mesh.get_agent("nobody")
        assert missing.value.status_code == 404


def test_a_killed_agents_waiting_work_stays_where_it_is(live: Starter) -> None:
    server = live()
    with sdk(server.url) as axme:
        waiting = axme.send_intent({"intent_type": "a.v1", "to_agent": "writer", "payload": {"n": 1}})
        axme.mesh.kill("writer")
        with Agent(server.url, "writer", lambda payload: payload) as agent:
            axme.send_intent({"intent_type": "a.v1", "to_agent": "reader", "payload": {}})
            with Agent(server.url, "reader", lambda payload: payload) as reader:
                until(lambda: reader.handled)
            assert agent.handled == []
            assert axme.get_intent(waiting)["status"] == "DELIVERED"
            axme.mesh.resume("writer")
            until(lambda: agent.handled)
        assert axme.get_intent(waiting)["status"] == "COMPLETED"


async def test_a_heartbeat_keeps_what_the_agent_has_in_hand(running: Running, store: Store, store_url: str) -> None:
    """The lease of a delivery whose stream is gone is prolonged by the agent's sign of life."""
    _, payer = await make_keys(store)
    _, client = await running(Settings())
    key_id = payer.removeprefix(keys.TOKEN_PREFIX).rpartition("_")[0]
    body = {"intent_type": "pay.v1", "to_agent": ADDRESS, "payload": {}}
    intent_id = (await client.post("/v1/intents", json=body, headers=of(payer))).json()["intent_id"]
    with open_store(store_url) as other:
        owner = f"stream:{key_id}:{store.clock.now_us()}"
        claim = Claim(to_agent=ADDRESS, token="t", owner=owner, lease_seconds=5)
        [held] = other.execute([claim], tenant="acme/prod")[0]
        await client.post("/v1/mesh/heartbeat", headers=of(payer))
        [after] = other.execute([GetIntent(intent_id=intent_id)], tenant="acme/prod")
    assert after.attempt == held.attempt
    assert after.claimable_at > held.claimable_at

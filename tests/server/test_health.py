"""Alive, ready, figures: what watches over a server can rely on."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest

from stepfast import ops
from stepfast.server import health, keys
from stepfast.server.settings import Settings
from stepfast.stores import AsyncStore, Store
from stepfast.stores.files import WriterLock
from tests.server.conftest import Running, Starter
from tests.server.test_guard import is_error
from tests.server.test_keys import with_key


async def test_health_says_alive_to_everybody(running: Running, store: Store) -> None:
    await keys.create_key(AsyncStore(store), "acme", "prod")
    _, client = await running()
    answer = await client.get("/health", headers={"host": "any.example", "origin": "https://any.example"})
    assert answer.json() == {
        "ok": True,
        "service": "stepfast",
        "deployment_profile": "self-hosted",
        "storage": "sqlite",
    }


async def test_ready_writes(running: Running, store_url: str) -> None:
    _, client = await running()
    assert (await client.get("/ready")).json() == {"ok": True}
    path = store_url.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        first = connection.execute("SELECT checked_at FROM health WHERE tenant = 'platform'").fetchone()
    connection.close()
    assert first is not None


async def test_a_store_that_cannot_be_written_is_not_ready_and_comes_back(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_READY_TIMEOUT", 0.2)
    monkeypatch.setattr(health, "_READY_SECONDS", 0.0)
    _, client = await running()
    [lock_file] = tmp_path.glob("*lock")  # noqa: ASYNC240
    lock = WriterLock(lock_file)
    lock.acquire()
    try:
        is_error(await client.get("/ready"), 503, "not_ready")
        assert (await client.get("/health")).status_code == 200
    finally:
        lock.release()
        lock.close()
    for _ in range(200):
        if (await client.get("/ready")).status_code == 200:
            break
    assert (await client.get("/ready")).status_code == 200


async def test_a_store_without_its_tables_is_not_ready(
    running: Running, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_READY_SECONDS", 0.0)
    _, client = await running()
    assert (await client.get("/ready")).status_code == 200
    with sqlite3.connect(store_url.removeprefix("sqlite:///")) as connection:
        connection.execute("ALTER TABLE records RENAME TO gone")
    connection.close()
    is_error(await client.get("/ready"), 503, "not_ready")


async def test_many_who_ask_at_once_cost_one_write(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    app, client = await running()
    asked: list[ops.Op[Any]] = []
    start = type(app.platform.store).start

    def counted(self: Any, batch: Any, **options: Any) -> Any:
        asked.extend(op for op in batch if isinstance(op, ops.CheckWritable) and options.get("tenant") == "platform")
        return start(self, batch, **options)

    monkeypatch.setattr(type(app.platform.store), "start", counted)
    answers = await asyncio.gather(*(client.get("/ready") for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(asked) == 1


async def test_a_server_that_shuts_down_is_not_ready(running: Running) -> None:
    app, client = await running()
    app.platform.close_streams()
    is_error(await client.get("/ready"), 503, "closing")


def new_intent(number: int) -> ops.CreateIntent:
    new = ops.NewIntent(intent_id=f"i{number}", intent_type="work.v1", to_agent="agent://local/local/a")
    return ops.CreateIntent(new=new)


async def test_metrics_count_what_goes_through_the_platform(running: Running) -> None:
    app, client = await running()
    store = app.platform.store
    await store.execute([new_intent(1), new_intent(2), new_intent(3)])
    await store.one(new_intent(3))  # a repeat makes no intent
    claim = ops.Claim(to_agent="agent://local/local/a", token="t1", owner="w", lease_seconds=30)
    [intent] = await store.one(claim)
    lease = ops.Lease(intent.intent_id, intent.attempt, "t1")
    await store.one(ops.ReleaseIntent(lease=lease, reason="gone", lost=True))
    await store.one(ops.Claim(to_agent="agent://local/local/a", token="t2", owner="w", lease_seconds=30, limit=3))

    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    figures = {}
    for line in answer.text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            figures[name] = float(value)
    assert figures["stepfast_intents_created_total"] == 3
    assert figures["stepfast_deliveries_total"] == 4
    assert figures["stepfast_redeliveries_total"] == 1
    assert figures["stepfast_lease_losses_total"] == 1
    assert figures['stepfast_intents{status="IN_PROGRESS"}'] == 3
    assert figures["stepfast_store_bytes"] > 0
    assert figures["stepfast_commit_seconds_count"] >= 4
    assert figures["stepfast_open_streams"] == 0
    assert figures["stepfast_steps_recorded_total"] == 0
    await client.get("/no/such/path")
    later = await client.get("/metrics")
    assert 'stepfast_requests_total{route="none",status="404"} 1.0' in later.text
    assert 'stepfast_requests_total{route="/metrics",status="200"} 1.0' in later.text


async def test_metrics_cover_every_workspace(running: Running, store: Store) -> None:
    shop = AsyncStore(store)
    await keys.create_key(shop, "acme", "prod")
    await shop.one(new_intent(1), tenant="acme/prod")
    await shop.one(new_intent(2))
    _, client = await running()
    assert 'stepfast_intents{status="DELIVERED"} 2.0' in (await client.get("/metrics")).text


async def test_metrics_are_for_this_machine_or_for_the_token(running: Running) -> None:
    app, client = await running(Settings(metrics_token="for prometheus only"))
    is_error(await client.get("/metrics"), 403)
    is_error(await client.get("/metrics", headers={"authorization": "Bearer guess"}), 403)
    assert (await client.get("/metrics", headers={"authorization": "Bearer for prometheus only"})).status_code == 200
    far = httpx.AsyncClient(transport=httpx.ASGITransport(app, client=("192.0.2.7", 1)), base_url="http://127.0.0.1")
    async with far:
        assert (await far.get("/metrics")).status_code == 403


async def test_metrics_without_a_token_are_not_for_others(running: Running) -> None:
    app, _ = await running()
    far = httpx.AsyncClient(transport=httpx.ASGITransport(app, client=("192.0.2.7", 1)), base_url="http://127.0.0.1")
    async with far:
        is_error(await far.get("/metrics"), 403)


async def test_capabilities_have_the_shape_of_the_wire(running: Running) -> None:
    _, client = await running()
    told = (await client.get("/v1/capabilities")).json()
    assert told["ok"] is True
    assert told["capabilities"]
    assert all(each.startswith("intent.") and each.endswith(".v1") for each in told["supported_intent_types"])


async def test_whoami_tells_who_and_which_version(running: Running, store: Store) -> None:
    shop = AsyncStore(store)
    account = await keys.create_account(shop, "acme", "prod", "pipeline")
    await keys.create_key(shop, "acme", "prod")
    key, token = await keys.create_key(
        shop, "acme", "prod", role="agent", agent=account.address, account_id=account.account_id
    )
    _, client = await running()
    me = (await client.get("/v1/whoami", headers=with_key(token))).json()
    assert (me["tenant"], me["role"], me["agent"], me["key_id"]) == ("acme/prod", "agent", account.address, key.key_id)
    assert me["version"]
    assert token not in str(me)


def test_a_real_server_comes_back_after_kill_9_on_the_same_port(live: Starter) -> None:
    server = live()
    url = server.url
    server.kill9()
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/health")
    server.start()
    assert server.url == url
    assert httpx.get(f"{url}/ready").status_code == 200


def test_a_real_server_on_postgresql(live: Starter, pg_store_url: str) -> None:
    server = live(pg_store_url)
    assert httpx.get(f"{server.url}/health").json()["storage"] == "postgresql"
    assert "stepfast_store_bytes" in httpx.get(f"{server.url}/metrics").text
    made = httpx.post(f"{server.url}/v1/service-accounts", json={"name": "worker"}).json()["service_account"]
    path = f"{server.url}/v1/service-accounts/{made['service_account_id']}/keys"
    token = httpx.post(path, json={}).json()["api_key"]
    other = live(pg_store_url)
    me = httpx.get(f"{other.url}/v1/whoami", headers=with_key(token)).json()
    assert me["agent"] == "agent://local/local/worker"

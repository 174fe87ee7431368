"""The inbox: intents as threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import httpx
import pytest

from stepfast.server import keys
from stepfast.server.settings import Settings
from stepfast.stores import Store
from stepfast.stores.base import AsyncStore
from tests.server.conftest import Starter
from tests.server.sdk_agents import sdk

Running = Callable[..., Any]


@pytest.fixture
async def client(running: Running) -> httpx.AsyncClient:
    _, client = await running(Settings())
    return client


async def send(client: httpx.AsyncClient, to: str, **more: Any) -> str:
    body = {"intent_type": "ask.v1", "to_agent": to, "payload": {"q": 1}, **more}
    answer = await client.post("/v1/intents", json=body)
    assert answer.status_code == 200, answer.text
    intent_id: str = answer.json()["intent_id"]
    return intent_id


async def threads(client: httpx.AsyncClient, owner: str | None = None) -> list[dict[str, Any]]:
    answer = await client.get("/v1/inbox", params={"owner_agent": owner} if owner else {})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["threads"]
    return found


async def test_an_intent_is_a_thread_in_the_inbox_of_its_agent(client: httpx.AsyncClient) -> None:
    intent_id = await send(client, "agent://local/local/ann")
    await send(client, "bob")
    [thread] = await threads(client, "ann")
    assert (thread["thread_id"], thread["intent_id"], thread["status"]) == (intent_id, intent_id, "pending")
    assert [line["event_type"] for line in thread["timeline"]] == [
        "intent.created",
        "intent.submitted",
        "intent.delivered",
    ]
    assert all(UUID(line["event_id"]) for line in thread["timeline"])
    assert len(await threads(client)) == 2
    one = (await client.get(f"/v1/inbox/{intent_id}")).json()
    assert one["thread"]["payload"] == {"q": 1}
    assert (await client.get("/v1/inbox/nothing")).status_code == 404
    assert (await client.get(f"/v1/inbox/{intent_id}", params={"owner_agent": "bob"})).status_code == 403
    both = {"params": {"owner_agent": "ann"}, "headers": {"x-owner-agent": "bob"}}
    assert (await client.get("/v1/inbox", **both)).status_code == 400  # type: ignore[arg-type]


async def test_an_answer_is_a_thread_in_the_inbox_it_is_to_go_to(client: httpx.AsyncClient) -> None:
    intent_id = await send(client, "worker", reply_to="agent://local/local/ann")
    assert await threads(client, "ann") == []
    done = await client.post(f"/v1/intents/{intent_id}/resolve", json={"status": "COMPLETED", "result": {"a": 2}})
    assert done.json()["completion_delivery"]["thread_id"] == intent_id
    [thread] = await threads(client, "ann")
    assert (thread["thread_id"], thread["status"], thread["result"]) == (intent_id, "done", {"a": 2})


async def test_replies_and_delegation(client: httpx.AsyncClient) -> None:
    intent_id = await send(client, "ann")
    replied = await client.post(f"/v1/inbox/{intent_id}/reply", json={"message": "on it"})
    assert replied.json()["thread"]["messages"][0]["message"] == "on it"
    key = {"idempotency-key": "k"}
    for _ in range(2):
        await client.post(f"/v1/inbox/{intent_id}/reply", json={"message": "once"}, headers=key)
    handed = await client.post(f"/v1/inbox/{intent_id}/delegate", json={"delegate_to": "bob", "note": "yours"})
    assert handed.json()["thread"]["timeline"][-1]["event_type"] == "intent.transfer"
    [thread] = await threads(client, "bob")
    assert [message["message"] for message in thread["messages"]] == ["on it", "once"]
    path = f"/v1/inbox/{intent_id}/messages/delete"
    gone = (await client.post(path, json={"mode": "self", "limit": 1}, params={"owner_agent": "bob"})).json()
    assert (gone["deleted_count"], gone["mode"]) == (1, "self")
    assert [message["message"] for message in gone["thread"]["messages"]] == ["once"]
    assert len((await threads(client, "ann"))[0]["messages"]) == 2
    both = await client.post(path, json={"mode": "both", "message_ids": [thread["messages"][1]["message_id"]]})
    assert both.json()["deleted_count"] == 1
    assert [m["message"] for m in (await threads(client, "ann"))[0]["messages"]] == ["on it"]
    for bad in ({}, {"message": ""}, {"message": 5}, {"message": "x" * 5001}):
        assert (await client.post(f"/v1/inbox/{intent_id}/reply", json=bad)).status_code == 422


async def test_approve_and_reject_answer_the_task_of_a_thread(client: httpx.AsyncClient) -> None:
    approved = await send(client, "ann", human_task={"title": "?"})
    rejected = await send(client, "ann", human_task={"title": "?"})
    plain = await send(client, "ann")
    answer = (await client.post(f"/v1/inbox/{approved}/approve", json={"comment": "ok"})).json()
    assert (answer["thread"]["status"], answer["thread"]["lifecycle_status"]) == ("done", "COMPLETED")
    answer = (await client.post(f"/v1/inbox/{rejected}/reject", json={})).json()
    assert answer["thread"]["lifecycle_status"] == "FAILED"
    assert (await client.post(f"/v1/inbox/{approved}/approve", json={})).status_code == 409
    assert (await client.post(f"/v1/inbox/{plain}/approve", json={})).status_code == 409
    assert (await client.post(f"/v1/inbox/{approved}/reply", json={"message": "late"})).status_code == 409


async def test_changes_come_in_order_and_go_on_from_a_cursor(client: httpx.AsyncClient) -> None:
    ids = [await send(client, "ann") for _ in range(3)]
    page = (await client.get("/v1/inbox/changes", params={"limit": 2})).json()
    assert [change["thread"]["thread_id"] for change in page["changes"]] == ids[:2]
    assert page["has_more"]
    rest = (await client.get("/v1/inbox/changes", params={"cursor": page["next_cursor"]})).json()
    assert [change["thread"]["thread_id"] for change in rest["changes"]] == ids[2:]
    await client.post(f"/v1/inbox/{ids[0]}/reply", json={"message": "again"})
    more = (await client.get("/v1/inbox/changes", params={"cursor": rest["next_cursor"]})).json()
    assert [change["thread"]["thread_id"] for change in more["changes"]] == ids[:1]
    none = (await client.get("/v1/inbox/changes", params={"cursor": more["next_cursor"]})).json()
    assert (none["changes"], none["next_cursor"], none["has_more"]) == ([], None, False)
    assert (await client.get("/v1/inbox/changes", params={"cursor": "what"})).status_code == 422


async def test_an_agents_key_reads_its_own_inbox(running: Running, store: Store) -> None:
    shared = AsyncStore(store)
    _, boss = await keys.create_key(shared, "acme", "prod")
    _, ann = await keys.create_key(shared, "acme", "prod", role="agent", agent="agent://acme/prod/ann")
    _, client = await running(Settings())
    client.headers["x-api-key"] = boss
    mine, other = await send(client, "ann"), await send(client, "bob")
    client.headers["x-api-key"] = ann
    assert [thread["thread_id"] for thread in await threads(client)] == [mine]
    assert (await client.get("/v1/inbox", params={"owner_agent": "bob"})).status_code == 403
    assert (await client.get(f"/v1/inbox/{other}")).status_code == 404


def test_the_sdks_inbox_works_unchanged(live: Starter) -> None:
    server = live()
    with sdk(server.url) as axme:
        body = {"intent_type": "ask.v1", "payload": {}, "human_task": {"title": "?"}}
        intent_id = axme.send_intent({**body, "to_agent": "agent://local/local/ann"})
        assert axme.list_inbox(owner_agent="ann")["threads"][0]["thread_id"] == intent_id
        assert axme.get_inbox_thread(intent_id)["thread"]["status"] == "active"
        assert axme.reply_inbox_thread(intent_id, message="hm", idempotency_key="k")["ok"]
        assert axme.list_inbox_changes(limit=5)["changes"][0]["thread"]["messages"][0]["message"] == "hm"
        assert axme.approve_inbox_thread(intent_id, {"comment": "yes"})["thread"]["status"] == "done"
        other = axme.send_intent({**body, "to_agent": "ann"})
        assert axme.decide_approval(other, decision="approve")["approval"]["decision"] == "approve"
        assert axme.get_intent(other)["status"] == "COMPLETED"

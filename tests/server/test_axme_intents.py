"""The AXME wire on intents, as its clients see it: shapes, answers, conflicts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from stepfast import Codec, Stepfast
from stepfast.bindings import of_payload
from stepfast.clock import new_id
from stepfast.codec import KeyRing
from stepfast.intents import Intent
from stepfast.ops import Claim, CreateIntent, GetIntent, GetRecord, NewIntent
from stepfast.server import agents_api, intents_api
from stepfast.server.keys import create_key
from stepfast.server.mesh import Mesh
from stepfast.server.settings import Settings
from stepfast.stores import Store
from stepfast.stores.base import LOCAL_TENANT

Running = Callable[..., Any]
ASK: dict[str, Any] = {"intent_type": "intent.demo.v1", "to_agent": "agent://acme/prod/worker", "payload": {"x": 1}}


class Wire:
    """The requests of the SDK, short."""

    def __init__(self, client: httpx.AsyncClient, **headers: str) -> None:
        self.http = client
        self.headers = headers

    async def post(self, path: str, body: Any = None, status: int = 200, **options: Any) -> dict[str, Any]:
        headers = {**self.headers, **options.pop("headers", {})}
        answer = await self.http.post(path, json=body, headers=headers, **options)
        assert answer.status_code == status, (answer.status_code, answer.text)
        return answer.json()

    async def get(self, path: str, expect: int = 200, /, **params: Any) -> dict[str, Any]:
        answer = await self.http.get(path, params=params, headers=self.headers)
        assert answer.status_code == expect, (answer.status_code, answer.text)
        return answer.json()

    async def send(self, **more: Any) -> str:
        created: str = (await self.post("/v1/intents", {**ASK, **more}))["intent_id"]
        return created

    async def resume(self, intent_id: str, body: Any, status: int = 200, **options: Any) -> dict[str, Any]:
        return await self.post(f"/v1/intents/{intent_id}/resume", body, status, **options)

    async def resolve(self, intent_id: str, body: Any, status: int = 200, **options: Any) -> dict[str, Any]:
        return await self.post(f"/v1/intents/{intent_id}/resolve", body, status, **options)

    async def intent(self, intent_id: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.get(f"/v1/intents/{intent_id}"))["intent"]
        return found

    async def events(self, intent_id: str, **params: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.get(f"/v1/intents/{intent_id}/events", **params))["events"]
        return found

    async def types(self, intent_id: str) -> list[str]:
        return [event["event_type"].removeprefix("intent.") for event in await self.events(intent_id)]


@pytest.fixture
async def wire(running: Running) -> Wire:
    return Wire((await running())[1])


def hold(store: Store, intent_id: str) -> Intent:
    """A worker takes the intent."""
    [[held]] = store.execute(
        [Claim(to_agent="agent://acme/prod/worker", token="secret", owner="somebody", lease_seconds=60)]
    )
    assert held.intent_id == intent_id
    return held


# --- create --------------------------------------------------------------------------------------


async def test_a_create_is_durable_and_delivered_when_it_answers(wire: Wire) -> None:
    created = await wire.post("/v1/intents", {**ASK, "correlation_id": new_id()})
    assert set(created) == {"ok", "intent_id", "status", "created_at"}
    assert created["ok"] is True
    assert created["status"] == "DELIVERED"
    events = await wire.events(created["intent_id"])
    assert [(e["seq"], e["event_type"]) for e in events] == [
        (1, "intent.created"),
        (2, "intent.submitted"),
        (3, "intent.delivered"),
    ]
    assert all(e["at"].endswith("Z") for e in events)


async def test_an_intent_shows_all_that_clients_read_also_at_the_top(wire: Wire) -> None:
    intent_id = await wire.send(payload={"x": "a\u2028b\u0085", "n": 2**70, "z": None}, reply_to="agent://boss")
    found = await wire.get(f"/v1/intents/{intent_id}")
    intent = found["intent"]
    for name in ("payload", "intent_type", "status", "lifecycle_status", "result", "intent_id"):
        assert found[name] == intent[name]
    assert intent["payload"] == {"x": "a\u2028b\u0085", "n": 2**70, "z": None}
    assert intent["status"] == intent["lifecycle_status"] == "DELIVERED"
    assert intent["legacy_status"] == "accepted"
    assert intent["reply_to"] == "agent://boss"
    assert intent["from_agent"] == "agent://local/local/client"
    assert intent["policy_generation"] == 0
    assert intent["controls"] == {}
    assert intent["delivery_attempt"] == 0
    assert intent["max_delivery_attempts"] == 3


@pytest.mark.parametrize(
    "address", ["name", "org/ws/name", "agent://name", "agent://a/b", "agent://org/ws/name", "agent_core"]
)
async def test_sloppy_addresses_are_taken_as_they_are(wire: Wire, address: str) -> None:
    intent = await wire.intent(await wire.send(to_agent=address))
    assert intent["to_agent"] == address


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"to_agent": "agent://"}, "invalid_agent_address"),
        ({"to_agent": "a b"}, "invalid_agent_address"),
        ({"to_agent": "a/b/c/d"}, "invalid_agent_address"),
        ({"to_agent": "name\n"}, "invalid_agent_address"),
        ({"to_agent": "run://local/x"}, "invalid_agent_address"),
        ({"to_agent": 7}, "invalid_input"),
        ({"intent_type": ""}, "invalid_input"),
        ({"intent_type": "a b"}, "invalid_input"),
        ({"payload": []}, "invalid_input"),
        ({"deadline_at": "tomorrow"}, "invalid_input"),
        ({"deadline_at": "0001-01-01T00:00:00+14:00"}, "invalid_input"),
        ({"deadline_at": "2030-01-01T00:00:00Z", "ttl_seconds": 60}, "invalid_input"),
        ({"ttl_seconds": -1}, "invalid_input"),
        ({"ttl_seconds": True}, "invalid_input"),
        ({"max_delivery_attempts": 0}, "invalid_input"),
        ({"human_task": {"allowed_outcomes": []}}, "invalid_input"),
    ],
)
async def test_what_is_wrong_in_a_create_is_told(wire: Wire, change: dict[str, Any], code: str) -> None:
    told = await wire.post("/v1/intents", {**ASK, **change}, 422)
    assert told["error"]["code"] == code
    assert told["detail"] == told["error"]["message"]
    assert (await wire.get("/v1/intents"))["intents"] == []


async def test_unknown_fields_and_missing_ones_are_no_problem(wire: Wire) -> None:
    body = {"intent_type": "compliance_check", "to_agent": "x", "from_agent": {"odd": 1}, "something": "else"}
    intent = await wire.intent((await wire.post("/v1/intents", body))["intent_id"])
    assert intent["payload"] == {}
    assert intent["correlation_id"]


async def test_the_same_key_and_body_give_the_same_intent(wire: Wire) -> None:
    key: Any = {"headers": {"idempotency-key": "k1"}}
    first = await wire.post("/v1/intents", {**ASK, "correlation_id": new_id()}, **key)
    again = await wire.post("/v1/intents", {**ASK, "correlation_id": new_id()}, **key)
    assert again == first
    told = await wire.post("/v1/intents", {**ASK, "payload": {"x": 2}}, 409, **key)
    assert told["detail"] == "idempotency key reused with different payload"
    assert len((await wire.get("/v1/intents"))["intents"]) == 1


async def test_many_at_once_with_one_key_are_one(wire: Wire, store: Store) -> None:
    body = {**ASK, "reply_to": "agent://boss", "human_task": {"title": "look"}}
    key: Any = {"headers": {"idempotency-key": "k1"}}
    created = await asyncio.gather(*(wire.post("/v1/intents", body, **key) for _ in range(10)))
    assert len({each["intent_id"] for each in created}) == 1
    assert len((await wire.get("/v1/intents"))["intents"]) == 1
    await wire.resolve(created[0]["intent_id"], {"status": "COMPLETED", "result": {}})
    assert await wire.post("/v1/intents", body, **key) == created[0]


async def test_a_time_to_live_becomes_a_deadline_that_is_kept(wire: Wire, store: Store) -> None:
    intent_id = await wire.send(ttl_seconds=60)
    assert (await wire.intent(intent_id))["deadline_at"] is not None
    store.clock.advance(61)
    told = await wire.resume(intent_id, {"action": "complete"}, 409)
    assert told["error"]["code"] == "already_finished"
    assert (await wire.intent(intent_id))["status"] == "TIMED_OUT"
    assert (await wire.events(intent_id))[-1]["event_type"] == "intent.timed_out"


async def test_nothing_goes_to_or_from_a_killed_agent(running: Running) -> None:
    app, client = await running()
    wire = Wire(client)
    await app.platform.part(Mesh).kill("local", "agent://acme/prod/worker", "me")
    told = await wire.post("/v1/intents", ASK, 403)
    assert told["error"]["code"] == "agent_killed"
    await wire.post("/v1/intents", {**ASK, "to_agent": "other", "from_agent": "agent://acme/prod/worker"}, 403)


# --- read ----------------------------------------------------------------------------------------


async def test_an_id_that_is_not_there_is_a_404_everywhere(wire: Wire) -> None:
    for verb in ("resume", "resolve", "controls", "policy", "revive"):
        body = {"status": "COMPLETED", "controls_patch": {}}
        assert (await wire.post(f"/v1/intents/{new_id()}/{verb}", body, 404))["error"]["code"] == "not_found"
    for path in ("", "/events", "/events/stream"):
        await wire.get(f"/v1/intents/{new_id()}{path}", 404)


async def test_intents_are_listed_newest_first_in_pages(wire: Wire) -> None:
    sent = [await wire.send() for _ in range(5)]
    await wire.resolve(sent[0], {"status": "CANCELED"})
    found = await wire.get("/v1/intents", limit=2)
    assert [i["intent_id"] for i in found["intents"]] == sent[:2:-1]
    found = await wire.get("/v1/intents", limit=3, before=found["next_before"])
    assert [i["intent_id"] for i in found["intents"]] == sent[2::-1]
    assert (await wire.get("/v1/intents", status="canceled"))["intents"][0]["intent_id"] == sent[0]
    assert len((await wire.get("/v1/intents", status="DELIVERED,IN_PROGRESS"))["intents"]) == 4
    await wire.get("/v1/intents", 422, status="NONSENSE")


async def test_events_come_after_since(wire: Wire) -> None:
    intent_id = await wire.send()
    assert [e["seq"] for e in await wire.events(intent_id, since=2)] == [3]
    assert await wire.events(intent_id, since=3) == []
    await wire.get(f"/v1/intents/{intent_id}/events", 422, since=-1)


class Odd:
    """A type that only its own program knows."""


async def test_values_that_the_server_cannot_read_are_opaque(wire: Wire, store: Store) -> None:
    ring = KeyRing({"k": b"0" * 32}, active="k")
    values: list[tuple[bytes, Any]] = [
        (Codec(keyring=ring).encode({"secret": 1}, bind=b"payload"), {"$opaque": "encrypted"}),
        (Codec().encode((1, [2.5]), bind=b"payload"), [1, [2.5]]),
        (Codec().encode({1: 2}, bind=b"payload"), {"$opaque": "dict"}),
        (Codec().encode([float("nan")], bind=b"payload"), [{"$opaque": "float"}]),
        (Codec().encode(b"bytes", bind=b"payload"), {"$opaque": "bytes"}),
        (b"not ours at all", {"$opaque": "unknown_format"}),
        (Codec().encode({"x": 1}, bind=of_payload(LOCAL_TENANT, "another intent")), {"$opaque": "damaged"}),
    ]
    for data, shown in values:
        new = NewIntent(intent_id=new_id(), intent_type="t", to_agent="a", payload=data)
        store.one(CreateIntent(new=new))
        assert (await wire.intent(new.intent_id))["payload"] == shown


async def test_what_the_library_sends_and_the_wire_completes_is_read_by_the_library(wire: Wire, store_url: str) -> None:
    with Stepfast(store_url) as sf:
        intent_id = sf.send_intent({"intent_type": "t.v1", "to_agent": "a", "payload": {"n": 1}})
        assert (await wire.intent(intent_id))["payload"] == {"n": 1}
        await wire.resume(intent_id, {"action": "complete", "sum": 3})
        assert sf.wait_for(intent_id)["result"] == {"sum": 3}


# --- resume --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "result"),
    [
        ({"action": "complete", "sum": 3}, "COMPLETED", {"sum": 3}),
        ({"action": "complete"}, "COMPLETED", {}),
        ({"sum": 3, "status": "fine"}, "COMPLETED", {"sum": 3, "status": "fine"}),
        ({"action": "buy", "sum": 3}, "COMPLETED", {"action": "buy", "sum": 3}),
        ({}, "COMPLETED", {}),
    ],
)
async def test_a_result_completes(wire: Wire, body: Any, status: str, result: Any) -> None:
    intent_id = await wire.send()
    told = await wire.resume(intent_id, body)
    assert told["applied"] is True
    assert told["intent"]["status"] == status
    found = await wire.get(f"/v1/intents/{intent_id}")
    assert found["result"] == result
    last = (await wire.events(intent_id))[-1]
    assert last["event_type"] == "intent.completed"
    assert last["result"] == last["data"] == last["details"]["result"] == result


async def test_a_failure_fails_with_its_reason(wire: Wire) -> None:
    intent_id = await wire.send()
    await wire.resume(intent_id, {"action": "fail", "reason": "no paper", "code": 7})
    intent = await wire.intent(intent_id)
    assert intent["status"] == "FAILED"
    assert intent["legacy_status"] == "failed"
    assert intent["error"] == {"reason": "no paper", "code": 7}
    assert intent["reason"] == "no paper"
    assert (await wire.events(intent_id))[-1]["error"] == {"reason": "no paper", "code": 7}


async def test_an_ending_is_final(wire: Wire) -> None:
    intent_id = await wire.send()
    await wire.resume(intent_id, {"action": "complete"})
    for _ in range(2):
        assert (await wire.resume(intent_id, {"action": "complete"}, 409))["error"]["code"] == "already_finished"
        await wire.resolve(intent_id, {"status": "CANCELED"}, 409)
        await wire.resume(intent_id, {"approve_current_step": True}, 409)
    assert (await wire.types(intent_id)).count("completed") == 1


async def test_a_repeat_with_its_key_has_the_same_answer(wire: Wire) -> None:
    key: Any = {"headers": {"idempotency-key": "k"}}
    intent_id = await wire.send()
    first = await wire.resume(intent_id, {"action": "complete", "sum": 3}, **key)
    assert await wire.resume(intent_id, {"action": "complete", "sum": 3}, **key) == first
    told = await wire.resume(intent_id, {"action": "complete", "sum": 4}, 409, **key)
    assert told["detail"] == "idempotency key reused with different payload"
    await wire.resume(intent_id, {"action": "complete", "sum": 3}, 409, headers={"idempotency-key": "other"})


async def test_approving_a_step_lets_a_wait_go_and_ends_nothing(wire: Wire) -> None:
    intent_id = await wire.send()
    told = await wire.resume(intent_id, {"approve_current_step": True, "actor": "eva", "reason": "fine"})
    assert told["applied"] is True
    assert told["intent"]["status"] == "IN_PROGRESS"
    assert (await wire.resume(intent_id, {"approve_current_step": True}))["intent"]["status"] == "IN_PROGRESS"
    assert (await wire.resume(intent_id, {"approve_current_step": False}))["applied"] is False
    resolved = await wire.resolve(intent_id, {"status": "COMPLETED", "result": {"ok": 1}})
    assert resolved["intent"]["status"] == "COMPLETED"


async def test_an_agent_can_ask_a_person_and_somebody_lets_it_go_on(wire: Wire, store: Store) -> None:
    intent_id = await wire.send()
    hold(store, intent_id)
    told = await wire.resume(intent_id, {"status": "pending_human_approval", "amount": 7})
    assert told["intent"]["status"] == "WAITING"
    assert told["intent"]["waiting_reason"] == told["intent"]["lifecycle_waiting_reason"] == "WAITING_FOR_HUMAN"
    assert told["intent"]["pending_with"]["type"] == "human"
    assert told["intent"]["human_task"]["task_type"] == "approval"
    events = await wire.events(intent_id)
    assert "intent.human_task_assigned" in [e["event_type"] for e in events]
    assert events[-1]["waiting_reason"] == "WAITING_FOR_HUMAN"
    assert events[-1]["details"]["request"]["amount"] == 7
    assert (await wire.resume(intent_id, {"approve_current_step": True}))["intent"]["status"] == "IN_PROGRESS"
    assert (await wire.intent(intent_id))["pending_with"] is None
    assert hold(store, intent_id).attempt == 2


async def test_an_intent_with_a_human_task_waits_from_the_start(wire: Wire, store: Store) -> None:
    task = {"title": "Sign", "assignees": ["eva@example.org"], "allowed_outcomes": ["yes", "no"]}
    body: dict[str, Any] = {
        **ASK,
        "human_task": task,
        "remind_after_seconds": 60,
        "max_reminders": 2,
        "escalate_to": "boss",
    }
    created = await wire.post("/v1/intents", body)
    assert created["status"] == "WAITING"
    intent = await wire.intent(created["intent_id"])
    assert intent["status"] == "WAITING"
    assert intent["waiting_reason"] == "WAITING_FOR_HUMAN"
    assert intent["human_task"] == task
    assert intent["pending_with"] == {"type": "human", "ref": "eva@example.org", "name": "eva@example.org"}
    events = await wire.events(created["intent_id"])
    kinds = [e["event_type"] for e in events]
    assert kinds[3:] == ["intent.human_task_assigned", "intent.waiting"]
    assert events[3]["human_task"] == task
    assert store.execute([Claim(to_agent=body["to_agent"], token="t", owner="o", lease_seconds=9)]) == [[]]
    record = store.one(GetRecord(kind="extra", record_id=created["intent_id"]))
    assert record is not None
    assert record.due_at is not None


async def test_a_persons_decision_comes_by_resume(wire: Wire) -> None:
    created = await wire.post("/v1/intents", {**ASK, "human_task": {"title": "Sign", "required_comment": True}})
    intent_id = created["intent_id"]
    await wire.resume(intent_id, {"task_result": {"outcome": "perhaps"}}, 422)
    await wire.resume(intent_id, {"task_result": {"outcome": "approved"}}, 422)
    key: Any = {"headers": {"idempotency-key": "k"}}
    body = {"task_result": {"outcome": "approved", "comment": "fine"}}
    told = await wire.resume(intent_id, body, **key)
    assert told["applied"] is True
    assert told["intent"]["status"] == "COMPLETED"
    assert (await wire.resume(intent_id, body, **key))["intent"]["status"] == "COMPLETED"
    await wire.resume(intent_id, body, 409)
    await wire.resume(await wire.send(), body, 409)


async def test_only_the_current_attempt_may_answer_with_its_token(wire: Wire, store: Store) -> None:
    intent_id = await wire.send()
    held = hold(store, intent_id)
    told = await wire.resume(intent_id, {"action": "complete", "attempt_token": "1.wrong"}, 409)
    assert told["error"]["code"] == "fenced"
    await wire.resume(intent_id, {"action": "complete"}, 422, headers={"x-attempt-token": "nonsense"})
    token = f"{held.attempt}.{held.lease_token}"
    told = await wire.resume(intent_id, {"action": "complete", "a": 1}, headers={"x-attempt-token": token})
    assert told["intent"]["result"] == {"a": 1}


async def test_two_names_for_the_owner_must_agree(wire: Wire) -> None:
    intent_id = await wire.send()
    path = f"/v1/intents/{intent_id}/resume?owner_agent=worker"
    await wire.post(path, {"action": "complete"}, 400, headers={"x-owner-agent": "other"})
    await wire.post(path, {"action": "complete"}, headers={"x-owner-agent": "worker"})


# --- resolve -------------------------------------------------------------------------------------


async def test_resolving_tells_the_intent_and_the_event(wire: Wire) -> None:
    intent_id = await wire.send(reply_to="agent://boss")
    told = await wire.resolve(intent_id, {"status": "completed", "result": {"a": 1}, "actor": "eva"})
    assert told["intent"]["status"] == "COMPLETED"
    assert told["event"]["event_type"] == "intent.completed"
    assert told["event"]["actor"] == "eva"
    assert told["event"]["details"]["result"] == {"a": 1}
    delivery = told["completion_delivery"]
    assert delivery["delivered"] is True
    assert delivery["reply_to"] == "agent://boss"
    assert delivery["thread_id"] == intent_id


async def test_resolving_as_failed_and_canceled(wire: Wire) -> None:
    failed = await wire.resolve(await wire.send(), {"status": "FAILED", "error": {"message": "broke"}})
    assert failed["intent"]["error"] == {"message": "broke"}
    assert failed["intent"]["reason"] == "broke"
    assert failed["completion_delivery"] == {"delivered": False, "reason": "reply_to_not_set"}
    canceled = await wire.resolve(await wire.send(), {"status": "CANCELED", "reason": "not needed"})
    assert canceled["intent"]["status"] == "CANCELED"
    assert canceled["event"]["details"]["reason"] == "not needed"


@pytest.mark.parametrize("status", ["compliance_checked", "TIMED_OUT", "WAITING", None, 7])
async def test_other_endings_are_refused(wire: Wire, status: Any) -> None:
    intent_id = await wire.send()
    await wire.resolve(intent_id, {"status": status}, 422)
    assert (await wire.intent(intent_id))["status"] == "DELIVERED"


# --- controls and policy -------------------------------------------------------------------------


async def test_controls_are_patched_and_counted(wire: Wire) -> None:
    intent_id = await wire.send()
    path = f"/v1/intents/{intent_id}/controls"
    assert await wire.post(path, {"controls_patch": {"a": 1, "b": {"c": 2}}}) == {
        "ok": True,
        "applied": True,
        "policy_generation": 1,
    }
    await wire.post(path, {"controls_patch": {"a": None, "b": {"d": 3}}, "reason": "why not"})
    intent = await wire.intent(intent_id)
    assert intent["controls"] == {"b": {"c": 2, "d": 3}}
    assert intent["policy_generation"] == 2
    last = (await wire.events(intent_id))[-1]
    assert last["event_type"] == "intent.controls_updated"
    assert last["status"] == "DELIVERED"
    assert last["details"]["reason"] == "why not"


async def test_a_checkpoint_in_the_controls_is_told_as_progress(wire: Wire) -> None:
    intent_id = await wire.send()
    path = f"/v1/intents/{intent_id}/controls"
    await wire.post(path, {"controls_patch": {"checkpoint": {"step": 3}}})
    last = (await wire.events(intent_id))[-1]
    assert last["event_type"] == "intent.checkpoint"
    assert last["details"]["checkpoint"] == {"step": 3}
    await wire.post(path, {"controls_patch": {"checkpoint": {"text": "x" * 10_000}}})
    assert "$opaque" in (await wire.events(intent_id))[-1]["details"]["checkpoint"]
    assert (await wire.intent(intent_id))["controls"]["checkpoint"] == {"text": "x" * 10_000, "step": 3}


async def test_a_stale_write_is_not_applied(wire: Wire) -> None:
    intent_id = await wire.send()
    path = f"/v1/intents/{intent_id}/controls"
    await wire.post(path, {"controls_patch": {"a": 1}, "expected_policy_generation": 0})
    stale = {"ok": True, "applied": False, "reason": "stale_policy_generation", "policy_generation": 1}
    assert await wire.post(path, {"controls_patch": {"a": 2}, "expected_policy_generation": 0}) == stale
    policy = {"grants_patch": {"delegate:agent://ops": {"allow": ["resume"]}}, "expected_policy_generation": 0}
    assert await wire.post(f"/v1/intents/{intent_id}/policy", policy) == stale
    told = await wire.resume(intent_id, {"action": "complete", "expected_policy_generation": 0})
    assert told["applied"] is False
    assert told["intent"]["status"] == "DELIVERED"
    assert (await wire.resolve(intent_id, {"status": "CANCELED", "expected_policy_generation": 7}))["applied"] is False
    await wire.resolve(intent_id, {"status": "CANCELED", "expected_policy_generation": 1})


async def test_a_policy_is_kept(wire: Wire) -> None:
    intent_id = await wire.send()
    path = f"/v1/intents/{intent_id}/policy"
    await wire.post(path, {"grants_patch": {"x": {"allow": []}}, "envelope_patch": {"max_retry_count": 2}})
    policy = (await wire.intent(intent_id))["policy"]
    assert policy == {"grants": {"x": {"allow": []}}, "envelope": {"max_retry_count": 2}}


async def test_many_patches_at_once_are_all_there(wire: Wire) -> None:
    intent_id = await wire.send()
    path = f"/v1/intents/{intent_id}/controls"
    answers = await asyncio.gather(*(wire.post(path, {"controls_patch": {f"k{n}": n}}) for n in range(12)))
    assert sorted(each["policy_generation"] for each in answers) == list(range(1, 13))
    assert (await wire.intent(intent_id))["controls"] == {f"k{n}": n for n in range(12)}


async def test_a_repeated_patch_counts_once(wire: Wire) -> None:
    intent_id = await wire.send()
    path = f"/v1/intents/{intent_id}/controls"
    key: Any = {"headers": {"idempotency-key": "k"}}
    first = await wire.post(path, {"controls_patch": {"a": 1}}, **key)
    assert await wire.post(path, {"controls_patch": {"a": 1}}, **key) == first
    await wire.post(path, {"controls_patch": {"a": 2}}, 409, **key)


async def test_controls_have_a_size_and_an_end(wire: Wire) -> None:
    intent_id = await wire.send()
    path = f"/v1/intents/{intent_id}/controls"
    for n in range(2):
        await wire.post(path, {"controls_patch": {f"k{n}": "x" * 120_000}})
    told = await wire.post(path, {"controls_patch": {"k2": "x" * 120_000}}, 413)
    assert told["error"]["code"] == "too_large"
    await wire.post(path, {"controls_patch": "text"}, 422)
    await wire.post(path, {}, 422)
    await wire.resume(intent_id, {"action": "complete"})
    await wire.post(path, {"controls_patch": {"a": 1}}, 409)
    assert len((await wire.intent(intent_id))["controls"]) == 2


# --- clean up and revive ---------------------------------------------------------------------------


async def test_old_intents_are_canceled_in_bulk(wire: Wire, store: Store) -> None:
    old = [await wire.send() for _ in range(3)]
    await wire.resume(old[0], {"action": "complete"})
    store.clock.advance(7200)
    await wire.send()
    path = "/v1/intents/bulk-cancel"
    dry = await wire.post(path, {"older_than_hours": 1})
    assert dry == {"ok": True, "dry_run": True, "would_cancel": 2, "intent_ids": [old[2], old[1]]}
    done = await wire.post(path, {"older_than_hours": 1, "dry_run": False, "reason": "clean up"})
    assert done["canceled"] == 2
    assert (await wire.intent(old[1]))["reason"] == "clean up"
    await wire.post(path, {"status_filter": ["COMPLETED"]}, 422)
    await wire.post(path, {"older_than_hours": 0}, 422)


async def test_what_failed_is_revived_with_what_belongs_to_it(wire: Wire) -> None:
    intent_id = await wire.send(reply_to="agent://boss")
    await wire.post(f"/v1/intents/{intent_id}/controls", {"controls_patch": {"checkpoint": 3}})
    await wire.post(f"/v1/intents/{intent_id}/revive", None, 409)
    await wire.resume(intent_id, {"action": "fail", "reason": "x"})
    key: Any = {"headers": {"idempotency-key": "k"}}
    revived = await wire.post(f"/v1/intents/{intent_id}/revive", None, **key)
    assert revived["intent"]["revived_from"] == intent_id
    assert revived["intent"]["controls"] == {"checkpoint": 3}
    assert (await wire.post(f"/v1/intents/{intent_id}/revive", None, **key))["intent_id"] == revived["intent_id"]
    intent = await wire.intent(revived["intent_id"])
    assert intent["status"] == "DELIVERED"
    assert intent["payload"] == ASK["payload"]
    assert intent["reply_to"] == "agent://boss"


# --- keys ----------------------------------------------------------------------------------------


@pytest.fixture
async def keyed(running: Running) -> dict[str, Wire]:
    app, client = await running(Settings(require_keys=True))
    wires = {}
    roles: dict[str, Any] = {
        "workspace": {},
        "worker": {"role": "agent", "agent": "agent://acme/prod/worker"},
        "other": {"role": "agent", "agent": "agent://acme/prod/other"},
    }
    for name, options in roles.items():
        _, token = await create_key(app.platform.store, "acme", "prod", **options)
        wires[name] = Wire(client, **{"x-api-key": token})
    _, token = await create_key(app.platform.store, "elsewhere", "prod")
    wires["stranger"] = Wire(client, authorization=f"Bearer {token}")
    return wires


async def test_an_agent_key_answers_only_for_its_own_address(keyed: dict[str, Wire]) -> None:
    intent_id = await keyed["workspace"].send()
    for name in ("other", "stranger"):
        wire = keyed[name]
        await wire.get(f"/v1/intents/{intent_id}", 404)
        await wire.get(f"/v1/intents/{intent_id}/events", 404)
        await wire.resume(intent_id, {"action": "complete"}, 404)
        await wire.resolve(intent_id, {"status": "CANCELED"}, 404)
        await wire.post(f"/v1/intents/{intent_id}/controls", {"controls_patch": {}}, 404)
        assert (await wire.get("/v1/intents"))["intents"] == []
    assert (await keyed["worker"].intent(intent_id))["payload"] == ASK["payload"]
    assert len((await keyed["worker"].get("/v1/intents"))["intents"]) == 1
    await keyed["worker"].resume(intent_id, {"action": "complete"})


async def test_a_sender_is_who_its_key_says_and_may_cancel_only(keyed: dict[str, Wire]) -> None:
    intent_id = await keyed["other"].send(from_agent="agent://acme/prod/worker")
    assert (await keyed["other"].intent(intent_id))["from_agent"] == "agent://acme/prod/other"
    await keyed["other"].resume(intent_id, {"action": "complete"}, 403)
    await keyed["other"].resolve(intent_id, {"status": "COMPLETED"}, 403)
    await keyed["other"].resolve(intent_id, {"status": "CANCELED"})


async def test_keys_of_idempotency_are_each_callers_own(keyed: dict[str, Wire]) -> None:
    key: Any = {"headers": {"idempotency-key": "k"}}
    ids = {(await keyed[name].post("/v1/intents", ASK, **key))["intent_id"] for name in keyed}
    assert len(ids) == 4


async def test_only_the_workspace_cleans_up(keyed: dict[str, Wire]) -> None:
    await keyed["worker"].post("/v1/intents/bulk-cancel", {}, 403)
    intent_id = await keyed["workspace"].send()
    await keyed["worker"].resume(intent_id, {"action": "fail"})
    await keyed["worker"].post(f"/v1/intents/{intent_id}/revive", None, 403)
    await keyed["workspace"].post(f"/v1/intents/{intent_id}/revive", None)


# --- agents --------------------------------------------------------------------------------------


async def test_agents_are_listed_and_shown(wire: Wire) -> None:
    assert (await wire.get("/v1/agents"))["agents"] == []
    await wire.post("/v1/service-accounts", {"name": "worker", "display_name": "Worker"})
    [agent] = (await wire.get("/v1/agents", org_id="local", workspace_id="local"))["agents"]
    assert agent["address"] == "agent://local/local/worker"
    assert agent["status"] == "active"
    for path in ("worker", "local/local/worker", "agent%3A%2F%2Flocal%2Flocal%2Fworker"):
        assert (await wire.get(f"/v1/agents/{path}"))["agent"]["display_name"] == "Worker"
    assert (await wire.get("/v1/agents/nobody", 404))["error"]["code"] == "agent_not_found"


def test_every_route_is_documented() -> None:
    for module in (intents_api, agents_api):
        served = {(method, route.path) for route in module.routes for method in route.methods or () if method != "HEAD"}
        assert served == set(module.DOCS)


async def test_the_intent_is_really_there(wire: Wire, store: Store) -> None:
    intent_id = await wire.send()
    assert store.one(GetIntent(intent_id=intent_id)).to_agent == ASK["to_agent"]

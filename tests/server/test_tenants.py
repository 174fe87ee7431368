"""Another workspace's id answers exactly like one that does not exist, at every documented endpoint.

The list of endpoints is the OpenAPI document, so a new one is in these tests as soon as it is documented.
"""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import httpx
import pytest

from stepfast import ops, wire
from stepfast.clock import new_id
from stepfast.intents import Status
from stepfast.server import keys
from stepfast.server.app import MODULES
from stepfast.server.openapi import build_document
from stepfast.stores import AsyncStore, Store
from tests.server.conftest import Running
from tests.server.test_keys import with_key

DOCUMENT = build_document(MODULES)
CANARY = "only-for-beta"
BODIES: list[dict[str, Any]] = [
    {},
    {
        "status": "COMPLETED",
        "result": {},
        "action": "complete",
        "outcome": "approved",
        "decision": "approve",
        "message": "hello",
        "delegate_to": "agent://acme/prod/one",
        "mode": "self",
        "limit": 1,
        "controls_patch": {"x": 1},
        "grants_patch": {},
        "name": "worker",
    },
    {"task_result": {"outcome": "approved"}, "status": "CANCELED", "reason": "no"},
]


def operations() -> list[tuple[str, str]]:
    return [(method.upper(), path) for path, found in DOCUMENT["paths"].items() for method in found]


def named() -> list[tuple[str, str]]:
    return [(method, path) for method, path in operations() if "{" in path]


class Place:
    """Two workspaces on one server; beta holds things that acme must not know of."""

    def __init__(self, client: httpx.AsyncClient, tokens: dict[str, str]) -> None:
        self.client = client
        self.tokens = tokens
        self.things: dict[str, str] = {}

    async def ask(self, who: str, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {**with_key(self.tokens[who]), **options.pop("headers", {})}
        return await self.client.request(method, path, headers=headers, **options)

    async def fill(self) -> None:
        intent = await self._make("beta", human=False)
        waiting = await self._make("beta", human=True)
        body = {"name": "worker", "display_name": CANARY}
        account = (await self.ask("beta", "POST", "/v1/service-accounts", json=body)).json()["service_account"]
        path = f"/v1/service-accounts/{account['service_account_id']}/keys"
        key = (await self.ask("beta", "POST", path, json={})).json()["key"]
        self.tokens["beta agent"] = key["token"]
        await self.ask("beta agent", "POST", "/v1/mesh/heartbeat", json={})
        self.things = {
            "intent_id": intent,
            "thread_id": intent,
            "approval_id": waiting,
            "task_id": waiting,
            "account_id": account["service_account_id"],
            "key_id": key["key_id"],
            "address": "beta/prod/worker",
            "address_id": "agent://beta/prod/worker",
        }

    async def _make(self, who: str, human: bool) -> str:
        body = {
            "intent_type": "intent.test.v1",
            "correlation_id": new_id(),
            "to_agent": "agent://beta/prod/worker",
            "payload": {"note": CANARY},
        }
        if human:
            body["human_task"] = {"title": CANARY}
        answer = await self.ask(who, "POST", "/v1/intents", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["intent_id"])

    async def seen_by_beta(self) -> list[Any]:
        """All that could have changed for beta."""
        seen: list[Any] = []
        for path in (
            "/v1/intents",
            f"/v1/intents/{self.things['intent_id']}",
            f"/v1/intents/{self.things['intent_id']}/events",
            f"/v1/intents/{self.things['approval_id']}/events",
            "/v1/service-accounts",
            f"/v1/service-accounts/{self.things['account_id']}",
            "/v1/agents",
            "/v1/tasks",
            "/v1/inbox",
            "/v1/mesh/agents",
            "/v1/mesh/events",
        ):
            answer = await self.ask("beta", "GET", path)
            assert answer.status_code == 200, (path, answer.text)
            seen.append(answer.json())
        return seen


@pytest.fixture
async def place(running: Running, store: Store) -> Place:
    shop = AsyncStore(store)
    tokens = {}
    for org in ("acme", "beta"):
        _, tokens[org] = await keys.create_key(shop, org, "prod")
    agent = keys.address_of("beta", "prod", "other")
    _, tokens["beta other"] = await keys.create_key(shop, "beta", "prod", role="agent", agent=agent)
    _, client = await running()
    made = Place(client, tokens)
    await made.fill()
    return made


def missing(parameter: str, like: str) -> str:
    """Something of the same form that nobody has."""
    try:
        UUID(like)
        return new_id()
    except ValueError:
        if like.startswith(("sa_", "sak_")):
            return like[:-8] + "00000000"
        return like.replace("beta/prod/worker", "beta/prod/nobody")


def told(answer: httpx.Response, names: dict[str, str]) -> tuple[int, str]:
    """What an answer says, but for the ids it was asked about and the time of day."""
    text = answer.text
    for name in names.values():
        for shown in (name, name.removeprefix("agent://"), name.rpartition("/")[2]):
            text = text.replace(shown, "<it>")
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "<time>", text)
    text = re.sub(r"addr_[0-9a-f]+", "<address id>", text)  # made of the address that was asked for
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<id>", text)
    return answer.status_code, re.sub(r"\b\d{13,}\b", "<n>", text)


def url_of(path: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        path = path.replace("{" + name + "}", value)
    assert "{" not in path, f"{path}: say in Place.things what this parameter names"
    return path


async def both(place: Place, who: str, method: str, path: str, **options: Any) -> None:
    """The foreign thing and the missing one: the same answer."""
    parameters = re.findall(r"\{(\w+)\}", path)
    assert set(parameters) <= set(place.things), f"{path}: say in Place.things what {parameters} name"
    foreign = {name: place.things[name] for name in parameters}
    absent = {name: missing(name, place.things[name]) for name in parameters}
    first = await place.ask(who, method, url_of(path, foreign), **options)
    second = await place.ask(who, method, url_of(path, absent), **options)
    assert told(first, foreign) == told(second, absent), (method, path, options)
    assert CANARY not in first.text
    assert first.status_code < 500


@pytest.mark.parametrize(("method", "path"), named(), ids=[f"{method} {path}" for method, path in named()])
async def test_a_foreign_id_answers_like_a_missing_one_and_nothing_changes_for_its_owner(
    place: Place, method: str, path: str
) -> None:
    before = await place.seen_by_beta()
    query = {"wait_seconds": "1"} if path.endswith("/stream") else {}
    for body in BODIES if method not in ("GET", "DELETE") else [None]:
        options: dict[str, Any] = {} if body is None else {"json": body}
        await both(place, "acme", method, path, params=query, **options)
        owner = {"owner_agent": "agent://beta/prod/worker"}
        await both(place, "acme", method, path, params={**query, **owner}, **options)
        await both(place, "acme", method, path, params=query, headers={"x-owner-agent": "worker"}, **options)
    assert await place.seen_by_beta() == before


LISTS = [(method, path) for method, path in operations() if method == "GET" and "{" not in path]


@pytest.mark.parametrize(("method", "path"), LISTS, ids=[path for _, path in LISTS])
async def test_no_list_shows_what_belongs_to_another_workspace(place: Place, method: str, path: str) -> None:
    # The figures count all workspaces together and name none.
    for query in ({}, {"owner_agent": "agent://beta/prod/worker", "org_id": "beta", "workspace_id": "prod"}):
        answer = await place.ask("acme", method, path, params=query)
        assert CANARY not in answer.text
        for name in ("intent_id", "approval_id", "account_id", "key_id"):
            assert place.things[name] not in answer.text
        if path != "/openapi.json":
            assert "beta" not in answer.text


INTENT_PATHS = [(method, path) for method, path in named() if "{intent_id}" in path or "{account_id}" in path]


@pytest.mark.parametrize(("method", "path"), INTENT_PATHS, ids=[f"{method} {path}" for method, path in INTENT_PATHS])
async def test_an_agent_key_is_told_the_same_of_other_agents_work_in_its_own_workspace(
    place: Place, method: str, path: str
) -> None:
    before = await place.seen_by_beta()
    query = {"wait_seconds": "1"} if path.endswith("/stream") else {}
    for body in BODIES if method not in ("GET", "DELETE") else [None]:
        options: dict[str, Any] = {} if body is None else {"json": body}
        await both(place, "beta other", method, path, params=query, **options)
    assert await place.seen_by_beta() == before


async def test_an_agent_key_does_not_receive_for_another_address(place: Place) -> None:
    for address in ("beta/prod/worker", "worker"):
        answer = await place.ask(
            "beta other", "GET", f"/v1/agents/{address}/intents/stream", params={"wait_seconds": 1}
        )
        assert answer.status_code in (403, 404)
        assert place.things["intent_id"] not in answer.text


async def test_the_raw_port_knows_no_foreign_ids_either(place: Place) -> None:
    name = place.things["intent_id"]
    lease = ops.Lease(name, 1, "t")
    batches: list[list[ops.Op[Any]]] = [
        [ops.GetIntent(intent_id=name)],
        [ops.ReadEvents(intent_id=name)],
        [ops.ReadJournal(journal_id=name)],
        [ops.FinishIntent(intent_id=name, status=Status.CANCELED)],
        [ops.RenewLease(lease=lease, lease_seconds=1)],
        [ops.ListIntents()],
        [ops.ListRecords(kind="account")],
        [ops.ListRecords(kind="key")],
        [ops.GetRecord(kind="pepper", record_id="pepper")],
        [ops.ListAddresses()],
    ]
    before = await place.seen_by_beta()
    for batch in batches:
        answer = await place.ask("acme", "POST", "/v1/ops", content=wire.encode_request([batch]))
        assert answer.status_code == 200, answer.text
        assert CANARY.encode() not in answer.content
        absent = wire.encode_request([batch]).replace(name.encode(), b"0" * len(name))
        other = await place.ask("acme", "POST", "/v1/ops", content=absent)
        assert answer.content.replace(name.encode(), b"0" * len(name)) == other.content
    assert await place.seen_by_beta() == before

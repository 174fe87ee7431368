"""The OpenAPI document is complete and true: schemathesis asks a real server what the document says, and more."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from stepfast import wire
from stepfast.clock import new_id
from stepfast.server import keys
from stepfast.server.app import MODULES, all_routes
from stepfast.server.openapi import build_document, path_of
from stepfast.stores import AsyncStore, Store, open_store
from tests.server.conftest import Running
from tests.server.live import Live, settings_for

DOCUMENT = build_document(MODULES)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    allow_header_conformance,
]
# A path that ends in an address of any depth swallows what comes after it: then a wrong method finds another route.
SWALLOWED = {path_of(route.path) for route in all_routes() if ":path}" in route.path}
EXAMPLES = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def is_stream(context: Any) -> bool:
    """Answers that go on until somebody ends them."""
    answers = context.operation.definition.raw["responses"].get("200", {}).get("content", {})
    return any(kind in answers for kind in ("text/event-stream", "application/x-ndjson"))


@schemathesis.serializer(wire.CONTENT_TYPE)
def as_bytes(_context: Any, value: Any) -> bytes:
    """The remote store's own bytes: here whatever comes to mind."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


whole = schemathesis.openapi.from_dict(DOCUMENT)
plain = whole.exclude(is_stream)


class Target:
    """A server with keys, and how to make things there that ids can name."""

    def __init__(self, server: Live, token: str) -> None:
        self.server = server
        self.headers = {"x-api-key": token}
        self.client = httpx.Client(base_url=server.url, headers=self.headers, timeout=30)
        self.session = requests.Session()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def intent(self, **more: Any) -> str:
        body = {
            "intent_type": "intent.test.v1",
            "correlation_id": new_id(),
            "to_agent": "agent://acme/prod/tested",
            "payload": {"n": 1},
            **more,
        }
        return str(self.post("/v1/intents", body)["intent_id"])

    def account(self) -> str:
        made = self.post("/v1/service-accounts", {"name": f"a{new_id()}"})
        return str(made["service_account"]["service_account_id"])

    def name(self, parameter: str, other: dict[str, Any]) -> str | None:
        """Something that is there, for a path's parameter; None where nobody knows how to make it."""
        if parameter in ("intent_id", "thread_id"):
            return self.intent()
        if parameter in ("approval_id", "task_id"):
            return self.intent(human_task={"title": "Look at this"})
        if parameter == "account_id":
            return self.account()
        if parameter == "key_id" and "account_id" in other:
            return str(self.post(f"/v1/service-accounts/{other['account_id']}/keys", {})["key"]["key_id"])
        if parameter in ("address", "address_id"):
            return "acme/prod/idle"  # a stream that is handed an intent goes on for as long as that is open
        return None


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder: Path = tmp_path_factory.mktemp("openapi")
    url = f"sqlite:///{folder}/store.db"

    async def make() -> str:
        with open_store(url) as opened:
            return (await keys.create_key(AsyncStore(opened), "acme", "prod"))[1]

    # What is not tested here: a peer with hundreds of bad keys is slowed down.
    server = Live(settings_for(url, access_log=False, limits={"failure_burst": 1_000_000}))
    token = asyncio.run(make())
    server.start()
    made = Target(server, token)
    made.post("/v1/service-accounts", {"name": "idle"})
    yield made
    made.client.close()
    made.session.close()
    assert server.stop() == 0
    assert "Traceback" not in "\n".join(server.log)


def ask(case: Any, target: Target) -> None:
    """As generated; and again, where the path names something, with something that is there."""
    call = {"base_url": target.server.url, "headers": target.headers, "session": target.session, "timeout": 30}
    checks = CHECKS if case.operation.path in SWALLOWED else [*CHECKS, unsupported_method]
    case.call_and_validate(checks=checks, **call)
    if case.path_parameters:
        named: dict[str, Any] = {}
        for parameter in case.path_parameters:
            named[parameter] = target.name(parameter, named) or case.path_parameters[parameter]
        case.path_parameters = named
        case.call_and_validate(checks=checks, **call)


@plain.parametrize()
@EXAMPLES
def test_every_answer_is_as_the_document_says(case: Any, target: Target) -> None:
    ask(case, target)


def stream_paths() -> list[str]:
    return [path for path, found in DOCUMENT["paths"].items() if "get" in found and "event-stream" in str(found["get"])]


@pytest.mark.parametrize("path", stream_paths())
@pytest.mark.parametrize(
    "query",
    [
        {"wait_seconds": "1"},
        {"wait_seconds": "-5", "since": "0"},
        {"since": "x", "wait_seconds": "1"},
        {"since": "-1", "wait_seconds": "1"},
        {"since": "9" * 30, "wait_seconds": "1"},
        {"since": "9" * 18, "wait_seconds": "1"},
        {"wait_seconds": "soon"},
        {"status": "NONSENSE", "wait_seconds": "1"},
    ],
    ids=str,
)
def test_every_stream_is_as_the_document_says(path: str, query: dict[str, str], target: Target) -> None:
    told = DOCUMENT["paths"][path]["get"]["responses"]
    for real in (True, False):
        url = path
        for name in re.findall(r"\{(\w+)\}", path):
            url = url.replace("{" + name + "}", (target.name(name, {}) or "none") if real else "none")
        with target.client.stream("GET", url, params=query) as answer:
            assert str(answer.status_code) in told, answer.read()
            if answer.status_code == 200:
                assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
                assert next((line for line in answer.iter_lines() if line.startswith("event: ")), None)
            else:
                assert answer.status_code < 500
                assert "error" in json.loads(answer.read())


def test_every_route_is_in_the_document_and_nothing_else() -> None:
    served = {(method, path_of(route.path)) for route in all_routes() for method in route.methods or ()}
    served = {(method, path) for method, path in served if method != "HEAD"}
    told = {(method.upper(), path) for path, found in DOCUMENT["paths"].items() for method in found}
    assert told - served == {("POST", "/v1/ops"), ("POST", "/v1/ops/session")}  # these two go past the router
    assert served - told == set()


def test_the_document_is_valid_and_its_ids_are_unique() -> None:
    whole.validate()
    ids = [found["operationId"] for path in DOCUMENT["paths"].values() for found in path.values()]
    assert len(ids) == len(set(ids))
    assert all(found.get("summary") for path in DOCUMENT["paths"].values() for found in path.values())


async def test_the_server_shows_the_document_to_everybody(running: Running, store: Store) -> None:
    await keys.create_key(AsyncStore(store), "acme", "prod")
    _, client = await running()
    assert (await client.get("/openapi.json")).json() == DOCUMENT


def test_every_operation_with_security_needs_a_key(target: Target) -> None:
    with httpx.Client(base_url=target.server.url, timeout=30) as client:
        for path, found in DOCUMENT["paths"].items():
            for method, operation in found.items():
                for headers in ({}, {"x-api-key": "wrong"}, {"authorization": "Bearer wrong"}):
                    answer = client.request(method.upper(), path, headers=headers)
                    assert (answer.status_code == 401) == ("security" in operation), (method, path)


def test_errors_have_the_documented_shape(target: Target) -> None:
    schema = DOCUMENT["components"]["schemas"]["Error"]
    for answer in (
        target.client.get("/v1/nothing"),
        target.client.get("/mcp"),
        httpx.get(f"{target.server.url}/v1/whoami"),
    ):
        told = answer.json()
        assert set(schema["required"]) <= set(told) <= set(schema["properties"])
        inner = schema["properties"]["error"]
        assert set(inner["required"]) <= set(told["error"]) <= set(inner["properties"])

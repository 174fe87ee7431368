"""What stands before every route: shapes of errors, limits on bodies, and who is let in without keys."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from stepfast.server.settings import Limits, Settings
from tests.server.conftest import Running

ACCOUNTS = "/v1/service-accounts"
JSON = {"content-type": "application/json"}


def is_error(answer: httpx.Response, status: int, code: str | None = None) -> None:
    """Every error has the one shape that all known clients can read."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body["detail"] == body["error"]["message"]
    assert body["detail"]
    if code is not None:
        assert body["error"]["code"] == code
    assert answer.headers["x-request-id"]


async def test_an_unknown_path_is_404_and_a_wrong_method_405_with_allow(running: Running) -> None:
    _, client = await running()
    is_error(await client.get("/nothing/here"), 404, "not_found")
    is_error(await client.get("/v1/intents%00/x"), 404, "not_found")
    answer = await client.delete("/health")
    is_error(answer, 405, "method_not_allowed")
    assert "GET" in answer.headers["allow"]
    answer = await client.get("/v1/ops")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    "path",
    ["/v1/schemas", "/v1/schemas/intent.x.v1", "/v1/webhooks/subscriptions", "/mcp", "/v1/users", "/v1/billing/x"],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_parts_of_the_wire_that_are_out_answer_501(running: Running, path: str, method: str) -> None:
    _, client = await running()
    is_error(await client.request(method, path), 501, "not_implemented")


async def test_a_trailing_slash_is_no_redirect(running: Running) -> None:
    _, client = await running()
    is_error(await client.get("/v1/whoami/"), 404)


async def test_request_and_trace_ids_come_back_if_they_are_plain(running: Running) -> None:
    _, client = await running()
    answer = await client.get("/health", headers={"x-request-id": "mine-1", "x-trace-id": "trace-1"})
    assert (answer.headers["x-request-id"], answer.headers["x-trace-id"]) == ("mine-1", "trace-1")
    answer = await client.get("/health", headers={"x-request-id": "no <good>", "x-trace-id": "x" * 500})
    assert answer.headers["x-request-id"] != "no <good>"
    assert "x-trace-id" not in answer.headers


BAD_BODIES = {
    "no JSON": (b"{", 400),
    "nothing but a word": (b"hello", 400),
    "NaN": (b'{"name": NaN}', 400),
    "Infinity": (b'{"name": -Infinity}', 400),
    "a float beyond all": (b'{"name": 1e999}', 400),
    "bad UTF-8": (b'{"name": "\xff\xfe"}', 400),
    "a surrogate in UTF-8": (b'{"name": "\xed\xa0\x80"}', 400),
    "half a surrogate pair": (b'{"name": "\\ud800"}', 400),
    "trailing text": (b"{} {}", 400),
    "a byte order mark": (b"\xef\xbb\xbf{}", 400),
    "an endless integer": (b'{"name": ' + b"9" * 5000 + b"}", 400),
    "a list": (b"[]", 422),
    "a number": (b"1", 422),
    "null": (b"null", 422),
    "a wrong type": (b'{"name": 7}', 422),
    "a large integer": (b'{"name": ' + b"9" * 400 + b"}", 422),
    "a missing name": (b"{}", 422),
    "text with NUL": (b'{"name": "ab\\u0000cd"}', 422),
    "deep": (b'{"name": ' + b"[" * 100 + b"]" * 100 + b"}", 422),
    "very deep": (b"[" * 200_000 + b"]" * 200_000, 422),
    "very wide": (b'{"name": [' + b"0," * 120_000 + b"0]}", 422),
    "too large": (b'{"name": "' + b"x" * (1 << 20) + b'"}', 413),
}


@pytest.mark.parametrize(("body", "status"), BAD_BODIES.values(), ids=list(BAD_BODIES))
async def test_a_bad_body_is_refused_and_never_500(running: Running, body: bytes, status: int) -> None:
    _, client = await running()
    is_error(await client.post(ACCOUNTS, content=body, headers=JSON), status)


async def test_depth_and_node_limits_are_exact(running: Running) -> None:
    _, client = await running(Settings(limits=Limits(depth=4, nodes=10)))

    async def status_of(value: Any) -> Any:
        body = {"name": "worker", "extra": value}
        answer = await client.post(ACCOUNTS, content=json.dumps(body), headers=JSON)
        return answer.status_code

    assert await status_of([[[1]]]) == 200
    assert await status_of([[[[1]]]]) == 422
    assert await status_of([1] * 7) == 409  # it is there already: the body was read
    assert await status_of([1] * 8) == 422


async def test_a_compressed_body_is_refused_unread(running: Running) -> None:
    _, client = await running()
    bomb = gzip.compress(b"0" * 10_000_000)
    for path in (ACCOUNTS, "/v1/ops"):
        answer = await client.post(path, content=bomb, headers={**JSON, "content-encoding": "gzip"})
        assert answer.status_code == 415
        assert answer.json()["error"]["code"] == "unsupported_encoding"
    answer = await client.post(ACCOUNTS, json={"name": "plain"}, headers={"content-encoding": "identity"})
    assert answer.status_code == 200


async def test_a_form_is_not_taken_for_json(running: Running) -> None:
    _, client = await running()
    is_error(await client.post(ACCOUNTS, data={"name": "worker"}), 415)
    is_error(await client.post(ACCOUNTS, content=b"{}", headers={"content-type": "text/plain"}), 415)


async def test_a_streamed_body_is_cut_while_it_is_read(running: Running) -> None:
    _, client = await running(Settings(limits=Limits(body_bytes=1000)))
    sent = 0

    async def endless() -> AsyncIterator[Any]:
        nonlocal sent
        for _ in range(10_000):
            sent += 100
            yield b"x" * 100

    is_error(await client.post(ACCOUNTS, content=endless(), headers=JSON), 413, "too_large")
    assert sent < 10_000


async def test_a_get_with_a_content_type_and_an_empty_post_are_fine(running: Running) -> None:
    """The SDK sends Content-Type: application/json with everything."""
    _, client = await running()
    assert (await client.get("/v1/whoami", headers=JSON)).status_code == 200
    made = (await client.post(ACCOUNTS, json={"name": "worker"})).json()["service_account"]
    path = f"{ACCOUNTS}/{made['service_account_id']}/keys"
    assert (await client.post(path, headers=JSON)).status_code == 200


async def test_without_keys_any_key_and_none_is_the_local_workspace(running: Running) -> None:
    _, client = await running()
    for headers in ({}, {"x-api-key": "whatever"}, {"authorization": "Bearer anything"}):
        me = (await client.get("/v1/whoami", headers=headers)).json()
        assert (me["tenant"], me["org"], me["workspace"], me["role"]) == ("local", "local", "local", "local")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.example"}, "host_not_allowed"),
        ({"host": "evil.example:8100"}, "host_not_allowed"),
        ({"host": "localhost.evil.example"}, "host_not_allowed"),
        ({"origin": "https://evil.example"}, "origin_not_allowed"),
        ({"origin": "null"}, "origin_not_allowed"),
    ],
)
async def test_without_keys_no_page_of_a_browser_gets_in(running: Running, headers: dict[str, str], code: str) -> None:
    _, client = await running()
    is_error(await client.get("/v1/whoami", headers=headers), 403, code)


@pytest.mark.parametrize("host", ["127.0.0.1:8100", "localhost", "localhost:1", "[::1]:8100", "my.localhost:80"])
async def test_names_of_this_machine_are_fine(running: Running, host: str) -> None:
    _, client = await running()
    assert (await client.get("/v1/whoami", headers={"host": host})).status_code == 200


async def test_answers_are_not_sniffed_and_not_cached(running: Running) -> None:
    _, client = await running()
    answer = await client.get("/v1/whoami")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


async def test_a_failure_inside_is_500_with_the_same_shape_and_says_nothing_of_the_inside(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, client = await running()

    async def broken(*_args: Any, **_options: Any) -> None:
        raise ZeroDivisionError("the secret inside")

    monkeypatch.setattr(type(app.platform.store), "one", broken)
    answer = await client.get(ACCOUNTS)
    is_error(answer, 500, "internal_error")
    assert "inside" not in answer.text.replace("something went wrong in the server", "")


def test_the_error_body_survives_details_that_are_no_json() -> None:
    from stepfast.errors import Conflict
    from stepfast.server.errors import body_of

    told = msgspec.json.decode(body_of(Conflict("odd", thing=object(), number=1)))
    assert told["error"]["details"]["number"] == 1

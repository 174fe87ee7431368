"""No secret reaches a log or an answer: a canary goes through every way in, and every log line is searched."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import pytest

from stepfast.server import keys
from stepfast.server.app import MODULES
from stepfast.server.logs import configure_logs, redact
from stepfast.server.openapi import build_document
from stepfast.server.settings import Limits, Settings
from stepfast.stores import AsyncStore, Store
from tests.server.conftest import Running, Starter
from tests.server.test_keys import with_key
from tests.server.test_receipt import connected, read_all

CANARY = "c4naryc4naryc4naryc4naryc4nary"
TOKEN = f"axme_sa_sak_00112233aabbccdd_{CANARY}"


@pytest.fixture
def log() -> Iterator[Any]:
    """All that the server would log, at its most talkative."""
    told = io.StringIO()
    loggers = [logging.getLogger(name) for name in ("stepfast", "uvicorn", "asyncio", "uvicorn.error")]
    before = [(each, each.handlers, each.propagate, each.level) for each in loggers]
    configure_logs("text", "debug", told)
    yield told
    for each, handlers, propagate, level in before:
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)


def operations() -> list[tuple[str, str]]:
    return [(method.upper(), path) for path, found in build_document(MODULES)["paths"].items() for method in found]


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "line",
    [
        f"key {TOKEN} used",
        f"x-api-key: {CANARY}",
        f"{{'x-api-key': '{CANARY}'}}",
        f"(b'x-api-key', b'{CANARY}')",
        f"(b'authorization', b'Bearer {CANARY}')",
        f"Authorization: Bearer {CANARY}",
        f"authorization=Basic {CANARY}",
        f"postgresql://user:{CANARY}@host/db",
        f"https://host/?api_key={CANARY}&x=1",
        f"password={CANARY}",
        f'{{"token": "{CANARY}"}}',
        f"STEPFAST_PEPPER={CANARY}",
    ],
)
def test_secrets_of_a_known_form_are_taken_out_of_any_line(
    log: io.StringIO, form: Literal["json", "text"], line: str
) -> None:
    configure_logs(form, "debug", log)
    logging.getLogger("stepfast.test").info("%s", line)
    try:
        raise ValueError(line)
    except ValueError:
        logging.getLogger("stepfast.test").exception("it failed")
    text = log.getvalue()
    assert "it failed" in text
    assert CANARY not in text
    if form == "json":
        assert all(msgspec.json.decode(each) for each in text.splitlines())


def test_what_is_no_secret_stays() -> None:
    line = "request 01a1e328-2155-7520-960b-f6f533c8bdc6: key sak_00112233aabbccdd, agent://acme/prod/tokenizer"
    assert redact(line) == line
    assert "sak_00112233aabbccdd" in redact(TOKEN)


async def test_no_way_in_leads_a_key_into_the_log_or_the_answer(
    running: Running, store: Store, log: io.StringIO
) -> None:
    shop = AsyncStore(store)
    _, good = await keys.create_key(shop, "acme", "prod")
    secret = good.rpartition("_")[2]
    _, client = await running(Settings(limits=Limits(failure_burst=1_000_000)))
    for method, path in operations():
        if path.endswith("/stream"):
            path += "?wait_seconds=1"
        filled = path.replace("{", "").replace("}", "")
        for headers in (
            with_key(TOKEN),
            {"authorization": f"Bearer {TOKEN}"},
            {"authorization": f"Basic {CANARY}"},
            {"cookie": f"session={CANARY}"},
            {"x-request-id": TOKEN, "x-trace-id": TOKEN},
            {**with_key(good), "content-encoding": CANARY},
            {**with_key(good), "content-type": f"text/{CANARY}"},
        ):
            answer = await client.request(method, filled, headers=headers)
            if "x-request-id" not in headers and "content-type" not in headers:
                assert CANARY not in answer.text, (method, path)
            assert secret not in answer.text, (method, path)
        bodies = (
            b'{"secret": "' + CANARY.encode(),
            b'"' + CANARY.encode() + b'"',
            b'{"name": ["' + CANARY.encode() + b'"]}',
        )
        for body in bodies:
            headers = {**with_key(good), "content-type": "application/json"}
            answer = await client.request(method, filled, headers=headers, content=body)
            assert answer.status_code != 500, (method, path, answer.text)
        joint = "&" if "?" in filled else "?"
        await client.request(method, f"{filled}{joint}limit={CANARY}&api_key={CANARY}", headers=with_key(good))
        await client.request(method, f"/{CANARY}/{TOKEN}", headers=with_key(good))
    text = log.getvalue()
    assert text.count("\n") > 100
    assert CANARY not in text
    assert secret not in text


async def test_a_failure_inside_logs_its_trace_without_the_secret(
    running: Running, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, client = await running()

    async def broken(*_args: Any, **_options: Any) -> None:
        raise RuntimeError(f"could not connect with password={CANARY} and key {TOKEN}")

    monkeypatch.setattr(type(app.platform.store), "one", broken)
    answer = await client.get("/v1/service-accounts")
    assert answer.status_code == 500
    assert CANARY not in answer.text
    text = log.getvalue()
    assert "RuntimeError" in text
    assert CANARY not in text


def test_a_real_server_keeps_its_log_clean(live: Starter) -> None:
    """The lower layers, too: what is no HTTP, broken requests, keys in odd places."""
    server = live(require_keys=True, log_level="debug", limits={"receipt_seconds": 0.5})
    token = server.lines[1].rpartition(" ")[2]
    secret = token.rpartition("_")[2]
    requests = [
        f"GET /v1/whoami HTTP/1.1\r\nhost: x\r\nx-api-key: {token}\r\nbroken\r\n\r\n",
        f"GET /{secret} HTTP/9.9\r\nx-api-key: {token}\r\n\r\n",
        f"{token}\r\n\r\n",
        f"POST /v1/intents HTTP/1.1\r\nhost: x\r\nx-api-key: {token}\r\ncontent-length: 99\r\n\r\n{secret}",
        f"GET /v1/whoami HTTP/1.1\r\nhost: x\r\nx-api-key: {token}\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    ]
    for request in requests:
        with connected(server.url) as [each]:
            each.sendall(request.encode())
            each.settimeout(3)
            try:
                read_all(each)
            except TimeoutError:
                pass
    server.stop()
    text = "\n".join(server.log)
    assert text
    assert secret not in text

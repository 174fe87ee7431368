"""Starting and stopping: what a server refuses, TLS, and an end that breaks nobody's stream."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from stepfast import wire
from stepfast.errors import InvalidInput
from stepfast.server import keys, serve
from stepfast.server.settings import Settings
from stepfast.stores import AsyncStore, open_store
from tests.server.conftest import Starter
from tests.server.live import settings_for
from tests.server.test_receipt import connected, read_answer
from tests.stores.certificates import self_signed


def make_key(store_url: str, **options: Any) -> tuple[keys.Key, str]:
    async def make() -> Any:
        with open_store(store_url) as opened:
            return await keys.create_key(AsyncStore(opened), "acme", "prod", **options)

    return asyncio.run(make())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    made = self_signed(tmp_path_factory.mktemp("tls"))
    return str(made[0]), str(made[1])


# --- what is refused -----------------------------------------------------------------------------


def refused(settings: Settings, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        serve.run(settings, lambda _line: None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_are_let_in_only_with_tls_or_a_proxy(store_url: str, host: str) -> None:
    make_key(store_url)
    refused(settings_for(store_url, host=host), "in the clear")


@pytest.mark.parametrize("options", [{"host": "0.0.0.0", "behind_proxy": True}, {"behind_proxy": True}])
def test_other_machines_are_let_in_only_with_keys(store_url: str, options: dict[str, Any]) -> None:
    refused(settings_for(store_url, **options), "Create one first")
    refused(settings_for(store_url, require_keys=True, **options), "Create one first")


def test_other_machines_with_tls_but_without_keys_are_refused(store_url: str, certificate: tuple[str, str]) -> None:
    cert, key = certificate
    refused(settings_for(store_url, host="0.0.0.0", tls_cert=cert, tls_key=key), "Create one first")


def test_a_server_whose_keys_are_all_dead_does_not_start_open(store_url: str) -> None:
    key, _ = make_key(store_url)

    async def revoke() -> None:
        with open_store(store_url) as opened:
            await keys.revoke_key(AsyncStore(opened), key.key_id)

    asyncio.run(revoke())
    refused(settings_for(store_url, behind_proxy=True), "Create one first")
    refused(settings_for(store_url, require_keys=True), "revoked or expired")


def test_a_lost_pepper_is_told_at_the_start(store_url: str, tmp_path: Path) -> None:
    make_key(store_url)
    (tmp_path / "store.db.pepper").unlink()
    refused(settings_for(store_url), "pepper")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tls_cert": "cert.pem"}, "both files"),
        ({"tls_cert": "no-such-cert.pem", "tls_key": "no-such-key.pem"}, "No such file"),
        ({"host": "host.invalid"}, "no address"),
        ({"host": "192.0.2.1"}, "cannot listen"),
    ],
)
def test_settings_that_cannot_work_are_told(store_url: str, options: dict[str, Any], match: str) -> None:
    refused(settings_for(store_url, **options), match)


def test_a_key_that_does_not_fit_its_certificate_is_told(
    store_url: str, certificate: tuple[str, str], tmp_path: Path
) -> None:
    cert, _ = certificate
    other = tmp_path / "other.pem"
    other.write_text("this is no key")
    refused(settings_for(store_url, tls_cert=cert, tls_key=str(other)), "cannot be used")


def test_a_port_in_use_is_told(store_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused(settings_for(store_url, port=taken.getsockname()[1]), "Choose another port")


# --- what works ----------------------------------------------------------------------------------


def test_without_keys_it_says_that_any_key_will_do(live: Starter) -> None:
    server = live()
    assert server.lines[0] == f"Stepfast is at {server.url}"
    assert "any" in server.lines[1]
    assert httpx.get(f"{server.url}/v1/whoami", headers={"x-api-key": "any"}).status_code == 200


def test_with_require_keys_the_first_start_shows_a_key_once(live: Starter) -> None:
    server = live(require_keys=True)
    token = server.lines[1].rpartition(" ")[2]
    assert httpx.get(f"{server.url}/v1/whoami").status_code == 401
    assert httpx.get(f"{server.url}/v1/whoami", headers={"x-api-key": token}).json()["tenant"] == "local"
    assert not any(token in line for line in server.log)
    server.restart()
    assert not any("axme_sa_" in line for line in server.lines)
    assert httpx.get(f"{server.url}/v1/whoami", headers={"x-api-key": token}).status_code == 200


def test_behind_a_proxy_it_serves_with_keys_only(live: Starter, store_url: str) -> None:
    _, token = make_key(store_url)
    server = live(behind_proxy=True)
    assert httpx.get(f"{server.url}/v1/whoami", headers={"host": "stepfast.example"}).status_code == 401
    me = httpx.get(f"{server.url}/v1/whoami", headers={"host": "stepfast.example", "x-api-key": token})
    assert me.json()["tenant"] == "acme/prod"
    assert httpx.get(f"{server.url}/metrics").status_code == 403


def test_all_addresses_with_tls_and_keys(live: Starter, store_url: str, certificate: tuple[str, str]) -> None:
    _, token = make_key(store_url)
    cert, key = certificate
    server = live(host="0.0.0.0", tls_cert=cert, tls_key=key, wait=False)
    deadline = time.monotonic() + 30
    while not server.lines:
        assert time.monotonic() < deadline, server.log
        time.sleep(0.02)
    url = server.lines[0].rpartition(" ")[2].replace("0.0.0.0", "127.0.0.1")
    trusted = ssl.create_default_context(cafile=cert)
    assert httpx.get(f"{url}/v1/whoami", headers={"x-api-key": token}, verify=trusted).status_code == 200
    assert httpx.get(f"{url}/v1/whoami", verify=trusted).status_code == 401
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")
    old = ssl.create_default_context(cafile=cert)
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", verify=old)


def test_ipv6_loopback(live: Starter) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        # A machine without IPv6: then the refusal must be clear.
        with pytest.raises(InvalidInput, match="cannot listen"):
            serve.bind("::1", 0)
        return
    server = live(host="::1")
    assert server.url.startswith("http://[::1]:")
    assert httpx.get(f"{server.url}/v1/whoami").status_code == 200


# --- the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_shutdown_ends_streams_properly_and_the_process_with_0(live: Starter, number: int) -> None:
    server = live()
    hello = wire.encode_session(wire.Session("s1", "", []))
    with (
        httpx.Client(base_url=server.url, timeout=30) as client,
        client.stream("POST", "/v1/ops/session", content=hello) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        client.get("/health")  # leaves a second connection open and idle
        began = time.monotonic()
        server.signal(number)
        assert set(lines) <= {"[]"}  # a proper end: a cut connection would raise
        assert server.stop() == 0
        assert time.monotonic() - began < 10
    assert "Traceback" not in "\n".join(server.log)


def test_a_request_that_is_under_way_is_still_answered(live: Starter) -> None:
    server = live()
    body = msgspec.json.encode({"name": "worker"})
    head = f"POST /v1/service-accounts HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with connected(server.url) as [each]:
        each.sendall(head + body[:5])
        httpx.get(f"{server.url}/health")  # by now the first half has been read
        server.signal(signal.SIGTERM)
        deadline = time.monotonic() + 10
        while True:
            try:
                httpx.get(f"{server.url}/health", timeout=2)
            except httpx.TransportError:
                break
            assert time.monotonic() < deadline, "it still takes requests"
        each.sendall(body[5:])
        assert read_answer(each).startswith(b"HTTP/1.1 200 ")
    assert server.stop() == 0


def test_what_was_acknowledged_is_there_after_kill_9_and_a_start(live: Starter) -> None:
    server = live()
    stop = threading.Event()
    made: list[str] = []

    def create() -> None:
        with httpx.Client(base_url=server.url, timeout=5) as client:
            while not stop.is_set():
                try:
                    answer = client.post("/v1/service-accounts", json={"name": f"agent-{len(made)}"})
                except httpx.TransportError:
                    return
                made.append(answer.json()["service_account"]["service_account_id"])

    thread = threading.Thread(target=create)
    thread.start()
    deadline = time.monotonic() + 20
    while len(made) < 20:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    server.kill9()
    stop.set()
    thread.join()
    server.start()
    listed = httpx.get(f"{server.url}/v1/service-accounts").json()["service_accounts"]
    assert set(made) <= {each["service_account_id"] for each in listed}

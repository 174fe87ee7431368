"""A request must arrive in time. Real sockets, half-sent requests, and a server that goes on answering."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from stepfast import wire
from tests.server.conftest import Starter
from tests.server.live import Live

RECEIPT = 1.0
# The promise is the deadline; the rest is for a machine that is busy with other tests.
SLACK = 10.0
HALF_HEADERS = b"GET /v1/whoami HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: "
HALF_BODY = (
    b"POST /v1/service-accounts HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    b'content-length: 500\r\n\r\n{"name": "wor'
)
HALF_CHUNK = b"POST /v1/ops HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n400\r\nhalf of it"


@pytest.fixture
def server(live: Starter) -> Any:
    return live(limits={"receipt_seconds": RECEIPT})


@contextmanager
def connected(url: str, count: int = 1) -> Iterator[list[socket.socket]]:
    place = urlsplit(url)
    sockets = [socket.create_connection((place.hostname, place.port or 0), timeout=30) for _ in range(count)]
    try:
        yield sockets
    finally:
        for each in sockets:
            each.close()


def read_all(each: socket.socket) -> bytes:
    """Until the server closes."""
    found = b""
    while True:
        try:
            piece = each.recv(65536)
        except ConnectionResetError:
            return found
        if not piece:
            return found
        found += piece


def read_answer(each: socket.socket) -> bytes:
    """One answer with a content-length, on a connection that stays open."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += each.recv(65536)
    head, _, body = found.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += each.recv(65536)
    return head + b"\r\n\r\n" + body


def test_a_hundred_half_sent_requests_are_closed_in_time_while_others_are_answered(server: Live) -> None:
    kinds = [b"", HALF_HEADERS, HALF_BODY, HALF_CHUNK]
    with connected(server.url, 100) as sockets, httpx.Client(base_url=server.url, timeout=10) as client:
        for number, each in enumerate(sockets):
            each.sendall(kinds[number % 4])
        began = time.monotonic()
        still_open = set(sockets)
        answered = 0
        while still_open:
            assert time.monotonic() - began < RECEIPT + SLACK, f"{len(still_open)} are still open"
            assert client.get("/v1/whoami").status_code == 200
            answered += 1
            for each in select.select(list(still_open), [], [], 0.02)[0]:
                told = read_all(each)
                assert not told or told.startswith(b"HTTP/1.1 408 "), told
                still_open.discard(each)
        assert answered > 3


@pytest.mark.parametrize("sent", [HALF_HEADERS, HALF_BODY, HALF_CHUNK], ids=["headers", "body", "chunk"])
def test_who_is_late_is_told_so_in_json(server: Live, sent: bytes) -> None:
    with connected(server.url) as [each]:
        each.sendall(sent)
        told = read_all(each)
        head, _, body = told.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert json.loads(body)["error"]["code"] == "request_timeout"


def test_one_byte_at_a_time_buys_no_time(server: Live) -> None:
    with connected(server.url) as [each]:
        each.sendall(HALF_BODY)
        each.settimeout(0.1)
        began = time.monotonic()
        told = b""
        while not told:
            assert time.monotonic() - began < RECEIPT + SLACK
            try:
                each.sendall(b"x")
                told = each.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                break
        assert not told or told.startswith(b"HTTP/1.1 408 ")


def test_a_large_body_at_a_fair_rate_has_the_time_it_needs(server: Live) -> None:
    body = json.dumps({"name": "worker", "padding": "x" * 400_000}).encode()
    with connected(server.url) as [each]:
        head = f"POST /v1/service-accounts HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
        each.sendall(head.encode())
        began = time.monotonic()
        for start in range(0, len(body), 50_000):
            each.sendall(body[start : start + 50_000])
            time.sleep(RECEIPT / 5)
        assert time.monotonic() - began > RECEIPT
        assert read_answer(each).startswith(b"HTTP/1.1 200 ")


def test_a_kept_connection_and_an_open_stream_have_no_deadline(server: Live) -> None:
    hello = wire.encode_session(wire.Session("s1", "", []))
    request = b"GET /v1/whoami HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with (
        connected(server.url) as [each],
        httpx.Client(base_url=server.url, timeout=30) as client,
        client.stream("POST", "/v1/ops/session", content=hello) as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines) == "[]"
        each.sendall(request)
        assert read_answer(each).startswith(b"HTTP/1.1 200 ")
        time.sleep(RECEIPT * 2)  # longer than a request may take
        each.sendall(request)
        assert read_answer(each).startswith(b"HTTP/1.1 200 ")
        assert server.stop() == 0
        assert set(lines) <= {"[]"}  # it ended properly, with the server and not before


def test_the_deadline_counts_anew_for_the_next_request_of_a_connection(server: Live) -> None:
    with connected(server.url) as [each]:
        each.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert read_answer(each).startswith(b"HTTP/1.1 200 ")
        each.sendall(HALF_HEADERS)
        assert read_all(each).startswith(b"HTTP/1.1 408 ")


def test_endless_headers_are_cut(server: Live) -> None:
    with connected(server.url) as [each]:
        try:
            each.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nx-long: " + b"x" * 1_000_000)
        except (ConnectionResetError, BrokenPipeError):
            pass
        told = read_all(each)
        assert not told or told.startswith(b"HTTP/1.1 431 ")
    many = b"".join(b"x-%d: %s\r\n" % (number, b"y" * 100) for number in range(2000))
    with connected(server.url) as [each]:
        try:
            each.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n" + many + b"\r\n")
        except (ConnectionResetError, BrokenPipeError):
            pass
        told = read_all(each)
        assert not told or told.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("size", [100_000, 200_000, 800_000])
def test_a_large_body_that_comes_in_one_piece_is_no_large_header(server: Live, size: int) -> None:
    body = json.dumps({"name": "worker", "padding": "x" * size}).encode()
    head = f"POST /v1/service-accounts HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
    with connected(server.url) as [each]:
        each.sendall(head.encode() + body)
        assert read_answer(each).startswith(b"HTTP/1.1 200 ")
        each.sendall(head.encode())
        httpx.get(f"{server.url}/health")  # by now the head has been read, and the body comes alone
        each.sendall(body)
        assert read_answer(each).startswith(b"HTTP/1.1 409 ")
        each.sendall(b"GET /v1/whoami HTTP/1.1\r\nhost: 127.0.0.1\r\nx-long: " + b"y" * 50_000 + b"\r\n\r\n")
        assert read_answer(each).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"HELLO\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n", b"\0" * 100],
    ids=["TLS", "words", "a raw byte in the path", "zeros"],
)
def test_what_is_no_http_is_400_in_json_and_the_server_goes_on(server: Live, garbage: bytes) -> None:
    with connected(server.url) as [each]:
        each.sendall(garbage)
        told = read_all(each)
        assert told.startswith(b"HTTP/1.1 400 ")
        assert json.loads(told.partition(b"\r\n\r\n")[2])["error"]["code"] == "bad_request"
    assert httpx.get(f"{server.url}/health").status_code == 200

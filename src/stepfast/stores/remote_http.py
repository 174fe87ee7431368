"""A small HTTP/1.1 client on a plain socket.

One step of a remote run is one small request on a connection that stays open, and a general client spends
several times more on it than the network does. This one sends a prepared head and a body in one write and
reads an answer whose length is told, or that comes in chunks.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from stepfast.errors import InvalidInput

_CHUNK = 256 * 1024
_MAX_HEAD = 64 * 1024
_IDLE_TRUSTED = 0.5


class Broken(Exception):
    """The connection failed. ``sent``: whether the server may have received the request."""

    def __init__(self, why: object, sent: bool) -> None:
        super().__init__(str(why) or type(why).__name__)
        self.sent = sent


class Response(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Endpoint:
    """Where the server is, and how to greet it."""

    def __init__(self, url: str, *, api_key: str | None, verify: ssl.SSLContext | None, connect_timeout: float) -> None:
        parts = urlsplit(url)
        if not parts.hostname:
            raise InvalidInput(f"url: {url!r} names no host. Use http://host:port or https://host.")
        if parts.username or parts.password:
            raise InvalidInput("url: must not hold a user or a password. Pass the key as api_key=.")
        if parts.query or parts.fragment:
            raise InvalidInput("url: a server's address has no query and no fragment.")
        self.secure = parts.scheme == "https"
        self.host = parts.hostname
        self.port = parts.port or (443 if self.secure else 80)
        self.prefix = parts.path.rstrip("/")
        self.connect_timeout = connect_timeout
        self._context = (verify or ssl.create_default_context()) if self.secure else None
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.shown = f"{parts.scheme}://{shown}:{self.port}{self.prefix}"
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise InvalidInput("api_key: must be plain ASCII text in one line.")
        key = "" if api_key is None else f"x-api-key: {api_key}\r\n"
        self._greeting = f"Host: {shown}:{self.port}\r\n{key}"

    def head(self, method: str, path: str, content_type: str) -> bytes:
        """All of a request's head but the length of its body."""
        return (
            f"{method} {self.prefix}{path} HTTP/1.1\r\n{self._greeting}Content-Type: {content_type}\r\nContent-Length: "
        ).encode("ascii")

    def dial(self, timeout: float) -> Connection:
        return Connection(self._connect(), timeout)

    def _connect(self) -> socket.socket:
        try:
            link = socket.create_connection((self.host, self.port), self.connect_timeout)
        except OSError as error:
            raise Broken(error, sent=False) from None
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                return self._context.wrap_socket(link, server_hostname=self.host)
        except OSError as error:
            link.close()
            raise Broken(error, sent=False) from None
        return link


class Connection:
    """One connection that carries one request at a time."""

    def __init__(self, link: socket.socket, timeout: float) -> None:
        self._link = link
        self._link.settimeout(timeout)
        self._last = time.monotonic()
        self.reusable = True

    def close(self) -> None:
        self._link.close()

    def hang_up(self) -> None:
        """From another thread: whoever reads finds the end."""
        try:
            self._link.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is gone already

    def is_stale(self) -> bool:
        """Whether the server closed it, or said something unasked, while nobody used it."""
        if time.monotonic() - self._last < _IDLE_TRUSTED:
            return False
        try:
            return bool(select.select([self._link], [], [], 0)[0])
        except (OSError, ValueError):
            return True

    def ask(self, head: bytes, body: bytes) -> Response:
        self.send(head, body)
        try:
            status, headers, rest = self._read_head()
            told = headers.get(b"content-length")
            if told is not None:
                content = self._read_exactly(int(told), rest)
            elif b"chunked" in headers.get(b"transfer-encoding", b""):
                content = b"".join(self._chunks(rest))
            else:
                raise Broken("the answer does not say how long it is", sent=True)
        except (OSError, ValueError) as error:
            raise Broken(error, sent=True) from None
        if headers.get(b"connection", b"").lower() == b"close":
            self.reusable = False
        self._last = time.monotonic()
        return Response(status, headers, content)

    def open_stream(self, head: bytes, body: bytes) -> tuple[Response, Iterator[bytes]]:
        """Send a request whose answer never ends by itself; its pieces come as they arrive."""
        self.send(head, body)
        try:
            status, headers, rest = self._read_head()
            if b"chunked" not in headers.get(b"transfer-encoding", b""):
                content = self._read_exactly(int(headers.get(b"content-length", b"0")), rest)
                return Response(status, headers, content), iter(())
        except (OSError, ValueError) as error:
            raise Broken(error, sent=True) from None
        return Response(status, headers, b""), self._chunks(rest)

    def send(self, head: bytes, body: bytes) -> None:
        start = b"%b%d\r\n\r\n" % (head, len(body))
        try:
            if len(body) < _CHUNK:
                self._link.sendall(start + body)
            else:
                self._link.sendall(start)
                self._link.sendall(body)
        except OSError as error:
            raise Broken(error, sent=True) from None

    def _receive(self) -> bytes:
        data = self._link.recv(_CHUNK)
        if not data:
            raise Broken("the server closed the connection", sent=True)
        return data

    def _read_head(self) -> tuple[int, dict[bytes, bytes], bytes]:
        data = self._receive()
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > _MAX_HEAD:
                raise ValueError("the head of the answer is too long")
            data += self._receive()
        first, *lines = data[:end].split(b"\r\n")
        version, _, status = first.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            raise ValueError("the answer is not HTTP/1.1")
        headers = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        return int(status[:3]), headers, data[end + 4 :]

    def _read_exactly(self, size: int, data: bytes) -> bytes:
        if len(data) == size:
            return data
        parts, have = [data], len(data)
        while have < size:
            more = self._receive()
            parts.append(more)
            have += len(more)
        whole = b"".join(parts)
        if have > size:
            raise ValueError("the answer is longer than it said")
        return whole

    def _chunks(self, data: bytes) -> Iterator[bytes]:
        while True:
            while (end := data.find(b"\r\n")) < 0:
                if len(data) > _MAX_HEAD:
                    raise ValueError("a chunk of the answer has no length")
                data += self._receive()
            size = int(data[:end].split(b";")[0], 16)
            data = data[end + 2 :]
            while len(data) < size + 2:
                data += self._receive()
            if size == 0:
                return
            yield data[:size]
            data = data[size + 2 :]


class Connections:
    """Open connections that nobody uses just now. A forked child makes its own."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self._endpoint = endpoint
        self._timeout = timeout
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False

    def ask(self, head: bytes, body: bytes) -> Response:
        connection = self._take()
        try:
            response = connection.ask(head, body)
        except BaseException:
            connection.close()
            raise
        self._put_back(connection)
        return response

    def _take(self) -> Connection:
        while self._idle:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
            if not connection.is_stale():
                return connection
            connection.close()
        return self._endpoint.dial(self._timeout)

    def _put_back(self, connection: Connection) -> None:
        with self._lock:
            if connection.reusable and not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

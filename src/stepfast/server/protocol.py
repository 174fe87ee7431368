"""HTTP/1.1 with a time limit on receipt.

uvicorn waits for ever for the rest of a request. Here a request must be complete some seconds after its first byte
(after the connection, for the first), plus the time its size needs at a modest rate; its headers are limited, too. The
time in which the app itself does not read does not count against the client.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from stepfast.server.errors import encode_error
from stepfast.server.settings import Limits


class GuardedProtocol(HttpToolsProtocol):
    """A connection. Use `protocol_for` to give it its limits."""

    limits: ClassVar[Limits] = Limits()

    _due: float | None = None
    _timer: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _in_headers = True
    _turned = False
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._in_headers and self._due is not None:
            self._due += len(data) / self.limits.receipt_rate
        self._turned = False
        super().data_received(data)
        if self._in_headers and not self._turned and not self._refused:
            # All of this piece is part of a header, which the parser gathers until it ends, however long it is.
            self._header_bytes += len(data)
            self._check_headers()

    def on_message_begin(self) -> None:
        self._turned = self._in_headers = True
        self._header_bytes = 0
        self._expect()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._header_bytes += len(self.url)
        if self._check_headers():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._due = None
        self._turned = self._in_headers = True
        self._header_bytes = 0
        if not self._refused:
            super().on_message_complete()

    def _check_headers(self) -> bool:
        if self._header_bytes > self.limits.header_bytes:
            self._refuse(431, "headers_too_large", "the headers are too large.")
        return not self._refused

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "bad_request", msg)

    def _expect(self) -> None:
        """From now on the clock runs for the client. One timer serves all requests of a connection."""
        self._due = self.loop.time() + self.limits.receipt_seconds
        if self._timer is None:
            self._timer = self.loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._due is None or self.transport.is_closing():
            return
        now = self.loop.time()
        if self.flow.read_paused:  # the app is behind, not the client
            self._due = now + self.limits.receipt_seconds
        if now < self._due:
            self._timer = self.loop.call_at(self._due, self._look)
        else:
            self._refuse(408, "request_timeout", "the request did not arrive in time.")

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer by hand, if no answer is under way, and close."""
        cycle: RequestResponseCycle | None = self.cycle
        answering = cycle is not None and cycle.response_started and not cycle.response_complete
        self._due = None
        self._refused = True
        if self.transport.is_closing():
            return
        if not answering:
            body = encode_error(code, message)
            lines = [
                STATUS_LINE[status],
                b"content-type: application/json\r\nconnection: close\r\ncontent-length: ",
                str(len(body)).encode(),
                b"\r\n\r\n",
                body,
            ]
            self.transport.write(b"".join(lines))
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()


def protocol_for(limits: Limits) -> type[GuardedProtocol]:
    namespace: dict[str, Any] = {"limits": limits}
    return type("LimitedProtocol", (GuardedProtocol,), namespace)

"""The JSON API of a server, for the command line and for programs that come from AXME.

The methods and what they give are those of the ``axme`` SDK. The manners are better: every write carries an
idempotency key, what is safe to repeat is repeated (when the server says so), and streams come back by themselves and
go on after the last event that was seen.

Every method is written once, in ``_methods``, as a flow that yields what it wants done (``_flows``); `PlatformAPI` and
`AsyncPlatformAPI` differ in who does it. What a method gives is the server's JSON object, unless it says otherwise.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Generator, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from stepfast.errors import InvalidInput

from ._flows import Ask, Emit, Flow, Json, Lost, Open, Read, Reply, Shut, Sleep
from ._methods import Methods

__all__ = ["AsyncPlatformAPI", "PlatformAPI"]

T = TypeVar("T")
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def _settings(base_url: str, api_key: str, timeout_seconds: float, ca_file: str | None) -> dict[str, Any]:
    if not base_url.startswith(("http://", "https://")):
        raise InvalidInput(f"base_url: must start with http:// or https://, not {base_url!r}.")
    if not api_key.strip():
        raise InvalidInput("api_key: must not be empty.")
    return {
        "base_url": base_url.rstrip("/"),
        "headers": {"x-api-key": api_key, "user-agent": "stepfast"},
        "timeout": timeout_seconds,
        "verify": _trust(base_url, ca_file),
    }


def _trust(base_url: str, ca_file: str | None) -> Any:
    """Whose certificates count. Reading the system's takes longer than most calls, so plain http does without any."""
    if base_url.startswith("http://"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return True if ca_file is None else ssl.create_default_context(cafile=ca_file)


def _request(ask: Ask) -> dict[str, Any]:
    named: dict[str, Any] = {"method": ask.method, "url": ask.path, "params": ask.params, "headers": ask.headers}
    return named if ask.body is None else {**named, "json": ask.body}


def _lost(error: httpx.TransportError) -> Lost:
    return Lost(f"{type(error).__name__}: {error}", sent=not isinstance(error, _UNSENT))


class PlatformAPI(Methods[Json, str, Iterator[Json]]):
    """The API of the server at ``base_url``. ``ca_file`` names certificates to trust instead of the system's."""

    def __init__(
        self, base_url: str, api_key: str, *, timeout_seconds: float = 15.0, ca_file: str | None = None
    ) -> None:
        super().__init__()
        self._http = self._connect(_settings(base_url, api_key, timeout_seconds, ca_file))

    def _connect(self, settings: dict[str, Any]) -> httpx.Client:
        """For those who reach the server in another way than over the network."""
        return httpx.Client(**settings)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _do(self, flow: Flow[T]) -> T:
        steps = self._steps(flow)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result

    _text = _do

    def _stream(self, flow: Flow[None]) -> Iterator[Json]:
        return self._steps(flow)

    def _steps(self, flow: Flow[T]) -> Generator[Json, None, T]:
        """Do what a flow asks for; what it emits is yielded."""
        wire = _Wire(self._http)
        try:
            command = next(flow)
            while True:
                try:
                    if isinstance(command, Emit):
                        yield command.value
                        answer = None
                    else:
                        answer = wire.obey(command)
                except httpx.TransportError as error:
                    command = flow.throw(_lost(error))
                else:
                    command = flow.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            wire.shut()
            flow.close()


class _Wire:
    """The hands of the blocking client."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())

    def obey(self, command: Ask | Sleep | Open | Read | Shut) -> Any:
        if isinstance(command, Ask):
            response = self._http.request(**_request(command))
            return Reply(response.status_code, response.headers, response.content)
        if isinstance(command, Sleep):
            return time.sleep(command.seconds)
        if isinstance(command, Open):
            return self._open(command)
        if isinstance(command, Read):
            return next(self._chunks, None)
        return self.shut()

    def _open(self, command: Open) -> Reply:
        timeout = httpx.Timeout(10.0, read=command.read_timeout)
        request = self._http.build_request(**_request(command.ask), timeout=timeout)
        self._response = response = self._http.send(request, stream=True)
        content = response.read() if response.status_code >= 400 else b""
        self._chunks = response.iter_bytes()
        return Reply(response.status_code, response.headers, content)

    def shut(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()


class AsyncPlatformAPI(Methods[Awaitable[Json], Awaitable[str], AsyncIterator[Json]]):
    """The same for an event loop."""

    def __init__(
        self, base_url: str, api_key: str, *, timeout_seconds: float = 15.0, ca_file: str | None = None
    ) -> None:
        super().__init__()
        self._http = httpx.AsyncClient(**_settings(base_url, api_key, timeout_seconds, ca_file))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _do(self, flow: Flow[T]) -> T:
        results: list[T] = []
        async for _ in self._steps(flow, results):
            pass
        return results[0]

    async def _text(self, flow: Flow[str]) -> str:
        return await self._do(flow)

    def _stream(self, flow: Flow[None]) -> AsyncIterator[Json]:
        return self._steps(flow, [])

    async def _steps(self, flow: Flow[T], results: list[T]) -> AsyncIterator[Json]:
        wire = _AsyncWire(self._http)
        try:
            command = next(flow)
            while True:
                try:
                    if isinstance(command, Emit):
                        yield command.value
                        answer = None
                    else:
                        answer = await wire.obey(command)
                except httpx.TransportError as error:
                    command = flow.throw(_lost(error))
                else:
                    command = flow.send(answer)
        except StopIteration as end:
            results.append(end.value)
        finally:
            await wire.shut()
            flow.close()


class _AsyncWire:
    """The hands of the other one."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    async def obey(self, command: Ask | Sleep | Open | Read | Shut) -> Any:
        if isinstance(command, Ask):
            response = await self._http.request(**_request(command))
            return Reply(response.status_code, response.headers, response.content)
        if isinstance(command, Sleep):
            return await asyncio.sleep(command.seconds)
        if isinstance(command, Open):
            return await self._open(command)
        if isinstance(command, Read):
            return None if self._chunks is None else await anext(self._chunks, None)
        return await self.shut()

    async def _open(self, command: Open) -> Reply:
        timeout = httpx.Timeout(10.0, read=command.read_timeout)
        request = self._http.build_request(**_request(command.ask), timeout=timeout)
        self._response = response = await self._http.send(request, stream=True)
        content = await response.aread() if response.status_code >= 400 else b""
        self._chunks = response.aiter_bytes()
        return Reply(response.status_code, response.headers, content)

    async def shut(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            await response.aclose()

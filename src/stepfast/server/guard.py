"""What stands before every route: who asks, how often, how much, and the one way in which errors are told.

For authors of routes: ``body = await read_json(request)`` gives the JSON object of a request (an empty body is an
empty object) within all limits; ``query_int``, ``query_text`` and ``query_flag`` read the query string.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from stepfast.clock import new_id
from stepfast.errors import InvalidInput, NotFound, StepfastError
from stepfast.server.caller import Caller
from stepfast.server.errors import (
    INTERNAL,
    BadRequest,
    Forbidden,
    HttpError,
    MethodNotAllowed,
    RateLimited,
    TooLarge,
    Unauthorized,
    Unsupported,
    body_of,
    status_of,
)
from stepfast.server.keys import LOCAL_CALLER
from stepfast.server.settings import Limits
from stepfast.server.state import STREAMS, Platform

T = TypeVar("T")
log = logging.getLogger("stepfast.server")
access = logging.getLogger("stepfast.access")

# Served without a key: they tell nothing of anybody's work.
OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/openapi.json"})
_PLAIN_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


# --- who asks ------------------------------------------------------------------------------------


class Heads(msgspec.Struct):
    """What the guard needs of a request's headers, gathered in one pass."""

    api_key: bytes = b""
    bearer: bytes = b""
    host: bytes = b""
    origin: bytes = b""
    encoding: bytes = b""
    request_id: bytes = b""
    trace_id: bytes = b""


_FIELDS = {
    b"x-api-key": "api_key",
    b"host": "host",
    b"origin": "origin",
    b"content-encoding": "encoding",
    b"x-request-id": "request_id",
    b"x-trace-id": "trace_id",
}


def heads_of(scope: Scope) -> Heads:
    heads = Heads()
    for name, value in scope["headers"]:
        field = _FIELDS.get(name)
        if field is not None:
            setattr(heads, field, value)
        elif name == b"authorization" and value[:7].lower() == b"bearer ":
            heads.bearer = value[7:]
    return heads


def known_caller(platform: Platform, heads: Heads) -> Caller | None:
    """The caller, if the table in memory can tell; this is all that most requests need."""
    keys = platform.keys
    if not keys.loaded:
        return None
    token = (heads.api_key or heads.bearer).strip()
    if keys.required:
        return keys.check(token) if token else None
    _check_local(heads)
    if token.startswith(b"axme_sa_") and keys.knows(token):
        return keys.check(token)  # an agent's own key is what it is here, too
    return LOCAL_CALLER


async def identify(platform: Platform, scope: Scope, heads: Heads) -> Caller:
    """The caller of a request whom the table does not know, or Unauthorized."""
    keys = platform.keys
    if not keys.loaded:
        await keys.load()
        caller = known_caller(platform, heads)
        if caller is not None:
            return caller
    token = (heads.api_key or heads.bearer).strip()
    if not token:
        raise _unauthorized("a key is needed: send it as x-api-key, or as Authorization: Bearer.", None)
    client = scope.get("client")
    wait = platform.failures.take(client[0] if client else "")
    if wait:
        raise RateLimited("too many failed keys from this address.", retry_after=wait)
    caller = await keys.look_up(token)
    if caller is None:
        raise _unauthorized("this key is not known, is revoked or has expired.", "invalid_platform_api_key")
    return caller


def _unauthorized(message: str, code: str | None) -> Unauthorized:
    error = Unauthorized(message, code=code)
    error.headers["www-authenticate"] = "Bearer"
    return error


def _check_local(heads: Heads) -> None:
    """Without keys only programs of this machine may ask: no page in a browser, by whatever name it reaches us."""
    if heads.host and not _is_loopback(heads.host):
        raise Forbidden("without keys this server answers to localhost only; make a key.", code="host_not_allowed")
    if heads.origin and not _is_loopback(heads.origin):
        raise Forbidden("without keys this server answers no page of a browser.", code="origin_not_allowed")


@lru_cache(maxsize=256)
def _is_loopback(authority: bytes) -> bool:
    """Whether ``host:port`` or ``scheme://host:port`` names this machine."""
    host = str(authority, "latin-1").rpartition("//")[2]
    host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_rate(platform: Platform, caller: Caller) -> None:
    wait = platform.buckets.take(caller.key_id or caller.tenant)
    if wait:
        raise RateLimited("this key has made too many requests; slow down.", retry_after=wait)


# --- reading -------------------------------------------------------------------------------------


async def read_body(request: Request, most: int) -> bytes:
    """The body, cut off as soon as it is too large."""
    for name, value in request.scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value[:20]) > most:
            raise TooLarge(f"the body has {int(value[:20])} bytes; at most {most} are read.")
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > most:
                raise TooLarge(f"the body has more than {most} bytes, which is the limit.")
            pieces.append(piece)
    except ClientDisconnect:
        raise BadRequest("the request broke off.") from None
    return b"".join(pieces)


async def read_json(request: Request, *, most: int | None = None) -> dict[str, Any]:
    """The JSON object that a request holds; nothing at all counts as an empty one."""
    platform: Platform = request.app.state.platform
    limits = platform.settings.limits
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind and kind != "application/json" and not kind.endswith("+json"):
        raise Unsupported(f"the body must be application/json, not {kind[:100]}.")
    raw = await read_body(request, most or limits.body_bytes)
    if not raw.strip():
        return {}
    value = decode_json(raw, limits)
    if not isinstance(value, dict):
        raise InvalidInput("the body must be a JSON object.")
    return value


async def read_as(request: Request, kind: type[T], *, most: int | None = None) -> T:
    """The JSON object of a request as a msgspec.Struct; a wrong type is told by its place."""
    value = await read_json(request, most=most)
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{error}.") from None


def decode_json(raw: bytes, limits: Limits) -> Any:
    """JSON within limits: strict UTF-8, no NaN, no endless numbers, not too deep, not too many parts."""
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error}.", code="invalid_json") from None
    except UnicodeDecodeError:
        raise BadRequest("the body is not valid UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise InvalidInput(f"the body is nested deeper than {limits.depth} levels.") from None
    except ValueError:
        raise InvalidInput("the body holds a number with too many digits.") from None
    check_shape(value, limits)
    return value


def check_shape(value: Any, limits: Limits) -> None:
    """No deeper and no larger than allowed."""
    level: list[Any] = [value]
    nodes = 0
    for _ in range(limits.depth + 1):
        inner: list[Any] = []
        nodes += len(level)
        if nodes > limits.nodes:
            raise InvalidInput(f"the body holds more than {limits.nodes} values.")
        for each in level:
            if type(each) is dict:
                inner.extend(each.values())
            elif type(each) is list:
                inner.extend(each)
        if not inner:
            return
        level = inner
    raise InvalidInput(f"the body is nested deeper than {limits.depth} levels.")


def query_text(request: Request, name: str, default: str | None = None, *, longest: int = 1000) -> str | None:
    value = request.query_params.get(name)
    if value is None or value == "":
        return default
    if len(value) > longest:
        raise InvalidInput(f"{name}: is longer than {longest} characters.")
    return value


def query_int(request: Request, name: str, default: int, *, least: int, most: int, clamp: bool = False) -> int:
    """A whole number in the query string; ``clamp`` brings one out of range to the nearest in it."""
    text = query_text(request, name, longest=30)
    if text is None:
        return default
    try:
        value = int(text) if text.isascii() else None
    except ValueError:
        value = None
    if value is None:
        raise InvalidInput(f"{name}: must be a whole number, not {text!r}.")
    if clamp:
        return max(least, min(most, value))
    if not least <= value <= most:
        raise InvalidInput(f"{name}: must be from {least} to {most}, not {value}.")
    return value


def query_flag(request: Request, name: str, default: bool = False) -> bool:
    text = query_text(request, name, longest=10)
    if text is None:
        return default
    if text.lower() in ("true", "1", "yes"):
        return True
    if text.lower() in ("false", "0", "no"):
        return False
    raise InvalidInput(f"{name}: must be true or false, not {text!r}.")


# --- around everything ---------------------------------------------------------------------------

Hot = Callable[[Platform, Caller, Scope, Receive, Send], Awaitable[None]]


class Guard:
    """The ASGI app in front of the router. ``hot`` are paths that go past the router, straight to their handler."""

    def __init__(self, platform: Platform, router: Router, hot: Mapping[str, Hot]) -> None:
        self._platform = platform
        self._router = router
        self._hot = hot
        self._hot_done = {path: platform.metrics.requests.labels(path, "200") for path in hot}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = self._hot.get(scope["path"])
        if handle is None:
            await self._serve(scope, receive, send)
        else:
            await self._serve_hot(handle, scope, receive, send)

    async def _serve_hot(self, handle: Hot, scope: Scope, receive: Receive, send: Send) -> None:
        """As `_serve`, for the paths where every microsecond is some run's: no log line, no added headers."""
        platform = self._platform
        heads = heads_of(scope)
        try:
            caller = known_caller(platform, heads) or await identify(platform, scope, heads)
            check_rate(platform, caller)
            if heads.encoding:
                _check_encoding(heads)
            if scope["method"] != "POST":
                raise _not_allowed("POST")
            scope.setdefault("state", {})["caller"] = caller
            await handle(platform, caller, scope, receive, send)
            self._hot_done[scope["path"]].inc()
        except StepfastError as error:
            await self._refuse(error, scope["path"], send)
        except Exception:
            log.exception("a request to %s failed", scope["path"])
            await self._refuse(INTERNAL, scope["path"], send)
        finally:
            for stream in scope.get(STREAMS, ()):
                stream.close()

    async def _refuse(self, error: StepfastError, route: str, send: Send) -> None:
        self._note(error)
        self._platform.metrics.requests.labels(route, str(status_of(error))).inc()
        await send_error(error, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        platform = self._platform
        heads = heads_of(scope)
        request_id = heads.request_id if _PLAIN_ID.fullmatch(heads.request_id) else new_id().encode()
        trace_id = heads.trace_id if _PLAIN_ID.fullmatch(heads.trace_id) else b""
        answer = _Answer(send, request_id, trace_id)
        began = time.perf_counter()
        state = scope.setdefault("state", {})
        state["request_id"] = request_id.decode("ascii")
        caller: Caller | None = None
        failure: StepfastError | None = None
        try:
            path = scope["path"]
            if path not in OPEN_PATHS:
                caller = known_caller(platform, heads) or await identify(platform, scope, heads)
                state["caller"] = caller
                check_rate(platform, caller)
            if heads.encoding:
                _check_encoding(heads)
            if "\0" in path:
                raise NotFound("there is nothing at this path.")
            await self._router(scope, receive, answer)
        except StepfastError as error:
            failure = error
        except HTTPException as error:
            failure = self._http_error(error, scope)
        except ClientDisconnect:
            answer.status = 499
        except Exception:
            log.exception("a request failed", extra={"request_id": state["request_id"]})
            failure = INTERNAL
        finally:
            for stream in scope.get(STREAMS, ()):
                stream.close()
        if failure is not None:
            self._note(failure, state["request_id"])
            if answer.started:
                raise RuntimeError(f"request {state['request_id']} failed after its answer had begun") from failure
            await send_error(failure, answer)
        # The route and never the path, which may hold anything.
        route = getattr(scope.get("route"), "path", None) or "none"
        platform.metrics.requests.labels(route, str(answer.status)).inc()
        if platform.settings.access_log and access.isEnabledFor(logging.INFO):
            told = {
                "request_id": state["request_id"],
                "key_id": caller.key_id if caller else None,
                "ms": round((time.perf_counter() - began) * 1000, 1),
            }
            access.info("%s %s %d", scope["method"], route, answer.status, extra=told)

    def _http_error(self, error: HTTPException, scope: Scope) -> StepfastError:
        if error.status_code == 405:
            path = getattr(scope.get("route"), "path", None)
            found = [route for route in self._router.routes if isinstance(route, Route) and route.path == path]
            methods = {method for route in found for method in route.methods or ()}
            return _not_allowed(", ".join(sorted(methods)))
        return HttpError(str(error.detail), status=error.status_code, code="http_error")

    def _note(self, error: StepfastError, request_id: str | None = None) -> None:
        status = status_of(error)
        if status in (401, 403, 429):
            self._platform.metrics.refused.labels(error.code).inc()
        elif status >= 500 and status != 501 and error is not INTERNAL:
            log.error("%s: %s", type(error).__name__, error.message, extra={"request_id": request_id})


class _Answer:
    """The way out of a request: knows what was sent, and adds what every answer has."""

    def __init__(self, send: Send, request_id: bytes, trace_id: bytes) -> None:
        self.started = False
        self.status = 500
        self._send = send
        self._added = [(b"x-request-id", request_id), (b"x-content-type-options", b"nosniff")]
        if trace_id:
            self._added.append((b"x-trace-id", trace_id))

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            headers = [*message.get("headers", ()), *self._added]
            if all(name != b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers}
        await self._send(message)


async def send_error(error: StepfastError, send: Send) -> None:
    """An error as an answer."""
    body = body_of(error)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if isinstance(error, HttpError):
        headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in error.headers.items()]
    await send({"type": "http.response.start", "status": status_of(error), "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _check_encoding(heads: Heads) -> None:
    """Nothing is unpacked here: a hundred kilobytes may become a hundred megabytes."""
    if heads.encoding.strip().lower() not in (b"", b"identity"):
        raise Unsupported("a compressed body is not read here; send it plain.", code="unsupported_encoding")


def _not_allowed(allow: str) -> MethodNotAllowed:
    error = MethodNotAllowed("there is something at this path, but not for this method.")
    error.headers["allow"] = allow
    return error

"""The remote store's two endpoints: batches of operations, and the stream that ties a process to its leases.

They stand outside the router: a step of a remote run is one request here, and should cost little more than its
commit. Values pass through as the bytes they are.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import msgspec
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from stepfast import wire
from stepfast.addresses import last_name
from stepfast.clock import new_id
from stepfast.errors import StepfastError
from stepfast.ops import (
    Claim,
    CreateIntent,
    DeleteRecord,
    GetRecord,
    ListAddresses,
    ListThreads,
    PutRecord,
    ReleaseOwner,
)
from stepfast.server import ops_rules
from stepfast.server.caller import Caller
from stepfast.server.errors import BadRequest, TooLarge
from stepfast.server.state import Platform, Stream
from stepfast.server.wakes import Bell, Board
from stepfast.stores.base import LOCAL_TENANT

log = logging.getLogger("stepfast.server")

GRACE_SECONDS = 0.3
KEEPALIVE_SECONDS = 10.0
MAX_TOPICS = 10_000
SESSION = "session"  # the kind of record that says which connection a session has
_SESSION_DAYS = 7
# Work on its way to or from an agent, which may be one that was switched off.
_HANDED = frozenset({CreateIntent, Claim})

routes: list[Route] = []  # the app hands these two paths to `handle` before it asks the router
PATHS = (wire.OPS_PATH, wire.SESSION_PATH)
_BINARY = {"type": "string", "contentMediaType": wire.CONTENT_TYPE}
DOCS: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", wire.OPS_PATH): {
        "summary": "Execute batches of store operations; the remote store's own protocol",
        "requestBody": {"required": True, "content": {wire.CONTENT_TYPE: {"schema": _BINARY}}},
        "responses": {
            "200": {"description": "What became of each", "content": {wire.CONTENT_TYPE: {"schema": _BINARY}}}
        },
    },
    ("POST", wire.SESSION_PATH): {
        "summary": "A stream of wake-ups; while it is open, the leases of its owner are tied to it",
        "requestBody": {"required": True, "content": {wire.CONTENT_TYPE: {"schema": _BINARY}}},
        "responses": {
            "200": {
                "description": "Lines of JSON, each a list of topics",
                "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
            }
        },
    },
}


async def handle(platform: Platform, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
    body = await _read(receive, platform.settings.limits.ops_bytes)
    if scope["path"] == wire.OPS_PATH:
        answer = await _execute(platform, caller, body)
        head = [(b"content-type", wire.CONTENT_TYPE.encode()), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": answer})
    else:
        await _attend(platform, caller, scope, receive, send, body)


async def _read(receive: Receive, limit: int) -> bytes:
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False) and len(body) <= limit:
        return body
    parts, size = [body], len(body)
    while message.get("more_body", False) and size <= limit:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
    if size > limit:
        raise TooLarge(f"the body is longer than {limit} bytes.")
    return b"".join(parts)


async def _execute(platform: Platform, caller: Caller, body: bytes) -> bytes:
    try:
        request = wire.decode_request(body)
    except msgspec.DecodeError as error:
        raise BadRequest(f"this is not a request of a Stepfast client: {error}") from None
    heard = True
    if request.watch is not None:
        heard = platform.part(Sessions).watch(caller, request.session, request.watch)
    outcomes: list[Any]
    if caller.agent is None and not any(type(op) in _HANDED for batch in request.batches for op in batch):
        caller.require("ops")
        started = [platform.store.start(batch, tenant=caller.tenant) for batch in request.batches]
        outcomes = [await _outcome(future) for future in started]
    else:
        outcomes = await asyncio.gather(*(_with_care(platform, caller, batch) for batch in request.batches))
    return wire.encode_answer(outcomes, heard)


async def _outcome(future: asyncio.Future[list[Any]]) -> list[Any] | BaseException:
    try:
        return await future
    except StepfastError as error:
        return error
    except Exception as error:
        log.exception("a batch failed")
        return error


async def _with_care(platform: Platform, caller: Caller, batch: list[Any]) -> list[Any] | BaseException:
    """A batch that not everybody may have done, or not for every agent."""
    try:
        admitted = await ops_rules.admit(platform, caller, batch)
        return ops_rules.let_through(caller, await platform.store.execute(admitted, tenant=caller.tenant))
    except StepfastError as error:
        return error
    except Exception as error:
        log.exception("a batch failed")
        return error


async def background(platform: Platform) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await platform.part(Sessions).end()


# --- sessions ------------------------------------------------------------------------------------


class Sessions:
    """The streams of remote stores that are open on this server."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.live: dict[tuple[str, str], Session] = {}
        self._farewells: set[asyncio.Task[None]] = set()

    def watch(self, caller: Caller, name: str, topics: list[str]) -> bool:
        """Whether that session is open here; if so it waits on these topics from now on."""
        session = self.live.get((caller.tenant, name))
        if session is None:
            return False
        session.watch(topics)
        return True

    def gone(self, session: Session) -> None:
        task = asyncio.create_task(self._hand_on(session))
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    async def end(self) -> None:
        """The server stops: whoever is gone is gone, and what they hold ends with its lease."""
        farewells = list(self._farewells)
        for task in farewells:
            task.cancel()
        await asyncio.gather(*farewells, return_exceptions=True)

    async def _hand_on(self, session: Session) -> None:
        """Its process is dead, unless it is back in a moment, here or on another server."""
        await asyncio.sleep(GRACE_SECONDS)
        if self.platform.closing.is_set() or (session.caller.tenant, session.name) in self.live:
            return
        tenant = session.caller.tenant
        try:
            record = await self.platform.store.one(GetRecord(kind=SESSION, record_id=session.name), tenant=tenant)
            if record is not None and record.body != session.connection:
                return
            _, released = await self.platform.store.execute(
                [
                    DeleteRecord(kind=SESSION, record_id=session.name),
                    ReleaseOwner(owner=session.owner, reason="its process ended or lost its connection"),
                ],
                tenant=tenant,
            )
        except StepfastError as error:
            log.warning("what %s held is not handed on before its leases end: %s", session.name, error)
        else:
            if released:
                log.info("session %s is gone; %d intents are handed on", session.name, released)


class Session:
    """One open stream: the topics its process waits on, and what has changed since it was last told."""

    def __init__(self, platform: Platform, caller: Caller, hello: wire.Session) -> None:
        self.caller = caller
        self.name = hello.session
        self.owner = hello.owner
        self.connection = new_id().encode()
        self._board = platform.part(Board)
        self._bells: dict[str, Bell] = {}
        self._pending: set[str] = set()
        self.news = asyncio.Event()
        self.watch(hello.watch)

    def watch(self, topics: list[str]) -> None:
        wanted = set(topics[:MAX_TOPICS])
        for topic in wanted - self._bells.keys():
            self._bells[topic] = self._board.bell(topic, partial(self.woken, topic))
        for topic in self._bells.keys() - wanted:
            self._bells.pop(topic).close()

    def woken(self, topic: str) -> None:
        self._pending.add(topic)
        self.news.set()

    def take(self) -> list[str]:
        self.news.clear()
        pending, self._pending = self._pending, set()
        return sorted(pending)

    def close(self) -> None:
        self.watch([])


async def _attend(platform: Platform, caller: Caller, scope: Scope, receive: Receive, send: Send, body: bytes) -> None:
    try:
        hello = wire.decode_session(body)
    except msgspec.DecodeError as error:
        raise BadRequest(f"this is not a session of a Stepfast client: {error}") from None
    stream = platform.open_stream(scope)
    sessions = platform.part(Sessions)
    session = Session(platform, caller, hello)
    sessions.live[(caller.tenant, session.name)] = session
    lost = asyncio.ensure_future(_until_lost(receive))
    try:
        if session.owner:
            await _sign_in(platform, session)
        head = [
            (b"content-type", b"application/x-ndjson"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await _tell(send, [])
        while not stream.ended and not lost.done():
            if await _wait(session, stream, lost):
                await _tell(send, await _ours(platform, caller, session.take()))
            elif not lost.done():
                await _tell(send, [])
        if not lost.done():
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        if sessions.live.get((caller.tenant, session.name)) is session:
            del sessions.live[(caller.tenant, session.name)]
            if lost.done() and session.owner and stream.reason != "closing":
                sessions.gone(session)
        lost.cancel()
        session.close()


async def _until_lost(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _wait(session: Session, stream: Stream, lost: asyncio.Future[None]) -> bool:
    """Until there is news, the stream must end, or it is time for a sign of life."""
    news: asyncio.Future[Any] = asyncio.ensure_future(session.news.wait())
    ended: asyncio.Future[Any] = asyncio.ensure_future(stream.wait())
    try:
        await asyncio.wait([news, ended, lost], timeout=KEEPALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return news.done()
    finally:
        news.cancel()
        ended.cancel()


async def _tell(send: Send, topics: list[str]) -> None:
    await send({"type": "http.response.body", "body": msgspec.json.encode(topics) + b"\n", "more_body": True})


async def _ours(platform: Platform, caller: Caller, topics: list[str]) -> list[str]:
    """Wake-ups that tell of the caller's own workspace: a name of an agent or thread may be one of another's, too.

    Threads are the workspace's, and no agent's.
    """
    if caller.agent is not None:
        topics = [topic for topic in topics if not topic.startswith("thread:")]
    if caller.tenant == LOCAL_TENANT:
        return topics
    told = [topic for topic in topics if topic.startswith("intent:")]
    threads = [topic.removeprefix("thread:") for topic in topics if topic.startswith("thread:")]
    if threads:
        page = await platform.store.one(ListThreads(ids=threads, limit=len(threads)), tenant=caller.tenant)
        told += [f"thread:{thread.thread_id}" for thread in page.items]
    names = {topic.removeprefix("agent:") for topic in topics if topic.startswith("agent:")}
    if names:
        busy = await platform.store.one(ListAddresses(), tenant=caller.tenant)
        told += [f"agent:{name}" for name in names & {last_name(address) for address in busy}]
    return told


async def _sign_in(platform: Platform, session: Session) -> None:
    """Which connection a session has now, for all servers of this store to see."""
    record = PutRecord(
        kind=SESSION,
        record_id=session.name,
        body=session.connection,
        write_id=session.connection.decode(),
        due_at=platform.raw.clock.now_us() + _SESSION_DAYS * 86_400 * 1_000_000,
    )
    await platform.store.one(record, tenant=session.caller.tenant)

"""The remote store: the same port over HTTP, for agents on any machine.

A batch of reads goes on a connection of its own. Batches that write and are asked for at the same time share a
request (group.py), as they share a commit on the server. A request whose answer was lost is sent again: every
write is idempotent by its keys, so asking again is how its outcome is looked up.
"""

from __future__ import annotations

import os
import random
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from stepfast import inputs as check
from stepfast import wire
from stepfast.clock import Clock, new_id
from stepfast.errors import (
    AccessDenied,
    InvalidInput,
    OutcomeUnknown,
    StepfastError,
    StoreError,
    StoreUnavailable,
)
from stepfast.ops import Claim, Op, OpenIntent
from stepfast.stores.base import LOCAL_TENANT, Store, Watch
from stepfast.stores.group import Done, GroupCommitter, Request
from stepfast.stores.plans.checks import check_text
from stepfast.stores.plans.rows import plain
from stepfast.stores.remote_http import Broken, Connections, Endpoint, Response
from stepfast.stores.remote_session import Presence

_READERS = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_TAKES_LEASE = (Claim, OpenIntent)


class Bounds(msgspec.Struct, frozen=True):
    ops_bytes: int = 0


class Identity(msgspec.Struct, frozen=True):
    """Who the server says we are, what time it has, and how much it takes."""

    tenant: str
    time_us: int = 0
    limits: Bounds = Bounds()


class RemoteStore(Store):
    """``url`` is the server's address. ``timeout`` bounds how long a batch is asked for until it is answered;
    ``verify`` is a TLS context where the system's own certificates will not do.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        clock: Clock | None = None,
        timeout: float = 30.0,
        connect_timeout: float = 10.0,
        verify: ssl.SSLContext | None = None,
    ) -> None:
        check.seconds("timeout", timeout, positive=True, optional=False)
        check.seconds("connect_timeout", connect_timeout, positive=True, optional=False)
        check.text("api_key", api_key, empty=False)
        if verify is not None and not isinstance(verify, ssl.SSLContext):
            raise InvalidInput(f"verify: must be an ssl.SSLContext, not {verify!r}.")
        self._endpoint = Endpoint(url, api_key=api_key, verify=verify, connect_timeout=connect_timeout)
        super().__init__(self._endpoint.shown, clock)
        self._timeout = timeout
        self._head = self._endpoint.head("POST", wire.OPS_PATH, wire.CONTENT_TYPE)
        self._open()
        try:
            self.identity = self._greet(connect_timeout)
        except BaseException:
            self.close()
            raise
        self.tenant = self.identity.tenant
        if clock is None and self.identity.time_us:
            self.clock.offset_us = self.identity.time_us - time.time_ns() // 1000

    def _open(self) -> None:
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._committer = GroupCommitter(self._commit_group, "stepfast-sender")
        # A try is given up before the caller's patience ends, so that there is time for another.
        self._connections = Connections(self._endpoint, self._timeout / 3)
        self._session = new_id()
        self._presence = Presence(self._endpoint, self._session, self.signals)
        self._finalizer = weakref.finalize(self, _close, self._connections, self._presence, self._pid)

    @property
    def session(self) -> str:  # type: ignore[override]
        self._own()
        return self._session

    def _enter(self) -> None:
        self._own()
        if self._closed:
            raise StoreUnavailable(f"the store {self.url} is closed.")

    def _own(self) -> None:
        """A forked child leaves its parent's connections alone and opens its own."""
        if self._pid != os.getpid():
            self._finalizer.detach()
            self._open()

    def _greet(self, patience: float) -> Identity:
        head = self._endpoint.head("GET", "/v1/whoami", "application/json")
        response = self._ask_until(lambda: self._connections.ask(head, b""), patience, may_apply=False)
        try:
            return msgspec.json.decode(response.body, type=Identity)
        except (msgspec.DecodeError, ValueError):
            raise InvalidInput(f"url: {self.url} answers, but not as a Stepfast server.") from None

    # --- the port --------------------------------------------------------------------------------

    def execute(self, ops: Sequence[Op[Any]], *, tenant: str = LOCAL_TENANT) -> list[Any]:
        self._check(ops, tenant)
        if all(op.reads for op in ops):
            outcome = self._ask([ops], writes=False)[0]
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome
        self._be_present(ops)
        return self._committer.execute(ops, self.tenant)

    def submit(self, ops: Sequence[Op[Any]], done: Done, *, tenant: str = LOCAL_TENANT) -> None:
        try:
            self._check(ops, tenant)
        except BaseException as error:
            done(error)
            return
        if all(op.reads for op in ops):
            self._pool().submit(self._read_for, ops, done)
        elif self._presence.is_open or not any(isinstance(op, _TAKES_LEASE) for op in ops):
            self._committer.submit(ops, self.tenant, done)
        else:
            self._pool().submit(self._take_for, ops, done)

    def watch(self, *topics: str, tenant: str = LOCAL_TENANT) -> Watch:
        self._check((), tenant)
        watch = _RemoteWatch(self, topics)
        self._presence.changed()
        return watch

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._pid != os.getpid():
            return
        self._committer.close()
        threads = self._threads
        if threads is not None:
            threads.shutdown()
        self._finalizer()

    # --- on the way ------------------------------------------------------------------------------

    def _check(self, ops: Sequence[Op[Any]], tenant: str) -> None:
        self._enter()
        check_text(ops, tenant)
        if tenant not in (LOCAL_TENANT, self.tenant):
            raise InvalidInput(f"tenant: this key is for {self.tenant!r}, not for {tenant!r}.")

    def _be_present(self, ops: Sequence[Op[Any]]) -> None:
        """Before a first lease, so that the server sees it at once when this process dies."""
        if not self._presence.is_open and any(isinstance(op, _TAKES_LEASE) for op in ops):
            owner = next(op.owner for op in ops if isinstance(op, _TAKES_LEASE))
            self._presence.open(owner)

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_READERS, "stepfast-remote")
            return self._threads

    def _read_for(self, ops: Sequence[Op[Any]], done: Done) -> None:
        try:
            outcome: Any = self._ask([ops], writes=False)[0]
        except BaseException as error:
            outcome = error
        done(outcome)

    def _take_for(self, ops: Sequence[Op[Any]], done: Done) -> None:
        self._be_present(ops)
        self._committer.submit(ops, self.tenant, done)

    def _commit_group(self, group: list[Request]) -> None:
        outcomes = self._ask([request.ops for request in group], writes=True)
        for request, outcome in zip(group, outcomes, strict=True):
            request.outcome = outcome

    @property
    def has_topics_to_tell(self) -> bool:
        return self._presence.is_dirty

    def flush_topics(self) -> None:
        """Tell the server what we wait on, where no request has told it yet."""
        if self._presence.is_dirty:
            self._ask([], writes=False)

    def _ask(self, batches: list[Sequence[Op[Any]]], *, writes: bool) -> list[list[Any] | StepfastError]:
        stream, topics = self._presence.stream, self._presence.topics_to_tell()
        try:
            body = wire.encode_request(batches, self._session, topics)
        except (UnicodeEncodeError, OverflowError):
            return self._ask_one_by_one(batches, writes=writes)
        limit = self.identity.limits.ops_bytes
        if limit and len(body) > limit:
            return self._ask_in_parts(batches, len(body), writes=writes)
        response = self._ask_until(lambda: self._connections.ask(self._head, body), self._timeout, may_apply=writes)
        try:
            outcomes, heard = wire.decode_answer(response.body, batches)
        except ValueError as error:
            raise OutcomeUnknown(f"{self.url} gave an answer that cannot be read: {error}.") from None
        if topics is not None:
            self._presence.told(topics, heard, stream)
        return outcomes

    def _ask_one_by_one(self, batches: list[Sequence[Op[Any]]], *, writes: bool) -> list[list[Any] | StepfastError]:
        """Some batch holds what no wire carries; the others are not to suffer for it."""
        outcomes: list[list[Any] | StepfastError] = []
        for batch in batches:
            mended = [_made_plain(op) for op in batch]
            try:
                wire.encode_request([mended])
            except UnicodeEncodeError:
                outcomes.append(
                    InvalidInput("details: text with half a surrogate pair cannot be stored. Nothing was written.")
                )
            except OverflowError:
                outcomes.append(InvalidInput("a number has more than 64 bits. Nothing was written."))
            else:
                outcomes += self._ask([mended], writes=writes)
        return outcomes

    def _ask_in_parts(
        self, batches: list[Sequence[Op[Any]]], size: int, *, writes: bool
    ) -> list[list[Any] | StepfastError]:
        """One request for each half; a batch is never divided, since it is one transaction."""
        if len(batches) > 1:
            half = len(batches) // 2
            return self._ask(batches[:half], writes=writes) + self._ask(batches[half:], writes=writes)
        return [InvalidInput(f"a batch of {size} bytes is more than {self.url} takes. Nothing was written.")]

    def _ask_until(self, ask: Callable[[], Response], patience: float, *, may_apply: bool) -> Response:
        """Ask until there is an answer to go by, for as long as the caller's patience lasts."""
        ends = time.monotonic() + patience
        pause, uncertain = _FIRST_PAUSE, False
        while True:
            wait = pause * (0.5 + random.random())  # noqa: S311 - spreads retries, guards nothing
            try:
                response = ask()
            except Broken as error:
                uncertain = uncertain or error.sent
                trouble = str(error)
            else:
                if response.status == 200:
                    return response
                if response.status not in _PASSING:
                    raise _refusal(response, self.url, may_apply=may_apply)
                trouble = f"HTTP {response.status}: {_message(response)}"
                uncertain = uncertain or response.status in (502, 504)
                wait = max(wait, _retry_after(response))
            if time.monotonic() + wait >= ends:
                break
            time.sleep(wait)
            pause = min(pause * 2, _LONGEST_PAUSE)
        text = f"{self.url} did not answer within {patience:g} s ({trouble})"
        if may_apply and uncertain:
            raise OutcomeUnknown(f"{text}; the batch may have been applied. Look it up before doing it again.")
        raise StoreUnavailable(f"{text}; nothing was written. Is the server running, and the address right?")


# Passing trouble: too many requests, a server that starts or stops, a gateway without one.
_PASSING = frozenset({408, 425, 429, 502, 503, 504})


def _refusal(response: Response, url: str, *, may_apply: bool) -> StepfastError:
    text = _message(response)
    if response.status in (401, 403):
        return AccessDenied(f"{url} refuses the key: {text}")
    if response.status == 404:
        return InvalidInput(f"url: {url} has no such endpoint; is it the address of a Stepfast server?")
    if 400 <= response.status < 500:
        return InvalidInput(f"{url} refuses the request (HTTP {response.status}): {text}")
    if may_apply:
        return OutcomeUnknown(f"{url} failed (HTTP {response.status}: {text}); the batch may have been applied.")
    return StoreError(f"{url} failed (HTTP {response.status}): {text}")


def _message(response: Response) -> str:
    try:
        return str(msgspec.json.decode(response.body)["error"]["message"])[:2000]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return response.body[:200].decode("utf-8", "replace")


def _retry_after(response: Response) -> float:
    told = response.headers.get(b"retry-after", b"")
    return float(told) if told.isdigit() else 0.0


def _made_plain(op: Op[Any]) -> Op[Any]:
    """A reason is free text, such as an error's: what no wire carries is replaced there, as the stores do it."""
    reason = getattr(op, "reason", None)
    return op if reason is None else msgspec.structs.replace(op, reason=plain(reason))


class _RemoteWatch(Watch):
    """Makes sure, before it waits, that the server knows what for."""

    def __init__(self, store: RemoteStore, topics: tuple[str, ...]) -> None:
        super().__init__(store.signals, topics)
        self._store = store

    def wait(self, timeout: float | None = None) -> bool:
        self._store.flush_topics()
        return super().wait(timeout)

    async def wait_async(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        if self._store.has_topics_to_tell:
            from asyncio import to_thread

            await to_thread(self._store.flush_topics)
        return await super().wait_async(timeout)


def _close(connections: Connections, presence: Presence, pid: int) -> None:
    if pid == os.getpid():
        presence.close()
        connections.close()

"""Sessions inside a durable run: their history is recorded as first seen, and what is added to them is added once.

A crashed attempt has already written to the session; the next one must see the history that the first one saw.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from stepfast import DID_NOT_HAPPEN, Happened
from stepfast.adapters import Stopped, plain

from ._attempt import AgentAttempt, place
from .session import Head, StepfastSession


class JournaledSession:
    """The user's session as the SDK sees it during a durable run."""

    def __init__(self, attempt: AgentAttempt, inner: Any) -> None:
        self._attempt = attempt
        self._inner = inner

    @property
    def session_id(self) -> str:
        """The user's session's own."""
        return str(self._inner.session_id)

    @property
    def session_settings(self) -> Any:
        """The user's session's own."""
        return getattr(self._inner, "session_settings", None)

    def __getattr__(self, name: str) -> Any:
        if name in ("_inner", "_attempt"):
            raise AttributeError(name)
        found = getattr(self._inner, name)
        return functools.partial(self._compact, found) if name == "run_compaction" else found

    def _key(self, what: str) -> tuple[Any, str]:
        at = place.here()
        if at is None:
            raise Stopped
        at.attempt.check()
        return at.loop.scope, f"session:{what}:{at.loop.ordinals.number(f'session {what}')}"

    async def _step(self, what: str, name: str, function: Callable[[], Any], inputs: Any = None) -> Any:
        scope, key = self._key(what)
        with self._attempt.guarded():
            options = scope.options(key=key, name=name, kind="session", inputs=inputs or self.session_id)
            return await options.step(function)

    async def _compact(self, run_compaction: Any, *args: Any, **kwargs: Any) -> None:
        """Compaction of the stored history is a call to the provider, and made once too."""

        async def compact() -> None:
            await _awaited(run_compaction(*args, **_known(run_compaction, kwargs)))

        await self._step("compact", "run_compaction", compact)

    async def get_items(self, limit: int | None = None, **kwargs: Any) -> list[Any]:
        """The history as this run saw it first."""

        async def read() -> Any:
            return plain(await _awaited(self._inner.get_items(limit, **_known(self._inner.get_items, kwargs))))

        return list(await self._step("get", "get_items", read, [self.session_id, limit]))

    async def add_items(self, items: list[Any], **kwargs: Any) -> None:
        """Added once, although the run may come by here again."""
        scope, key = self._key("add")
        added = plain(items)

        async def add() -> None:
            await _awaited(self._inner.add_items(items, **_known(self._inner.add_items, kwargs)))

        async def is_there() -> Any:
            tail = plain(await _awaited(self._inner.get_items(len(added)))) if added else []
            return Happened(None) if tail == added else DID_NOT_HAPPEN

        with self._attempt.guarded():
            await scope.options(
                key=key,
                name="add_items",
                inputs=[self.session_id, len(added)],
                on_in_doubt=is_there,
                retry_on=(Exception,),
            ).once(add)

    async def pop_item(self, **kwargs: Any) -> Any:
        """Taken once; what it was is recorded."""

        async def pop() -> Any:
            return plain(await _awaited(self._inner.pop_item(**_known(self._inner.pop_item, kwargs))))

        return await self._step("pop", "pop_item", pop)

    async def clear_session(self, **kwargs: Any) -> None:
        """Cleared once."""

        async def clear() -> None:
            await _awaited(self._inner.clear_session(**_known(self._inner.clear_session, kwargs)))

        await self._step("clear", "clear_session", clear)


class AtomicSession(JournaledSession):
    """A StepfastSession in the same store as the run: the run's record and the session change in one transaction.

    What the run has seen is kept as numbers of items, not as the items. What it takes out stays in the store until
    the session is cleared from outside, because the run may have to see it again.
    """

    _inner: StepfastSession

    async def get_items(self, limit: int | None = None, **kwargs: Any) -> list[Any]:
        """The history as this run saw it first."""
        session = self._inner

        async def look() -> Any:
            return (await session.head()).last(session._limit(limit))

        spans = await self._step("get", "get_items", look, [self.session_id, limit])
        with self._attempt.guarded():
            return await session.read(spans)

    async def add_items(self, items: list[Any], **kwargs: Any) -> None:
        """Added once, although the run may come by here again."""
        added = plain(items)

        async def add(head: Head) -> tuple[Any, list[Any]]:
            numbers, ops = await self._inner.adding(head, added)
            return {"session": self.session_id, "numbers": numbers}, ops  # for a rewind of the run

        if added:
            await self._change("add", add)

    async def pop_item(self, **kwargs: Any) -> Any:
        """Taken once."""
        session = self._inner

        async def take(head: Head) -> tuple[Any, list[Any]]:
            last = head.last(1)
            return last, [] if head.pop() is None else [session.put_head(head)]

        spans = await self._change("pop", take)
        return (await session.read(spans))[0] if spans else None

    async def clear_session(self, **kwargs: Any) -> None:
        """Cleared once."""

        async def empty(head: Head) -> tuple[None, list[Any]]:
            head.spans = []
            return None, [self._inner.put_head(head)]

        await self._change("clear", empty)

    async def _change(self, what: str, plan: Any) -> Any:
        scope, key = self._key(what)

        async def write(value: Any, ops: list[Any]) -> Any:
            return await scope.record(value, key=key, name=what, kind="session", also=ops)

        with self._attempt.guarded():
            if scope.recorded(key) is not None:
                return await scope.record(None, key=key, name=what, kind="session")
            return await self._inner.change(plan, write)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _known(method: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Of what the SDK passes besides, only what the session's method takes."""
    if not kwargs:
        return kwargs
    parameters = inspect.signature(method).parameters
    return {name: value for name, value in kwargs.items() if name in parameters}


def journaled(attempt: AgentAttempt, session: Any) -> Any:
    if session is None or isinstance(session, JournaledSession):
        return session
    if isinstance(session, StepfastSession) and session.is_in_store_of(attempt.run):
        return AtomicSession(attempt, session)
    return JournaledSession(attempt, session)

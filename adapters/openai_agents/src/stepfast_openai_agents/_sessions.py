"""Sessions inside a durable run: what they gave is recorded, and what is added to them is added once.

A crashed attempt has already written to the session; the next one must see the history that the first one saw.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from stepfast import DID_NOT_HAPPEN, Happened

from ._current import Drive, Stopped, here
from ._plain import plain
from .session import Head, StepfastSession


class JournaledSession:
    """The user's session as the SDK sees it during a durable run."""

    def __init__(self, drive: Drive, inner: Any) -> None:
        self._drive = drive
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
        if name in ("_inner", "_drive"):
            raise AttributeError(name)
        found = getattr(self._inner, name)
        return functools.partial(self._compact, found) if name == "run_compaction" else found

    async def _compact(self, run_compaction: Any, *args: Any, **kwargs: Any) -> None:
        """Compaction of the stored history is a call to the provider, and made once too."""
        scope, key = self._key("compact")

        async def compact() -> None:
            await _awaited(run_compaction(*args, **_known(run_compaction, kwargs)))

        with self._drive.guarded():
            await scope.options(key=key, name="run_compaction", kind="session", inputs=self.session_id).step(compact)

    def _key(self, what: str) -> tuple[Any, str]:
        at = here()
        if at is None:
            raise Stopped
        at.drive.check()
        return at.loop.scope, f"session:{what}:{at.loop.ordinal(f'session {what}')}"

    async def get_items(self, limit: int | None = None, **kwargs: Any) -> list[Any]:
        """The history as this run saw it first."""
        scope, key = self._key("get")

        async def read() -> Any:
            return plain(await _awaited(self._inner.get_items(limit, **_known(self._inner.get_items, kwargs))))

        with self._drive.guarded():
            items = await scope.options(
                key=key, name="get_items", kind="session", inputs=[self.session_id, limit]
            ).step(read)
        return list(items)

    async def add_items(self, items: list[Any], **kwargs: Any) -> None:
        """Added once, although the run may come by here again."""
        scope, key = self._key("add")
        added = plain(items)

        async def add() -> None:
            await _awaited(self._inner.add_items(items, **_known(self._inner.add_items, kwargs)))

        async def is_there() -> Any:
            tail = plain(await _awaited(self._inner.get_items(len(added)))) if added else []
            return Happened(None) if tail == added else DID_NOT_HAPPEN

        with self._drive.guarded():
            await scope.options(
                key=key,
                name="add_items",
                inputs=[self.session_id, len(added)],
                on_in_doubt=is_there,
                retry_on=(Exception,),
            ).once(add)

    async def pop_item(self, **kwargs: Any) -> Any:
        """Taken once; what it was is recorded."""
        scope, key = self._key("pop")

        async def pop() -> Any:
            return plain(await _awaited(self._inner.pop_item(**_known(self._inner.pop_item, kwargs))))

        with self._drive.guarded():
            return await scope.options(key=key, name="pop_item", kind="session", inputs=self.session_id).step(pop)

    async def clear_session(self, **kwargs: Any) -> None:
        """Cleared once."""
        scope, key = self._key("clear")

        async def clear() -> None:
            await _awaited(self._inner.clear_session(**_known(self._inner.clear_session, kwargs)))

        with self._drive.guarded():
            await scope.options(key=key, name="clear_session", kind="session", inputs=self.session_id).step(clear)


class AtomicSession(JournaledSession):
    """A StepfastSession in the same store as the run: the run's record and the session change in one transaction.

    What the run has seen is kept as numbers of items, not as the items. What it takes out stays in the store until
    the session is cleared from outside, because the run may have to see it again.
    """

    _inner: StepfastSession

    async def get_items(self, limit: int | None = None, **kwargs: Any) -> list[Any]:
        """The history as this run saw it first."""
        scope, key = self._key("get")
        session = self._inner

        async def look() -> Any:
            return (await session.head()).last(session._limit(limit))

        with self._drive.guarded():
            spans = await scope.options(
                key=key, name="get_items", kind="session", inputs=[self.session_id, limit]
            ).step(look)
            return await session.read(spans)

    async def add_items(self, items: list[Any], **kwargs: Any) -> None:
        """Added once, although the run may come by here again."""
        added = plain(items)

        async def add(head: Head) -> tuple[Any, list[Any]]:
            numbers, ops = await self._inner.adding(head, added)
            return {"session": self.session_id, "numbers": numbers}, ops  # for who rewinds the run

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

        with self._drive.guarded():
            if scope.recorded(key) is not None:
                return await scope.record(None, key=key, name=what, kind="session")
            return await self._inner.change(plan, write)


async def _awaited(told: Any) -> Any:
    return await told if inspect.isawaitable(told) else told


def _known(method: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Of what the SDK passes besides, only what the session's method takes."""
    if not kwargs:
        return kwargs
    parameters = inspect.signature(method).parameters
    return {name: value for name, value in kwargs.items() if name in parameters}


def journaled(drive: Drive, session: Any) -> Any:
    if session is None or isinstance(session, JournaledSession):
        return session
    if isinstance(session, StepfastSession) and session.is_in_store_of(drive.run):
        return AtomicSession(drive, session)
    return JournaledSession(drive, session)

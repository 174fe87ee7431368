"""Run: what people write against, and what every adapter is built on."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from holdfast.deciding import current_frame
from holdfast.errors import HoldfastError, InvalidInput, Suspended
from holdfast.flow import Flow, drive, drive_async
from holdfast.intents import Intent, Status
from holdfast.ledger import StepCall
from holdfast.mapping import map_async, map_sync
from holdfast.place import Place
from holdfast.recovery import Checks, Resource, Verdict
from holdfast.session import Session
from holdfast.steps import (
    Answer,
    OnDrift,
    OnInDoubt,
    Retry,
)
from holdfast.stores.base import AsyncStore, Store

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 - the type of a map's items

__all__ = ["AsyncRun", "AsyncScope", "Run", "Scope", "current_run", "idempotency_key"]


class Scope(Place):
    """A named part of a run, with keys of its own; the run itself is the outermost one."""

    def __init__(self, session: Session, store: Store, checks: Checks, path: str = "") -> None:
        super().__init__(session, path)
        self._store = store
        self._checks = checks

    def _drive(self, flow: Flow[T]) -> T:
        return drive(flow, self._store, self._session.tenant)

    def _perform(self, call: StepCall, once: bool) -> Any:
        recalled = self._session.recall(call)
        if recalled is not None:
            return recalled[0]
        return drive(self._session.perform(call, once), self._store, self._session.tenant)

    def step(
        self,
        function: Callable[..., T],
        /,
        *args: Any,
        key: str | None = None,
        name: str | None = None,
        kind: str = "step",
        by: Literal["order", "input"] | None = None,
        inputs: Any = None,
        retry: Retry | int | None = None,
        record_errors: bool | tuple[type[Exception], ...] = False,
        on_drift: OnDrift | None = None,
        **kwargs: Any,
    ) -> T:
        """Call ``function``; once it has finished, every later attempt gets the recorded result.

        ``inputs`` stands for the arguments where these hold what changes by itself (ids, times);
        ``by`` overrides whether the key comes from the order of calls or from the input.
        """
        call = self._plan_step(function, args, kwargs, key, name, kind, by, inputs, retry, record_errors, on_drift)
        return self._perform(call, once=False)  # type: ignore[no-any-return]

    def once(
        self,
        function: Callable[..., T],
        /,
        *args: Any,
        key: str | None = None,
        name: str | None = None,
        by: Literal["order", "input"] | None = None,
        inputs: Any = None,
        on_in_doubt: OnInDoubt = "ask",
        retry_on: tuple[type[Exception], ...] = (),
        on_drift: OnDrift | None = None,
        **kwargs: Any,
    ) -> T:
        """Call ``function`` at most once. If it started and was never confirmed, a person decides."""
        call = self._plan_once(function, args, kwargs, key, name, by, inputs, on_in_doubt, retry_on, on_drift)
        return self._perform(call, once=True)  # type: ignore[no-any-return]

    def map(
        self,
        function: Callable[[I], T],
        items: Iterable[I],
        *,
        key: str | None = None,
        name: str | None = None,
        concurrency: int = 1,
        ordered: bool = True,
        return_exceptions: bool = False,
        total: int | None = None,
        progress: bool | None = None,
        on_drift: OnDrift | None = None,
    ) -> Iterator[T]:
        """Call ``function`` for each item; finished items are not called again. A result that was
        yielded is durable."""
        call = self._map_call(function, key, name, concurrency, ordered, return_exceptions, total, progress, on_drift)
        return map_sync(self._session, self._store, call, items)

    def ask(
        self,
        question: str,
        *,
        key: str | None = None,
        outcomes: list[str] | tuple[str, ...] = ("approved", "rejected"),
        evidence: Any = None,
        comment_required: bool = False,
        expires_in: float | None = None,
        default: str | None = None,
    ) -> Answer:
        """Wait for a person, across restarts. The answer is true if it is the first outcome."""
        return self._drive(self._ask(question, key, outcomes, evidence, comment_required, expires_in, default))

    def checkpoint(
        self,
        state: Any,
        *,
        resources: Iterable[Resource] = (),
        pending: Iterable[str] = (),
        pin: str | None = None,
        keep: int = 10,
        key: str | None = None,
    ) -> int:
        """Save a snapshot of your own; gives its version. ``run.restored`` has the last one after a crash."""
        return self._drive(self._checkpoint(state, resources, pending, pin, keep, key, self._checks))

    def scope(self, name: str) -> Scope:
        """A part of the run with step keys of its own, such as a branch that runs in another thread."""
        _, path = self._child(name)
        return Scope(self._session, self._store, self._checks, path)

    def rewind(self, reason: str = "rewound", *, after: str | None = None, include_once: bool = False) -> int:
        """Set this scope's recorded steps aside (those after the step ``after``), so that they run again."""
        flow = self._session.rewind(self._path, reason, after=after, include_once=include_once)
        return self._drive(flow)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class AsyncScope(Place):
    """The same for an event loop. A call takes its place in the run when it is made, not when awaited."""

    def __init__(self, session: Session, store: AsyncStore, checks: Checks, path: str = "") -> None:
        super().__init__(session, path)
        self._store = store
        self._checks = checks

    async def _drive(self, flow: Flow[T]) -> T:
        return await drive_async(flow, self._store, self._session.tenant)

    async def _perform(self, call: StepCall, once: bool) -> Any:
        recalled = self._session.recall(call)
        if recalled is not None:
            return recalled[0]
        return await drive_async(self._session.perform(call, once), self._store, self._session.tenant)

    @overload
    def step(self, function: Callable[..., Awaitable[T]], /, *args: Any, **options: Any) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(self, function: Callable[..., T], /, *args: Any, **options: Any) -> Coroutine[Any, Any, T]: ...
    def step(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        key: str | None = None,
        name: str | None = None,
        kind: str = "step",
        by: Literal["order", "input"] | None = None,
        inputs: Any = None,
        retry: Retry | int | None = None,
        record_errors: bool | tuple[type[Exception], ...] = False,
        on_drift: OnDrift | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Call ``function``; once it has finished, every later attempt gets the recorded result.

        ``inputs`` stands for the arguments where these hold what changes by itself (ids, times);
        ``by`` overrides whether the key comes from the order of calls or from the input.
        """
        call = self._plan_step(function, args, kwargs, key, name, kind, by, inputs, retry, record_errors, on_drift)
        return self._perform(call, once=False)

    @overload
    def once(self, function: Callable[..., Awaitable[T]], /, *args: Any, **options: Any) -> Coroutine[Any, Any, T]: ...
    @overload
    def once(self, function: Callable[..., T], /, *args: Any, **options: Any) -> Coroutine[Any, Any, T]: ...
    def once(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        key: str | None = None,
        name: str | None = None,
        by: Literal["order", "input"] | None = None,
        inputs: Any = None,
        on_in_doubt: OnInDoubt = "ask",
        retry_on: tuple[type[Exception], ...] = (),
        on_drift: OnDrift | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Call ``function`` at most once. If it started and was never confirmed, a person decides."""
        call = self._plan_once(function, args, kwargs, key, name, by, inputs, on_in_doubt, retry_on, on_drift)
        return self._perform(call, once=True)

    def map(
        self,
        function: Callable[[I], Any],
        items: Iterable[I] | AsyncIterable[I],
        *,
        key: str | None = None,
        name: str | None = None,
        concurrency: int = 1,
        ordered: bool = True,
        return_exceptions: bool = False,
        total: int | None = None,
        progress: bool | None = None,
        on_drift: OnDrift | None = None,
    ) -> AsyncIterator[Any]:
        """Call ``function`` for each item; finished items are not called again. A result that was
        yielded is durable."""
        call = self._map_call(function, key, name, concurrency, ordered, return_exceptions, total, progress, on_drift)
        return map_async(self._session, self._store, call, items)

    def ask(
        self,
        question: str,
        *,
        key: str | None = None,
        outcomes: list[str] | tuple[str, ...] = ("approved", "rejected"),
        evidence: Any = None,
        comment_required: bool = False,
        expires_in: float | None = None,
        default: str | None = None,
    ) -> Coroutine[Any, Any, Answer]:
        """Wait for a person, across restarts. The answer is true if it is the first outcome."""
        return self._drive(self._ask(question, key, outcomes, evidence, comment_required, expires_in, default))

    def checkpoint(
        self,
        state: Any,
        *,
        resources: Iterable[Resource] = (),
        pending: Iterable[str] = (),
        pin: str | None = None,
        keep: int = 10,
        key: str | None = None,
    ) -> Coroutine[Any, Any, int]:
        """Save a snapshot of your own; gives its version. ``run.restored`` has the last one after a crash."""
        return self._drive(self._checkpoint(state, resources, pending, pin, keep, key, self._checks))

    def scope(self, name: str) -> AsyncScope:
        """A part of the run with step keys of its own, such as a branch that runs in another task."""
        _, path = self._child(name)
        return AsyncScope(self._session, self._store, self._checks, path)

    def rewind(
        self, reason: str = "rewound", *, after: str | None = None, include_once: bool = False
    ) -> Coroutine[Any, Any, int]:
        """Set this scope's recorded steps aside (those after the step ``after``), so that they run again."""
        flow = self._session.rewind(self._path, reason, after=after, include_once=include_once)
        return self._drive(flow)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class _RunFace(Place):
    """What a run shows of itself, blocking or not."""

    _session: Session
    restored: Any = None
    verdict: Verdict | None = None
    result: Any = None
    on_error: Literal["hand_back", "fail"] = "hand_back"

    @property
    def intent(self) -> Intent:
        """The intent that this run carries out, as this process last saw it."""
        return self._session.intent

    @property
    def run_id(self) -> str:
        """The name a person gave it, or else the intent's id."""
        return self._session.intent.run_id or self._session.intent.intent_id

    @property
    def intent_id(self) -> str:
        """The id of the intent; a revived run has a new one."""
        return self._session.intent.intent_id

    @property
    def attempt(self) -> int:
        """The number of this delivery, which fences every write."""
        return self._session.intent.attempt

    @property
    def payload(self) -> Any:
        """What the intent was sent with."""
        session = self._session
        data = session.intent.payload
        return None if data is None else session.codec.decode(data, bind=b"payload")

    @property
    def resumed(self) -> bool:
        """Whether an earlier attempt left something to go on from."""
        intent = self._session.intent
        return intent.attempt > 1 or intent.revived_from is not None

    @property
    def replaying(self) -> bool:
        """Whether the run is finished, so that calls only give what was recorded."""
        return self._session.replaying

    def complete(self, result: Any = None) -> None:
        """Set what the run gives; ``hf.wait_for`` and later opens see it."""
        self.result = result

    def steps(self) -> list[str]:
        """The keys recorded so far, in the order the run reached them."""
        journal = self._session.journal.values()
        return [s.key for s in sorted(journal, key=lambda s: s.position)]

    def poison(self, error: BaseException) -> None:
        """Make every later call of this run raise ``error``: for callers that must not raise where they stand."""
        self._session.poison = error

    def _leave(self, error: BaseException | None) -> Flow[None]:
        session = self._session
        if session.replaying:
            return
        if error is None:
            try:
                yield from session.end(Status.COMPLETED, result=self.result)
            except InvalidInput as refused:  # a result that cannot be stored: nothing was written
                yield from session.hand_back(refused)
                raise
        elif isinstance(error, Suspended) or session.poison is not None:
            return
        elif self.on_error == "fail" and isinstance(error, Exception) and not isinstance(error, HoldfastError):
            yield from session.end(Status.FAILED, error=error, reason=session.reason_of(error))
        else:
            yield from session.hand_back(error)


class Run(Scope, _RunFace):
    """A run that is open in this process. As a context manager: leaving it normally completes it,
    leaving it by an exception hands it back, so that the next start goes on where it stopped."""

    def restore(self, which: int | str = "current") -> Any:
        """The state of a checkpoint: *current*, *previous*, a pin such as *recovery*, or a version."""
        return self._drive(self._session.restore(which))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing(error)

    def _closing(self, error: BaseException | None) -> None:
        try:
            self._drive(self._leave(error))
        except HoldfastError as late:
            if error is None:
                raise
            error.add_note(f"and the run could not be handed back: {late}")
        finally:
            self._on_close(self)

    _on_close: Callable[[Any], None] = staticmethod(lambda _run: None)


class AsyncRun(AsyncScope, _RunFace):
    """The same on an event loop, with ``async with``."""

    async def restore(self, which: int | str = "current") -> Any:
        """The state of a checkpoint: *current*, *previous*, a pin such as *recovery*, or a version."""
        return await self._drive(self._session.restore(which))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._drive(self._leave(error))
        except HoldfastError as late:
            if error is None:
                raise
            error.add_note(f"and the run could not be handed back: {late}")
        finally:
            self._on_close(self)

    _on_close: Callable[[Any], None] = staticmethod(lambda _run: None)


def current_run() -> Run | AsyncRun | None:
    """The open run that the caller stands in, if any; contextvars carry it into tasks, not into threads."""
    frame = current_frame.get()
    face: Run | AsyncRun | None = None if frame is None else frame.session.face
    return face


def idempotency_key() -> str:
    """Inside a step: a key that stays the same over all attempts, to pass to a receiver that can use it."""
    frame = current_frame.get()
    if frame is None or not frame.scope:
        raise InvalidInput("idempotency_key() has a meaning only inside a step.")
    return frame.session.idempotency_key(frame.scope)

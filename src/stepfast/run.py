"""Run: what people write against, and what every adapter is built on."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, overload

from stepfast.deciding import current_frame
from stepfast.errors import InvalidInput, StepfastError, Suspension
from stepfast.flow import Flow, drive, drive_async
from stepfast.ledger import StepCall
from stepfast.mapping import map_async, map_sync
from stepfast.ops import Op
from stepfast.place import Place, RunFace, as_question
from stepfast.recovery import Checks, Resource
from stepfast.session import Session
from stepfast.steps import PLAIN, Answer, OnDrift, OnInDoubt, Order, Retry, StepOptions, step_options
from stepfast.stores.base import AsyncStore, Store

T = TypeVar("T")
P = ParamSpec("P")
I = TypeVar("I")  # noqa: E741 - the type of a map's items

__all__ = [
    "AsyncRun",
    "AsyncScope",
    "AsyncStepCalls",
    "Run",
    "Scope",
    "StepCalls",
    "current_run",
    "idempotency_key",
]


class Scope(Place):
    """A named part of a run, with keys of its own; the run itself is the outermost one."""

    def __init__(self, session: Session, store: Store, checks: Checks, path: str = "") -> None:
        super().__init__(session, path)
        self._store = store
        self._checks = checks

    def drive(self, flow: Flow[T]) -> T:
        """Run a flow, such as that of ``performing``, and return its value."""
        return drive(flow, self._store, self._session.tenant)

    def _perform(self, call: StepCall, once: bool) -> Any:
        recalled = self._session.recall(call)
        if recalled is not None:
            return recalled[0]
        return drive(self._session.perform(call, once), self._store, self._session.tenant)

    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function``; once it has finished, every later attempt gets the recorded result.

        All arguments are the function's own; options are given with ``options``.
        """
        return self._perform(self._plan_step(function, args, kwargs, PLAIN), once=False)  # type: ignore[no-any-return]

    def once(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``function`` at most once. If it started and was never confirmed, a person decides."""
        return self._perform(self._plan_once(function, args, kwargs, PLAIN), once=True)  # type: ignore[no-any-return]

    def options(
        self,
        *,
        key: str | None = None,
        name: str | None = None,
        kind: str = "step",
        by: Order | None = None,
        inputs: Any = None,
        retry: Retry | int | None = None,
        record_errors: bool | tuple[type[Exception], ...] = False,
        on_drift: OnDrift | None = None,
        on_in_doubt: OnInDoubt = "ask",
        retry_on: tuple[type[Exception], ...] = (),
        renamed_from: str | None = None,
    ) -> StepCalls:
        """Return this scope with options for the steps that are made through it.

        ``run.options(key="k1", retry=3).step(f, …)``: all of ``step``'s own arguments belong to the function.

        ``key`` names the step yourself, ``name`` is shown instead of the function's, ``by`` overrides whether the key
        comes from the order of calls or from the input, ``inputs`` stands for the arguments where these hold what
        changes by itself (ids, times), ``renamed_from`` is the name under which earlier code recorded the step. For
        ``step``: ``kind``, ``retry``, ``record_errors``. For ``once``: ``on_in_doubt`` (*ask*, *retry*, *fail* or a
        probe), ``retry_on`` (exceptions that say nothing happened).
        """
        chosen = step_options(
            key=key,
            name=name,
            kind=kind,
            by=by,
            inputs=inputs,
            retry=retry,
            record_errors=record_errors,
            on_drift=on_drift,
            on_in_doubt=on_in_doubt,
            retry_on=retry_on,
            renamed_from=renamed_from,
        )
        return StepCalls(self, chosen)

    def patched(self, name: str) -> bool:
        """Whether the code behind a change is to be used: False for a run that had passed this point before it.

        ``if run.patched("new-mail"): …new code… else: …old code…``. A run that comes here for the first time takes the
        new way and records that it did, so every later attempt goes the same way.
        """
        return self.drive(self._patched(name))

    def record(
        self, value: T, *, key: str, name: str | None = None, kind: str = "step", also: Sequence[Op[Any]] = ()
    ) -> T:
        """Record a value as a step, in one transaction with the operations ``also``: both, or neither.

        Where the key is recorded already, nothing is done and the recorded value comes back.
        """
        return self.drive(self._record(value, key, name, kind, also))  # type: ignore[no-any-return]

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
        asked = as_question(
            question,
            key=key,
            outcomes=outcomes,
            evidence=evidence,
            comment_required=comment_required,
            expires_in=expires_in,
            default=default,
        )
        return self.drive(self._ask(asked))

    def pose(
        self,
        question: str,
        *,
        key: str | None = None,
        outcomes: list[str] | tuple[str, ...] = ("approved", "rejected"),
        evidence: Any = None,
        comment_required: bool = False,
        expires_in: float | None = None,
        default: str | None = None,
    ) -> Answer | None:
        """Put a question on record without waiting; its answer if there is one. ``ask`` with the same key waits."""
        asked = as_question(
            question,
            key=key,
            outcomes=outcomes,
            evidence=evidence,
            comment_required=comment_required,
            expires_in=expires_in,
            default=default,
        )
        return self.drive(self._put_question(asked, wait=False))

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
        return self.drive(self._checkpoint(state, resources, pending, pin, keep, key, self._checks))

    def scope(self, name: str, *, shared: bool = False) -> Scope:
        """A part of the run with step keys of its own, such as a branch that runs in another thread.

        ``shared``: the one of that name, however often and from wherever it is opened; for steps with explicit keys.
        """
        return Scope(self._session, self._store, self._checks, self._child(name, shared))

    def rewind(self, reason: str = "rewound", *, after: str | None = None, include_once: bool = False) -> int:
        """Set this scope's recorded steps aside (those after the step ``after``), so that they run again."""
        return self.drive(self._rewind(reason, after, include_once))

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

    def drive(self, flow: Flow[T]) -> Coroutine[Any, Any, T]:
        """Run a flow, such as that of ``performing``, and return its value."""
        return drive_async(flow, self._store, self._session.tenant)

    async def _perform(self, call: StepCall, once: bool) -> Any:
        recalled = self._session.recall(call)
        if recalled is not None:
            return recalled[0]
        return await drive_async(self._session.perform(call, once), self._store, self._session.tenant)

    @overload
    def step(
        self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...
    def step(self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Any]:
        """Call ``function``; once it has finished, every later attempt gets the recorded result.

        All arguments are the function's own; options are given with ``options``.
        """
        return self._perform(self._plan_step(function, args, kwargs, PLAIN), once=False)

    @overload
    def once(
        self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def once(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...
    def once(self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Any]:
        """Call ``function`` at most once. If it started and was never confirmed, a person decides."""
        return self._perform(self._plan_once(function, args, kwargs, PLAIN), once=True)

    def options(
        self,
        *,
        key: str | None = None,
        name: str | None = None,
        kind: str = "step",
        by: Order | None = None,
        inputs: Any = None,
        retry: Retry | int | None = None,
        record_errors: bool | tuple[type[Exception], ...] = False,
        on_drift: OnDrift | None = None,
        on_in_doubt: OnInDoubt = "ask",
        retry_on: tuple[type[Exception], ...] = (),
        renamed_from: str | None = None,
    ) -> AsyncStepCalls:
        """Return this scope with options for the steps that are made through it.

        ``run.options(key="k1", retry=3).step(f, …)``: all of ``step``'s own arguments belong to the function.

        ``key`` names the step yourself, ``name`` is shown instead of the function's, ``by`` overrides whether the key
        comes from the order of calls or from the input, ``inputs`` stands for the arguments where these hold what
        changes by itself (ids, times), ``renamed_from`` is the name under which earlier code recorded the step. For
        ``step``: ``kind``, ``retry``, ``record_errors``. For ``once``: ``on_in_doubt`` (*ask*, *retry*, *fail* or a
        probe), ``retry_on`` (exceptions that say nothing happened).
        """
        chosen = step_options(
            key=key,
            name=name,
            kind=kind,
            by=by,
            inputs=inputs,
            retry=retry,
            record_errors=record_errors,
            on_drift=on_drift,
            on_in_doubt=on_in_doubt,
            retry_on=retry_on,
            renamed_from=renamed_from,
        )
        return AsyncStepCalls(self, chosen)

    def patched(self, name: str) -> Coroutine[Any, Any, bool]:
        """Whether the code behind a change is to be used: False for a run that had passed this point before it.

        ``if run.patched("new-mail"): …new code… else: …old code…``. A run that comes here for the first time takes the
        new way and records that it did, so every later attempt goes the same way.
        """
        return self.drive(self._patched(name))

    def record(
        self, value: T, *, key: str, name: str | None = None, kind: str = "step", also: Sequence[Op[Any]] = ()
    ) -> Coroutine[Any, Any, T]:
        """Record a value as a step, in one transaction with the operations ``also``: both, or neither.

        Where the key is recorded already, nothing is done and the recorded value comes back.
        """
        return self.drive(self._record(value, key, name, kind, also))

    @overload
    def map(
        self,
        function: Callable[[I], Awaitable[T]],
        items: Iterable[I] | AsyncIterable[I],
        *,
        key: str | None = ...,
        name: str | None = ...,
        concurrency: int = ...,
        ordered: bool = ...,
        return_exceptions: bool = ...,
        total: int | None = ...,
        progress: bool | None = ...,
        on_drift: OnDrift | None = ...,
    ) -> AsyncIterator[T]: ...
    @overload
    def map(
        self,
        function: Callable[[I], T],
        items: Iterable[I] | AsyncIterable[I],
        *,
        key: str | None = ...,
        name: str | None = ...,
        concurrency: int = ...,
        ordered: bool = ...,
        return_exceptions: bool = ...,
        total: int | None = ...,
        progress: bool | None = ...,
        on_drift: OnDrift | None = ...,
    ) -> AsyncIterator[T]: ...
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
        asked = as_question(
            question,
            key=key,
            outcomes=outcomes,
            evidence=evidence,
            comment_required=comment_required,
            expires_in=expires_in,
            default=default,
        )
        return self.drive(self._ask(asked))

    def pose(
        self,
        question: str,
        *,
        key: str | None = None,
        outcomes: list[str] | tuple[str, ...] = ("approved", "rejected"),
        evidence: Any = None,
        comment_required: bool = False,
        expires_in: float | None = None,
        default: str | None = None,
    ) -> Coroutine[Any, Any, Answer | None]:
        """Put a question on record without waiting; its answer if there is one. ``ask`` with the same key waits."""
        asked = as_question(
            question,
            key=key,
            outcomes=outcomes,
            evidence=evidence,
            comment_required=comment_required,
            expires_in=expires_in,
            default=default,
        )
        return self.drive(self._put_question(asked, wait=False))

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
        return self.drive(self._checkpoint(state, resources, pending, pin, keep, key, self._checks))

    def scope(self, name: str, *, shared: bool = False) -> AsyncScope:
        """A part of the run with step keys of its own, such as a branch that runs in another task.

        ``shared``: the one of that name, however often and from wherever it is opened; for steps with explicit keys.
        """
        return AsyncScope(self._session, self._store, self._checks, self._child(name, shared))

    def rewind(
        self, reason: str = "rewound", *, after: str | None = None, include_once: bool = False
    ) -> Coroutine[Any, Any, int]:
        """Set this scope's recorded steps aside (those after the step ``after``), so that they run again."""
        return self.drive(self._rewind(reason, after, include_once))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class StepCalls:
    """A scope with options for the steps that are made through it; made by ``scope.options``."""

    def __init__(self, scope: Scope, options: StepOptions) -> None:
        self._scope = scope
        self._options = options

    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a step with these options."""
        scope = self._scope
        call = scope._plan_step(function, args, kwargs, self._options.for_step())
        return scope._perform(call, once=False)  # type: ignore[no-any-return]

    def once(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a one-shot step with these options."""
        scope = self._scope
        call = scope._plan_once(function, args, kwargs, self._options.for_once())
        return scope._perform(call, once=True)  # type: ignore[no-any-return]


class AsyncStepCalls:
    """The same for an event loop."""

    def __init__(self, scope: AsyncScope, options: StepOptions) -> None:
        self._scope = scope
        self._options = options

    @overload
    def step(
        self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...
    def step(self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Any]:
        """Make a step with these options."""
        scope = self._scope
        return scope._perform(scope._plan_step(function, args, kwargs, self._options.for_step()), once=False)

    @overload
    def once(
        self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def once(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...
    def once(self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Any]:
        """Make a one-shot step with these options."""
        scope = self._scope
        return scope._perform(scope._plan_once(function, args, kwargs, self._options.for_once()), once=True)


class Run(Scope, RunFace):
    """A run that is open in this process. As a context manager: leaving it normally completes it,
    leaving it by an exception hands it back, so that the next start goes on where it stopped."""

    @property
    def store(self) -> Store:
        """The store that this run is in, for who keeps more beside it."""
        return self._store

    def restore(self, which: int | str = "current") -> Any:
        """The state of a checkpoint: *current*, *previous*, a pin such as *recovery*, or a version."""
        return self.drive(self._session.restore(which))

    def settle(self) -> int:
        """Settle one-shot steps that were left open, as opening the run would; gives how many there were."""
        return self.drive(self._session.settle_doubts())

    def report(self, doing: str, *, step: int | None = None, every: float = 1.0) -> None:
        """Say where the run is: ``intents list``, ``get`` and ``watch`` show it. Raises if the run is no longer ours.

        Call it as often as you like: it writes at most once in ``every`` seconds, and more seldom in a long run.
        """
        self.drive(self.reporting(doing, step=step, every=every))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing(error)
        if (waits := self._as_seen_outside(error)) is not None:
            raise waits from waits.__cause__

    def _closing(self, error: BaseException | None) -> None:
        try:
            self.drive(self._leave(error))
        except Suspension as late:  # the block has caught the signal and left as if nothing were
            raise late.as_error() from None
        except StepfastError as late:
            if error is None:
                raise
            error.add_note(f"and the run could not be handed back: {late}")
        finally:
            self._on_close(self)

    _on_close: Callable[[Any], None] = staticmethod(lambda _run: None)


class AsyncRun(AsyncScope, RunFace):
    """The same on an event loop, with ``async with``."""

    @property
    def store(self) -> Store:
        """The store that this run is in, for who keeps more beside it."""
        return self._store.store

    async def restore(self, which: int | str = "current") -> Any:
        """The state of a checkpoint: *current*, *previous*, a pin such as *recovery*, or a version."""
        return await self.drive(self._session.restore(which))

    async def settle(self) -> int:
        """Settle one-shot steps that were left open, as opening the run would; gives how many there were."""
        return await self.drive(self._session.settle_doubts())

    async def report(self, doing: str, *, step: int | None = None, every: float = 1.0) -> None:
        """Say where the run is: ``intents list``, ``get`` and ``watch`` show it. Raises if the run is no longer ours.

        Call it as often as you like: it writes at most once in ``every`` seconds, and more seldom in a long run.
        """
        await self.drive(self.reporting(doing, step=step, every=every))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.drive(self._leave(error))
        except Suspension as late:  # the block has caught the signal and left as if nothing were
            raise late.as_error() from None
        except StepfastError as late:
            if error is None:
                raise
            error.add_note(f"and the run could not be handed back: {late}")
        finally:
            self._on_close(self)
        if (waits := self._as_seen_outside(error)) is not None:
            raise waits from waits.__cause__

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

"""Opening a durable run around a crew or a flow, blocking and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from typing import Any, NamedTuple, TypeVar

from stepfast import AsyncRun, InvalidInput, NotFound, Run, Suspended, Waiting, current_run
from stepfast.adapters import (
    LazyStore,
    OnDrift,
    OnInDoubt,
    OnWait,
    PolicyLike,
    Prices,
    Settings,
    StoreLike,
    StoreOwner,
    apart,
    apart_async,
    flag,
)
from stepfast.faces import awaited
from stepfast.inputs import name as checked_name

from ._people import people
from ._place import CrewAttempt, Place, standing
from ._record import RECORD, check
from ._requests import Normaliser
from ._seams import install_seams

_FRAMEWORK = "crewai"
S = TypeVar("S")


class Options(NamedTuple):
    """What `durable` was called with."""

    run_id: str | None = None
    store: StoreLike = None
    on_in_doubt: OnInDoubt = "ask"
    policies: Mapping[str, PolicyLike] | None = None
    on_drift: OnDrift = "raise"
    on_wait: OnWait = "suspend"
    labels: Mapping[str, str] | None = None
    prices: Prices | None = None
    normalise: Normaliser | None = None
    redact: Normaliser | None = None
    mirror: bool = True
    max_delivery_attempts: int | None = None
    wait: float | None = None


class Opened:
    """An open run: the inputs that it was begun with, and what it returns in the end."""

    def __init__(self, run: Run | AsyncRun, place: Place, inputs: Any) -> None:
        self.run = run
        self.place = place
        self.inputs = inputs
        self.result: Any = None


class Durable(StoreOwner):
    """What a durable crew and a durable flow share."""

    def __init__(self, name: str, options: Options) -> None:
        for option in ("normalise", "redact"):
            given = getattr(options, option)
            if given is not None and not callable(given):
                raise InvalidInput(f"{option}: must be a function, not {given!r}.")
        install_seams()
        self._name = name
        self._run_id = checked_name("run_id", options.run_id, optional=True)
        self._normalise = options.normalise
        self._redact = options.redact
        self._mirror = flag("mirror", options.mirror)
        self._settings = Settings(
            on_in_doubt=options.on_in_doubt,
            policies=options.policies,
            on_drift=options.on_drift,
            on_wait=options.on_wait,
            labels=options.labels,
            prices=options.prices,
            max_delivery_attempts=options.max_delivery_attempts,
            wait=options.wait,
        )
        self._store = LazyStore(options.store)

    def rewind(self, step: str, run_id: str | None = None, *, include_once: bool = False) -> int:
        """``sf.rewind`` in this store: set a step and all after it aside, so that they are done again."""
        return self._store.get().client().rewind(self._named(run_id), step, include_once=include_once)

    def _named(self, run_id: str | None) -> str:
        named = run_id or self._run_id
        if named is None:
            raise InvalidInput("run_id: a durable run needs a name, by which it is found again; pass run_id=….")
        return named

    def _options(self, record: dict[str, Any]) -> dict[str, Any]:
        # Without the inputs: those are compared where `on_drift` has its say.
        return {
            "payload": {record["kind"]: self._name},
            **self._settings.run_options(_FRAMEWORK, **{record["kind"]: self._name}),
        }

    def _begun(self, attempt: CrewAttempt, record: dict[str, Any], kept: Any, recorded: dict[str, Any]) -> Opened:
        """Compare what the run was begun with; of the inputs, those that the caller has passed still have secrets."""
        check(recorded, kept, self._settings.on_drift, attempt.run.run_id)
        inputs = recorded["inputs"]
        if kept["inputs"] == inputs:
            inputs = record["inputs"]
        elif recorded.get("redacted"):
            raise InvalidInput(
                "inputs: redact= has taken a part of the recorded ones out of the store; pass them again."
            )
        return Opened(attempt.run, Place(attempt, attempt.run), inputs)

    def _kept(self, attempt: CrewAttempt, record: dict[str, Any]) -> dict[str, Any]:
        kept: dict[str, Any] = attempt.redacted(record)
        return kept if kept["inputs"] == record["inputs"] else {**kept, "redacted": True}

    # --- blocking ----------------------------------------------------------------------------------

    @contextmanager
    def _opening(self, record: dict[str, Any], run_id: str | None, run: Run | None) -> Iterator[Opened]:
        """Open the run, stand in it, and complete it with the result that is set in the block."""
        given = run or (None if run_id or self._run_id else current_run())
        if given is not None and not isinstance(given, Run):
            raise InvalidInput("run: this is a run for an event loop; call akickoff.")
        opening: AbstractContextManager[Run]
        if given is None:
            opening = self._store.get().client().run(self._named(run_id), **self._options(record))
        else:
            opening = nullcontext(given)
        with opening as opened:
            attempt = CrewAttempt(opened, self._settings, self._normalise, self._redact, self._mirror)
            kept = self._kept(attempt, record)
            recorded = opened.record(kept, key=f"{_FRAMEWORK}.{self._name}.{RECORD}")
            found = self._begun(attempt, record, kept, recorded)
            with attempt.concluding():
                try:
                    with standing.standing(found.place), people(), attempt.mirror.listening():
                        yield found
                finally:
                    attempt.settled()
                    opened.drive(attempt.mirror.writing(last=True))
            if given is None and not opened.replaying:
                usage = opened.drive(attempt.meter.complete(opened))
                opened.complete({**attempt.redacted(summary(found.result)), "usage": usage.as_dict()})

    def _waiting(self, waits: Suspended) -> Waiting:
        """Return what a run waits for where the caller wants it returned; raise it otherwise."""
        if self._settings.on_wait == "return":
            with suppress(NotFound):
                return self._store.get().client().waiting(waits)
        raise waits

    def _stream(self, kind: type[S], take: str, opening: Any, go: Callable[[Any], Any]) -> S:
        """Return a stream of CrewAI's that opens the run when it is iterated, and has the run's result at its end."""

        def pieces() -> Generator[Any]:
            try:
                with self._opening(*opening) as opened:
                    opened.place.attempt.threaded = True
                    inner = go(opened.inputs)
                    yield from inner
                    opened.result = getattr(inner, take)
                finish(opened.result)
            except Suspended as waits:
                finish(self._waiting(waits))

        stream: Any = kind(sync_iterator=apart(copy_context(), pieces()))  # type: ignore[call-arg]
        finish = getattr(stream, f"_set_{take}")
        return stream  # type: ignore[no-any-return]

    # --- awaited -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _aopening(
        self, record: dict[str, Any], run_id: str | None, run: Run | AsyncRun | None
    ) -> AsyncIterator[Opened]:
        """`_opening` for an event loop."""
        given = run or (None if run_id or self._run_id else current_run())
        opening: Any = nullcontext(given)
        if given is None:
            opening = self._store.get().aclient().run(self._named(run_id), **self._options(record))
        async with opening as opened:
            attempt = CrewAttempt(opened, self._settings, self._normalise, self._redact, self._mirror)
            kept = self._kept(attempt, record)
            recorded = await awaited(opened).record(kept, key=f"{_FRAMEWORK}.{self._name}.{RECORD}")
            found = self._begun(attempt, record, kept, recorded)
            with attempt.concluding():
                try:
                    with standing.standing(found.place), people(), attempt.mirror.listening():
                        yield found
                finally:
                    await asyncio.shield(asyncio.to_thread(attempt.settled))
                    await awaited(opened).drive(attempt.mirror.writing(last=True))
            if given is None and not opened.replaying:
                usage = await opened.drive(attempt.meter.complete(opened))
                opened.complete({**attempt.redacted(summary(found.result)), "usage": usage.as_dict()})

    async def _awaiting(self, waits: Suspended) -> Waiting:
        if self._settings.on_wait == "return":
            with suppress(NotFound):
                return await self._store.get().aclient().waiting(waits)
        raise waits

    def _astream(self, kind: type[S], take: str, opening: Any, go: Callable[[Any], Awaitable[Any]]) -> S:
        """`_stream` for an event loop."""

        async def pieces() -> AsyncGenerator[Any]:
            try:
                async with self._aopening(*opening) as opened:
                    inner = await go(opened.inputs)
                    async for piece in inner:
                        yield piece
                    opened.result = getattr(inner, take)
                finish(opened.result)
            except Suspended as waits:
                finish(await self._awaiting(waits))

        stream: Any = kind(async_iterator=apart_async(copy_context(), pieces()))  # type: ignore[call-arg]
        finish = getattr(stream, f"_set_{take}")
        return stream  # type: ignore[no-any-return]


def summary(result: Any) -> dict[str, Any]:
    """What is seen of a finished run from outside."""
    if isinstance(result, list):
        return {"results": [summary(each) for each in result]}
    raw = getattr(result, "raw", result)
    tasks = getattr(result, "tasks_output", None)
    return {"raw": raw if isinstance(raw, str) else str(raw), **({} if tasks is None else {"tasks": len(tasks)})}

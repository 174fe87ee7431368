"""The same by decorators, for people who prefer them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, TypeVar, overload

from stepfast import inputs as check
from stepfast.async_client import AsyncStepfast
from stepfast.client import Stepfast
from stepfast.codec import Codec
from stepfast.core import check_run_options
from stepfast.errors import InvalidInput, NotFound, Suspended
from stepfast.run import AsyncRun, current_run
from stepfast.steps import name_of, step_options

F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["durable", "once", "step"]


@overload
def step(function: F, /) -> F: ...
@overload
def step(**options: Any) -> Callable[[F], F]: ...
def step(function: Any = None, /, **options: Any) -> Any:
    """Make calls of a function steps of the run they happen in; outside of a run it is a plain function.

    Takes the options of ``run.step``: ``name``, ``kind``, ``retry``, ``record_errors``, ``on_drift`` …
    """
    return _wrap(function, "step", options)


@overload
def once(function: F, /) -> F: ...
@overload
def once(**options: Any) -> Callable[[F], F]: ...
def once(function: Any = None, /, **options: Any) -> Any:
    """The same for one-shot steps. Outside of a run it refuses: there, nothing would guard it."""
    return _wrap(function, "once", options)


def _wrap(function: Any, method: str, options: dict[str, Any]) -> Any:
    if function is None:
        return functools.partial(_wrap, method=method, options=options)
    if not callable(function):
        raise InvalidInput(f"@{method} takes a function, not {function!r}.")
    check.known(options, step_options)
    checked = step_options(**options)
    checked.for_once() if method == "once" else checked.for_step()
    awaits = inspect.iscoroutinefunction(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        run = current_run()
        if run is None:
            if method == "once":
                raise InvalidInput(f"{name_of(function)} is a one-shot step; call it inside a run.")
            return function(*args, **kwargs)
        if awaits != isinstance(run, AsyncRun) and awaits:
            raise InvalidInput(f"{name_of(function)} is a coroutine function; use it in a run of AsyncStepfast.")
        target = functools.partial(function, **kwargs) if kwargs else function
        return getattr(run.options(**options) if options else run, method)(target, *args)

    if awaits:

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            return await call(*args, **kwargs)

        return call_async
    return call


@overload
def durable(function: F, /) -> F: ...
@overload
def durable(
    *,
    run_id: str | Callable[..., str] | None = None,
    client: Stepfast | AsyncStepfast | None = None,
    on_wait: Literal["block", "suspend", "return"] = "block",
    **options: Any,
) -> Callable[[F], F]: ...
def durable(
    function: Any = None,
    /,
    *,
    run_id: str | Callable[..., str] | None = None,
    client: Stepfast | AsyncStepfast | None = None,
    on_wait: Literal["block", "suspend", "return"] = "block",
    **options: Any,
) -> Any:
    """Make each call of a function a run, whose result is the run's result.

    ``run_id`` is a template over the arguments (``"etl-{source}"``) or a function of them; without
    it the function's name and a fingerprint of its arguments are the id, so the same call is the same
    run. A finished run gives its recorded result at once. ``client`` defaults to an embedded store,
    opened at the first call. The other options are those of ``sf.run``.

    ``on_wait`` says what a call does while its run waits for a person: *block* waits in this process, *suspend* raises
    `Suspended`, and *return* returns a `Waiting` with the open questions, each time the function is called.
    """
    if run_id is not None and not callable(run_id):
        check.name("run_id", run_id)
    if client is not None and not isinstance(client, Stepfast | AsyncStepfast):
        raise InvalidInput(f"client: must be a Stepfast or an AsyncStepfast, not {client!r}.")
    check.choice("on_wait", on_wait, ("block", "suspend", "return"))
    check.known(options, check_run_options)
    check_run_options(**options)
    if function is None:
        return functools.partial(durable, run_id=run_id, client=client, on_wait=on_wait, **options)
    options["on_wait"] = "block" if on_wait == "block" else "suspend"
    signature = inspect.signature(check.function("function", function))

    def name_run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if callable(run_id):
            return run_id(*args, **kwargs)
        if run_id is not None:
            return run_id.format(**bound.arguments)
        fingerprint = Codec().fingerprint((dict(bound.arguments),), {})[0].hex()
        return f"{name_of(function)}-{fingerprint[:16]}"

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            sf = client if client is not None else _default(AsyncStepfast)
            if not isinstance(sf, AsyncStepfast):
                raise InvalidInput("client: a coroutine function needs an AsyncStepfast.")
            try:
                async with sf.run(name_run(args, kwargs), **options) as run:
                    if not run.replaying:
                        run.complete(await function(*args, **kwargs))
                    return run.result
            except Suspended as waits:
                if on_wait != "return":
                    raise
                with suppress(NotFound):  # of a run in another store, which the function had opened
                    return await sf.waiting(waits)
                raise

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        sf = client if client is not None else _default(Stepfast)
        if not isinstance(sf, Stepfast):
            raise InvalidInput("client: a plain function needs a Stepfast, not an AsyncStepfast.")
        try:
            with sf.run(name_run(args, kwargs), **options) as run:
                if not run.replaying:
                    run.complete(function(*args, **kwargs))
                return run.result
        except Suspended as waits:
            if on_wait != "return":
                raise
            with suppress(NotFound):  # of a run in another store, which the function had opened
                return sf.waiting(waits)
            raise

    return call


_defaults: dict[type[Any], Any] = {}


def _default(kind: type[Any]) -> Any:
    if kind not in _defaults:
        _defaults[kind] = kind()
    return _defaults[kind]

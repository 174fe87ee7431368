"""``stepfast worker``: a function of yours as the handler of an address."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from stepfast.cli.failures import Usage
from stepfast.cli.setup import Setup, command


def add(app: typer.Typer) -> None:
    command(app, "worker")(worker)


def worker(
    at: Setup,
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:FUNCTION", help="The handler, a function of (run, payload), plain or async."),
    ],
    agent: Annotated[str, typer.Option("--agent", help="The address whose intents it handles.")],
    concurrency: Annotated[int, typer.Option(min=1, help="Intents at a time.")] = 1,
    retry_seconds: Annotated[float, typer.Option(min=0, help="The pause after a failed attempt; it doubles.")] = 1.0,
    retry_max_seconds: Annotated[float, typer.Option(min=0, help="The longest pause.")] = 300.0,
    drain_seconds: Annotated[float, typer.Option(min=0, help="How long handlers may take to end on SIGTERM.")] = 30.0,
) -> None:
    """Handle the intents of an address until SIGTERM or Ctrl-C; a second one hands the work back at once.

    Modules are looked for in the current folder first. What the function returns is the result. Start as many as you
    like: each intent goes to one of them, and when one dies another goes on inside the same run.
    """
    function = load(target)
    if not at.debug:
        logging.getLogger("stepfast").setLevel(logging.INFO)
    options = {
        "concurrency": concurrency,
        "retry_seconds": retry_seconds,
        "retry_max_seconds": retry_max_seconds,
        "drain_seconds": drain_seconds,
    }
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        import asyncio

        asyncio.run(_work_async(at, function, agent, options))
    else:
        _work(at, function, agent, options)


def _work(at: Setup, function: Callable[..., Any], agent: str, options: dict[str, Any]) -> None:
    from stepfast.client import Stepfast

    with Stepfast(at.place or "", at.key) as sf:
        made = sf.worker(agent, **options)(function)
        _announce(sf.url, agent, function)
        made.run()


async def _work_async(at: Setup, function: Callable[..., Any], agent: str, options: dict[str, Any]) -> None:
    from stepfast.async_client import AsyncStepfast

    async with AsyncStepfast(at.place or "", at.key) as sf:
        made = sf.worker(agent, **options)(function)
        _announce(sf.url, agent, function)
        await made.run()


def _announce(url: str, agent: str, function: Callable[..., Any]) -> None:
    from stepfast.cli.out import note

    name = f"{function.__module__}:{getattr(function, '__qualname__', function)}"
    note(f"{name} works for {agent} on {url}. Ctrl-C stops it.")


def load(target: str) -> Callable[..., Any]:
    """The function that ``module:function`` names; the module may lie in the current folder."""
    from importlib import import_module

    module_name, colon, path = target.partition(":")
    if not colon or not module_name or not path:
        raise Usage(
            f"{target}: name the handler as MODULE:FUNCTION, such as pipeline:handle for handle() in pipeline.py."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise Usage(f"{module_name}: there is no such module here ({here}) nor where Python looks.") from None
        raise Usage(f"{module_name}: it imports {error.name}, which is not installed.") from error
    except Exception as error:
        raise Usage(f"{module_name}: importing it failed: {type(error).__name__}: {error}.") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise Usage(f"{target}: {module_name} has no {path}.")
        found = getattr(found, part)
    # One that the module already made a worker of another client is taken as the function it is.
    found = getattr(found, "function", found) if hasattr(found, "address") else found
    if not callable(found):
        raise Usage(f"{target}: is no function but {type(found).__name__}. It must take a run and its payload.")
    function: Callable[..., Any] = found
    return function

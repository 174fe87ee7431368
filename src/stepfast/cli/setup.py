"""What every command has: where the store is, the key, how to print, and the one way in which errors end it."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from stepfast.cli.failures import Missing, tell
from stepfast.cli.text import clean
from stepfast.errors import StepfastError

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="The store: sqlite:///file.db, postgresql://… or a server's http(s)://… [env: STEPFAST_URL; "
        "none: the embedded store]",
        show_default=False,
        rich_help_panel="Common options",
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        help="The key for a server. Better in the environment than on the command line. [env: STEPFAST_API_KEY]",
        show_default=False,
        rich_help_panel="Common options",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="JSON on stdout, and nothing else.", rich_help_panel="Common options")
]
NoColor = Annotated[
    bool, typer.Option("--no-color", help="No colours. [env: NO_COLOR]", rich_help_panel="Common options")
]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show tracebacks and the library's log.", rich_help_panel="Common options")
]

_COMMON: dict[str, tuple[Any, Any]] = {
    "url": (Url, None),
    "api_key": (ApiKey, None),
    "as_json": (AsJson, False),
    "no_color": (NoColor, False),
    "debug": (Debug, False),
}


@dataclass(frozen=True)
class Setup:
    """The common options, wherever on the command line they stood."""

    url: str | None = None
    api_key: str | None = None
    as_json: bool = False
    no_color: bool = False
    debug: bool = False

    def with_given(self, given: dict[str, Any]) -> Setup:
        """What stands behind the command wins over what stands before it."""
        return replace(self, **{name: value for name, value in given.items() if value})

    @property
    def place(self) -> str | None:
        """Where the store is; None is the embedded one."""
        return self.url or os.environ.get("STEPFAST_URL") or os.environ.get("AXME_BASE_URL") or None

    @property
    def key(self) -> str | None:
        """Only a server takes one."""
        if not self.remote:
            return None
        return self.api_key or os.environ.get("STEPFAST_API_KEY") or os.environ.get("AXME_API_KEY") or None

    @property
    def remote(self) -> bool:
        """Whether a server stands before the store."""
        return (self.place or "").startswith(("http://", "https://"))

    @property
    def color(self) -> bool:
        return not self.no_color and not os.environ.get("NO_COLOR")


def command(group: typer.Typer, name: str, **options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command of a group. It is given a `Setup` first; the common options are added to its own."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(ctx: typer.Context, **given: Any) -> None:
            common = {each: given.pop(each) for each in _COMMON}
            at = (ctx.obj or Setup()).with_given(common)
            set_up_logs(at)
            try:
                function(at, **given)
            except (typer.Exit, typer.Abort, KeyboardInterrupt, BrokenPipeError):
                raise
            except Exception as error:
                if at.debug:
                    raise
                raise typer.Exit(tell(_known(error), as_json=at.as_json)) from None

        hints = typing.get_type_hints(function, include_extras=True)
        own = list(inspect.signature(function).parameters.values())[1:]
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter("ctx", keyword, annotation=typer.Context)]
        parameters += [each.replace(kind=keyword, annotation=hints[each.name]) for each in own]
        parameters += [
            inspect.Parameter(each, keyword, default=default, annotation=kind)
            for each, (kind, default) in _COMMON.items()
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        group.command(name, **options)(run)
        return function

    return decorate


class _Plain(logging.Formatter):
    """Log lines hold what agents wrote, too."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record), lines=True)


# The extra that brings each optional package, by the name under which it is imported.
_EXTRAS = {
    "cryptography": "encryption",
    "httptools": "server",
    "httpx": "cli",
    "jsonschema": "server",
    "opentelemetry": "telemetry",
    "prometheus_client": "server",
    "psycopg": "postgres",
    "rich": "cli",
    "starlette": "server",
    "typer": "cli",
    "uvicorn": "server",
}


def set_up_logs(at: Setup) -> None:
    """Warnings, or with --debug all, on stderr; once in a process."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Plain("%(message)s"))
    logging.basicConfig(level=logging.DEBUG if at.debug else logging.WARNING, handlers=[handler])


def _known(error: Exception) -> Exception:
    """The error as it is told."""
    if isinstance(error, StepfastError | OSError | TimeoutError):
        return error
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("stepfast"):
        package = error.name.partition(".")[0]
        extra = _EXTRAS.get(package)
        remedy = f'Do: pip install "stepfast[{extra}]"' if extra else "It is not one of Stepfast's: install it."
        return Missing(f"this needs {package}. {remedy}")
    return StepfastError(f"this should not happen: {type(error).__name__}: {error}. Run it with --debug and report it.")

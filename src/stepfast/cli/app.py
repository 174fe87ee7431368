"""The commands, put together, and the one place where the process gets its exit code."""

from __future__ import annotations

import io
import sys
from typing import Any

import typer

from stepfast.cli import agents, doctor, intents, keys, scenarios, serve, tasks, threads, worker
from stepfast.cli.adapters import WithAdapters
from stepfast.cli.failures import FAILED, INTERRUPTED, OK, Usage, tell
from stepfast.cli.setup import ApiKey, AsJson, Debug, NoColor, Setup, Url, command

app = typer.Typer(
    name="stepfast",
    cls=WithAdapters,
    help="Crash recovery for agents: the server, workers, and a look into any store.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 it failed or a problem was found, 2 wrong usage, 3 not found, 4 refused, "
    "5 the store is unavailable.",
)


@app.callback()
def common(
    ctx: typer.Context,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
    no_color: NoColor = False,
    debug: Debug = False,
) -> None:
    ctx.obj = Setup(url, api_key, as_json, no_color, debug)


@command(app, "version")
def version(at: Setup) -> None:
    """Show the version of Stepfast and of what it runs on."""
    import platform

    from stepfast import __version__
    from stepfast.cli.out import say, show_json

    if at.as_json:
        show_json({"stepfast": __version__, "python": platform.python_version()})
    else:
        say(f"stepfast {__version__} (Python {platform.python_version()})")


serve.add(app)
worker.add(app)
app.add_typer(intents.group, name="intents")
app.add_typer(tasks.group, name="tasks")
app.add_typer(threads.group, name="threads")
app.add_typer(agents.group, name="agents")
app.add_typer(keys.group, name="keys")
app.add_typer(scenarios.group, name="scenarios")
doctor.add(app)


def run(arguments: list[str]) -> int:
    """Run a command line; gives the exit code."""
    as_json = "--json" in arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever the terminal cannot show must not end the command
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(arguments, prog_name="stepfast", standalone_mode=False)
    except typer.Abort:
        sys.stderr.write("Nothing was done.\n")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has gone; the interpreter must not complain of it either.
        sys.stdout = sys.stderr = open("/dev/null" if sys.platform != "win32" else "nul", "w")  # noqa: PTH123, SIM115
        return FAILED
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's own errors have it, from whichever click it brings
            raise
        return _usage(error, as_json)
    return code if isinstance(code, int) else OK


def _usage(error: Any, as_json: bool) -> int:
    message = error.format_message()
    if "\n" in message.strip():  # a group without a command: its help
        sys.stderr.write(message.rstrip() + "\n")
        return int(error.exit_code)
    path = error.ctx.command_path if getattr(error, "ctx", None) is not None else "stepfast"
    return tell(Usage(f"{message.rstrip('.')}. See: {path} --help"), as_json=as_json)

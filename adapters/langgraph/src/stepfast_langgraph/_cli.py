"""``stepfast langgraph``: the way in from the stock savers, and back."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from stepfast.cli.plugin import Problem, Setup, Usage, command, note, say, show_json

group = typer.Typer(help="LangGraph: move threads in from the stock savers, and out.", no_args_is_help=True)

_TELL_SECONDS = 1.0

Threads = Annotated[
    list[str] | None, typer.Option("--thread", help="Only this thread; may be given again. Default: all.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        help="module.Class: a class of yours that the values hold, and that may be built. May be given again.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Read everything, and write nothing.")]


@command(group, "import")
def import_threads(
    at: Setup,
    source: Annotated[
        str, typer.Option("--from", metavar="FILE|URL", help="The file of a SqliteSaver, or a PostgresSaver's URL.")
    ],
    target: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="The Stepfast store; the same as --url.")
    ] = None,
    thread: Threads = None,
    allow: Allow = None,
    dry_run: DryRun = False,
) -> None:
    """Bring threads in from a stock saver; they go on where they were.

    Nothing is changed there. What was cut off is started again; what is here already is left as it is.
    """
    from ._stock import open_stock
    from ._transfer import Held

    if target is not None and at.url is not None and target != at.url:
        raise Usage("--to, --url: are the same thing; give one.")
    classes = _classes(allow)
    names = [(each.__module__, each.__qualname__) for each in classes]
    with open_stock(source, "read", names) as there, _saver(at, target or at.place, classes) as saver:
        _transfer(at, there, None if dry_run else Held(saver), thread, dry_run)


@command(group, "export")
def export_threads(
    at: Setup,
    target: Annotated[
        str, typer.Option("--to", metavar="FILE|URL", help="A file for SqliteSaver, or a URL for PostgresSaver.")
    ],
    thread: Threads = None,
    allow: Allow = None,
    dry_run: DryRun = False,
) -> None:
    """Write threads of the store into a stock saver's database, whose tables are made if they are missing."""
    from ._stock import open_stock
    from ._transfer import Held

    classes = _classes(allow)
    with _saver(at, at.place, classes) as saver:
        if dry_run:
            _transfer(at, Held(saver), None, thread, dry_run)
            return
        with open_stock(target, "write") as there:
            _transfer(at, Held(saver), there, thread, dry_run)


def _saver(at: Setup, url: str | None, classes: list[type]) -> Any:
    from stepfast import KeyRing

    from ._types import make_codec
    from .saver import StepfastSaver

    remote = (url or "").startswith(("http://", "https://"))
    key = at.key or at.api_key if remote else None
    # Nobody follows with a checkpoint that the writes could be committed with.
    return StepfastSaver(url, codec=make_codec(KeyRing.from_env(), classes), api_key=key, gather_seconds=0)


def _classes(names: list[str] | None) -> list[type]:
    from importlib import import_module

    found: list[type] = []
    if names:
        sys.path.insert(0, str(Path.cwd()))
    for name in names or ():
        module, _, last = name.replace(":", ".").rpartition(".")
        try:
            made = getattr(import_module(module), last)
        except (ImportError, AttributeError, ValueError) as error:
            raise Usage(f"--allow: {name} cannot be imported: {error}.") from None
        if not isinstance(made, type):
            raise Usage(f"--allow: {name} is not a class.")
        found.append(made)
    return found


def _transfer(at: Setup, source: Any, target: Any, thread: list[str] | None, dry_run: bool) -> None:
    from ._transfer import transfer

    told = time.monotonic()

    def progress(thread_id: str, done: int, of: int) -> None:
        nonlocal told
        if not at.as_json and time.monotonic() - told >= _TELL_SECONDS:
            told = time.monotonic()
            note(f"{thread_id}: {done} of {of} checkpoints ({len(moved)} threads done)")

    moved: list[Any] = []
    for each in transfer(source, target, thread or (), progress=progress):
        moved.append(each)
        if at.as_json:
            continue
        if each.state == "failed":
            note(f"{each.thread_id}: failed: {each.error}")
        elif each.state == "went on there":
            note(f"{each.thread_id}: has gone on in the target since; left as it is there")
    failed = [each for each in moved if each.state == "failed"]
    checkpoints = sum(each.checkpoints for each in moved)
    if at.as_json:
        shown = [
            {
                "thread_id": each.thread_id,
                "state": each.state,
                "checkpoints": each.checkpoints,
                "writes": each.writes,
                **({"error": each.error} if each.error else {}),
            }
            for each in moved
        ]
        show_json({"dry_run": dry_run, "threads": shown, "checkpoints": checkpoints, "failed": len(failed)})
    else:
        word = "would be copied" if dry_run else "copied"
        copied = sum(each.state == "copied" for each in moved)
        there = sum(each.state not in ("copied", "failed") for each in moved)
        say(f"{copied} threads with {checkpoints} checkpoints {word}, {there} were there, {len(failed)} failed.")
    if failed:
        if at.as_json:
            raise typer.Exit(1)
        raise Problem(f"{len(failed)} of {len(moved)} threads were not copied; the lines above say why.")

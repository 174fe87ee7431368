"""Printing: tables and blocks for people, JSON for programs. All text that is not ours passes through `text`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from stepfast.cli.setup import Setup
from stepfast.cli.text import as_text, clean, plain, to_json

if TYPE_CHECKING:  # rich is loaded by the commands that draw
    from rich.console import Console

_SHORT = 12
_WIDEST = 10_000  # columns of a line that nobody looks at
_COLORS = {
    "COMPLETED": "green",
    "FAILED": "red",
    "TIMED_OUT": "red",
    "CANCELED": "yellow",
    "WAITING": "magenta",
    "IN_PROGRESS": "cyan",
    "DELIVERED": "cyan",
    "healthy": "green",
    "active": "green",
    "killed": "red",
    "revoked": "red",
}


def console(at: Setup, *, errors: bool = False) -> Console:
    from rich.console import Console

    return Console(
        file=sys.stderr if errors else sys.stdout,
        no_color=not at.color,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=True,
    )


def say(line: str) -> None:
    """One line on stdout, at once."""
    sys.stdout.write(clean(line) + "\n")
    sys.stdout.flush()


def show_json(value: Any) -> None:
    sys.stdout.write(to_json(value, indent=2) + "\n")
    sys.stdout.flush()


def note(line: str) -> None:
    """One line beside the output."""
    sys.stderr.write(clean(line) + "\n")
    sys.stderr.flush()


def table(at: Setup, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str) -> None:
    """Aligned columns; to a pipe they are whole, on a screen they are cut where they do not fit."""
    from rich.table import Table
    from rich.text import Text

    cells = [[Text(as_text(value, 200), style=_COLORS.get(str(value), "")) for value in row] for row in rows]
    if not cells:
        say(empty)
        return
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        widest = max(len(column), *(row[number].cell_len for row in cells))
        # What stands first is what people copy, and what is short says nothing when it is cut.
        whole = number == 0 or widest <= _SHORT
        drawn.add_column(column, overflow="ellipsis", no_wrap=True, min_width=widest if whole else _SHORT)
    for row in cells:
        drawn.add_row(*row)
    screen = console(at)
    if screen.is_terminal:
        screen.print(drawn)
        return
    screen.width = _WIDEST
    with screen.capture() as caught:
        screen.print(drawn)
    sys.stdout.write("".join(line.rstrip() + "\n" for line in caught.get().splitlines()))
    sys.stdout.flush()


def block(at: Setup, fields: Iterable[tuple[str, Any]]) -> None:
    """Name and value, a line each; values of several lines below their name. What is None is left out."""
    from rich.text import Text

    shown = [(name, value) for name, value in fields if value is not None and value not in ({}, [])]
    width = max((len(name) for name, _ in shown), default=0) + 2
    screen = console(at)
    for name, value in shown:
        line = Text(f"{name}:".ljust(width), style="bold")
        line.append(Text(_long(value, width), style=_COLORS.get(str(value), "")))
        screen.print(line)


def _long(value: Any, indent: int) -> str:
    if isinstance(value, str):
        text = value
    elif isinstance(value, dict | list):
        import json

        text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=2)
    else:
        text = as_text(value, 2000)
    return clean(text, lines=True).replace("\n", "\n" + " " * indent)


def age(moment: str | None, now: datetime | None = None) -> str:
    """How long ago, in the largest unit that is not zero."""
    if not moment:
        return "-"
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(moment)).total_seconds()
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"

"""What an adapter's commands are made of: the public side of the command line.

A distribution adds ``stepfast NAME …`` by an entry point of the group ``stepfast.commands``: NAME = a ``typer.Typer``.
It is loaded when somebody calls it, or asks for help.
"""

from __future__ import annotations

from stepfast.cli.failures import Missing, Problem, Usage
from stepfast.cli.inputs import moment, pairs, read_json, read_object, span
from stepfast.cli.out import age, block, note, say, show_json, table
from stepfast.cli.reach import open_client
from stepfast.cli.setup import Setup, command

__all__ = [
    "Missing",
    "Problem",
    "Setup",
    "Usage",
    "age",
    "block",
    "command",
    "moment",
    "note",
    "open_client",
    "pairs",
    "read_json",
    "read_object",
    "say",
    "show_json",
    "span",
    "table",
]

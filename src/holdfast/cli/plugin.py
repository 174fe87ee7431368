"""What an adapter's commands are made of: the public side of the command line.

A distribution adds ``holdfast NAME …`` by an entry point of the group ``holdfast.commands``: NAME = a ``typer.Typer``.
It is loaded when somebody calls it, or asks for help.
"""

from __future__ import annotations

from holdfast.cli.failures import Missing, Problem, Usage
from holdfast.cli.inputs import moment, pairs, read_json, read_object, span
from holdfast.cli.out import age, block, note, say, show_json, table
from holdfast.cli.reach import open_client
from holdfast.cli.setup import Setup, command

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

"""docs/cli.md names every command and every option, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from stepfast.cli.app import app
from stepfast.cli.setup import _COMMON

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
_EVERYWHERE = {*_COMMON, "help"}


def commands(command: Any, path: str = "stepfast") -> dict[str, list[str]]:
    """Each command with its own options."""
    if hasattr(command, "commands"):
        return {
            name: options
            for word, inner in command.commands.items()
            for name, options in commands(inner, f"{path} {word}").items()
        }
    return {
        path: [
            word
            for parameter in command.params
            if parameter.name not in _EVERYWHERE
            for word in (*parameter.opts, *parameter.secondary_opts)
            if word.startswith("-")
        ]
    }


def sections() -> dict[str, str]:
    parts = re.split(r"^### `(stepfast [a-z ]+)`$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_command_has_its_section() -> None:
    assert set(sections()) == set(commands(typer.main.get_command(app)))


def test_every_option_is_in_the_section_of_its_command() -> None:
    found = sections()
    missing = [
        f"{name} {option}"
        for name, options in commands(typer.main.get_command(app)).items()
        for option in options
        if f"`{option}`" not in found[name] and f" {option}" not in found[name]
    ]
    assert missing == []


def test_every_option_of_a_section_exists() -> None:
    real = commands(typer.main.get_command(app))
    common = {"--url", "--json", "--yes", "--api-key"}
    wrong = [
        f"{name} {option}"
        for name, text in sections().items()
        for option in re.findall(r"`(--[a-z-]+)`", text.partition("\n## ")[0])
        if option not in real[name] and option not in common
    ]
    assert wrong == []


def test_the_common_options_and_exit_codes_are_there() -> None:
    for option in ("--url", "--api-key", "--json", "--no-color", "--debug"):
        assert f"| `{option}` |" in PAGE
    for code in range(6):
        assert f"\n| {code} | " in PAGE

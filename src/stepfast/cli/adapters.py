"""The commands that installed adapters add, each loaded when it is called."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from stepfast.cli.failures import Missing

GROUP = "stepfast.commands"
# Names that mean an adapter also where it is not installed; the extra that installs it has the same name.
KNOWN = frozenset({"langgraph"})


def installed() -> dict[str, EntryPoint]:
    """What adapters offer, by name; the first of two with one name."""
    found: dict[str, EntryPoint] = {}
    for each in entry_points(group=GROUP):
        found.setdefault(each.name, each)
    return found


class WithAdapters(TyperGroup):
    """Its own commands first, so that no adapter takes the place of one."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *sorted(name for name in installed() if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        offered = installed().get(cmd_name)
        if offered is not None:
            return _load(offered)
        return _absent(cmd_name) if cmd_name in KNOWN else None


def _load(offered: EntryPoint) -> Any:
    try:
        around = typer.Typer(add_completion=False, rich_markup_mode=None)  # so that its help looks like ours
        around.add_typer(offered.load(), name=offered.name)
        around.callback()(lambda: None)
        return typer.main.get_command(around).commands[offered.name]  # type: ignore[attr-defined]
    except Exception as error:  # an adapter that is broken must not break the other commands, nor the help
        whose = offered.dist.name if offered.dist is not None else offered.value
        why = f"{type(error).__name__}: {error}"
        told = Missing(f"the commands of {whose} cannot be loaded: {why}. Install it again, with what it needs.")
        return _refusing(offered.name, f"(cannot be loaded: {type(error).__name__})", told)


def _absent(name: str) -> Any:
    told = Missing(f'`stepfast {name}` is a command of an adapter. Do: pip install "stepfast[{name}]"')
    return _refusing(name, "", told)


def _refusing(name: str, help_line: str, told: Missing) -> Any:
    """A command that takes anything and says what is wrong."""
    stand_in = typer.Typer(help=help_line)

    @stand_in.command(
        name,
        help=help_line,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        add_help_option=False,
    )
    def refuse(ctx: typer.Context) -> None:
        from stepfast.cli.failures import tell

        raise typer.Exit(tell(told, as_json=bool(ctx.obj and ctx.obj.as_json) or "--json" in ctx.args))

    return typer.main.get_command(stand_in)

"""``stepfast scenarios``: work of several steps, agents' and people's."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stepfast.cli import inputs
from stepfast.cli.failures import FAILED
from stepfast.cli.setup import Setup, command

group = typer.Typer(help="Scenarios: work of several steps, of agents and of people.", no_args_is_help=True)

File = Annotated[str, typer.Argument(metavar="FILE", help="The scenario as a JSON file, or - for stdin.")]


def _read(file: str) -> dict[str, Any]:
    return inputs.read_object(file, "-" if file == "-" else f"@{file}")


@command(group, "apply")
def apply(
    at: Setup,
    file: File,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key and file give the same intent.")] = None,
    follow: Annotated[bool, typer.Option("--watch", "-w", help="Follow it to its ending.")] = False,
) -> None:
    """Start a scenario; prints the id of its intent.

    The steps move on while a server runs on the store.
    """
    from stepfast.cli import out
    from stepfast.cli.reach import open_api

    bundle = _read(file)
    with open_api(at) as api:
        begun = api.apply_scenario(bundle, idempotency_key=idempotency_key)
    for warning in begun.get("warnings") or ():
        out.note(f"warning: {warning}")
    if follow:
        from stepfast.cli.watching import follow as follow_it

        if not at.as_json:
            out.say(begun["intent_id"])
        follow_it(at, begun["intent_id"])
    elif at.as_json:
        out.show_json(begun)
    else:
        out.say(begun["intent_id"])
        if not at.remote:
            out.note("Its steps move on while `stepfast serve` runs on this store.")


@command(group, "validate")
def validate(at: Setup, file: File) -> None:
    """Say what is wrong with a scenario, without starting it: exit code 1 if anything is."""
    from stepfast.cli import out
    from stepfast.cli.reach import open_api

    bundle = _read(file)
    with open_api(at) as api:
        found = api.validate_scenario(bundle)
    if at.as_json:
        out.show_json(found)
    else:
        for error in found["errors"]:
            out.say(f"error: {error}")
        for warning in found["warnings"]:
            out.say(f"warning: {warning}")
        if found["ok"]:
            out.say(f"{file} is a scenario that can be applied.")
    if not found["ok"]:
        raise typer.Exit(FAILED)

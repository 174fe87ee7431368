"""``stepfast agents``: who is there, how they are, and the kill switch."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stepfast.cli.setup import Setup, command

group = typer.Typer(help="Agents: who is there, how they are, and the kill switch.", no_args_is_help=True)

Agent = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's address, name or address id.")]


@command(group, "list")
def list_agents(
    at: Setup,
    health: Annotated[
        str | None, typer.Option(help="Only those, such as healthy, degraded, unreachable or killed.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 100,
) -> None:
    """The agents that have an account, have been heard of, or are stopped."""
    from stepfast.cli import out
    from stepfast.cli.reach import open_api

    with open_api(at) as api:
        found = api.mesh.list_agents(limit=limit, health=health)["agents"]
    if at.as_json:
        out.show_json({"agents": found})
        return
    rows = [
        (each["address"], each["health_status"], out.age(each["last_heartbeat_at"]), each["display_name"])
        for each in found
    ]
    out.table(at, ("ADDRESS", "HEALTH", "HEARD", "NAME"), rows, empty="There are no agents.")


@command(group, "show")
def show(at: Setup, agent: Agent) -> None:
    """One agent, with its figures and what happened to it."""
    from stepfast.cli import out
    from stepfast.cli.reach import open_api

    with open_api(at) as api:
        found = api.mesh.get_agent(agent)["agent"]
    if at.as_json:
        out.show_json(found)
        return
    _block(at, found)
    for event in found.get("events", []):
        out.say(f"  {event['at']}  {event.get('event_type')}  {event.get('actor') or ''}")


@command(group, "kill")
def kill(at: Setup, agent: Agent) -> None:
    """Stop an agent: nothing goes to it and nothing comes from it until it is resumed."""
    from stepfast.cli.reach import open_api

    with open_api(at) as api:
        _told(at, api.mesh.kill(agent)["agent"])


@command(group, "resume")
def resume(at: Setup, agent: Agent) -> None:
    """Let a stopped agent work again."""
    from stepfast.cli.reach import open_api

    with open_api(at) as api:
        _told(at, api.mesh.resume(agent)["agent"])


def _told(at: Setup, agent: dict[str, Any]) -> None:
    from stepfast.cli import out

    if at.as_json:
        out.show_json(agent)
    else:
        out.say(f"{agent['address']} is {agent['health_status']}.")


def _block(at: Setup, agent: dict[str, Any]) -> None:
    from stepfast.cli import out

    out.block(
        at,
        [
            ("Address", agent["address"]),
            ("Address ID", agent["address_id"]),
            ("Name", agent["display_name"]),
            ("Health", agent["health_status"]),
            ("Heard", agent["last_heartbeat_at"]),
            *((name.replace("_", " ").capitalize(), value) for name, value in agent["metrics"].items()),
        ],
    )

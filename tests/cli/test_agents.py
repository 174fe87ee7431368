"""``stepfast agents``: the kill switch, from the shell."""

from __future__ import annotations

from stepfast.cli.reach import open_api
from stepfast.cli.setup import Setup
from tests.cli.kit import Cli


def test_an_agent_is_stopped_and_let_go_again(cli: Cli, address: str) -> None:
    killed = cli.json("agents", "kill", address)
    assert killed["health_status"] == "killed"
    assert address.removeprefix("agent://") in cli("agents", "list").stdout
    assert "killed" in cli("agents", "show", address).stdout
    [listed] = [
        each for each in cli.json("agents", "list", "--health", "killed")["agents"] if each["address"] in address
    ]
    assert listed["address_id"] == killed["address_id"]
    with open_api(Setup(url=cli.url)) as api:
        beat = api.mesh.heartbeat(owner_agent=address, metrics={"intents_total": 3})
        assert beat["health_status"] == "killed"
    assert cli.json("agents", "resume", address)["health_status"] == "healthy"
    shown = cli.json("agents", "show", listed["address_id"])
    assert shown["metrics"]["intents_total"] == 3
    assert shown["events"]


def test_an_agent_that_is_not_there_is_exit_code_3(embedded: Cli) -> None:
    assert embedded.error("agents", "show", "nobody", code=3)["code"] == "agent_not_found"
    assert embedded.error("agents", "resume", "nobody", code=3)["code"] == "agent_not_found"
    assert embedded("agents", "list").stdout == "There are no agents.\n"

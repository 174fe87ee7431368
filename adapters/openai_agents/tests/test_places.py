"""The same on PostgreSQL and through a server: runs, one-shots, approvals and sessions."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from agents import Agent, function_tool

from adapters.openai_agents.tests.kit import Scripted, call, in_turns, outputs, text
from stepfast import Stepfast, open_store
from stepfast.adapters import close_shared
from stepfast_openai_agents import DurableRunner, StepfastSession, Suspended, once
from tests import postgres_server
from tests.contract.http_places import Served


class Boom(Exception):
    """What a user's code raises."""


def summing(items: list[Any]) -> list[Any]:
    return [text("Sum: " + ", ".join(outputs(items)))]


@pytest.fixture(scope="module")
def postgres() -> Iterator[postgres_server.Server]:
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid4().hex)
    server = postgres_server.start(Path(tempfile.gettempdir()) / f"stepfast-agents-{run}")
    yield server
    server.stop()


@pytest.fixture(params=["postgres", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "postgres":
        server: postgres_server.Server = request.getfixturevalue("postgres")
        yield server.database(f"agents_{uuid4().hex[:12]}")
        close_shared()
        return
    monkeypatch.setenv("STEPFAST_API_KEY", uuid4().hex.encode().hex())
    with open_store(f"sqlite:///{tmp_path}/served.db") as store:
        served = Served(store)
        yield served.url
        close_shared()
        served.stop()


async def test_a_run_with_a_session_goes_on_where_it_stopped(place: str) -> None:
    broken = True

    @function_tool(failure_error_function=None)
    def pay() -> str:
        if broken:
            raise Boom
        return "paid"

    @function_tool
    def look() -> str:
        return "seen"

    model = Scripted(in_turns([call("look")], [call("pay")], summing))
    agent = Agent(name="a", model=model, tools=[look, pay])
    session = StepfastSession("s", store=place)
    with pytest.raises(Exception, match=r"Boom|running tool"):
        await DurableRunner.run(agent, "go", run_id="r", store=place, session=session)
    broken = False
    for _ in range(2):
        result = await DurableRunner.run(agent, "go", run_id="r", store=place, session=session)
        assert result.final_output == "Sum: seen, paid"
    assert model.calls == 3
    kinds = [item.get("type") or item.get("role") for item in await session.get_items()]
    assert kinds == ["user", *["function_call", "function_call_output"] * 2, "message"]
    await session.clear_session()
    assert await session.get_items() == []


async def test_a_one_shot_and_an_approval_are_answered_from_another_client(place: str) -> None:
    charges: list[str] = []

    @once
    @function_tool(needs_approval=True)
    async def charge() -> str:
        charges.append("x")
        raise Boom

    agent = Agent(name="a", model=Scripted(in_turns([call("charge")], summing)), tools=[charge])
    for _ in range(2):
        result = await DurableRunner.run(agent, "go", run_id="r", store=place)
        assert len(result.interruptions) == 1
    with Stepfast(place) as sf:
        sf.answer("r", "approved", actor="maria")
        with pytest.raises(Suspended):
            await DurableRunner.run(agent, "go", run_id="r", store=place)
        (asked,) = sf.decisions("r")
        sf.answer("r", "done", asked["key"], value="charged")
    result = await DurableRunner.run(agent, "go", run_id="r", store=place)
    assert result.final_output == "Sum: charged"
    assert charges == ["x"]

"""CrewAI's events in the history of a run: for watching, few, and never in the way."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from adapters.crewai.tests.kit import ScriptedLLM, make_crew, outputs
from adapters.crewai.tests.test_crews import Crash, Desk
from stepfast import InvalidInput, Stepfast
from stepfast_crewai import _events, durable


def history(url: str, run_id: str = "r") -> list[dict[str, Any]]:
    with Stepfast(url) as sf:
        return [event["details"] for event in sf.events(run_id) if event["event_type"] == "intent.crewai"]


@pytest.mark.parametrize("way", ["kickoff", "akickoff", "stream"])
def test_what_crewai_does_is_in_the_history(url: str, way: str) -> None:
    desk = Desk()
    with durable(make_crew(ScriptedLLM(desk.script), [desk.tool], stream=way == "stream"), "r", url) as runs:
        if way == "stream":
            list(runs.kickoff())
        elif way == "kickoff":
            runs.kickoff()
        else:
            asyncio.run(runs.akickoff())
    found = history(url)
    assert [each["event"] for each in found if each["event"].startswith(("crew", "task", "tool"))] == [
        "crew_kickoff_started",
        "task_started",
        "tool_usage_started",
        "tool_usage_finished",
        "task_completed",
        "crew_kickoff_completed",
    ]
    [tool] = [each for each in found if each["event"] == "tool_usage_finished"]
    assert (tool["tool_name"], tool["agent_role"]) == ("charge", "worker")
    assert len(found) < 20


def test_the_command_line_shows_them(url: str) -> None:
    with durable(make_crew(ScriptedLLM(lambda messages: "done"), []), "r", url) as runs:
        runs.kickoff()
    command = [sys.executable, "-m", "stepfast", "--json", "--url", url, "intents", "events", "r"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert '"event": "task_completed"' in shown


def test_the_same_on_postgresql(postgres_url: str) -> None:
    with durable(make_crew(ScriptedLLM(lambda messages: "done"), []), "events", postgres_url) as runs:
        runs.kickoff()
    assert history(postgres_url, "events")[-1]["event"] == "crew_kickoff_completed"


def test_a_resumed_run_adds_what_is_new(url: str) -> None:
    desk = Desk()
    broken = [True]

    def script(messages: list[dict[str, Any]]) -> Any:
        if outputs(messages) and broken:
            raise Crash
        return desk.script(messages)

    with pytest.raises(Crash), durable(make_crew(ScriptedLLM(script), [desk.tool]), "r", url) as runs:
        runs.kickoff()
    before = len(history(url))
    assert before
    broken.clear()
    for _ in range(2):
        with durable(make_crew(ScriptedLLM(script), [desk.tool]), "r", url) as runs:
            runs.kickoff()
    events = [each["event"] for each in history(url)]
    assert events.count("crew_kickoff_completed") == 1  # a finished run that is read once more adds nothing
    assert events[before:].count("task_completed") == 1


def test_there_are_not_too_many(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_events, "_MOST", 3)
    with durable(make_crew(ScriptedLLM(lambda messages: "done"), [], ("One.", "Two.")), "r", url) as runs:
        runs.kickoff()
    assert len(history(url)) == 4
    assert history(url)[-1] == {"event": "and more, which are not kept"}


def test_events_can_be_switched_off(url: str) -> None:
    crew = make_crew(ScriptedLLM(lambda messages: "done"), [])
    with durable(crew, "r", url, mirror=False) as runs:
        runs.kickoff()
    assert history(url) == []
    with pytest.raises(InvalidInput, match="mirror: must be True or False"):
        durable(crew, "r", url, mirror="no")  # type: ignore[call-overload]

"""People who are away for hours: what they are asked is a durable decision, answered from anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent, UserProxyAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import HandoffTermination, TextMentionTermination
from autogen_agentchat.messages import HandoffMessage, UserInputRequestedEvent
from autogen_agentchat.teams import RoundRobinGroupChat, Swarm

from adapters.autogen.tests.kit import Scripted, call, collect, in_turns
from stepfast import AsyncStepfast, Suspended
from stepfast_autogen import durable


def stepfast(url: str, home: Path, *arguments: str) -> str:
    """The command line, as a process of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STEPFAST_")}
    environment = {
        **kept,
        "STEPFAST_URL": url,
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "-m", "stepfast", *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


class Desk:
    """Makes teams with a person in them, and counts the calls of their models."""

    def __init__(self) -> None:
        self.calls = 0

    def model(self, *answers: Any) -> Scripted:
        def count(_: Any) -> None:
            self.calls += 1

        return Scripted(in_turns(*answers), count)

    def with_person(self, **options: Any) -> Any:
        clerk = AssistantAgent("clerk", self.model("shall I?", "done"))
        return RoundRobinGroupChat([clerk, UserProxyAgent("user", **options)], max_turns=3)

    def swarm(self) -> Any:
        clerk = AssistantAgent(
            "clerk", self.model([call("transfer_to_user")], "thank you TERMINATE"), handoffs=["user"]
        )
        return Swarm([clerk], termination_condition=HandoffTermination("user") | TextMentionTermination("TERMINATE"))


async def test_input_is_a_decision_and_the_answer_restarts_the_run(url: str) -> None:
    desk = Desk()
    told: list[Any] = []
    with pytest.raises(Suspended):
        await collect(durable(desk.with_person, "talk", url).run_stream(task="go"), told)
    assert isinstance(told[-1], UserInputRequestedEvent)
    async with AsyncStepfast(url) as sf:
        (asked,) = await sf.decisions("talk")
        assert asked["evidence"]["messages"] == {"clerk": "shall I?", "user": "go"}
        assert (await durable(desk.with_person, "talk", url).status())["status"] == "WAITING"
        await sf.answer("talk", "approved", value="yes, do")

    result = await durable(desk.with_person, "talk", url).resume()

    assert [m.to_text() for m in result.messages if m.source == "user"][-1] == "yes, do"
    assert (result.messages[-1].to_text(), desk.calls) == ("done", 2)


@pytest.mark.parametrize(
    ("words", "heard"),
    [(["approve"], "APPROVE"), (["reject", "--comment", "not today"], "not today")],
    ids=["approve", "reject with a comment"],
)
async def test_the_command_line_answers(words: list[str], heard: str, url: str, tmp_path: Path) -> None:
    desk = Desk()
    with pytest.raises(Suspended):
        await durable(desk.with_person, "talk", url).run(task="go")

    (task,) = json.loads(stepfast(url, tmp_path, "tasks", "list", "--json"))["tasks"]
    stepfast(url, tmp_path, "tasks", words[0], task["task_id"], *words[1:])
    result = await durable(desk.with_person, "talk", url).resume()

    assert result.messages[-2].to_text() == heard


async def test_a_function_of_the_users_own_is_called_once_and_its_answer_kept(url: str) -> None:
    asked: list[str] = []

    def own(prompt: str) -> str:
        asked.append(prompt)
        return "by myself"

    desk = Desk()
    first = await durable(lambda: desk.with_person(input_func=own), "talk", url).run(task="go")

    assert (first.messages[-2].to_text(), len(asked)) == ("by myself", 1)
    with pytest.raises(Suspended):
        await durable(lambda: desk.with_person(input_func=own), "other", url, on_input="ask").run(task="go")
    assert len(asked) == 1


async def test_a_handoff_to_a_person_waits_for_the_person(url: str) -> None:
    desk = Desk()
    with pytest.raises(Suspended, match="hands over to user"):
        await durable(desk.swarm, "talk", url).run(task="go")
    async with AsyncStepfast(url) as sf:
        await sf.answer("talk", "approved", value="here I am")

    result = await durable(desk.swarm, "talk", url).run(task="go")

    assert [m.to_text() for m in result.messages if isinstance(m, HandoffMessage)][-1] == "here I am"
    assert (result.messages[-1].to_text(), desk.calls) == ("thank you TERMINATE", 2)


async def test_a_handoff_can_be_answered_as_autogen_does_it(url: str) -> None:
    desk = Desk()
    talk = durable(desk.swarm, "talk", url, on_wait="return")
    so_far = await talk.run(task="go")
    assert isinstance(so_far, TaskResult)
    assert so_far.stop_reason == "Handoff to user from clerk detected."
    assert (await talk.run(task="go")).stop_reason == so_far.stop_reason

    result = await talk.run(task=HandoffMessage(source="user", target="clerk", content="here I am"))

    assert (result.messages[-1].to_text(), desk.calls) == ("thank you TERMINATE", 2)

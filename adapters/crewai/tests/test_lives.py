"""What is seen and decided from other processes: people by the command line, runs in lists, workers that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.crewai.tests.lives import ROOT, Lives
from adapters.crewai.tests.programs import ADDRESS
from stepfast import Stepfast
from stepfast.testing import Effects

pytestmark = [pytest.mark.xdist_group("lives"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    made = Lives()
    yield made
    made.close()


class Terminal:
    """``stepfast …`` as a process of its own, on a store."""

    def __init__(self, url: str, home: Path) -> None:
        hidden = ("STEPFAST_", "NO_COLOR", "COLUMNS")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        path = os.pathsep.join(filter(None, sys.path))
        self._env = {
            **kept,
            "STEPFAST_URL": url,
            "HOME": str(home),
            "TERM": "dumb",
            "COLUMNS": "160",
            "PYTHONPATH": path,
        }

    def __call__(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "stepfast", *arguments]
        ended = subprocess.run(command, env=self._env, capture_output=True, text=True, cwd=ROOT, timeout=120)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def stepfast(url: str, tmp_path: Path) -> Terminal:
    return Terminal(url, tmp_path)


def until(true: Callable[[], Any]) -> Any:
    """Wait for another process; the limit only ends a test that would hang."""
    ends = time.monotonic() + 120
    while not (found := true()):
        assert time.monotonic() < ends, "it did not come"
        time.sleep(0.01)
    return found


# --- people ------------------------------------------------------------------------------------------


def test_a_task_with_human_input_is_reviewed_from_the_command_line(
    lives: Lives, url: str, tmp_path: Path, stepfast: Terminal
) -> None:
    assert lives.live("reviewed_crew", url, str(tmp_path)).waits
    [task] = stepfast.json("tasks", "list")["tasks"]
    assert "Is the result as you want it?" in stepfast("tasks", "list")
    assert "very long text" in stepfast("tasks", "show", task["task_id"])
    stepfast("tasks", "reject", task["task_id"], "--comment", "Make it shorter.")

    assert lives.live("reviewed_crew", url, str(tmp_path)).waits
    [task] = stepfast.json("tasks", "list")["tasks"]
    stepfast("tasks", "approve", task["task_id"])

    ended = lives.live("reviewed_crew", url, str(tmp_path))
    assert (ended.code, ended.result) == (0, "short text"), ended.error
    assert stepfast.json("tasks", "list")["tasks"] == []
    assert Effects(tmp_path).counts() == {"model call": 2}


def test_questions_and_feedback_of_a_flow_are_answered_from_the_command_line(
    lives: Lives, url: str, tmp_path: Path, stepfast: Terminal
) -> None:
    assert lives.live("reviewed_flow", url, str(tmp_path)).waits
    [task] = stepfast.json("tasks", "list")["tasks"]
    assert task["question"] == "Whom is it for?"
    stepfast("tasks", "submit", task["task_id"], "--outcome", "answered", "--comment", "Ada")

    for answer in ("reject", "approve"):
        assert lives.live("reviewed_flow", url, str(tmp_path)).waits
        [task] = stepfast.json("tasks", "list")["tasks"]
        assert task["question"] == "Publish it?"
        stepfast("tasks", answer, task["task_id"])

    ended = lives.live("reviewed_flow", url, str(tmp_path))
    assert (ended.code, ended.result) == (0, "published: kind text for Ada"), ended.error
    # `whom` stopped at its question and was entered again with the answer; each round of `write` was done once.
    assert Effects(tmp_path).counts() == {"whom": 2, "write": 2, "publish": 1}


# --- runs as intents ---------------------------------------------------------------------------------


def test_a_running_crew_shows_task_agent_and_tool(lives: Lives, url: str, tmp_path: Path, stepfast: Terminal) -> None:
    hold = tmp_path / "hold look_up"
    hold.touch()
    effects = Effects(tmp_path)
    first = lives.start("order", url, str(tmp_path))
    until(lambda: effects.counts()["look_up"] == 1)
    [seen] = stepfast.json("intents", "list")["intents"]
    assert seen["last_step"] == "buyer: task 1 of 2, model call"  # the tool began at once, which is not worth a commit
    os.kill(first, signal.SIGKILL)
    assert lives.ended(first).code == -signal.SIGKILL

    second = lives.start("order", url, str(tmp_path))
    until(lambda: effects.counts()["look_up"] == 2)
    [seen] = stepfast.json("intents", "list")["intents"]
    assert (seen["last_step"], seen["step"], seen["status"]) == ("buyer: task 1 of 2, look_up", 1, "IN_PROGRESS")
    assert "buyer: task 1 of 2, look_up" in stepfast("intents", "list")
    assert "buyer: task 1 of 2, look_up" in stepfast("intents", "get", "order")
    hold.unlink()
    ended = lives.ended(second)
    assert (ended.code, ended.result) == (0, "clerk got charged 42"), ended.error
    [seen] = stepfast.json("intents", "list")["intents"]
    assert (seen["step"], seen["status"]) == (2, "COMPLETED")
    assert seen["last_step"].startswith("clerk: task 2 of 2, ")


# --- workers -----------------------------------------------------------------------------------------


def test_a_killed_workers_crew_goes_on_in_another_worker(lives: Lives, url: str, tmp_path: Path) -> None:
    hold = tmp_path / "hold clerk 2"
    hold.touch()
    effects = Effects(tmp_path)
    with Stepfast(url) as sf:
        intent = {"intent_type": "order.v1", "to_agent": ADDRESS, "payload": {"item": "lamp"}}
        intent_id = sf.send_intent(intent)
        first = lives.start("worker", url, str(tmp_path), intent_id)
        until(lambda: "clerk asked 2" in effects.counts())
        os.kill(first, signal.SIGKILL)
        assert lives.ended(first).code == -signal.SIGKILL
        hold.unlink()
        second = lives.live("worker", url, str(tmp_path), intent_id)
        assert (second.code, second.result) == (0, "COMPLETED"), second.error
        seen = sf.describe(intent_id)
    assert seen["result"] == {"raw": "clerk got charged 42", "tasks": 2}
    assert seen["delivery_attempt"] == 2
    assert effects.lines() == [
        "buyer asked 1",
        "look_up",
        "buyer asked 2",
        "clerk asked 1",
        "charge",
        "clerk asked 2",  # under way when its worker died
        "clerk asked 2",
    ]

"""What is decided from other processes: people by the command line, while no process of the chat is alive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepfast.testing import Effects

ROOT = Path(__file__).parents[4]

pytestmark = [pytest.mark.xdist_group("lives"), pytest.mark.timeout(300)]


def process(url: str, home: Path, *arguments: str) -> str:
    """Run a module of Python as a process of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STEPFAST_")}
    env = {**kept, "STEPFAST_URL": url, "HOME": str(home), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "ignore", "-m", *arguments]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.strip()


def test_a_person_answers_from_the_command_line_while_the_chat_is_no_process(url: str, tmp_path: Path) -> None:
    def chat() -> str:
        return process(url, tmp_path, "adapters.autogen.tests.classic.programs", url, str(tmp_path))

    def tasks(*arguments: str) -> str:
        return process(url, tmp_path, "stepfast", "tasks", *arguments)

    assert chat().startswith("waits: ")
    [task] = json.loads(tasks("list", "--json"))["tasks"]
    assert task["question"].startswith("Please give feedback to author.")
    assert "long text TERMINATE" in tasks("show", task["task_id"])
    tasks("approve", task["task_id"], "--comment", "Make it shorter.")

    assert chat().startswith("waits: ")
    [task] = json.loads(tasks("list", "--json"))["tasks"]
    tasks("reject", task["task_id"])

    assert chat() == "short text"
    assert json.loads(tasks("list", "--json"))["tasks"] == []
    assert Effects(tmp_path).counts() == {"model call": 2}

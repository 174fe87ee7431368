"""``stepfast scenarios``: from a file to its ending."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.kit import Cli, wait_until
from tests.server.live import Live

SIGN = {"step_id": "sign", "tool_id": "tool.approval.human_signoff", "assigned_to": "boss"}
WRITE = {"step_id": "write", "tool_id": "tool.agent.task.v1", "assigned_to": "writer"}


def bundle(*steps: dict[str, Any]) -> dict[str, Any]:
    return {
        "scenario_id": "report-v1",
        "agents": [{"role": "writer", "address": "writer", "create_if_missing": True}],
        "humans": [{"role": "boss", "contact": "boss@example.com"}],
        "workflow": {"steps": list(steps)},
        "intent": {"type": "intent.report.v1", "payload": {"n": 21}},
    }


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(bundle(WRITE, SIGN)))
    return str(path)


def test_a_scenario_is_checked_without_being_started(cli: Cli, file: str, tmp_path: Path) -> None:
    assert "can be applied" in cli("scenarios", "validate", file).stdout
    assert cli.json("scenarios", "validate", file)["ok"] is True
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"scenario_id": "x"}))
    assert "error: " in cli("scenarios", "validate", str(wrong), code=1).stdout
    found = cli.json("scenarios", "validate", str(wrong), code=1)
    assert found["ok"] is False
    assert found["errors"]
    assert cli.error("scenarios", "apply", str(wrong), code=2)["code"] == "invalid_input"


def test_a_file_that_is_none_is_wrong_usage(embedded: Cli, tmp_path: Path) -> None:
    assert "cannot be read" in embedded.error("scenarios", "apply", str(tmp_path / "none.json"), code=2)["message"]
    (tmp_path / "text.json").write_text("not json")
    assert "not JSON" in embedded.error("scenarios", "validate", str(tmp_path / "text.json"), code=2)["message"]


def test_a_scenario_is_begun_on_a_store_alone(embedded: Cli, file: str) -> None:
    begun = embedded("scenarios", "apply", file)
    assert "stepfast serve" in begun.stderr
    assert embedded.json("intents", "get", begun.stdout.strip())["labels"] == {"scenario_id": "report-v1"}
    first = embedded.json("scenarios", "apply", file, "--idempotency-key", "k")
    assert embedded.json("scenarios", "apply", file, "--idempotency-key", "k")["intent_id"] == first["intent_id"]


def test_agents_and_people_take_their_steps(serve: Callable[..., Live], embedded: Cli, tmp_path: Path) -> None:
    """An agent step done by a worker from the shell, a person's step by `tasks approve`, the ending by `--watch`."""
    live = serve()
    cli = Cli(live.url, embedded.home)
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(bundle({**WRITE, "input": {"n": 21}}, SIGN)))
    worker = cli.process("worker", "pipeline:write_step", "--agent", "writer")
    watcher = cli.process("scenarios", "apply", str(path), "--watch")
    try:
        [task] = wait_until(lambda: cli.json("tasks", "list")["tasks"])
        cli("tasks", "approve", task["task_id"], "--comment", "well done")
        out, err = watcher.communicate(timeout=30)
    finally:
        worker.terminate()
        worker.communicate(timeout=30)
    assert watcher.returncode == 0, (out, err)
    assert out.splitlines()[0] == task["intent_id"]
    assert "Final status: COMPLETED" in out

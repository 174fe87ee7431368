"""``stepfast tasks``: what waits for a person, on every kind of store."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from stepfast import KeyRing, Stepfast, Suspended
from stepfast.cli.reach import open_api
from stepfast.cli.setup import Setup
from stepfast.codec import Codec
from tests.cli.kit import Cli, wait_until


def ask_person(cli: Cli, **task: Any) -> str:
    """An intent that waits for a person."""
    body = {
        "intent_type": "intent.approval.v1",
        "to_agent": "agent://local/local/agent_core",
        "payload": {"amount": 5},
        "human_task": {"title": "Pay the bill?", "task_type": "approval", **task},
    }
    with open_api(Setup(url=cli.url)) as api:
        return api.send_intent(body)


def ask_in_run(cli: Cli, name: str, codec: Codec | None = None, **options: Any) -> None:
    with Stepfast(cli.url, codec=codec) as sf, pytest.raises(Suspended), sf.run(name, on_wait="suspend") as run:
        run.ask("May I?", evidence={"file": "a.txt"}, **options)


def test_a_task_is_listed_shown_and_approved(cli: Cli) -> None:
    task_id = ask_person(cli)
    listed = cli.json("tasks", "list")["tasks"]
    assert task_id in [each["task_id"] for each in listed]
    assert "Pay the bill?" in cli("tasks", "list").stdout
    shown = cli.json("tasks", "show", task_id)
    assert (shown["kind"], shown["outcomes"]) == ("human_task", ["approved", "rejected"])
    assert "Pay the bill?" in cli("tasks", "show", task_id).stdout
    done = cli.json("tasks", "approve", task_id, "--comment", "fine")
    assert (done["outcome"], done["status"]) == ("approved", "COMPLETED")
    assert done["actor"].startswith("cli")
    ended = cli.json("intents", "get", task_id)
    assert ended["result"] == {"outcome": "approved", "comment": "fine"}
    assert task_id not in [each["task_id"] for each in cli.json("tasks", "list")["tasks"]]


def test_a_task_is_rejected(embedded: Cli) -> None:
    task_id = ask_person(embedded)
    assert "rejected" in embedded("tasks", "reject", task_id, "-m", "too much").stdout
    ended = embedded.json("intents", "get", task_id)
    assert ended["status"] == "FAILED"
    assert "too much" in ended["reason"]


def test_a_form_is_submitted_with_its_fields(embedded: Cli) -> None:
    form = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    task_id = ask_person(embedded, form_schema=form, allowed_outcomes=["filled", "refused"], required_comment=True)
    assert "filled, refused" in embedded.error("tasks", "approve", task_id, code=2)["message"]
    submit = ("tasks", "submit", task_id, "--outcome", "filled")
    assert "comment" in embedded.error(*submit, code=2)["message"]
    assert embedded.error(*submit, "-m", "x", "--data", "sum=much", code=2)["code"] == "invalid_input"
    assert embedded.error(*submit, "-m", "x", "--content-hash", "0" * 64, code=1)["code"] == "content_changed"
    done = embedded.json(*submit, "-m", "x", "--data-json", '{"sum": 3}')
    assert done["status"] == "COMPLETED"


def test_a_question_of_a_run_is_answered(cli: Cli, address: str) -> None:
    name = address[-12:]
    ask_in_run(cli, name, outcomes=["yes", "later"])
    [task] = [each for each in cli.json("tasks", "list")["tasks"] if each["run_id"] == name]
    assert (task["kind"], task["question"], task["evidence"]) == ("ask", "May I?", {"file": "a.txt"})
    assert cli.json("tasks", "show", task["intent_id"])["task_id"] == task["task_id"]
    done = cli.json("tasks", "submit", task["task_id"], "--outcome", "later", "--value", '{"days": 2}')
    assert done["outcome"] == "later"
    with Stepfast(cli.url) as sf, sf.run(name) as run:
        answer = run.ask("May I?", evidence={"file": "a.txt"}, outcomes=["yes", "later"])
        assert (answer.outcome, answer.value) == ("later", {"days": 2})
    assert "answered already" in cli.error("tasks", "approve", task["task_id"], code=1)["message"]


def test_a_run_that_encrypts_is_answered_with_the_key(embedded: Cli) -> None:
    secret = bytes(range(32))
    codec = Codec(keyring=KeyRing({"k1": secret}))
    ask_in_run(embedded, "r", codec)
    [task] = embedded.json("tasks", "list")["tasks"]
    assert task["encrypted"] is True
    approve = ("tasks", "approve", task["task_id"], "--comment", "go")
    assert "STEPFAST_ENCRYPTION_KEYS" in embedded.error(*approve, code=1)["message"]
    done = embedded.json(*approve, STEPFAST_ENCRYPTION_KEYS=f"k1:{b64encode(secret).decode()}")
    assert done["outcome"] == "approved"
    with Stepfast(embedded.url, codec=codec) as sf, sf.run("r") as run:
        assert run.ask("May I?", evidence={"file": "a.txt"}).comment == "go"


def test_a_one_shot_in_doubt_is_decided_from_the_shell(embedded: Cli, tmp_path: Path) -> None:
    """Killed between effect and confirmation: a person says that it was done, and it is not done again."""
    file, gate = tmp_path / "charges", tmp_path / "gate"
    intent_id = embedded.send("bank", {"file": str(file), "gate": str(gate)})
    first = embedded.process("worker", "pipeline:pay", "--agent", "bank")
    wait_until(file.exists)
    first.kill()
    first.communicate()
    second = embedded.process("worker", "pipeline:pay", "--agent", "bank")
    try:
        [task] = wait_until(lambda: embedded.json("tasks", "list")["tasks"])
        assert task["kind"] == "in_doubt"
        assert set(task["outcomes"]) == {"done", "retry", "fail"}
        assert "step in doubt" in embedded("tasks", "list").stdout
        assert "done, retry, fail" in embedded.error("tasks", "approve", intent_id, code=2)["message"]
        embedded("tasks", "submit", intent_id, "--outcome", "done", "--value", '"charged before"')
        embedded("intents", "watch", intent_id, "--timeout", "30")
    finally:
        second.terminate()
        second.communicate(timeout=30)
    assert embedded.json("intents", "get", intent_id)["result"] == {"receipt": "charged before"}
    assert len(file.read_text().splitlines()) == 1


def test_hostile_questions_reach_no_terminal(embedded: Cli) -> None:
    hostile = "\x1b]0;owned\x07[red]approve[/red]\u202e\u200b"
    task_id = ask_person(embedded, title=hostile, description=hostile)
    for arguments in (("list",), ("show", task_id)):
        printed = embedded("tasks", *arguments).stdout
        assert not set(printed) & {"\x1b", "\x07", "\u202e", "\u200b"}
        assert "[red]approve[/red]<U+202E><U+200B>" in printed


def test_a_task_that_is_not_there_is_exit_code_3(cli: Cli) -> None:
    for verb in ("show", "approve", "reject"):
        assert cli.error("tasks", verb, "01900000-0000-7000-8000-000000000000", code=3)["code"] == "not_found"

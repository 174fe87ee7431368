"""People's tasks: human tasks of intents, and the questions of runs, over the API."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from stepfast import Codec, KeyRing, Stepfast, Suspended
from stepfast.server import keys
from stepfast.server.human_tasks import check_answer, check_task
from stepfast.server.settings import Settings
from stepfast.stores import Store
from stepfast.stores.base import AsyncStore

Running = Callable[..., Any]


@pytest.fixture
async def client(running: Running) -> httpx.AsyncClient:
    _, client = await running(Settings())
    return client


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def get(client: httpx.AsyncClient, path: str, status: int = 200) -> dict[str, Any]:
    answer = await client.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


async def ask(client: httpx.AsyncClient, **task: Any) -> str:
    """An intent that waits for a person."""
    body = {"intent_type": "pay.v1", "to_agent": "agent_core", "payload": {"cents": 4200}}
    created = await post(client, "/v1/intents", {**body, "human_task": {"title": "Pay?", **task}})
    assert created["status"] == "WAITING"
    intent_id: str = created["intent_id"]
    return intent_id


async def resume(client: httpx.AsyncClient, intent_id: str, status: int = 200, **task_result: Any) -> dict[str, Any]:
    return await post(client, f"/v1/intents/{intent_id}/resume", {"task_result": task_result}, status)


# --- human tasks ------------------------------------------------------------------------------------------


async def test_a_person_completes_or_fails_an_intent(client: httpx.AsyncClient) -> None:
    paid, refused = await ask(client), await ask(client)
    done = await resume(client, paid, outcome="approved", comment="fine")
    assert done["intent"]["status"] == "COMPLETED"
    assert done["intent"]["result"] == {"outcome": "approved", "comment": "fine"}
    failed = await resume(client, refused, outcome="rejected", comment="too much")
    assert failed["intent"]["status"] == "FAILED"
    assert failed["intent"]["error"] == {"outcome": "rejected", "comment": "too much"}
    assert failed["intent"]["reason"] == "answered 'rejected': too much"
    assert (await resume(client, paid, 409, outcome="rejected"))["error"]["code"] == "already_finished"


async def test_an_answer_where_nobody_is_asked_is_a_conflict(client: httpx.AsyncClient) -> None:
    body = {"intent_type": "pay.v1", "to_agent": "worker", "payload": {}}
    intent_id = (await post(client, "/v1/intents", body))["intent_id"]
    assert "waits for no person" in (await resume(client, intent_id, 409, outcome="approved"))["detail"]


async def test_what_an_answer_lacks_is_said_and_nothing_happens(client: httpx.AsyncClient) -> None:
    form = {
        "type": "object",
        "required": ["cents", "urgent"],
        "properties": {"cents": {"type": "integer", "minimum": 1}, "urgent": {"type": "boolean"}},
    }
    rules = {"allowed_outcomes": ["pay", "rejected"], "required_comment": True, "evidence_required": True}
    intent_id = await ask(client, form_schema=form, **rules)
    good: dict[str, Any] = {
        "outcome": "pay",
        "comment": "ok",
        "data": {"evidence": ["bill.pdf"]},
        "cents": "7",
        "urgent": "true",
    }
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"outcome": "approved"}, "task_result.outcome: must be one of pay, rejected."),
        ({"outcome": 5}, "task_result.outcome: must be one of pay, rejected."),
        ({"comment": " "}, "task_result.comment: this task needs one."),
        ({"data": {}}, "task_result.data.evidence: this task needs evidence."),
        ({"cents": "many"}, "task_result.cents: 'many' is not of type 'integer'"),
        ({"cents": 0}, "task_result.cents: 0 is less than the minimum of 1"),
    ]
    for change, message in wrong:
        assert message in (await resume(client, intent_id, 422, **{**good, **change}))["detail"]
    assert (await get(client, f"/v1/intents/{intent_id}"))["status"] == "WAITING"
    assert (await resume(client, intent_id, **good))["intent"]["status"] == "COMPLETED"


def test_forms_cannot_make_the_server_work_without_end_or_fetch_anything() -> None:
    schemas: list[dict[str, Any]] = [
        {"pattern": "(a+)+$"},
        {"properties": {"x": {"$ref": "http://evil"}}},
        {"patternProperties": {"a": {}}},
    ]
    for schema in schemas:
        [error] = check_task("t", {"title": "t", "form_schema": schema})
        assert "may not be used in a form" in error
    named = {"type": "object", "properties": {"pattern": {"type": "string"}}}
    assert check_task("t", {"title": "t", "form_schema": named}) == []
    assert check_answer({"form_schema": named}, {"outcome": "approved", "pattern": "x"})["pattern"] == "x"


async def test_an_answer_counts_only_for_the_content_that_was_shown(client: httpx.AsyncClient) -> None:
    intent_id = await ask(client)
    task = (await get(client, f"/v1/tasks/{intent_id}"))["task"]
    assert len(task["content_hash"]) == 64
    path = f"/v1/tasks/{intent_id}/answer"
    refused = await post(client, path, {"outcome": "approved", "content_hash": "0" * 64}, 409)
    assert refused["error"]["code"] == "content_changed"
    told = await post(client, path, {"outcome": "approved", "content_hash": task["content_hash"], "actor": "ann"})
    assert (told["status"], told["actor"]) == ("COMPLETED", "ann (local)")


async def test_the_next_question_of_a_scenario_has_another_content(client: httpx.AsyncClient) -> None:
    sign = {"runtime_type": "human_approval", "human_task": {"title": "Same words"}}
    bundle = {
        "scenario_id": "s",
        "intent": {"type": "t.v1", "payload": {"a": 1}},
        "workflow": {"steps": [{"step_id": "one", **sign}, {"step_id": "two", **sign}]},
    }
    parent = (await post(client, "/v1/scenarios/apply", bundle))["intent_id"]
    first = (await get(client, f"/v1/tasks/{parent}"))["task"]
    answer = {"outcome": "approved", "note": "n1"}
    await post(client, f"/v1/tasks/{parent}/answer", {**answer, "content_hash": first["content_hash"]})
    second = (await get(client, f"/v1/tasks/{parent}"))["task"]
    assert (second["step_id"], second["scenario_id"]) == ("two", "s")
    assert second["evidence"] == {"payload": {"a": 1}, "previous_results": {"one": answer}}
    await post(client, f"/v1/tasks/{parent}/answer", {**answer, "content_hash": first["content_hash"]}, 409)
    await post(client, f"/v1/tasks/{parent}/answer", {**answer, "content_hash": second["content_hash"]})
    assert (await get(client, f"/v1/intents/{parent}"))["status"] == "COMPLETED"


async def test_tasks_are_listed_in_both_shapes(client: httpx.AsyncClient) -> None:
    intent_id = await ask(client, description="A bill", assignees=["ann"])
    [task] = (await get(client, "/v1/tasks"))["tasks"]
    assert (task["task_id"], task["kind"], task["title"]) == (intent_id, "human_task", "Pay?")
    assert (task["outcomes"], task["assignees"]) == (["approved", "rejected"], ["ann"])
    [mine] = (await get(client, "/v1/me/tasks"))["tasks"]
    assert (mine["intent_id"], mine["status"], mine["human_task"]["title"]) == (intent_id, "WAITING", "Pay?")
    await resume(client, intent_id, outcome="approved")
    assert (await get(client, "/v1/tasks"))["tasks"] == []
    await get(client, "/v1/tasks/no-such-task", 404)


async def test_an_approval_decides_a_task_and_is_kept_where_there_is_none(client: httpx.AsyncClient) -> None:
    intent_id = await ask(client)
    path = f"/v1/approvals/{intent_id}/decision"
    told = await post(client, path, {"decision": "reject", "comment": "no"})
    assert told["approval"]["decision"] == "reject"
    assert (await get(client, f"/v1/intents/{intent_id}"))["status"] == "FAILED"
    nowhere = "/v1/approvals/0190a000-0000-4000-8000-00000000abcd/decision"
    first = await post(client, nowhere, {"decision": "approve"})
    assert await post(client, nowhere, {"decision": "approve"}) == first
    await post(client, nowhere, {"decision": "reject"}, 409)
    await post(client, nowhere, {"decision": "maybe"}, 422)
    await post(client, "/v1/approvals/what/decision", {"decision": "approve"}, 422)


async def test_an_agents_key_answers_no_task_and_other_workspaces_see_none(running: Running, store: Store) -> None:
    shared = AsyncStore(store)
    _, boss = await keys.create_key(shared, "acme", "prod")
    agent = {"role": "agent", "agent": "agent://acme/prod/payer"}
    _, payer = await keys.create_key(shared, "acme", "prod", **agent)  # type: ignore[arg-type]
    _, other = await keys.create_key(shared, "evil", "corp")
    _, client = await running(Settings())
    client.headers["x-api-key"] = boss
    body = {"intent_type": "pay.v1", "to_agent": "payer", "payload": {}, "human_task": {"title": "Pay?"}}
    intent_id = (await post(client, "/v1/intents", body))["intent_id"]
    client.headers["x-api-key"] = payer
    await resume(client, intent_id, 403, outcome="approved")
    await post(client, f"/v1/tasks/{intent_id}/answer", {"outcome": "approved"}, 403)
    client.headers["x-api-key"] = other
    assert (await get(client, "/v1/tasks"))["tasks"] == []
    await post(client, f"/v1/tasks/{intent_id}/answer", {"outcome": "approved"}, 404)
    client.headers["x-api-key"] = boss
    await post(client, f"/v1/tasks/{intent_id}/answer", {"outcome": "approved"})


# --- questions of runs ------------------------------------------------------------------------------------


def start_run(url: str, codec: Codec | None = None) -> Any:
    """A run that asks, and what it was answered; None while it waits."""
    with Stepfast(url, codec=codec) as sf:
        try:
            with sf.run("deploy", on_wait="suspend") as run:
                question = {"evidence": {"build": 7}, "outcomes": ["ship", "hold"], "key": "go?"}
                answer = run.ask("Deploy?", **question)  # type: ignore[arg-type]
                run.complete({"outcome": answer.outcome, "value": answer.value, "comment": answer.comment})
        except Suspended:
            return None
        return sf.get_intent("deploy")["result"]


async def test_a_run_is_answered_over_the_api_and_goes_on(client: httpx.AsyncClient, store_url: str) -> None:
    assert start_run(store_url) is None
    [task] = (await get(client, "/v1/tasks"))["tasks"]
    assert (task["kind"], task["question"], task["evidence"]) == ("ask", "Deploy?", {"build": 7})
    assert (task["run_id"], task["outcomes"]) == ("deploy", ["ship", "hold"])
    assert (await get(client, f"/v1/tasks/{task['task_id']}"))["task"] == task
    path = f"/v1/tasks/{task['task_id']}/answer"
    await post(client, path, {"outcome": "burn"}, 422)
    await post(client, path, {"outcome": "ship", "content_hash": "f" * 64}, 409)
    answer = {"outcome": "ship", "value": {"to": ["eu", 1]}, "comment": "go", "content_hash": task["content_hash"]}
    await post(client, path, answer)
    await post(client, path, answer)  # the same again is the same
    await post(client, path, {"outcome": "hold"}, 409)
    assert (await get(client, "/v1/tasks"))["tasks"] == []
    assert start_run(store_url) == {"outcome": "ship", "value": {"to": ["eu", 1]}, "comment": "go"}


async def test_a_runs_only_question_is_also_answered_by_its_intents_id(
    client: httpx.AsyncClient, store_url: str
) -> None:
    start_run(store_url)
    [mine] = (await get(client, "/v1/me/tasks"))["tasks"]
    assert mine["human_task"]["allowed_outcomes"] == ["ship", "hold"]
    await resume(client, mine["intent_id"], outcome="hold")
    assert start_run(store_url) == {"outcome": "hold", "value": None, "comment": None}


async def test_an_encrypted_question_is_shown_as_such_and_answered_by_its_outcome(
    client: httpx.AsyncClient, store_url: str
) -> None:
    codec = Codec(keyring=KeyRing({"k1": b"k" * 32}, active="k1"))
    assert start_run(store_url, codec) is None
    [task] = (await get(client, "/v1/tasks"))["tasks"]
    assert (task["encrypted"], task["question"], task["evidence"]) == (True, None, {"$opaque": "encrypted"})
    path = f"/v1/tasks/{task['task_id']}/answer"
    refused = await post(client, path, {"outcome": "ship", "value": 1}, 422)
    assert "the server has no key" in refused["detail"]
    await post(client, path, {"outcome": "ship"})
    assert start_run(store_url, codec) == {"outcome": "ship", "value": None, "comment": None}


CRASH = """
import os, signal, sys
from stepfast import Stepfast, Suspended
def charge(cents):
    if sys.argv[2] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"receipt-{cents}"
with Stepfast(sys.argv[1]) as sf:
    try:
        with sf.run("order-1", on_wait="suspend") as run:
            run.complete({"receipt": run.once(charge, 4200)})
    except Suspended:
        sys.exit(75)
    print(sf.get_intent("order-1")["result"]["receipt"])
"""


async def test_a_one_shot_in_doubt_is_a_task_with_its_evidence(client: httpx.AsyncClient, store_url: str) -> None:
    def shop(word: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", CRASH, store_url, word]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))

    assert shop("die").returncode == -signal.SIGKILL
    assert shop("live").returncode == 75
    [task] = (await get(client, "/v1/tasks"))["tasks"]
    assert task["kind"] == "in_doubt"
    assert "Did charge happen?" in task["question"]
    assert "4200" in str(task["evidence"])
    assert task["evidence"]["started_at"].endswith("Z")
    answer = {"outcome": "done", "value": "receipt-by-hand", "content_hash": task["content_hash"]}
    await post(client, f"/v1/tasks/{task['task_id']}/answer", answer)
    ended = shop("live")
    assert (ended.returncode, ended.stdout.strip()) == (0, "receipt-by-hand")

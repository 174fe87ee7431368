"""Scenarios on real servers, with agents of the published AXME SDK."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Any

import httpx
import pytest
from axme import AxmeHttpError  # type: ignore[import-untyped]

from tests.server.conftest import Starter
from tests.server.live import Live
from tests.server.sdk_agents import Agent, sdk, until

AGENTS = [{"role": name, "address": name} for name in ("writer", "checker", "mailer")]
LATE = 30.0  # seconds; on a machine that does nothing else it is a few hundredths
ENDED = ("COMPLETED", "FAILED", "CANCELED", "TIMED_OUT")


def bundle(steps: list[dict[str, Any]], **intent: Any) -> dict[str, Any]:
    return {
        "scenario_id": "report-v1",
        "agents": AGENTS,
        "humans": [{"role": "boss", "contact": "boss@example.com"}],
        "workflow": {"steps": steps},
        "intent": {"type": "intent.report.v1", "payload": {"topic": "tides"}, **intent},
    }


def step(name: str, agent: str = "writer", **more: Any) -> dict[str, Any]:
    return {"step_id": name, "tool_id": "tool.agent.task.v1", "assigned_to": agent, **more}


def sign(name: str = "sign", **more: Any) -> dict[str, Any]:
    task = {"title": "Sign it", "allowed_outcomes": ["approved", "rejected"]}
    return {
        "step_id": name,
        "tool_id": "tool.approval.human_signoff",
        "assigned_to": "boss",
        "human_task": task,
        **more,
    }


class Client:
    """Plain requests, for what the SDK has no word for."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, headers={"x-api-key": "any"}, timeout=15)

    def get(self, path: str) -> dict[str, Any]:
        answer = self.http.get(path)
        answer.raise_for_status()
        return answer.json()

    def post(self, path: str, body: dict[str, Any] | None = None, status: int = 200, **headers: str) -> dict[str, Any]:
        answer = self.http.post(path, json=body or {}, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    def intent(self, intent_id: str) -> dict[str, Any]:
        return self.get(f"/v1/intents/{intent_id}")["intent"]

    def events(self, intent_id: str, kind: str | None = None) -> list[dict[str, Any]]:
        found = self.get(f"/v1/intents/{intent_id}/events")["events"]
        return [event for event in found if kind in (None, event["event_type"])]

    def apply(self, steps: list[dict[str, Any]], **intent: Any) -> str:
        return self.post("/v1/scenarios/apply", bundle(steps, **intent))["intent_id"]

    def child(self, intent_id: str, step_id: str) -> str:
        """The intent that a step has become, as soon as it has."""

        def started() -> str | None:
            events = self.events(intent_id, "intent.step_started")
            mine = [e["details"]["child_intent_id"] for e in events if e["details"]["step_id"] == step_id]
            return mine[-1] if mine else None

        return until(started)

    def answer(self, intent_id: str, outcome: str, status: int = 200, **more: Any) -> dict[str, Any]:
        return self.post(f"/v1/intents/{intent_id}/resume", {"task_result": {"outcome": outcome, **more}}, status)

    def ended(self, intent_id: str, seconds: float = 20.0) -> dict[str, Any]:
        def over() -> dict[str, Any] | None:
            intent = self.intent(intent_id)
            return intent if intent["status"] in ENDED else None

        return until(over, seconds)

    def waits_for(self, intent_id: str, reason: str, step_id: str | None = None) -> dict[str, Any]:
        def waiting() -> dict[str, Any] | None:
            intent = self.intent(intent_id)
            events = self.events(intent_id, "intent.waiting")
            at = events[-1]["details"].get("step_id") if events else None
            return intent if intent["waiting_reason"] == reason and step_id in (None, at) else None

        return until(waiting)


@pytest.fixture
def server(live: Starter) -> Live:
    return live(lease_seconds=3.0)


@pytest.fixture
def client(server: Live) -> Iterator[Client]:
    asking = Client(server.url)
    yield asking
    asking.http.close()


def seconds_between(one: dict[str, Any], other: dict[str, Any]) -> float:
    return (datetime.fromisoformat(other["at"]) - datetime.fromisoformat(one["at"])).total_seconds()


# --- with the SDK -----------------------------------------------------------------------------------------


def test_agents_and_a_person_carry_a_scenario_through(server: Live, client: Client) -> None:
    def write(payload: dict[str, Any]) -> dict[str, Any]:
        return {"text": f"about {payload['parent_payload']['topic']}", "style": payload["input"]["style"]}

    def check(payload: dict[str, Any]) -> dict[str, Any]:
        return {"words": len(payload["previous_results"]["write"]["text"].split())}

    steps = [step("write", input={"style": "dry"}), sign(), step("check", "checker")]
    with (
        Agent(server.url, "writer", write) as writer,
        Agent(server.url, "agent://local/local/checker", check) as checker,
        sdk(server.url) as axme,
    ):
        started = axme.apply_scenario(bundle(steps))
        parent = started["intent_id"]
        assert started["status"] == "WAITING"
        assert started["compile_id"] == started["workflow_compile_id"]
        assert [each["address"] for each in started["agents_provisioned"]] == [
            f"agent://local/local/{name}" for name in ("writer", "checker", "mailer")
        ]
        waiting = client.waits_for(parent, "WAITING_FOR_HUMAN")
        assert waiting["human_task"]["title"] == "Sign it"
        assert waiting["pending_with"]["ref"] == "boss@example.com"
        axme.resume_intent(parent, {"task_result": {"outcome": "approved", "comment": "fine"}})
        final = axme.wait_for(parent, timeout_seconds=20)
    assert final["status"] == "COMPLETED"
    assert final["result"]["results"]["write"] == {"text": "about tides", "style": "dry"}
    assert final["result"]["results"]["sign"]["comment"] == "fine"
    assert final["result"]["result"] == {"words": 2}
    [written], [checked] = writer.handled, checker.handled
    assert written["payload"]["parent_intent_id"] == checked["payload"]["parent_intent_id"] == parent
    assert written["payload"]["step_id"] == "write"
    names = [event["event_type"] for event in client.events(parent)]
    assert names[:3] == ["intent.created", "intent.submitted", "intent.delivered"]
    assert names.count("intent.step_completed") == 3
    assert "intent.human_task_assigned" in names


def test_a_single_agents_step_delivers_the_intent_itself(server: Live, client: Client) -> None:
    with Agent(server.url, "writer", lambda payload: {"did": payload["topic"]}) as writer, sdk(server.url) as axme:
        started = axme.apply_scenario(bundle([step("write")]))
        assert started["status"] == "DELIVERED"
        final = axme.wait_for(started["intent_id"], timeout_seconds=20)
    assert final["result"] == {"did": "tides"}
    assert [each["intent_id"] for each in writer.handled] == [started["intent_id"]]


def test_a_server_killed_between_steps_goes_on_where_it_was(server: Live, client: Client) -> None:
    """Killed after each step's answer was acknowledged, perhaps before anybody saw it: no step is done twice."""
    names = [f"s{n}" for n in range(4)]
    steps = [step(name, ("writer", "checker")[n % 2]) for n, name in enumerate(names)]
    with (
        Agent(server.url, "writer", lambda p: {"by": p["step_id"]}) as writer,
        Agent(server.url, "checker", lambda p: {"by": p["step_id"]}) as checker,
    ):
        parent = client.apply(steps)
        for name in names[:3]:

            def is_done(name: str = name) -> bool:
                child = client.child(parent, name)
                return client.intent(child)["status"] == "COMPLETED"

            until(is_done, 40)
            server.kill9()
            server.start()
        final = client.ended(parent, 60)
    assert final["status"] == "COMPLETED"
    assert final["result"]["results"] == {name: {"by": name} for name in names}
    assert Counter(i["payload"]["step_id"] for i in writer.handled + checker.handled) == dict.fromkeys(names, 1)


# --- time -------------------------------------------------------------------------------------------------


def test_a_step_deadline_that_passes_while_the_server_is_down_counts_when_it_is_back(
    server: Live, client: Client
) -> None:
    asked = client.apply([sign(step_deadline_seconds=1, on_failure="tell"), step("never"), step("tell", "checker")])
    worked = client.apply([step("slow", step_deadline_seconds=1, on_failure="late"), step("late", "checker")])
    alone = client.apply([sign(step_deadline_seconds=1)])
    client.waits_for(asked, "WAITING_FOR_HUMAN")
    server.kill9()
    time.sleep(1.2)  # it is the time itself that must pass
    server.start()
    assert client.intent(client.child(asked, "tell"))["payload"]["previous_results"]["sign"]["status"] == "TIMED_OUT"
    assert client.intent(client.child(worked, "late"))["payload"]["previous_results"]["slow"]["status"] == "TIMED_OUT"
    assert client.ended(alone)["status"] == "TIMED_OUT"


def test_a_passed_step_deadline_without_a_way_on_ends_the_scenario(client: Client) -> None:
    parent = client.apply([step("slow", step_deadline_seconds=1), step("next")])
    final = client.ended(parent)
    assert final["status"] in ("FAILED", "TIMED_OUT")
    assert final["error"]["status"] == "TIMED_OUT"
    assert final["error"]["step_id"] == "slow"


def test_a_delay_outlives_the_server_and_is_never_cut_short(server: Live, client: Client) -> None:
    wait = {"step_id": "wait", "runtime_type": "delay", "runtime_config": {"delay_seconds": 2}}
    parent = client.apply([wait, step("after")])
    assert client.intent(parent)["waiting_reason"] == "WAITING_FOR_TIME"
    server.kill9()
    server.start()
    client.child(parent, "after")
    [began] = client.events(parent, "intent.waiting")[:1]
    [done] = client.events(parent, "intent.step_completed")
    assert 1.5 <= seconds_between(began, done) < LATE  # the wait begins a moment before it is on record


def test_people_are_reminded_on_time_and_then_it_is_escalated(client: Client) -> None:
    rule: dict[str, Any] = {
        "remind_after_seconds": 1,
        "remind_interval_seconds": 1,
        "max_reminders": 2,
        "escalate_to": "ceo",
    }
    parent = client.apply([sign(**rule), step("next")])
    body = {"intent_type": "a.v1", "to_agent": "agent_core", "payload": {}, "human_task": {"title": "?"}, **rule}
    plain = client.post("/v1/intents", body)["intent_id"]
    for intent_id in (parent, plain):
        until(partial(client.events, intent_id, "intent.escalated"))
        [waiting] = client.events(intent_id, "intent.waiting")
        reminders = client.events(intent_id, "intent.reminder")
        [escalated] = client.events(intent_id, "intent.escalated")
        for due, event in zip((1, 2, 3), (*reminders, escalated), strict=True):
            assert due - 0.5 <= seconds_between(waiting, event) < due + LATE
        assert escalated["details"]["escalated_to"] == "ceo"
        shown = client.intent(intent_id)
        assert shown["remind_count"] == 2
        assert shown["pending_with"]["ref"] == "ceo"
        assert shown["status"] == "WAITING"
        client.answer(intent_id, "approved")
    assert client.ended(plain)["status"] == "COMPLETED"
    client.child(parent, "next")


def test_an_answer_ends_the_reminders(client: Client) -> None:
    parent = client.apply([sign(remind_after_seconds=1, max_reminders=5), step("next")])
    client.answer(parent, "approved")
    client.child(parent, "next")
    time.sleep(1.5)  # long enough for the reminder that must not come
    assert client.events(parent, "intent.reminder") == []


def test_two_servers_on_one_database_do_everything_once(live: Starter, pg_store_url: str) -> None:
    one, two = live(pg_store_url), live(pg_store_url)
    clients = [Client(one.url), Client(two.url)]
    rule: dict[str, Any] = {"remind_after_seconds": 1, "max_reminders": 1, "escalate_to": "ceo"}
    with (
        Agent(one.url, "writer", lambda p: {"by": p["step_id"]}) as writer,
        Agent(two.url, "checker", lambda p: {"by": p["step_id"]}) as checker,
    ):
        parents = [clients[n % 2].apply([step("a"), step("b", "checker"), sign(**rule)]) for n in range(6)]
        for n, parent in enumerate(parents):
            seen = clients[n % 2]
            until(partial(seen.events, parent, "intent.escalated"), 40)
            assert len(seen.events(parent, "intent.reminder")) == 1
            assert len(seen.events(parent, "intent.escalated")) == 1
        one.kill9()
        for parent in parents:
            clients[1].answer(parent, "approved")
            assert clients[1].ended(parent)["status"] == "COMPLETED"
            started = [e["details"]["step_id"] for e in clients[1].events(parent, "intent.step_started")]
            assert started == ["a", "b"]
        one.start()
        for asking in clients:
            asking.http.close()
    assert len(writer.handled) == len(checker.handled) == 6


# --- ways through -----------------------------------------------------------------------------------------


def finish(client: Client, parent: str, name: str, **answer: Any) -> str:
    child = client.child(parent, name)
    client.post(f"/v1/intents/{child}/resume", {"action": "complete", **answer})
    return child


def test_a_refusal_goes_the_way_of_on_failure_or_fails(client: Client) -> None:
    parent = client.apply([sign(on_failure="sorry"), step("go"), step("sorry", "mailer")])
    client.answer(parent, "rejected", comment="no")
    finish(client, parent, "sorry")
    assert client.ended(parent)["result"]["results"]["sign"]["outcome"] == "rejected"
    other = client.apply([sign(), step("go")])
    client.answer(other, "rejected")
    final = client.ended(other)
    assert (final["status"], final["error"]["outcome"]) == ("FAILED", "rejected")


def test_a_failed_step_is_tried_again_as_often_as_the_bundle_says(client: Client) -> None:
    parent = client.apply([step("write", retry={"max_retries": 1, "retry_delay_seconds": 0}), step("check")])
    first = client.child(parent, "write")
    client.post(f"/v1/intents/{first}/resume", {"action": "fail", "reason": "no ink"})

    def again() -> bool:
        return client.child(parent, "write") != first

    until(again)
    [retry] = client.events(parent, "intent.step_retry")
    assert retry["details"]["reason"] == "no ink"
    finish(client, parent, "write")
    finish(client, parent, "check")
    assert client.ended(parent)["status"] == "COMPLETED"


def test_approval_comes_before_the_work_of_a_step_that_requires_it(client: Client) -> None:
    parent = client.apply([step("pay", requires_approval=True), step("tell")])
    client.waits_for(parent, "WAITING_FOR_HUMAN")
    assert client.events(parent, "intent.step_started") == []
    client.post(f"/v1/intents/{parent}/resume", {"approve_current_step": True})
    finish(client, parent, "pay")
    finish(client, parent, "tell")
    assert client.ended(parent)["status"] == "COMPLETED"


def test_canceling_the_scenario_cancels_the_step_under_way(client: Client) -> None:
    parent = client.apply([step("write"), step("check")])
    child = client.child(parent, "write")
    client.post(f"/v1/intents/{parent}/resolve", {"status": "CANCELED", "reason": "changed my mind"})
    assert client.ended(child)["status"] == "CANCELED"


def test_the_intents_own_deadline_ends_all_of_it(client: Client) -> None:
    parent = client.apply([step("write"), step("check")], ttl_seconds=1)
    child = client.child(parent, "write")
    assert client.ended(parent)["status"] == "TIMED_OUT"
    assert client.ended(child)["status"] == "CANCELED"


def test_a_revived_scenario_goes_on_at_the_step_it_ended_in(client: Client) -> None:
    parent = client.apply([step("write"), step("check", "checker"), sign()])
    finish(client, parent, "write", text="…")
    client.post(f"/v1/intents/{client.child(parent, 'check')}/resume", {"action": "fail", "reason": "no ink"})
    assert client.ended(parent)["status"] == "FAILED"
    revived = client.post(f"/v1/intents/{parent}/revive")["intent_id"]
    child = finish(client, revived, "check")
    assert client.intent(child)["payload"]["previous_results"]["write"] == {"text": "…"}
    client.waits_for(revived, "WAITING_FOR_HUMAN")
    client.answer(revived, "rejected")
    assert client.ended(revived)["status"] == "FAILED"
    third = client.post(f"/v1/intents/{revived}/revive")["intent_id"]
    client.waits_for(third, "WAITING_FOR_HUMAN")
    client.answer(third, "approved")
    assert client.ended(third)["status"] == "COMPLETED"
    assert [e["details"]["step_id"] for e in client.events(third, "intent.step_started")] == []


def test_an_agent_that_asks_for_a_person_is_answered_by_the_scenarios_id_too(client: Client) -> None:
    parent = client.apply([step("write"), step("check")])
    child = client.child(parent, "write")
    client.post(f"/v1/intents/{child}/resume", {"status": "pending_human_approval"})
    client.answer(parent, "approved")
    assert client.ended(child)["status"] == "COMPLETED"
    client.child(parent, "check")


def test_a_scenario_that_only_tells_something_is_over_at_once(client: Client) -> None:
    told = {"step_id": "n", "runtime_type": "notification", "runtime_config": {"message": "hello"}}
    answer = client.post("/v1/scenarios/apply", bundle([told]))
    assert answer["status"] == "COMPLETED"
    [event] = client.events(answer["intent_id"], "intent.notification")
    assert event["details"]["message"] == "hello"


def test_a_step_for_a_killed_agent_fails_and_goes_the_way_of_on_failure(client: Client) -> None:
    client.post("/v1/mesh/agents/checker/kill")
    parent = client.apply([step("write"), step("check", "checker", on_failure="tell"), step("tell", "mailer")])
    finish(client, parent, "write")
    child = client.child(parent, "tell")
    assert "kill switch" in client.intent(child)["payload"]["previous_results"]["check"]["reason"]
    answer = client.post("/v1/scenarios/apply", bundle([step("check", "checker")]), 403)
    assert answer["error"]["code"] == "agent_killed"


# --- the requests -----------------------------------------------------------------------------------------


def test_the_same_key_gives_the_same_intent_and_another_bundle_is_a_conflict(server: Live, client: Client) -> None:
    with sdk(server.url) as axme:
        first = axme.apply_scenario(bundle([step("a"), step("b")]), idempotency_key="k1")
        again = axme.apply_scenario(bundle([step("a"), step("b")]), idempotency_key="k1")
        assert first["intent_id"] == again["intent_id"]
        assert (first["idempotent"], again["idempotent"]) == (False, True)
        with pytest.raises(AxmeHttpError) as refused:
            axme.apply_scenario(bundle([step("a"), step("c")]), idempotency_key="k1")
        assert refused.value.status_code == 409
    intents = client.get("/v1/intents")["intents"]
    assert len([i for i in intents if i["to_agent"].endswith("agent_core")]) == 1


def test_errors_of_a_bundle_are_all_told(server: Live, client: Client) -> None:
    wrong = bundle([step("a", "nobody"), step("a", on_failure="zzz")])
    with sdk(server.url) as axme:
        told = axme.validate_scenario(wrong)
        assert not told["ok"]
        assert len(told["errors"]) == 3
        assert axme.validate_scenario(bundle([step("a")])) == {"ok": True, "errors": [], "warnings": []}
    refused = client.post("/v1/scenarios/apply", wrong, 422)
    assert refused["error"]["details"]["errors"] == told["errors"]
    old = {"scenario": "x", "agents": [{"agent_uri": "agent://a"}], "workflow": {"steps": []}}
    assert "old dialect" in client.post("/v1/scenarios/apply", old, 422)["detail"]
    assert client.get("/v1/intents")["intents"] == []


def test_agents_are_made_once(client: Client) -> None:
    made: Callable[[], list[bool]] = lambda: [  # noqa: E731
        each["created"] for each in client.post("/v1/scenarios/apply", bundle([step("a")]))["agents"]
    ]
    assert made() == [True, True, True]
    assert made() == [False, False, False]

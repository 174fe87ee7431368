"""What becomes of an intent: its handler returns, raises, waits, gives up, or lost the right to speak."""

from __future__ import annotations

import threading
import time
from typing import Any

from stepfast import GiveUp, Suspended
from stepfast.ops import ReleaseOwner
from tests.worker.kit import ADDRESS, SECONDS, Hand, Team, wait_until


async def double(run: Any, payload: Any) -> Any:
    return await run.options(name="double").step(lambda: payload * 2)


# It returns


def test_what_a_handler_returns_is_the_result_of_the_intent(team: Team) -> None:
    team.hire(double, concurrency=2)
    sent = [team.send(number) for number in range(10)]
    assert [team.result(intent_id) for intent_id in sent] == [number * 2 for number in range(10)]
    for intent_id in sent:
        assert [step["key"] for step in team.sf.steps(intent_id)] == ["double#1"]
        seen = team.sf.get_intent(intent_id)
        assert (seen["delivery_attempt"], seen["lost_deliveries"]) == (1, 0)


def test_a_handler_may_say_the_result_through_its_run(team: Team) -> None:
    async def handle(run: Any, payload: Any) -> None:
        run.complete("said")

    team.hire(handle)
    assert team.result(team.send()) == "said"


def test_a_worker_serves_its_address_however_it_is_written(team: Team) -> None:
    team.hire(double)
    for address in (ADDRESS, "pipeline", "agent://pipeline", "acme/prod/pipeline"):
        assert team.result(team.send(21, to=address)) == 42
    other = team.send(1, to="agent://acme/test/pipeline")
    assert team.result(team.send(1)) == 2
    assert team.sf.get_intent(other)["status"] == "DELIVERED"


def test_a_worker_by_a_bare_name_serves_all_agents_of_that_name(team: Team) -> None:
    team.hire(double, address="pipeline")
    sent = [team.send(1, to=address) for address in (ADDRESS, "agent://acme/test/pipeline", "pipeline")]
    assert [team.result(intent_id) for intent_id in sent] == [2, 2, 2]


def test_no_more_handlers_run_at_once_than_allowed(team: Team) -> None:
    lock, go_on = threading.Lock(), threading.Event()
    running: set[str] = set()
    most = []

    async def handle(run: Any, payload: Any) -> None:
        with lock:
            running.add(payload)
            most.append(len(running))
        await team.wait(go_on)
        with lock:
            running.remove(payload)

    team.hire(handle, concurrency=3)
    sent = [team.send(f"i{number}") for number in range(9)]
    wait_until(lambda: len(running) == 3, "three handlers run")
    go_on.set()
    for intent_id in sent:
        team.result(intent_id)
    assert max(most) == 3


# It raises


def test_a_handler_that_raises_is_called_again_later_and_its_traceback_is_in_the_history(team: Team) -> None:
    calls: list[float] = []

    async def handle(run: Any, payload: Any) -> str:
        await run.step(str, "before")
        calls.append(time.monotonic())
        if len(calls) < 3:
            raise ConnectionError(f"down {len(calls)}")
        return "up"

    team.hire(handle, retry_seconds=0.2, retry_max_seconds=0.3)
    intent_id = team.send()
    assert team.result(intent_id) == "up"
    lost = [e for e in team.sf.events(intent_id) if e["event_type"] == "intent.delivery_lost"]
    assert [e["details"]["reason"] for e in lost] == ["ConnectionError: down 1", "ConnectionError: down 2"]
    assert 'raise ConnectionError(f"down {len(calls)}")' in lost[1]["data"]["traceback"]
    assert calls[1] - calls[0] >= 0.75 * 0.2
    assert [e["details"]["lost"] for e in lost] == [0, 1]  # the first had a newly finished step
    assert [step["attempt"] for step in team.sf.steps(intent_id)] == [1]


def test_after_its_last_attempt_the_intent_fails_and_says_why(team: Team) -> None:
    async def handle(run: Any, payload: Any) -> None:
        raise LookupError("no such thing")

    team.hire(handle, retry_seconds=0.0)
    ended = team.sf.wait_for(team.send(max_delivery_attempts=2), timeout=SECONDS)
    assert (ended["status"], ended["lost_deliveries"]) == ("FAILED", 2)
    assert ended["reason"] == "LookupError: no such thing"
    assert (ended["error"]["type"], ended["error"]["message"]) == ("builtins:LookupError", "no such thing")
    assert 'raise LookupError("no such thing")' in ended["error"]["traceback"]
    history = team.sf.events(ended["intent_id"])
    failed = next(e for e in history if e["event_type"] == "intent.delivery_failed")
    assert "LookupError: no such thing" in failed["data"]["traceback"]


def test_each_time_that_a_handler_waits_to_try_again_it_waits_longer(team: Team) -> None:
    calls: list[float] = []

    async def handle(run: Any, payload: Any) -> None:
        calls.append(time.monotonic())
        raise ConnectionError("down")

    team.hire(handle, retry_seconds=0.2, retry_max_seconds=0.3)
    assert team.sf.wait_for(team.send(), timeout=SECONDS)["status"] == "FAILED"
    assert calls[1] - calls[0] >= 0.75 * 0.2
    assert calls[2] - calls[1] >= 0.75 * 0.3  # twice as long, had it not been capped


def test_a_handler_that_gets_on_each_time_may_fail_more_often_than_three_times(team: Team) -> None:
    async def handle(run: Any, payload: Any) -> str:
        for number in range(run.attempt):
            await run.step(str, number)
        if run.attempt < 6:
            raise ConnectionError(f"down {run.attempt}")
        return "up"

    team.hire(handle, retry_seconds=0.0)
    intent_id = team.send()
    assert team.result(intent_id) == "up"
    assert team.history(intent_id).count("delivery_lost") == 5


def test_a_handler_that_gives_up_fails_the_intent_at_once(team: Team) -> None:
    async def handle(run: Any, payload: Any) -> None:
        raise GiveUp("there is no such customer")

    team.hire(handle)
    ended = team.sf.wait_for(team.send(), timeout=SECONDS)
    assert (ended["status"], ended["delivery_attempt"], ended["lost_deliveries"]) == ("FAILED", 1, 0)
    assert ended["reason"] == "GiveUp: there is no such customer"
    assert "raise GiveUp(" in ended["error"]["traceback"]


def test_a_result_that_cannot_be_stored_is_a_failure_of_the_handler(team: Team) -> None:
    async def handle(run: Any, payload: Any) -> object:
        return object()

    team.hire(handle)
    ended = team.sf.wait_for(team.send(max_delivery_attempts=1), timeout=SECONDS)
    assert ended["status"] == "FAILED"
    assert "Unencodable" in ended["reason"]


def test_a_handler_cannot_end_the_worker(team: Team) -> None:
    async def handle(run: Any, payload: Any) -> Any:
        if payload == "leave":
            raise SystemExit(3)
        return payload

    team.hire(handle)
    left = team.send("leave", max_delivery_attempts=1)
    assert team.sf.wait_for(left, timeout=SECONDS)["reason"].endswith("SystemExit: 3")
    assert team.result(team.send("stay")) == "stay"


# It waits


def test_a_handler_that_lets_another_run_wait_has_not_failed(team: Team) -> None:
    async def handle(run: Any, payload: Any) -> None:
        raise Suspended("run other waits for a decision", run_id="other")

    team.hire(handle)
    sent = team.send()
    wait_until(lambda: "released" in team.history(sent), "the intent is handed back")
    seen = team.sf.get_intent(sent)
    assert (seen["status"], seen["lost_deliveries"]) == ("IN_PROGRESS", 0)


def test_a_run_that_waits_for_a_person_frees_its_slot_and_goes_on_when_answered(team: Team) -> None:
    async def handle(run: Any, payload: Any) -> Any:
        if payload == "ask":
            answer = await run.ask("Go on?")
            return [answer.outcome, answer.actor]
        return payload

    team.hire(handle, concurrency=1)
    asked = team.send("ask")
    wait_until(lambda: team.sf.decisions(asked), "the run asks")
    assert team.result(team.send("other")) == "other"
    wait_until(lambda: team.sf.get_intent(asked)["status"] == "WAITING", "the run waits")
    team.sf.answer(asked, "approved", actor="ann")
    assert team.result(asked) == ["approved", "ann"]
    assert team.sf.get_intent(asked)["lost_deliveries"] == 0


def test_a_question_that_lapses_is_noticed_by_the_worker(team: Team) -> None:
    async def handle(run: Any, payload: Any) -> Any:
        return (await run.ask("Go on?", expires_in=0.2, default="rejected")).outcome

    team.hire(handle)
    intent_id = team.send()
    wait_until(lambda: team.sf.get_intent(intent_id)["status"] == "COMPLETED", "the worker settles it by itself")
    assert team.sf.get_intent(intent_id)["result"] == "rejected"


# It has lost the right to speak


def held(team: Team, go_on: threading.Event, said: list[Any]) -> tuple[Hand, str]:
    """A worker whose handler stands in its first step; what it does after that is noted."""
    there = threading.Event()

    async def handle(run: Any, payload: Any) -> None:
        await run.step(str, 1)
        there.set()
        try:
            await team.wait(go_on)
            await run.options(name="second").step(said.append, "zombie")
        except BaseException as error:
            said.append(type(error).__name__)
            raise

    hand = team.hire(handle)
    intent_id = team.send()
    assert there.wait(SECONDS)
    return hand, intent_id


def test_a_fenced_handler_is_stopped_at_its_next_step_and_is_not_reported(team: Team) -> None:
    go_on, said = threading.Event(), list[Any]()
    hand, intent_id = held(team, go_on, said)
    owner = team.sf.events(intent_id)[-1]["details"]["owner"]
    assert team.sf.store.one(ReleaseOwner(owner=owner, reason="taken for dead")) == 1
    with team.take() as run:
        go_on.set()
        wait_until(lambda: said, "the zombie goes on")
        hand.stop()
        run.complete("mine")
    assert said == ["zombie", "Fenced"] or said == ["Fenced"]
    assert [step["key"] for step in team.sf.steps(intent_id)] == ["str#1"]
    assert team.result(intent_id) == "mine"
    assert team.history(intent_id).count("delivery_lost") == 1


def test_a_canceled_intent_stops_its_handler_and_stays_canceled(team: Team) -> None:
    go_on, said = threading.Event(), list[Any]()
    hand, intent_id = held(team, go_on, said)
    team.sf.cancel(intent_id, reason="not needed")
    go_on.set()
    wait_until(lambda: said, "the handler goes on")
    hand.stop()
    assert said[-1] == "AlreadyFinished"
    assert team.history(intent_id)[-1] == "canceled"


def test_a_handler_that_outlives_its_worker_is_stopped_at_its_next_step(team: Team) -> None:
    go_on, said = threading.Event(), list[Any]()
    hand, intent_id = held(team, go_on, said)
    hand.stop(0.0)
    assert team.history(intent_id)[-1] == "released"
    go_on.set()
    wait_until(lambda: said, "the handler ends")
    assert said == ["Fenced" if team.kind == "sync" else "CancelledError"]
    with team.take() as run:
        assert run.step(str, 1) == "1"
    assert team.sf.get_intent(intent_id)["lost_deliveries"] == 0

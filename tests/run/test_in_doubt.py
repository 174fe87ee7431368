"""A one-shot that a killed process left in doubt, and the person who decides about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepfast import AlreadyAnswered, InvalidInput, NotFound, RunFailed, Stepfast, Suspended
from stepfast.stored_names import RUN_TYPE
from stepfast.testing import Effects
from tests.run.kit import Calls, Crash, Spawn, Way, both


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/stepfast.db"


def left_in_doubt(spawn: Spawn, url: str, policy: str = "ask", *args: Any) -> None:
    child = spawn("leave_in_doubt", url, "r", policy, *args)
    assert child.hear("happened") == "pay"
    child.kill()


def test_a_killed_one_shot_waits_for_a_person_with_its_evidence(spawn: Spawn, url: str, tmp_path: Path) -> None:
    left_in_doubt(spawn, url, "ask", "card 42", 100)
    again = spawn("go_on_after_doubt", url, "r", "ask", "card 42", 100)
    assert again.hear("suspended") == ["in-doubt:once:effect_then_hang#1:0"]
    again.end()
    with Stepfast(url) as sf:
        shown = sf.describe("r")
        assert (shown["status"], shown["waiting_reason"]) == ("WAITING", "WAITING_FOR_HUMAN")
        [decision] = sf.decisions()
        assert shown["decisions"] == [decision]
        journal = {step["key"]: step for step in sf.steps("r")}
    assert decision["kind"] == "in_doubt"
    assert decision["run_id"] == "r"
    assert decision["outcomes"] == ["done", "retry", "fail"]
    assert "effect_then_hang" in decision["question"]
    evidence = decision["evidence"]
    assert evidence["name"] == "effect_then_hang"
    assert evidence["attempt"] == 1
    assert "card 42" in evidence["arguments"]
    assert "100" in evidence["arguments"]
    assert evidence["step"] == "once:effect_then_hang#1"
    assert evidence["started_at"] == journal["once:effect_then_hang#1"]["started_at"]
    assert evidence["idempotency_key"].endswith("/once:effect_then_hang#1")
    assert Effects(tmp_path).lines() == ["before", "pay"]


@pytest.mark.parametrize(
    ("outcome", "more", "says", "effects"),
    [
        ("done", {"value": {"receipt": 7}}, {"receipt": 7}, ["before", "pay", "after"]),
        ("done", {}, None, ["before", "pay", "after"]),
        ("retry", {}, "pay done", ["before", "pay", "pay", "after"]),
    ],
    ids=["done", "done-without-a-result", "retry"],
)
def test_the_run_goes_on_as_another_process_answers(
    spawn: Spawn, url: str, tmp_path: Path, outcome: str, more: dict[str, Any], says: Any, effects: list[str]
) -> None:
    left_in_doubt(spawn, url)
    spawn("go_on_after_doubt", url, "r", "ask").hear("suspended")
    spawn("answer", url, "r", outcome, {**more, "actor": "ann"}).hear("answered")
    assert spawn("go_on_after_doubt", url, "r", "ask").hear("completed") == says
    assert Effects(tmp_path).lines() == effects
    with Stepfast(url) as sf:
        assert sf.wait_for("r", timeout=0)["result"] == says
        history = sf.events("r")
    assert [e["event_type"] for e in history].count("intent.delivery_lost") == 1


def test_a_person_who_says_fail_ends_the_run(spawn: Spawn, url: str, tmp_path: Path) -> None:
    left_in_doubt(spawn, url)
    spawn("go_on_after_doubt", url, "r", "ask").hear("suspended")
    spawn("answer", url, "r", "fail", {"actor": "ann"}).hear("answered")
    kind, text = spawn("go_on_after_doubt", url, "r", "ask").hear("failed")
    assert kind == "RunFailed"
    assert "ann decided to fail the run" in text
    with Stepfast(url) as sf:
        assert sf.wait_for("r", timeout=0)["status"] == "FAILED"
    assert Effects(tmp_path).lines() == ["before", "pay"]


def test_a_revived_run_asks_again_about_what_a_person_let_fail(spawn: Spawn, url: str, tmp_path: Path) -> None:
    left_in_doubt(spawn, url)
    spawn("go_on_after_doubt", url, "r", "ask").hear("suspended")
    with Stepfast(url) as sf:
        sf.answer("r", "fail", actor="ann")
        with pytest.raises(RunFailed):
            sf.run("r")
        sf.revive("r")
        with pytest.raises(Suspended):
            sf.run("r", on_wait="suspend")
        sf.answer("r", "done", value="paid after all")
    assert spawn("go_on_after_doubt", url, "r", "ask").hear("completed") == "paid after all"
    assert Effects(tmp_path).lines() == ["before", "pay", "after"]


def test_a_run_left_in_doubt_and_failed_can_be_revived_and_decided(spawn: Spawn, url: str, tmp_path: Path) -> None:
    """The only delivery is lost in the one-shot, so the new intent's first attempt meets an old one's doubt."""
    with Stepfast(url) as sf:
        sf.set_max_delivery_attempts(RUN_TYPE, 1)
        child = spawn("once_stopped_at", url, "r", "once.after_call")
        child.hear("at")
        child.kill()
        with pytest.raises(RunFailed):
            sf.run("r")
        sf.revive("r")
        with pytest.raises(Suspended):
            sf.run("r", on_wait="suspend")
        sf.answer("r", "done", value="paid")
    assert spawn("once_stopped_at", url, "r", "").hear("completed") == "paid"
    assert Effects(tmp_path).lines() == ["pay"]


@pytest.mark.parametrize(("policy", "effects"), [("retry", ["before", "pay", "pay", "after"]), ("fail", None)])
def test_a_policy_decides_where_no_person_is_wanted(
    spawn: Spawn, url: str, tmp_path: Path, policy: str, effects: list[str] | None
) -> None:
    left_in_doubt(spawn, url, policy)
    again = spawn("go_on_after_doubt", url, "r", policy)
    if effects is None:
        kind, text = again.hear("failed")
        assert kind == "StepFailed"
        assert "outcome is unknown" in text
        effects = ["before", "pay"]
    else:
        again.hear("completed")
    assert Effects(tmp_path).lines() == effects


@both
async def test_several_one_shots_in_doubt_are_asked_for_one_by_one(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        for name in ("mail", "pay"):
            with pytest.raises(Crash):
                await run.once(calls.raising(name, Crash()))
    with pytest.raises(Suspended) as first:
        await sf.run("r", on_wait="suspend")
    await sf.answer("r", "done", first.value.decisions[0], value="sent")
    with pytest.raises(Suspended) as second:
        await sf.run("r", on_wait="suspend")
    assert first.value.decisions != second.value.decisions
    await sf.answer("r", "retry")
    async with sf.run("r", on_wait="suspend") as run:
        assert await run.once(calls.mail) == "sent"
        assert await run.once(calls.pay) == ["pay"]
    assert calls.names == ["mail", "pay", "pay"]


@both
async def test_a_decision_takes_one_answer_for_good(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.once(calls.raising("pay", Crash()))
    with pytest.raises(NotFound, match="waits for no decision"):
        await sf.answer("r", "done")
    with pytest.raises(Suspended):
        await sf.run("r", on_wait="suspend")
    with pytest.raises(InvalidInput, match="done, retry, fail"):
        await sf.answer("r", "perhaps")
    [key] = [d["key"] for d in await sf.decisions("r")]
    await sf.answer("r", "done", key, actor="ann")
    await sf.answer("r", "done", key, actor="ann")
    with pytest.raises(AlreadyAnswered, match="ann"):
        await sf.answer("r", "retry", key, actor="bob")


@both
async def test_waiting_for_a_person_costs_no_delivery(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r", max_delivery_attempts=2) as run:
        await run.once(calls.raising("pay", Crash()))
    for _ in range(5):
        with pytest.raises(Suspended):
            await sf.run("r", on_wait="suspend")
        sf.store.clock.advance(3600)
    intent = await sf.get_intent("r")
    assert (intent["status"], intent["lost_deliveries"]) == ("WAITING", 1)

"""Model calls, tool calls and questions as flows: blocking and awaited by the same code."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from stepfast import DID_NOT_HAPPEN, Diverged, Happened, Suspended
from stepfast.adapters import (
    ASK,
    FAIL,
    ONCE,
    RETRY,
    STOPPED,
    Conversation,
    Occurrences,
    Policy,
    Settings,
    Stopped,
    ask_all,
    check_leftover,
    digest,
    model_call,
    tool_call,
)
from stepfast.errors import StepFailed
from tests.adapters.kit import Crash, Way, request


class Boom(Exception):
    pass


def model(attempt: Any, run: Any, way: Way, talk: Conversation, text: str, calls: list[str], **more: Any) -> Any:
    def ask() -> str:
        calls.append(text)
        return text.upper()

    options = {
        "key": talk.key,
        "agent": "clerk",
        "request": request(*[text] * (talk.turn + 1)),
        "ask": way.says(ask),
        "pack": lambda answer: {"response": answer},
        "unpack": lambda recorded: recorded["response"],
        "conversation": talk,
    }
    return model_call(attempt, run, **{**options, **more})


def tool(attempt: Any, run: Any, policy: Policy, effect: Any, **more: Any) -> Any:
    options = {"key": "tool:1", "name": "pay", "inputs": ["pay", 5], "arguments": {"amount": 5}, "policy": policy}
    return tool_call(attempt, run, effect=effect, **{**options, **more})


# --- model calls ---------------------------------------------------------------------------------


def test_a_finished_model_call_is_answered_from_the_journal(way: Way) -> None:
    calls: list[str] = []

    def scene(attempt: Any, run: Any) -> Any:
        talk = Conversation()
        first = yield from model(attempt, run, way, talk, "a", calls)
        assert talk.replayed is first[1]
        second = yield from model(attempt, run, way, talk, "b", calls)
        if len(calls) == 2:
            calls.append("crash")
            raise Crash
        return [first, second]

    with pytest.raises(Crash):
        way.play(scene)
    assert way.play(scene) == [("A", True), ("B", True)]
    assert calls == ["a", "b", "crash"]
    assert [a.live for a in way.attempts] == [True, False]
    assert [(s["key"], s["kind"], s["name"]) for s in way.sf.steps("r")] == [
        ("model:0", "model", "clerk"),
        ("model:1", "model", "clerk"),
    ]


def test_a_model_call_that_raises_records_nothing(way: Way) -> None:
    def ask() -> None:
        raise Boom

    def scene(attempt: Any, run: Any) -> Any:
        return (yield from model(attempt, run, way, Conversation(), "a", [], ask=way.says(ask)))

    with pytest.raises(Boom):
        way.play(scene)
    assert way.sf.steps("r") == []


def test_a_changed_request_stops_the_run_whatever_the_framework_does(way: Way) -> None:
    words = iter(["a", "b"])
    calls: list[str] = []

    def scene(attempt: Any, run: Any) -> Any:
        try:
            yield from model(attempt, run, way, Conversation(), next(words), calls)
        except Stopped:
            return "the framework swallowed it"
        raise Crash

    with pytest.raises(Crash):
        way.play(scene)
    with pytest.raises(Diverged, match=r"model call model:0 of agent clerk .*\n.*item 0 \(message\) changed"):
        way.play(scene)
    words = iter(["c"])
    assert calls == ["a"]
    with pytest.raises(Crash):
        way.play(scene, settings=Settings(on_drift="accept"))
    assert calls == ["a"]


def test_an_answer_that_can_only_be_used_for_the_same_request(way: Way) -> None:
    def scene(attempt: Any, run: Any) -> Any:
        text = "a" if len(way.attempts) == 1 else "b"
        advice = lambda recorded: f"Pass {recorded['model']} again."  # noqa: E731
        yield from model(attempt, run, way, Conversation(), text, [], remedy=advice)
        raise Crash

    with pytest.raises(Crash):
        way.play(scene)
    with pytest.raises(Diverged, match=r"Pass m again\.$"):
        way.play(scene, settings=Settings(on_drift="accept"))


def test_a_changed_request_is_seen_where_calls_are_named_by_their_content(way: Way) -> None:
    """As where threads race: the changed request has another key, and the recorded answer is left over."""
    calls: list[str] = []

    def scene(*words: str) -> Any:
        def flow(attempt: Any, run: Any) -> Any:
            occurrences, scope = Occurrences(), run.scope("task:1", shared=True)
            answers = []
            for word in words:
                key = occurrences.key("model", "m", digest(word))
                asked = {"key": key, "request": request(word), "conversation": None}
                check: dict[str, Any] = {
                    "agent": "clerk",
                    "occurrences": occurrences,
                    "key": key,
                    "request": asked["request"],
                }
                yield from check_leftover(attempt, scope, **check)
                answers += [(yield from model(attempt, scope, way, Conversation(), word, calls, **asked))]
            if words[-1] == "crash":
                raise Crash
            return answers

        return flow

    with pytest.raises(Crash):
        way.play(scene("a", "b", "b", "crash"))
    with pytest.raises(Diverged, match=r"model call scope:task:1/model:m\..* of agent clerk .*\n.*item 0"):
        way.play(scene("a", "c"))
    assert calls == ["a", "b", "b", "crash"]
    assert way.play(scene("b", "a", "b")) == [("B", True), ("A", True), ("B", True)]


# --- tool calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [ASK, ONCE, RETRY, FAIL])
def test_a_finished_tool_call_is_answered_from_the_journal(way: Way, policy: Policy) -> None:
    done: list[str] = []

    def scene(attempt: Any, run: Any) -> Any:
        context: dict[str, Any] = {"paid": 0}

        def pay() -> str:
            done.append("pay")
            context["paid"] = 5
            return "receipt"

        found = yield from tool(attempt, run, policy, way.says(pay), context=context)
        assert context == {"paid": 5}
        if len(way.attempts) == 1:
            raise Crash
        return found

    with pytest.raises(Crash):
        way.play(scene)
    assert way.play(scene) == ("receipt", True)
    assert done == ["pay"]


def killed_inside(way: Way, policy: Policy, done: list[str]) -> Any:
    def pay() -> str:
        done.append("pay")
        if len(done) == 1:
            raise Crash
        return f"receipt {len(done)}"

    def scene(attempt: Any, run: Any) -> Any:
        return (yield from tool(attempt, run, policy, way.says(pay)))

    with pytest.raises(Crash):
        way.play(scene)
    return scene


def test_a_call_in_doubt_waits_for_a_person(way: Way) -> None:
    done: list[str] = []
    scene = killed_inside(way, ASK, done)
    with pytest.raises(Suspended):
        way.play(scene)
    way.sf.answer("r", "done", value="receipt 7")
    assert way.play(scene) == ("receipt 7", True)
    assert done == ["pay"]


def test_a_call_that_is_safe_to_repeat_is_repeated(way: Way) -> None:
    done: list[str] = []
    assert way.play(killed_inside(way, RETRY, done)) == ("receipt 2", False)


def test_a_call_whose_outcome_stays_unknown_fails(way: Way) -> None:
    done: list[str] = []
    with pytest.raises(StepFailed, match="its outcome is unknown"):
        way.play(killed_inside(way, FAIL, done))
    assert done == ["pay"]


@pytest.mark.parametrize("told", [Happened("found it"), DID_NOT_HAPPEN])
def test_a_probe_gets_the_arguments_and_decides(way: Way, told: Any) -> None:
    asked: list[dict[str, Any]] = []

    def probe(**arguments: Any) -> Any:
        asked.append(arguments)
        return told

    done: list[str] = []
    found = way.play(killed_inside(way, Policy("probe", way.says(probe)), done))
    assert found == (("receipt 2", False) if told is DID_NOT_HAPPEN else ("found it", True))
    assert asked == [{"amount": 5}]


@pytest.mark.parametrize("may_raise", [False, True])
def test_an_exception_of_a_one_shot_leaves_it_in_doubt_and_a_probe_settles_it(way: Way, may_raise: bool) -> None:
    """Where tools may raise it is settled at once; where not, the framework goes round once more."""
    done: list[str] = []

    def pay() -> str:
        done.append("pay")
        if len(done) == 1:
            raise Boom
        return "receipt"

    def scene(attempt: Any, run: Any) -> Any:
        found = yield from tool(attempt, run, policy, way.says(pay))
        if found == (STOPPED, False):
            return "the framework goes on"
        return found

    policy = Policy("probe", way.says(lambda amount: DID_NOT_HAPPEN), "ask")
    assert way.play(scene, may_raise=may_raise) == ("receipt", False)
    assert len(way.attempts) == (1 if may_raise else 2)
    assert len(done) == 2


@pytest.mark.parametrize("may_raise", [False, True])
def test_what_a_probe_finds_is_the_output(way: Way, may_raise: bool) -> None:
    def pay() -> str:
        raise Boom

    def scene(attempt: Any, run: Any) -> Any:
        return (yield from tool(attempt, run, policy, way.says(pay)))

    policy = Policy("probe", way.says(lambda amount: Happened("found it")), "ask")
    assert way.play(scene, may_raise=may_raise) == ("found it", True)


@pytest.mark.parametrize("may_raise", [False, True])
def test_a_tool_that_always_fails_ends_the_run(way: Way, may_raise: bool) -> None:
    done: list[str] = []

    def pay() -> str:
        done.append("pay")
        raise Boom(len(done))

    def scene(attempt: Any, run: Any) -> Any:
        return (yield from tool(attempt, run, policy, way.says(pay)))

    policy = Policy("probe", way.says(lambda amount: DID_NOT_HAPPEN), "ask")
    with pytest.raises(Boom, match="5"):
        way.play(scene, may_raise=may_raise)
    assert len(done) == 5


def test_an_exception_is_recorded_where_the_model_is_shown_it(way: Way) -> None:
    done: list[str] = []

    def pay() -> str:
        done.append("pay")
        raise Boom("no such account")

    def scene(attempt: Any, run: Any) -> Any:
        try:
            yield from tool(attempt, run, ASK, way.says(pay), keep_errors=True)
        except Boom as error:
            if len(way.attempts) == 1:
                raise Crash from error
            return str(error)

    with pytest.raises(Crash):
        way.play(scene)
    assert way.play(scene) == "no such account"
    assert done == ["pay"]


def test_an_exception_that_ends_the_run_lets_the_call_be_made_again(way: Way) -> None:
    done: list[str] = []

    def pay() -> str:
        done.append("pay")
        if len(done) == 1:
            raise Boom
        return "receipt"

    def scene(attempt: Any, run: Any) -> Any:
        return (yield from tool(attempt, run, ASK, way.says(pay)))

    with pytest.raises(Boom):
        way.play(scene)
    assert way.play(scene) == ("receipt", False)


def test_nothing_starts_once_the_run_has_stopped(way: Way) -> None:
    done: list[str] = []

    def scene(attempt: Any, run: Any) -> Any:
        attempt.stop(Boom("the reason"))
        assert (yield from tool(attempt, run, ASK, lambda: done.append("pay"))) == (STOPPED, False)
        with pytest.raises(Stopped):
            yield from model(attempt, run, way, Conversation(), "a", done)

    with pytest.raises(Boom, match="the reason"):
        way.play(scene)
    assert done == []
    assert way.sf.steps("r") == []


def test_an_output_that_cannot_be_stored_is_kept_as_its_text(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    def scene(attempt: Any, run: Any) -> Any:
        return (yield from tool(attempt, run, RETRY, way.says(Odd)))

    with caplog.at_level(logging.WARNING, "stepfast"):
        assert way.play(scene) == ("odd", False)
    assert "returned a Odd, which cannot be stored" in caplog.text


# --- questions -----------------------------------------------------------------------------------


def test_questions_are_all_answered_or_none(way: Way) -> None:
    pending: list[str] = []

    def scene(attempt: Any, run: Any) -> Any:
        questions = [{"question": f"May I {n}?", "key": n, "evidence": {"n": n}} for n in ("pay", "mail")]
        answers = yield from ask_all(run, questions, lambda: pending.append("waits"))
        return [(answer.outcome, answer.comment) for answer in answers]

    with pytest.raises(Suspended):
        way.play(scene)
    assert [d["key"] for d in way.sf.decisions("r")] == ["ask:pay", "ask:mail"]
    way.sf.answer("r", "rejected", "ask:mail", comment="not now")
    with pytest.raises(Suspended):
        way.play(scene)
    way.sf.answer("r", "approved", "ask:pay")
    assert way.play(scene) == [("approved", None), ("rejected", "not now")]
    assert pending

"""The scenario engine and the reading of bundles, as pure functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.intents import Status
from stepfast.server.bundles import Plan, read_bundle
from stepfast.server.scenarios import (
    Again,
    Answered,
    Begin,
    Cancel,
    ChildEnded,
    Dispatch,
    Effect,
    Finish,
    Happening,
    Note,
    ParentEnded,
    State,
    Tick,
    Wait,
    advance,
    child_id,
)

SECOND = 1_000_000
PARENT = "0190a000-0000-7000-8000-000000000001"


def bundle(steps: list[dict[str, Any]], **intent: Any) -> dict[str, Any]:
    return {
        "scenario_id": "report-v1",
        "agents": [{"role": "writer", "address": "writer"}, {"role": "checker", "address": "agent://a/b/checker"}],
        "humans": [{"role": "boss", "contact": "boss@example.com"}],
        "workflow": {"steps": steps},
        "intent": {"type": "intent.report.v1", "payload": {"topic": "tides"}, **intent},
    }


def plan_of(steps: list[dict[str, Any]], **intent: Any) -> Plan:
    reading = read_bundle(bundle(steps, **intent))
    assert reading.errors == []
    assert reading.plan is not None
    return reading.plan


def begin(steps: list[dict[str, Any]], now: int = 0, **intent: Any) -> tuple[State, list[Effect]]:
    return advance(State(parent_id=PARENT, plan=plan_of(steps, **intent)), Begin(), now)


def ended(state: State, status: Status = Status.COMPLETED, **fields: Any) -> ChildEnded:
    return ChildEnded(child_id=state.child_id or "", status=status, **fields)


def of(kind: type, effects: list[Effect]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def events(effects: list[Effect]) -> list[str]:
    return [note.event_type for note in of(Note, effects)]


TWO: list[dict[str, Any]] = [
    {"step_id": "write", "assigned_to": "writer", "input": {"x": 1}},
    {"step_id": "check", "assigned_to": "checker"},
]


# --- steps of agents ------------------------------------------------------------------------------------


def test_steps_follow_one_another_and_hand_their_results_on() -> None:
    state, effects = begin(TWO)
    [first] = of(Dispatch, effects)
    assert (first.step_id, first.address, first.input, first.results) == ("write", "writer", {"x": 1}, {})
    assert of(Wait, effects)[0].pending_with == {"type": "agent", "ref": "writer", "name": "write"}
    state, effects = advance(state, ended(state, result={"text": "…"}), 5)
    [second] = of(Dispatch, effects)
    assert (second.address, second.results) == ("agent://a/b/checker", {"write": {"text": "…"}})
    state, effects = advance(state, ended(state, result={"ok": True}), 9)
    [finish] = of(Finish, effects)
    assert finish.status is Status.COMPLETED
    assert finish.result["results"] == {"write": {"text": "…"}, "check": {"ok": True}}
    assert finish.result["result"] == {"ok": True}
    assert advance(state, Tick(), 99) == (state, [])


def test_an_ending_that_is_not_the_present_childs_changes_nothing() -> None:
    state, _ = begin(TWO)
    stale = ChildEnded(child_id="another", status=Status.FAILED)
    assert advance(state, stale, 5) == (state, [])


def test_a_failed_step_without_a_way_on_fails_the_scenario() -> None:
    state, _ = begin(TWO)
    state, effects = advance(state, ended(state, Status.FAILED, reason="no ink"), 5)
    [finish] = of(Finish, effects)
    assert (finish.status, finish.reason) == (Status.FAILED, "step 'write': no ink")
    assert finish.error["step_id"] == "write"


def test_a_failed_step_goes_the_way_of_on_failure_with_the_error_at_hand() -> None:
    steps = [{**TWO[0], "on_failure": "check"}, {"step_id": "skip", "assigned_to": "writer"}, TWO[1]]
    state, _ = begin(steps)
    state, effects = advance(state, ended(state, Status.FAILED, reason="no ink"), 5)
    [dispatch] = of(Dispatch, effects)
    assert dispatch.step_id == "check"
    failed = dispatch.results["write"]
    assert (failed["status"], failed["reason"]) == ("FAILED", "no ink")


def test_on_success_may_name_another_step_or_the_end() -> None:
    steps = [{**TWO[0], "on_success": "end"}, TWO[1]]
    state, _ = begin(steps)
    state, effects = advance(state, ended(state), 5)
    assert of(Finish, effects)[0].status is Status.COMPLETED


def test_a_step_is_tried_again_after_its_pause_with_a_new_child_each_time() -> None:
    steps = [{**TWO[0], "retry": {"max_retries": 2, "retry_delay_seconds": 10}}, TWO[1]]
    state, _ = begin(steps)
    children = [state.child_id]
    for round_ in (1, 2):
        at = state.now + SECOND
        state, effects = advance(state, ended(state, Status.FAILED), at)
        assert events(effects) == ["intent.step_retry"]
        assert of(Dispatch, effects) == []
        assert state.due_at == at + 10 * SECOND
        assert advance(state, Tick(), state.due_at - 1) == (state, [])
        state, effects = advance(state, Tick(), state.due_at)
        assert len(of(Dispatch, effects)) == 1, round_
        children.append(state.child_id)
    assert len(set(children)) == 3
    _, effects = advance(state, ended(state, Status.FAILED), state.now)
    assert of(Finish, effects)[0].status is Status.FAILED


def test_a_canceled_step_is_not_tried_again() -> None:
    steps = [{**TWO[0], "retry": {"max_retries": 2}}, TWO[1]]
    state, _ = begin(steps)
    _, effects = advance(state, ended(state, Status.CANCELED), 5)
    assert of(Finish, effects)[0].status is Status.FAILED


def test_a_step_that_timed_out_times_the_scenario_out() -> None:
    steps = [{**TWO[0], "step_deadline_seconds": 7}, TWO[1]]
    state, effects = begin(steps)
    assert of(Dispatch, effects)[0].deadline == 7.0
    _, effects = advance(state, ended(state, Status.TIMED_OUT), 7 * SECOND)
    assert of(Finish, effects)[0].status is Status.TIMED_OUT


def test_when_the_parent_ends_its_child_is_canceled() -> None:
    state, _ = begin(TWO)
    done, effects = advance(state, ParentEnded(), 5)
    assert effects == [Cancel(child_id=state.child_id or "", reason="its scenario has ended")]
    assert done.phase == "done"


def test_a_revived_scenario_goes_on_at_the_step_it_ended_in() -> None:
    state, _ = begin(TWO)
    assert advance(state, Again("new"), 1) == (state, [])
    state, _ = advance(state, ended(state, result={"text": "…"}), 5)
    over, _ = advance(state, ended(state, Status.FAILED, reason="no ink"), 6)
    again, effects = advance(over, Again("new"), 7)
    [dispatch] = of(Dispatch, effects)
    assert (again.parent_id, dispatch.step_id) == ("new", "check")
    assert dispatch.results["write"] == {"text": "…"}
    assert dispatch.child_id != state.child_id


# --- people ---------------------------------------------------------------------------------------------

ASK: dict[str, Any] = {
    "step_id": "sign",
    "tool_id": "tool.approval.human_signoff",
    "assigned_to": "boss",
    "human_task": {"title": "Sign it"},
}


def answer(state: State, outcome: str, positive: bool) -> Answered:
    return Answered(positive=positive, task_result={"outcome": outcome}, actor="ann", taken=state.taken)


def test_a_persons_step_waits_for_the_person_and_goes_on_with_the_answer() -> None:
    state, effects = begin([ASK, TWO[1]])
    [wait] = of(Wait, effects)
    assert (wait.reason, wait.task["title"]) == ("WAITING_FOR_HUMAN", "Sign it")
    assert wait.pending_with == {"type": "human", "ref": "boss@example.com", "name": "boss@example.com"}
    assert of(Dispatch, effects) == []
    state, effects = advance(state, answer(state, "approved", True), 5)
    assert of(Dispatch, effects)[0].results == {"sign": {"outcome": "approved"}}


def test_a_refusal_fails_or_goes_the_way_of_on_failure() -> None:
    state, _ = begin([ASK, TWO[1]])
    _, effects = advance(state, answer(state, "rejected", False), 5)
    [finish] = of(Finish, effects)
    assert (finish.status, finish.error["outcome"]) == (Status.FAILED, "rejected")
    state, _ = begin([{**ASK, "on_failure": "check"}, {"step_id": "x", "assigned_to": "writer"}, TWO[1]])
    _, effects = advance(state, answer(state, "rejected", False), 5)
    assert of(Dispatch, effects)[0].step_id == "check"


def test_an_answer_to_an_earlier_question_does_not_count_for_a_later_one() -> None:
    state, _ = begin([ASK, {**ASK, "step_id": "again"}])
    late = answer(state, "approved", True)
    state, _ = advance(state, late, 5)
    assert state.step_id == "again"
    assert advance(state, late, 6) == (state, [])


def test_approval_comes_before_the_agents_work() -> None:
    state, effects = begin([{**TWO[0], "requires_approval": True}, TWO[1]])
    assert of(Dispatch, effects) == []
    assert of(Wait, effects)[0].task["title"] == "Approve step write"
    state, effects = advance(state, answer(state, "approved", True), 5)
    assert of(Dispatch, effects)[0].step_id == "write"


def test_reminders_come_at_their_times_and_then_the_escalation() -> None:
    rule = {"remind_after_seconds": 10, "remind_interval_seconds": 5, "max_reminders": 2, "escalate_to": "ceo"}
    state, _ = begin([{**ASK, **rule}])
    seen = []
    while state.due_at is not None:
        at = state.due_at
        assert advance(state, Tick(), at - 1) == (state, [])
        state, effects = advance(state, Tick(), at)
        seen.append((at // SECOND, *events(effects)))
    assert seen == [(10, "intent.reminder"), (15, "intent.reminder"), (20, "intent.escalated")]
    _, effects = advance(state, answer(state, "approved", True), 99 * SECOND)
    assert of(Finish, effects)[0].status is Status.COMPLETED


def test_reminders_that_fell_due_while_no_server_ran_come_once() -> None:
    rule = {"remind_after_seconds": 10, "remind_interval_seconds": 5, "max_reminders": 3}
    state, _ = begin([{**ASK, **rule}])
    state, effects = advance(state, Tick(), 100 * SECOND)
    assert events(effects) == ["intent.reminder"]
    assert state.due_at == 105 * SECOND


def test_the_intents_reminders_and_task_hold_for_steps_without_their_own() -> None:
    step = {"step_id": "sign", "runtime_type": "human_approval"}
    state, effects = begin([step], remind_after_seconds=3, human_task={"title": "From the intent"})
    assert state.due_at == 3 * SECOND
    assert of(Wait, effects)[0].task["title"] == "From the intent"


def test_a_persons_deadline_fails_the_step() -> None:
    state, _ = begin([{**ASK, "step_deadline_seconds": 60, "remind_after_seconds": 90}])
    assert state.due_at == 60 * SECOND
    _, effects = advance(state, Tick(), 60 * SECOND)
    assert of(Finish, effects)[0].status is Status.TIMED_OUT
    assert "intent.reminder" not in events(effects)


# --- time and telling -------------------------------------------------------------------------------------


def test_a_delay_lets_time_pass_and_a_timeout_fails_after_it() -> None:
    state, effects = begin([{"step_id": "w", "runtime_type": "delay", "runtime_config": {"delay_seconds": 4}}, TWO[1]])
    assert of(Wait, effects)[0].reason == "WAITING_FOR_TIME"
    state, effects = advance(state, Tick(), 4 * SECOND)
    assert of(Dispatch, effects)[0].step_id == "check"
    state, _ = begin([{"step_id": "w", "runtime_type": "timeout", "runtime_config": {"timeout_seconds": 4}}])
    _, effects = advance(state, Tick(), 4 * SECOND)
    assert of(Finish, effects)[0].status is Status.TIMED_OUT


def test_steps_that_only_tell_are_done_at_once() -> None:
    steps: list[dict[str, Any]] = [
        {"step_id": "n", "runtime_type": "notification", "runtime_config": {"message": "off we go"}},
        {"step_id": "r", "runtime_type": "reminder"},
        {"step_id": "e", "tool_id": "tool.internal.escalation", "escalate_to": "ceo"},
        TWO[1],
    ]
    state, effects = begin(steps)
    told = ["intent.notification", "intent.reminder", "intent.escalated", "intent.step_started"]
    assert events(effects) == told
    assert of(Note, effects)[0].details["message"] == "off we go"
    assert of(Note, effects)[2].details["escalated_to"] == "ceo"
    assert state.step_id == "check"


def test_a_circle_of_steps_is_cut_off() -> None:
    steps: list[dict[str, Any]] = [{"step_id": "a", "runtime_type": "notification", "on_success": "b"}]
    steps.append({"step_id": "b", "runtime_type": "notification", "on_success": "a"})
    assert read_bundle(bundle(steps)).warnings == ["workflow.steps: step 'a' can come around again; a run is cut off"]
    _, effects = begin(steps)
    [finish] = of(Finish, effects)
    assert finish.status is Status.FAILED
    assert "circle" in (finish.reason or "")


# --- every bundle, any world ------------------------------------------------------------------------------

KINDS = ["agent", "agent", "human", "gate", "delay", "notification", "escalation", "timeout"]


@st.composite
def steps_of(draw: st.DrawFn) -> list[dict[str, Any]]:
    count = draw(st.integers(1, 5))
    ids = [f"s{n}" for n in range(count)]
    steps = []
    for name in ids:
        kind = draw(st.sampled_from(KINDS))
        step: dict[str, Any] = {"step_id": name}
        if kind in ("agent", "gate"):
            step["assigned_to"] = "writer"
            step["requires_approval"] = kind == "gate"
            step["retry"] = {"max_retries": draw(st.integers(0, 2)), "retry_delay_seconds": draw(st.integers(0, 9))}
        elif kind == "human":
            step |= {"runtime_type": "human_approval"}
        else:
            step |= {"runtime_type": kind, "runtime_config": {"delay_seconds": draw(st.integers(0, 9))}}
        if kind in ("human", "gate") and draw(st.booleans()):
            step |= {"remind_after_seconds": draw(st.integers(0, 9)), "max_reminders": draw(st.integers(0, 3))}
            step["escalate_to"] = draw(st.sampled_from([None, "ceo"]))
        if draw(st.booleans()):
            step["step_deadline_seconds"] = draw(st.integers(1, 30))
        step["on_failure"] = draw(st.sampled_from([None, *ids]))
        step["on_success"] = draw(st.sampled_from([None, "end", *ids]))
        steps.append(step)
    return steps


@settings(max_examples=300, deadline=None)
@given(steps_of(), st.data())
def test_every_scenario_ends_and_no_try_is_dispatched_twice(steps: list[dict[str, Any]], data: st.DataObject) -> None:
    plan = plan_of(steps)
    ways = {step.step_id: step for step in plan.steps}
    state, effects = advance(State(parent_id=PARENT, plan=plan, most=40), Begin(), SECOND)
    children: set[str] = set()
    notes: set[str] = set()
    now, rounds = SECOND, 0
    while True:
        rounds += 1
        assert rounds < 2000, "it never ends"
        for dispatch in of(Dispatch, effects):
            assert dispatch.child_id not in children
            children.add(dispatch.child_id)
        for note in (*of(Note, effects), *of(Wait, effects)):
            assert note.note_id not in notes, "an event with a name used before would be taken for a repeat"
            notes.add(note.note_id)
        assert len(of(Finish, effects)) <= 1
        # Round the wire and back, as the record does.
        state = msgspec.json.decode(msgspec.json.encode(state), type=State)
        assert state.now >= now
        if state.phase == "done":
            assert len(of(Finish, effects)) == 1
            assert state.due_at is None
            break
        assert of(Finish, effects) == []
        now, before = state.now, state
        if state.phase == "agent":
            assert state.due_at is None
            now += data.draw(st.integers(0, 20)) * SECOND
            status = data.draw(st.sampled_from([Status.COMPLETED, Status.FAILED, Status.TIMED_OUT, Status.CANCELED]))
            state, effects = advance(state, ended(state, status), now)
            step = ways[before.step_id]
            final = status is Status.CANCELED or before.tries >= step.retries
            if status is not Status.COMPLETED and final and "circle" not in str(effects):
                if step.on_failure is None:
                    assert state.phase == "done"
                else:
                    assert any(n.details.get("on_failure") == step.on_failure for n in of(Note, effects))
            continue
        answers = state.phase in ("human", "gate")
        if answers and (state.due_at is None or data.draw(st.booleans())):
            state, effects = advance(state, answer(state, "x", data.draw(st.booleans())), now)
        else:
            assert state.due_at is not None, "nothing would ever wake it"
            now = max(now, state.due_at)
            state, effects = advance(state, Tick(), now)
        assert state is not before or before.phase == "done"


@settings(max_examples=100, deadline=None)
@given(steps_of())
def test_what_does_not_concern_a_state_leaves_the_very_same_state(steps: list[dict[str, Any]]) -> None:
    state, _ = advance(State(parent_id=PARENT, plan=plan_of(steps), most=40), Begin(), SECOND)
    strange: list[Happening] = [Begin(), ChildEnded(child_id="other", status=Status.FAILED)]
    strange += [Answered(positive=True, task_result={}, taken=state.taken + 1)]
    for happening in strange:
        assert advance(state, happening, SECOND) == (state, [])


def test_a_childs_id_is_the_same_for_the_same_try_and_is_a_uuid_in_time_order() -> None:
    from uuid import UUID

    one = child_id(PARENT, "a", 1, 5_000_000)
    assert one == child_id(PARENT, "a", 1, 5_000_000)
    assert one != child_id(PARENT, "a", 2, 5_000_000)
    assert UUID(one).version == 7
    assert one < child_id(PARENT, "a", 1, 9_000_000)


# --- reading bundles --------------------------------------------------------------------------------------


def test_a_single_agents_step_is_the_intent_itself() -> None:
    assert plan_of(TWO[1:]).direct
    assert not plan_of(TWO).direct
    assert not plan_of([{**TWO[1], "retry": {"max_retries": 1}}]).direct
    assert not plan_of([{**TWO[1], "requires_approval": True}]).direct


def test_a_bundle_without_steps_means_its_one_agent_or_person() -> None:
    only = {"scenario_id": "s", "agents": [{"role": "w", "address": "w"}], "intent": {"type": "t.v1"}}
    plan = read_bundle(only).plan
    assert plan is not None
    assert plan.direct
    asked = read_bundle({"scenario_id": "s", "intent": {"type": "t.v1", "human_task": {"title": "?"}}}).plan
    assert asked is not None
    assert asked.steps[0].kind == "human"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scenario_id": None}, "scenario_id: is missing"),
        ({"intent": None}, "intent: is missing; it needs at least a type"),
        ({"intent": {"type": 5}}, "intent.type: must be a text that is not empty"),
        ({"agents": "x"}, "agents: must be a list of objects"),
        ({"workflow": {"macro_id": "m"}},
         "workflow.macro_id: macros are not known to this server; write out the steps"),
        ({"workflow": {"steps": [{"step_id": "a", "assigned_to": "nobody", "tool_id": "tool.agent.task.v1"}]}},
         "workflow.steps[0].assigned_to: there is no agent with the role 'nobody' (roles of agents: writer, checker)"),
        ({"workflow": {"steps": [{**TWO[0], "on_failure": "nowhere"}]}},
         "workflow.steps[0].on_failure: there is no step 'nowhere'"),
        ({"workflow": {"steps": [TWO[0], TWO[0]]}}, "workflow.steps: step_id 'write' is there twice"),
        ({"workflow": {"steps": [{"step_id": "a", "runtime_type": "magic"}]}},
         "workflow.steps[0].runtime_type: 'magic' is not one of human_approval, delay, timeout, notification, "
         "reminder, escalation"),
        ({"workflow": {"steps": [{**ASK, "human_task": {"title": 5}}]}},
         "workflow.steps[0].human_task.title: must be a text of at most 255 characters"),
        ({"workflow": {"steps": [{**ASK, "human_task": {"title": "t", "form_schema": {"$ref": "http://x"}}}]}},
         "workflow.steps[0].human_task.form_schema: $ref may not be used in a form; list enum, format or lengths "
         "instead"),
        ({"workflow": {"steps": TWO, "entry_step": "zzz"}}, "workflow.entry_step: there is no step 'zzz'"),
        ({"workflow": {"steps": [{**TWO[0], "step_deadline_seconds": -1}]}},
         "workflow.steps[0].step_deadline_seconds: must be a number of seconds from 0 to 315360000"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_bundle_is_said(change: dict[str, Any], message: str) -> None:
    wrong = {k: v for k, v in {**bundle(TWO), **change}.items() if v is not None}
    reading = read_bundle(wrong)
    assert reading.plan is None
    assert message in reading.errors


def test_the_old_dialect_is_refused_with_the_way_out() -> None:
    old = {
        "scenario": "x",
        "agents": [{"agent_uri": "agent://a", "name": "a", "capabilities": []}],
        "workflow": {"steps": [{"intent_type": "t", "to_agent": "agent://a", "requires_human_approval": True}]},
        "timeouts": {},
    }
    [error] = read_bundle(old).errors
    assert "old dialect" in error
    assert "workflow.steps with step_id" in error


def test_bundles_as_people_write_them_are_taken() -> None:
    sloppy = {
        "scenario_id": "ai-agent.checkpoint-v1",
        "title": "t",
        "description": "d",
        "something": 1,
        "agents": [
            {
                "role": "w",
                "address": "w",
                "delivery_mode": "http",
                "callback_url": "http://x",
                "create_if_missing": True,
            }
        ],
        "humans": [{"role": "boss"}],
        "workflow": {
            "steps": [
                {"step_id": "a", "tool_id": "tool.agent.task.v1", "assigned_to": "w", "on_failure": None},
                {"step_id": "b", "tool_id": "tool.mine.v2", "assigned_to": "agent://any/where/w"},
                {"step_id": "c", "assigned_to": "boss", "human_task": {"title": "t", "notify_email": "x"}},
            ]
        },
        "intent": {"type": "t.v1", "payload": {}, "max_delivery_attempts": 5},
    }
    reading = read_bundle(sloppy)
    assert reading.errors == []
    assert reading.warnings == [
        "something: is not known and was ignored",
        "agents[0].delivery_mode: this server delivers over streams only",
    ]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["scenario_id", "agents", "humans", "workflow", "steps", "intent", "type", "role", "address"]
            )
            | st.sampled_from(
                ["step_id", "assigned_to", "retry", "human_task", "form_schema", "runtime_type", "input"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(JUNK)
def test_no_bundle_makes_the_reading_fail(junk: Any) -> None:
    reading = read_bundle(junk)
    assert (reading.plan is None) == bool(reading.errors)


def test_the_bundle_of_the_documentation_is_a_good_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()
    shown = json.loads(page.partition("```json\n")[2].partition("```")[0])
    reading = read_bundle(shown)
    assert reading.errors == []
    assert reading.warnings == ["workflow.steps: step 'sign' can come around again; a run is cut off"]

"""What adapters need besides: a look at the journal, shared scopes, questions put ahead, doubts settled in place."""

# ruff: noqa: PT012 - what is raised leaves the run, so the run is inside the block

from __future__ import annotations

import msgspec
import pytest

from stepfast import Conflict, Diverged, InvalidInput, Suspended
from stepfast.ops import PutRecord
from tests.run.kit import Calls, Way, both


class Lost(BaseException):
    """What ends a one-shot step without telling how it went."""


@both
async def test_a_shared_scope_is_the_same_however_often_it_is_opened(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        for _ in range(2):
            scope = run.scope("tool", shared=True)
            await scope.options(key="model:0").step(calls.build)
        assert run.steps() == ["scope:tool/model:0"]
    assert calls.names == ["build"]


@both
async def test_whether_a_step_is_recorded_is_told_without_running_it(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        assert run.recorded("a") is None
        await run.options(key="a").step(calls.build)
        assert run.recorded("a") == "FINISHED"
        assert run.scope("x", shared=True).recorded("a") is None


@both
async def test_a_call_that_was_repeated_is_told_from_the_first(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(RuntimeError):
        async with sf.run("r") as run:
            assert run.generation("a") == 0
            await run.options(key="a").step(calls.build)
            assert run.generation("a") == 0
            raise RuntimeError
    await sf.rewind("r", "a")
    async with sf.run("r") as run:
        assert run.generation("a") == 1
        await run.options(key="a").step(calls.build)
        assert run.generation("a") == 1
        assert run.scope("x", shared=True).generation("a") == 0


@both
async def test_the_journal_is_read_and_a_step_set_aside_by_public_names(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        scope = run.scope("tool", shared=True)
        await run.options(key="a").step(calls.build)
        await scope.options(key="b c").step(calls.build)
        assert [step.key for step in run.journal()] == run.steps() == ["a", scope.full_key("b c")]
        assert [await run.drive(run.reading(step)) for step in run.journal()] == [["build"], ["build"]]
        await run.drive(scope.voiding("b c", "wrong"))
        await run.drive(scope.voiding("b c", "nothing is left of it"))
        assert scope.recorded("b c") is None
        assert run.steps() == ["a"]


@both
async def test_events_for_watching_are_in_the_history(way: Way) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        await run.drive(run.noting("intent.crew", [{"event": "task_started"}, {"event": "task_completed"}]))
        await run.drive(run.noting("intent.crew", []))
        with pytest.raises(InvalidInput, match="event_type: must start with"):
            await run.drive(run.noting("crew", [{}]))
    async with sf.run("r") as run:
        await run.drive(run.noting("intent.crew", [{"event": "late"}]))
    noted = [event["details"] for event in await sf.events("r") if event["event_type"] == "intent.crew"]
    assert noted == [{"event": "task_started"}, {"event": "task_completed"}]


@both
async def test_questions_put_ahead_all_wait_for_a_person_at_once(way: Way) -> None:
    sf = way.open()
    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="suspend") as run:
            assert await run.pose("First?", key="1") is None
            assert await run.pose("Second?", key="2") is None
            await run.ask("First?", key="1")
    assert {d["key"] for d in await sf.decisions("r")} == {"ask:1", "ask:2"}
    await sf.answer("r", "approved", "ask:1")
    await sf.answer("r", "rejected", "ask:2")
    async with sf.run("r", on_wait="suspend") as run:
        assert (await run.pose("First?", key="1")).outcome == "approved"
        assert (await run.ask("Second?", key="2")).outcome == "rejected"


@both
async def test_a_question_put_ahead_in_other_words_is_refused(way: Way) -> None:
    sf = way.open()
    with pytest.raises(Diverged):
        async with sf.run("r") as run:
            await run.pose("First?", key="1")
            await run.pose("Another?", key="1")


@both
async def test_a_one_shot_left_open_is_settled_without_opening_the_run_again(way: Way) -> None:
    sf = way.open()
    effects: list[str] = []

    def lost() -> None:
        effects.append("paid")
        raise Lost

    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="suspend") as run:
            assert await run.settle() == 0
            with pytest.raises(Lost):
                await run.options(key="pay").once(lost)
            await run.settle()
    (asked,) = await sf.decisions("r")
    assert asked["kind"] == "in_doubt"
    await sf.answer("r", "done", value="paid")
    async with sf.run("r", on_wait="suspend") as run:
        assert await run.options(key="pay").once(lost) == "paid"
    assert effects == ["paid"]


@both
async def test_a_value_is_recorded_together_with_operations_or_not_at_all(way: Way) -> None:
    sf = way.open()
    put = PutRecord(kind="k", record_id="a", body=b"1", write_id="w1", expected=0)
    async with sf.run("r") as run:
        assert await run.record("one", key="one", also=[put]) == "one"
        assert await run.record("other", key="one", also=[put]) == "one"
        with pytest.raises(Conflict):
            await run.record("two", key="two", also=[msgspec.structs.replace(put, write_id="w2", body=b"2")])
        assert run.recorded("two") is None
    async with sf.run("r") as run:
        assert await run.record("again", key="one") == "one"

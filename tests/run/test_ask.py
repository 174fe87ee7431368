"""Questions to a person, across restarts."""

# ruff: noqa: PT012 - what is raised leaves the run, so the run is inside the block

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stepfast import (
    AlreadyAnswered,
    AsyncStepfast,
    Diverged,
    InvalidInput,
    NotFound,
    RunBusy,
    RunFailed,
    Stepfast,
    Suspended,
    Suspension,
)
from stepfast.ops import GetIntent, OpenIntent, Sweep
from stepfast.testing import on_failpoint
from tests.run.kit import Boom, Calls, Spawn, Way, answer_when_asked, both, events_of, in_thread


@both
async def test_a_run_waits_for_its_answer_over_any_number_of_restarts(way: Way, calls: Calls) -> None:
    sf = way.open()
    for _ in range(3):
        with pytest.raises(Suspended) as suspended:
            async with sf.run("r", on_wait="suspend") as run:
                await run.step(calls.build)
                await run.ask("Deploy to production?")
        assert suspended.value.intent_id == (await sf.get_intent("r"))["intent_id"]
    intent = await sf.get_intent("r")
    assert (intent["status"], intent["waiting_reason"]) == ("WAITING", "WAITING_FOR_HUMAN")
    assert (intent["delivery_attempt"], intent["lost_deliveries"]) == (1, 0)
    await sf.answer("r", "approved", comment="go", actor="ann")
    async with sf.run("r", on_wait="suspend") as run:
        await run.step(calls.build)
        answer = await run.ask("Deploy to production?")
        assert answer
        assert (answer.outcome, answer.comment, answer.actor) == ("approved", "go", "ann")
        await run.step(calls.deploy)
    assert calls.names == ["build", "deploy"]
    assert events_of(await sf.events("r"))[-5:] == ["waiting", "answered", "in_progress", "resume_checked", "completed"]


@both
async def test_a_run_waits_in_its_process_and_goes_on_when_answered(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        with in_thread(lambda: answer_when_asked(way.url, "r", "rejected", value={"why": "no"})):
            answer = await run.ask("Deploy?")
        assert not answer
        assert answer.outcome == "rejected"
        assert answer.value == {"why": "no"}
        assert run.attempt == 2
        await run.step(calls.clean_up)
    assert (await sf.get_intent("r"))["status"] == "COMPLETED"


def test_another_process_asks_and_another_answers(tmp_path: Path, spawn: Spawn) -> None:
    url = f"sqlite:///{tmp_path}/stepfast.db"
    asker = spawn("ask", url, "r")
    asker.hear("asking")
    with Stepfast(url) as sf:
        for event in sf.observe("r"):
            if event["event_type"] == "intent.waiting":
                break
        assert [d["question"] for d in sf.decisions()] == ["Deploy?"]
        asker.kill()
        spawn("answer", url, "r", "approved", {"actor": "ann"}).hear("answered")
        assert spawn("ask", url, "r").hear("asking") is None
        assert sf.wait_for("r", timeout=60)["result"] == ["approved", "ann"]
        assert sf.get_intent("r")["lost_deliveries"] == 0


@both
async def test_what_is_asked_is_listed_with_all_a_person_needs(way: Way) -> None:
    sf = way.open()
    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="suspend", labels={"team": "etl"}) as run:
            await run.ask(
                "Which size?",
                outcomes=["small", "large"],
                evidence={"rows": 12},
                comment_required=True,
                expires_in=3600,
                default="small",
            )
    [asked] = await sf.decisions()
    assert asked["kind"] == "ask"
    assert asked["question"] == "Which size?"
    assert asked["evidence"] == {"rows": 12}
    assert asked["outcomes"] == ["small", "large"]
    assert asked["comment_required"] is True
    assert asked["default"] == "small"
    assert asked["run_id"] == "r"
    assert asked["asked_at"] < asked["expires_at"]
    assert (await sf.describe("r"))["decisions"] == [asked]


@both
async def test_only_an_allowed_outcome_and_a_wanted_comment_are_taken(way: Way) -> None:
    sf = way.open()
    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="suspend") as run:
            await run.ask("Which size?", outcomes=("small", "large"), comment_required=True)
    with pytest.raises(InvalidInput, match="small, large"):
        await sf.answer("r", "huge", comment="because")
    with pytest.raises(InvalidInput, match="comment"):
        await sf.answer("r", "large")
    assert len(await sf.decisions("r")) == 1
    await sf.answer("r", "large", comment="because")
    async with sf.run("r") as run:
        answer = await run.ask("Which size?", outcomes=("small", "large"), comment_required=True)
        assert (answer.outcome, answer.comment, bool(answer)) == ("large", "because", False)


@both
async def test_the_first_answer_stands(way: Way) -> None:
    sf = way.open()
    with pytest.raises(Suspended) as asked:
        async with sf.run("r", on_wait="suspend") as run:
            await run.ask("Deploy?")
    key = asked.value.decisions[0]
    await sf.answer("r", "approved", key, actor="ann")
    await sf.answer("r", "approved", key, actor="ann")
    with pytest.raises(AlreadyAnswered, match="ann"):
        await sf.answer("r", "rejected", key, actor="bob")
    with pytest.raises(NotFound):
        await sf.answer("r", "approved", "ask:no-such-key")
    async with sf.run("r") as run:
        assert await run.ask("Deploy?")


@both
async def test_an_answer_needs_a_key_where_a_run_waits_for_several(way: Way) -> None:
    sf = way.open()
    for question in ("One?", "Two?"):
        with pytest.raises(Suspended):
            async with sf.run("r", on_wait="suspend") as run:
                await run.ask(question, key=question[:3])
        if question == "One?":
            # The run is let go on without an answer, to ask for a second thing.
            await sf.answer("r", "approved")
    assert [d["key"] for d in await sf.decisions("r")] == ["ask:Two"]
    assert len(await sf.decisions("r", pending=False)) == 2


@pytest.mark.parametrize(("default", "outcome"), [("rejected", "rejected"), (None, "expired")])
@both
async def test_an_expired_question_takes_its_default(way: Way, default: str | None, outcome: str) -> None:
    sf = way.open()

    async def body(run: Any) -> Any:
        return await run.ask("Deploy?", expires_in=60, default=default)

    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="suspend") as run:
            await body(run)
    sf.store.clock.advance(61)
    async with sf.run("r", on_wait="suspend") as run:
        answer = await body(run)
        assert (answer.outcome, answer.actor, bool(answer)) == (outcome, "expiry", False)


@both
async def test_a_run_that_waits_in_its_process_notices_the_expiry_itself(way: Way) -> None:
    sf = way.open()

    def let_time_pass() -> None:
        with Stepfast(way.url) as other:
            for event in other.observe("r"):
                if event["event_type"] == "intent.waiting":
                    sf.store.clock.advance(61)
                    return

    async with sf.run("r") as run:
        with in_thread(let_time_pass):
            assert (await run.ask("Deploy?", expires_in=60, default="approved")).outcome == "approved"


@both
async def test_an_answer_counts_only_for_what_was_asked(way: Way) -> None:
    sf = way.open()
    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="suspend") as run:
            await run.ask("Delete table users_old?", evidence={"rows": 12})
    await sf.answer("r", "approved")
    with pytest.raises(Diverged, match="users_new"):
        async with sf.run("r") as run:
            await run.ask("Delete table users_new?", evidence={"rows": 12})
    with pytest.raises(Diverged, match="13"):
        async with sf.run("r") as run:
            await run.ask("Delete table users_old?", evidence={"rows": 13})


@both
async def test_suspension_passes_by_who_catches_exceptions(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="suspend") as run:
            try:
                await run.ask("Deploy?")
            except Exception as error:
                raise AssertionError("a framework's except Exception swallowed it") from error
    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="suspend") as run:
            raise AssertionError("still waiting")
    assert calls.made == []


@both
async def test_after_a_suspension_the_run_does_nothing_more(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="suspend") as run:
            with pytest.raises(Suspension):
                await run.ask("Deploy?")
            # Somebody swallowed it after all.
            with pytest.raises(Suspension):
                await run.step(calls.deploy)
            with pytest.raises(Suspension):
                await run.once(calls.deploy)
            with pytest.raises(Suspension):
                await run.checkpoint({})
    assert calls.made == []
    assert (await sf.get_intent("r"))["status"] == "WAITING"


@both
async def test_a_question_that_makes_no_sense_is_refused(way: Way) -> None:
    sf = way.open()
    for wrong in (
        {"question": ""},
        {"question": "Deploy?", "outcomes": []},
        {"question": "Deploy?", "expires_in": 0},
        {"question": "Deploy?", "expires_in": 60, "default": "perhaps"},
    ):
        with pytest.raises(InvalidInput):
            async with sf.run("r") as run:
                await run.ask(**wrong)
    assert await sf.decisions() == []


@both
async def test_a_run_that_is_ended_while_it_waits_says_so(way: Way) -> None:
    sf = way.open()

    def cancel_when_asked() -> None:
        with Stepfast(way.url) as other:
            for event in other.observe("r"):
                if event["event_type"] == "intent.waiting":
                    other.cancel("r", reason="not needed")
                    return

    with pytest.raises(RunFailed, match=r"CANCELED.*not needed"):
        async with sf.run("r") as run:
            with in_thread(cancel_when_asked):
                await run.ask("Deploy?")


@both
async def test_a_deadline_holds_for_a_run_that_waits(way: Way) -> None:
    sf = way.open()
    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="suspend", ttl_seconds=3600) as run:
            await run.ask("Deploy?")
    sf.store.clock.advance(3601)
    with pytest.raises(RunFailed, match="TIMED_OUT"):
        await sf.run("r", on_wait="suspend")


@both
async def test_questions_replay_in_a_completed_run(way: Way, calls: Calls) -> None:
    sf = way.open()

    async def body(run: Any) -> None:
        answer = await run.ask("Deploy?", expires_in=60, default="approved")
        assert answer.outcome == "approved"
        await run.step(calls.deploy)

    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="suspend") as run:
            await body(run)
    await sf.answer("r", "approved")
    for _ in range(2):
        async with sf.run("r") as run:
            await body(run)
    assert calls.names == ["deploy"]


@pytest.mark.parametrize("asker", ["quick", "slow"])
def test_what_another_process_did_in_between_is_not_done_again(tmp_path: Path, asker: str) -> None:
    """Both wait for the same answer; the slower one finds what the quicker one wrote."""
    done: list[str] = []
    quick_is_done = threading.Event()

    def body(run: Any) -> None:
        run.ask("Deploy?")
        run.step(done.append, "deployed")

    def wait_in_the_process(slow: Stepfast) -> None:
        with slow.run("r") as run:
            body(run)

    with Stepfast(tmp_path / "stepfast.db") as quick, Stepfast(tmp_path / "stepfast.db") as slow:
        if asker == "quick":
            with pytest.raises(Suspended), quick.run("r", on_wait="suspend") as run:
                body(run)
        execute, looking = slow.store.execute, threading.Event()

        def held_up(ops: Any, **options: Any) -> Any:
            if looking.is_set() and any(isinstance(op, OpenIntent) for op in ops):
                quick_is_done.wait(30)
            if all(isinstance(op, GetIntent | Sweep) for op in ops):
                looking.set()
            return execute(ops, **options)

        slow.store.execute = held_up  # type: ignore[method-assign]
        with in_thread(lambda: wait_in_the_process(slow)):
            looking.wait(30)
            quick.answer("r", "approved")
            with pytest.raises(Boom), quick.run("r") as run:
                body(run)
                raise Boom
            quick_is_done.set()
        assert quick.get_intent("r")["status"] == "COMPLETED"
    assert done == ["deployed"]


def test_a_process_that_comes_too_late_leaves_the_run_to_who_was_quicker(tmp_path: Path) -> None:
    quick_has_it = threading.Event()
    with Stepfast(tmp_path / "stepfast.db") as quick, Stepfast(tmp_path / "stepfast.db") as slow:
        execute, looking = slow.store.execute, threading.Event()

        def held_up(ops: Any, **options: Any) -> Any:
            if looking.is_set() and any(isinstance(op, OpenIntent) for op in ops):
                quick_has_it.wait(30)
            if all(isinstance(op, GetIntent) for op in ops):
                looking.set()
            return execute(ops, **options)

        def ask_and_wait() -> None:
            with pytest.raises(RunBusy, match="another worker goes on"), slow.run("r") as run:
                run.ask("Deploy?")

        slow.store.execute = held_up  # type: ignore[method-assign]
        with in_thread(ask_and_wait):
            looking.wait(30)
            quick.answer("r", "approved")
            run = quick.run("r")
            quick_has_it.set()
        assert run.ask("Deploy?")
        run.__exit__(None, None, None)
        assert quick.get_intent("r")["lost_deliveries"] == 0


# Branches beside the one that asks


def test_a_question_does_not_stop_a_branch_that_is_at_work(tmp_path: Path) -> None:
    asked, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def slow(name: str) -> str:
        asked.wait(30)
        go_on.set()
        done.append(name)
        return name

    def branch(run: Any) -> list[str]:
        return [run.step(slow, "one"), run.step(slow, "two")]

    with Stepfast(tmp_path / "stepfast.db") as sf, sf.run("r") as run, ThreadPoolExecutor(2) as pool:
        working = pool.submit(branch, run)
        answering = pool.submit(answer_while_held, sf.url, "r", go_on)
        with on_failpoint("ask.asked", asked.set):
            assert run.ask("Deploy?")
        assert working.result(30) == ["one", "two"]
        answering.result(30)
        assert run.step(done.append, "three") is None
    assert done == ["one", "two", "three"]


def answer_while_held(url: str, run_id: str, when: threading.Event) -> None:
    when.wait(30)
    with Stepfast(url) as other:
        for event in other.observe(run_id):
            if event["event_type"] == "intent.human_task_assigned":
                other.answer(run_id, "approved")
                return


def test_a_branch_between_two_steps_outlives_another_branch_s_question(tmp_path: Path) -> None:
    """At the moment of the question the branch is in no step; it must still be able to make its next one."""
    waiting = threading.Event()
    done: list[str] = []

    def branch(run: Any) -> None:
        waiting.wait(30)
        run.step(done.append, "beside")

    with Stepfast(tmp_path / "stepfast.db") as sf, sf.run("r") as run, ThreadPoolExecutor(2) as pool:
        working = pool.submit(branch, run)
        answering = pool.submit(answer_when_asked, sf.url, "r", "approved")
        with on_failpoint("ask.suspended", waiting.set):
            assert run.ask("Deploy?")
        working.result(30)
        answering.result(30)
    assert done == ["beside"]


@pytest.mark.parametrize("on_wait", ["block", "suspend"])
def test_a_run_waits_when_all_its_branches_wait(tmp_path: Path, on_wait: Any) -> None:
    both_are_at_work = threading.Barrier(2)  # one alone would be all the branches there are, and suspend the run

    def branch(run: Any, name: str) -> str:
        def ask() -> str:
            both_are_at_work.wait(30)
            return str(scope.ask(f"Deploy {name}?").outcome)

        with run.scope(name) as scope:
            return str(scope.step(ask))

    def both_answered() -> None:
        with Stepfast(tmp_path / "stepfast.db") as other:
            for event in other.observe("r"):
                if event["event_type"] == "intent.waiting":
                    break
            for decision in other.decisions("r"):
                other.answer("r", "approved", decision["key"])

    with Stepfast(tmp_path / "stepfast.db") as sf:
        if on_wait == "suspend":
            with pytest.raises(Suspended), sf.run("r", on_wait=on_wait) as run, ThreadPoolExecutor(2) as pool:
                for future in [pool.submit(branch, run, name) for name in ("a", "b")]:
                    future.result(30)
            assert sf.get_intent("r")["status"] == "WAITING"
            with pytest.raises(InvalidInput, match="waits for several decisions"):
                sf.answer("r", "approved")
            for decision in sf.decisions("r"):
                sf.answer("r", "approved", decision["key"])
            with sf.run("r") as run, ThreadPoolExecutor(2) as pool:
                futures = [pool.submit(branch, run, name) for name in ("a", "b")]
                assert [f.result(30) for f in futures] == ["approved", "approved"]
        else:
            with sf.run("r") as run, ThreadPoolExecutor(3) as pool:
                pool.submit(both_answered)
                futures = [pool.submit(branch, run, name) for name in ("a", "b")]
                assert [f.result(30) for f in futures] == ["approved", "approved"]


async def test_a_question_does_not_stop_a_task_that_is_at_work(tmp_path: Path) -> None:
    import asyncio

    asked = asyncio.Event()
    done: list[str] = []

    async def slow(name: str) -> str:
        await asked.wait()
        done.append(name)
        return name

    async def branch(run: Any) -> list[str]:
        return [await run.step(slow, "one"), await run.step(slow, "two")]

    loop = asyncio.get_running_loop()
    async with AsyncStepfast(tmp_path / "stepfast.db") as sf, sf.run("r") as run:
        working = asyncio.create_task(branch(run))
        await asyncio.sleep(0)
        answering = asyncio.to_thread(answer_when_asked, sf.url, "r", "approved")
        with on_failpoint("ask.asked", lambda: loop.call_soon_threadsafe(asked.set)):
            answer, _ = await asyncio.gather(run.ask("Deploy?"), answering)
        assert answer
        assert await working == ["one", "two"]
    assert done == ["one", "two"]

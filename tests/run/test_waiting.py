"""A run that waits is the same thing every time, seen from inside its block and from outside."""

# ruff: noqa: PT012 - what is raised leaves the run, so the run is inside the block

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepfast import (
    AsyncStepfast,
    Codec,
    InvalidInput,
    KeyRing,
    Stepfast,
    StepfastError,
    Suspended,
    Suspension,
    Waiting,
    current_run,
    durable,
)
from stepfast.ops import GetIntent, ListDecisions
from stepfast.wire import to_error, to_fault
from tests.run.kit import Boom, Calls, Crash, Way, both, collect


@pytest.fixture
def sf(tmp_path: Path) -> Iterator[Stepfast]:
    with Stepfast(tmp_path / "stepfast.db") as client:
        yield client


# --- at the boundary -----------------------------------------------------------------------------


@both
async def test_a_handler_that_catches_exceptions_sees_that_the_run_waits(way: Way) -> None:
    sf = way.open()

    async def handle_request() -> str:
        try:
            async with sf.run("r", on_wait="suspend") as run:
                await run.ask("Deploy?", key="go")
        except Exception as error:
            return f"{error.code if isinstance(error, StepfastError) else 'not ours'}: {error}"
        return "done"

    told = "suspended: run r waits for a decision: Deploy? [ask:go: approved or rejected]. "
    told += "Answer with sf.answer('r', 'approved', 'ask:go'); the run then goes on."
    for _ in range(3):
        assert await handle_request() == told
    await sf.answer("r", "approved")
    assert await handle_request() == "done"


@both
async def test_inside_its_block_nothing_that_catches_exceptions_swallows_the_signal(way: Way) -> None:
    sf = way.open()
    seen: list[str] = []

    async def tool(run: Any) -> str:
        try:
            return (await run.ask("Deploy?", key="go")).outcome
        except Exception:
            return "the model is told that it failed"
        except BaseException as signal:
            seen.append(type(signal).__name__)
            raise

    with pytest.raises(Suspended) as raised:
        async with sf.run("r", on_wait="suspend") as run:
            await tool(run)
    assert seen == ["Suspension"]
    assert raised.value.__cause__ is None
    assert "tool" in [entry.name for entry in raised.traceback], "it shows where the run waits"


@both
async def test_each_start_lists_all_open_questions(way: Way) -> None:
    sf = way.open()
    for _ in range(3):
        with pytest.raises(Suspended) as raised:
            async with sf.run("r", on_wait="suspend") as run:
                await run.pose("First?", key="1")
                await run.pose("Second?", key="2")
                await run.ask("First?", key="1")
        waits = raised.value
        assert waits.decisions == ["ask:1", "ask:2"] == [d["key"] for d in await sf.decisions("r")]
        assert (waits.run_id, waits.intent_id) == ("r", (await sf.get_intent("r"))["intent_id"])
        assert waits.details == {"run_id": "r", "intent_id": waits.intent_id, "decisions": waits.decisions}
        assert "2 decisions: First? [ask:1: approved or rejected]; Second?" in str(waits)
        assert "sf.answer('r', OUTCOME, KEY)" in str(waits)
    await sf.answer("r", "approved", "ask:1")
    with pytest.raises(Suspended) as raised:
        async with sf.run("r", on_wait="suspend") as run:
            await run.ask("Second?", key="2")
    assert raised.value.decisions == ["ask:2"]


@both
async def test_a_one_shot_in_doubt_is_listed_on_each_start(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.options(key="pay").once(calls.raising("pay", Crash()))
    for _ in range(2):
        with pytest.raises(Suspended) as raised:
            await sf.run("r", on_wait="suspend")
        assert raised.value.decisions == ["in-doubt:pay:0"] == [d["key"] for d in await sf.decisions("r")]
        assert "sf.answer('r', 'done', 'in-doubt:pay:0')" in str(raised.value)


@both
async def test_a_block_that_catches_the_signal_does_not_hide_it(way: Way) -> None:
    sf = way.open()
    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="suspend") as run:
            try:
                await run.ask("Deploy?")
            except BaseException:
                pass
    assert (await sf.get_intent("r"))["status"] == "WAITING"


async def test_a_task_group_that_waits_is_one_run_that_waits(tmp_path: Path) -> None:
    async with AsyncStepfast(tmp_path / "stepfast.db") as sf:
        with pytest.raises(Suspended) as raised:
            async with sf.run("r", on_wait="suspend") as run, asyncio.TaskGroup() as group:
                for name in ("a", "b"):
                    group.create_task(run.scope(name).ask(f"{name}?", key=name))
        assert {d["key"] for d in await sf.decisions("r")} >= set(raised.value.decisions)

        async def fail() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                raise Boom

        with pytest.raises(Suspended) as raised:
            async with sf.run("s", on_wait="suspend") as run, asyncio.TaskGroup() as group:
                group.create_task(fail())
                group.create_task(run.ask("Deploy?"))
        assert isinstance(raised.value.__cause__, BaseExceptionGroup)
        assert raised.value.__cause__.subgroup(Boom) is not None


@both
async def test_the_signal_of_an_outer_run_hands_the_inner_one_back(way: Way) -> None:
    sf = way.open()
    with pytest.raises(Suspended) as raised:
        async with sf.run("outer", on_wait="suspend") as outer, sf.run("inner") as inner:
            await inner.step(way.function(lambda: 1, "one"))
            await outer.ask("Deploy?")
    assert raised.value.run_id == "outer"
    assert (await sf.get_intent("outer"))["status"] == "WAITING"
    events = [e["event_type"] for e in await sf.events("inner")]
    assert events[-1] == "intent.released", "its lease is free at once"


@both
async def test_an_inner_run_that_waits_is_no_outcome_of_the_step_around_it(way: Way) -> None:
    sf = way.open()
    tries: list[str] = []

    def opens() -> Any:
        tries.append("x")
        raise Suspended("run inner waits", run_id="inner")

    inner = way.function(opens, "inner")
    with pytest.raises(Suspended):
        async with sf.run("r") as run:
            await run.options(retry=3, record_errors=True, key="a").step(inner)
    assert len(tries) == 1
    assert await sf.steps("r") == []
    with pytest.raises(Suspended):
        async with sf.run("r") as run:
            await collect(run.map(way.function(lambda _: opens(), "inner"), [1], return_exceptions=True))
    with pytest.raises(Suspended):
        async with sf.run("r") as run:
            await run.options(key="b").once(inner)
    assert [(s["key"], s["status"]) for s in await sf.steps("r") if s["key"] == "b"] == [("b", "STARTED")]


def test_what_cannot_be_read_does_not_hide_that_a_run_waits(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/stepfast.db"
    mine, other = (Codec(keyring=KeyRing({name: KeyRing.new_key()})) for name in ("a", "b"))
    with Stepfast(url, codec=mine) as sf, pytest.raises(Suspended), sf.run("r", on_wait="suspend") as run:
        run.ask("Deploy?", key="go")
    with Stepfast(url, codec=other) as sf:
        with pytest.raises(Suspended, match="<key_unavailable>") as raised:
            sf.run("r", on_wait="suspend")
        assert raised.value.decisions == ["ask:go"]


def test_it_travels_as_other_errors_do() -> None:
    sent = Suspended("run r waits", run_id="r", intent_id="i", decisions=["ask:go"])
    got = to_error(to_fault(sent))
    assert isinstance(got, Suspended)
    assert (str(got), got.code, got.run_id, got.intent_id) == ("run r waits", "suspended", "r", "i")


@both
async def test_an_answer_that_comes_while_the_run_is_opened_opens_it(way: Way) -> None:
    sf = way.open()
    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="suspend") as run:
            await run.ask("Deploy?", key="go")
    store = sf.store
    came: list[Any] = []
    execute, start = store.execute, store.submit

    def between(ops: Any) -> None:
        if [type(op) for op in ops] == [GetIntent, ListDecisions] and not came:
            came.append(True)
            with Stepfast(way.url) as other:
                other.answer("r", "approved")

    def executed(ops: Any, **more: Any) -> Any:
        between(ops)
        return execute(ops, **more)

    def submitted(ops: Any, done: Any, **more: Any) -> None:
        between(ops)
        start(ops, done, **more)

    store.execute, store.submit = executed, submitted
    async with sf.run("r", on_wait="suspend") as run:
        assert (await run.ask("Deploy?", key="go")).outcome == "approved"
    assert came == [True]


# --- on_wait="return" ----------------------------------------------------------------------------


@pytest.mark.parametrize("awaits", [False, True])
def test_a_durable_function_returns_its_questions_the_second_time_as_the_first(tmp_path: Path, awaits: bool) -> None:
    done: list[str] = []
    with Stepfast(tmp_path / "stepfast.db") as sf:
        client = AsyncStepfast(store=sf.store)
        if awaits:

            @durable(client=client, run_id="hire-{name}", on_wait="return")
            async def ahire(name: str) -> Any:
                run: Any = current_run()
                await run.step(done.append, "looked")
                return (await run.ask("Hire?", key="hire", expires_in=3600)).outcome

            def hire(name: str) -> Any:
                return asyncio.run(ahire(name))

        else:

            @durable(client=sf, run_id="hire-{name}", on_wait="return")
            def hire(name: str) -> Any:
                run: Any = current_run()
                run.step(done.append, "looked")
                return run.ask("Hire?", key="hire", expires_in=3600).outcome

        waits = hire("ada")
        assert isinstance(waits, Waiting)
        assert not waits
        assert (waits.run_id, waits.intent_id) == ("hire-ada", sf.get_intent("hire-ada")["intent_id"])
        assert waits.decisions == sf.decisions("hire-ada")
        assert hire("ada") == waits
        with pytest.raises(AttributeError, match=r"run hire-ada waits for ask:hire and has no 'final_output' yet"):
            _ = waits.final_output
        sf.answer("hire-ada", "rejected")
        assert hire("ada") == "rejected"
        assert isinstance(hire("eve"), Waiting)
        sf.store.clock.advance(3601)
        assert hire("eve") == "expired"
        assert done == ["looked", "looked"]
        asyncio.run(client.close())


def test_a_function_returns_the_questions_of_a_run_that_it_waits_for(sf: Stepfast) -> None:
    @durable(client=sf, run_id="inner", on_wait="suspend")
    def inner() -> str:
        run: Any = current_run()
        return str(run.ask("Deploy?", key="go").outcome)

    @durable(client=sf, run_id="outer", on_wait="return")
    def outer() -> str:
        return inner()

    for _ in range(2):
        waits: Any = outer()
        assert isinstance(waits, Waiting)
        assert (waits.run_id, [d["key"] for d in waits.decisions]) == ("inner", ["ask:go"])
    sf.answer("inner", "approved")
    assert outer() == "approved"


def test_a_run_in_another_store_is_not_looked_for_here(sf: Stepfast, tmp_path: Path) -> None:
    with Stepfast(tmp_path / "other.db") as other:

        @durable(client=sf, run_id="outer", on_wait="return")
        def outer() -> None:
            with other.run("inner", on_wait="suspend") as run:
                run.ask("Deploy?")

        with pytest.raises(Suspended, match="inner"):
            outer()


def test_a_question_answered_meanwhile_is_returned_with_its_answer(sf: Stepfast) -> None:
    with pytest.raises(Suspended) as raised, sf.run("r", on_wait="suspend") as run:
        run.ask("Deploy?", key="go")
    sf.answer("r", "approved", actor="maria")
    (asked,) = sf.waiting(raised.value).decisions
    assert (asked["key"], asked["outcome"], asked["actor"]) == ("ask:go", "approved", "maria")


def test_other_words_are_refused_where_they_are_given(sf: Stepfast) -> None:
    with pytest.raises(InvalidInput, match=r"on_wait: 'return' is for calls that return something.*'suspend'"):
        sf.run("r", on_wait="return")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"on_wait: must be one of 'block', 'suspend', 'view', not 'suspended'"):
        sf.run("r", on_wait="suspended")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="on_wait: must be one of"):
        sf.claim("agent://a", on_wait="later")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"on_wait: must be one of 'block', 'suspend', 'return', not 'view'"):
        durable(on_wait="view")  # type: ignore[call-overload]
    assert sf.list_intents() == []


# --- a view of a run that waits ------------------------------------------------------------------


@both
async def test_a_view_returns_what_was_recorded_and_does_nothing_new(way: Way, calls: Calls) -> None:
    sf = way.open()

    async def ask_two(run: Any) -> None:
        assert await run.step(calls.build, 1) == ["build", 1]
        assert await collect(run.map(calls.test, ["a", "b"])) == [["test", "a"], ["test", "b"]]
        await run.checkpoint({"at": 2})
        assert await run.pose("First?", key="1") is None
        assert await run.pose("Second?", key="2") is None
        await run.report("asking", step=1)
        await run.ask("First?", key="1")

    with pytest.raises(Suspended) as first:
        async with sf.run("r", on_wait="view") as run:
            assert not run.waiting
            await ask_two(run)
    before = calls.names, await sf.steps("r"), await sf.events("r"), await sf.get_intent("r")
    with pytest.raises(Suspended) as second:
        async with sf.run("r", on_wait="view") as run:
            assert (run.waiting, run.replaying, run.restored) == (True, False, {"at": 2})
            await ask_two(run)
    assert (str(second.value), second.value.decisions) == (str(first.value), first.value.decisions)

    async def new_work(run: Any) -> None:
        for call in (
            lambda: run.options(key="new").step(calls.deploy),
            lambda: run.options(key="new").once(calls.deploy),
            lambda: run.record(1, key="new"),
            lambda: run.pose("Third?", key="3"),
            lambda: run.ask("Third?", key="3"),
            lambda: run.checkpoint({"at": 3}),
            lambda: run.rewind(),
            lambda: collect(run.map(calls.test, ["c"], key="new")),
        ):
            with pytest.raises(Suspension):
                await call()

    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="view") as run:
            await new_work(run)
            run.complete("not at all")
    assert (calls.names, await sf.steps("r"), await sf.events("r"), await sf.get_intent("r")) == before


@both
async def test_a_view_is_of_the_moment_when_it_was_opened(way: Way) -> None:
    sf = way.open()
    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="view") as run:
            await run.ask("Deploy?", key="go")
    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="view") as run:
            await sf.answer("r", "approved")
            assert await run.pose("Deploy?", key="go") is None
            await run.ask("Deploy?", key="go")
    async with sf.run("r", on_wait="view") as run:
        assert not run.waiting
        assert (await run.ask("Deploy?", key="go")).outcome == "approved"
    assert (await sf.get_intent("r"))["status"] == "COMPLETED"


@both
async def test_a_view_reads_answers_given_before_the_question_that_holds_it_up(way: Way) -> None:
    sf = way.open()

    async def work(run: Any) -> None:
        assert (await run.ask("First?", key="1")).outcome == "approved"
        await run.ask("Second?", key="2", expires_in=60, default="rejected")

    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="view") as run:
            await work(run)
    await sf.answer("r", "approved")
    for waits in (False, True, True):
        with pytest.raises(Suspended) as raised:
            async with sf.run("r", on_wait="view") as run:
                assert run.waiting is waits
                await work(run)
        assert raised.value.decisions == ["ask:2"]
    sf.store.clock.advance(61)
    async with sf.run("r", on_wait="view") as run:
        await work(run)


@both
async def test_a_view_of_a_doubt_calls_no_probe(way: Way, calls: Calls) -> None:
    sf = way.open()
    pay, mail = calls.raising("pay", Crash()), calls.raising("mail", Crash())
    async with way.crashing(sf, "r") as run:
        with pytest.raises(Crash):
            await run.options(key="a", on_in_doubt=calls.probe).once(pay)
        await run.options(key="b").once(mail)
    for number in range(3):
        with pytest.raises(Suspended) as raised:
            async with sf.run("r", on_wait="view") as run:
                assert number, "the first start asks, and has nothing to look at yet"
                with pytest.raises(Suspension):
                    await run.options(key="a", on_in_doubt=calls.probe).once(pay)
                with pytest.raises(Suspension):
                    await run.settle()
                await run.options(key="b").once(mail)
        assert raised.value.decisions == ["in-doubt:b:0"]
    assert calls.names == ["pay", "mail"]

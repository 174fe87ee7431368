"""Steps: finished once, never again."""

# ruff: noqa: PT012 - what is raised leaves the run, so the run is inside the block

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepfast import AsyncStepfast, Damaged, Diverged, InvalidInput, Retry, StepFailed, Stepfast, Unencodable
from stepfast.testing import on_failpoint
from tests.run.kit import Boom, Calls, Way, both, counting, events_of


@both
async def test_a_finished_step_answers_from_the_journal_after_a_crash(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        first = await run.step(calls.fetch, 1)
    async with sf.run("r") as run:
        assert await run.step(calls.fetch, 1) == first == ["fetch", 1]
        assert await run.step(calls.fetch, 2) == ["fetch", 2]
    assert calls.made == [("fetch", 1), ("fetch", 2)]


@both
async def test_a_step_that_had_not_finished_runs_again(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(Boom):
        async with sf.run("r") as run:
            await run.step(calls.a)
            await run.step(calls.raising("b", Boom("no")))
    async with sf.run("r") as run:
        await run.step(calls.a)
        assert await run.step(calls.b) == ["b"]
    assert calls.names == ["a", "b", "b"]


@both
async def test_none_is_a_result_like_any_other(way: Way, calls: Calls) -> None:
    sf = way.open()
    nothing = calls.answering("nothing", lambda: None)
    async with way.crashing(sf, "r") as run:
        assert await run.step(nothing) is None
    async with sf.run("r") as run:
        assert await run.step(nothing) is None
    assert calls.names == ["nothing"]


@both
async def test_a_step_costs_one_commit_and_an_answer_from_the_journal_none(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        with counting() as passed:
            await run.step(calls.a)
        assert passed["sqlite.after_commit"] == 1
    async with sf.run("r") as run:
        with counting() as passed:
            await run.step(calls.a)
        assert passed["sqlite.after_commit"] == 0


@both
async def test_an_error_is_recorded_on_request_and_raised_again_without_running(way: Way, calls: Calls) -> None:
    sf = way.open()
    fails = calls.raising("fails", ValueError("wrong", 7))
    async with way.crashing(sf, "r") as run:
        with pytest.raises(ValueError, match="wrong"):
            await run.options(record_errors=True).step(fails)
    async with sf.run("r") as run:
        with pytest.raises(ValueError, match="wrong") as caught:
            await run.options(record_errors=True).step(fails)
        assert caught.value.args == ("wrong", 7)
        assert any("fails#1" in note for note in caught.value.__notes__)
    assert calls.names == ["fails"]


@both
async def test_only_the_named_errors_are_recorded(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        with pytest.raises(Boom):
            await run.options(key="f", record_errors=(ValueError,)).step(calls.raising("f", Boom("no")))
    async with sf.run("r") as run:
        assert await run.options(key="f", record_errors=(ValueError,)).step(calls.f) == ["f"]
    assert calls.names == ["f", "f"]


@both
async def test_a_recorded_error_whose_class_is_gone_comes_back_as_step_failed(way: Way, calls: Calls) -> None:
    gone = type("Gone", (Exception,), {"__module__": "no.such.module"})
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        with pytest.raises(gone):
            await run.options(record_errors=True).step(calls.raising("f", gone("away")))
    async with sf.run("r") as run:
        with pytest.raises(StepFailed, match="Gone: away") as caught:
            await run.options(record_errors=True).step(calls.f)
        assert caught.value.details["error"]["message"] == "away"


@both
async def test_a_flaky_step_is_retried_within_its_attempt(way: Way, calls: Calls) -> None:
    sf = way.open()
    outcomes = iter([Boom("one"), Boom("two"), "well"])

    def flaky() -> Any:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    step = calls.answering("flaky", flaky)
    async with sf.run("r") as run:
        assert await run.options(retry=Retry(attempts=3, delay=0.001)).step(step) == "well"
        assert run.attempt == 1
    assert calls.names == ["flaky"] * 3
    assert (await sf.get_intent("r"))["lost_deliveries"] == 0
    assert events_of(await sf.events("r"))[-1] == "completed"


@both
async def test_retries_end_and_do_not_count_in_the_next_attempt(way: Way, calls: Calls) -> None:
    sf = way.open()
    twice = Retry(attempts=2, delay=0.001)
    with pytest.raises(Boom):
        async with sf.run("r") as run:
            await run.options(retry=twice).step(calls.raising("f", Boom("no")))
    assert calls.names == ["f", "f"]
    with pytest.raises(Boom):
        async with sf.run("r") as run:
            await run.options(retry=twice).step(calls.raising("f", Boom("no")))
    assert calls.names == ["f"] * 4


@both
async def test_only_the_named_errors_are_retried(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(Boom):
        async with sf.run("r") as run:
            await run.options(retry=Retry(attempts=5, delay=0.001, on=(OSError,))).step(calls.raising("f", Boom("no")))
    assert calls.names == ["f"]


def test_pauses_between_retries_grow_up_to_their_limit() -> None:
    retry = Retry(delay=1, factor=3, max_delay=10, jitter=0)
    assert [retry.pause_after(n) for n in (1, 2, 3, 4)] == [1, 3, 9, 10]
    spread = Retry(delay=1, jitter=0.5)
    assert all(0.5 <= spread.pause_after(1) <= 1.5 for _ in range(100))


@both
async def test_an_explicit_key_names_the_step_wherever_it_stands(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.options(key="first/ä#1").step(calls.a)
        assert await run.options(key="second").step(calls.b) == ["b"]
        assert run.steps() == ["first%2F%C3%A4%231", "second"]
    async with sf.run("r") as run:
        assert await run.options(key="second").step(calls.b) == ["b"]
        await run.options(key="first/ä#1").step(calls.a)
    assert calls.names == ["a", "b"]


@both
async def test_the_same_explicit_key_in_one_attempt_gives_the_one_record(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        assert await run.options(key="k").step(calls.a) == await run.options(key="k").step(calls.a)
    assert calls.names == ["a"]


@pytest.mark.parametrize("key", ["", "k" * 513])
@both
async def test_an_unusable_key_is_refused_before_anything_runs(way: Way, calls: Calls, key: str) -> None:
    sf = way.open()
    with pytest.raises(InvalidInput, match="key"):
        async with sf.run("r") as run:
            await run.options(key=key).step(calls.a)
    assert calls.made == []


@both
async def test_keys_come_from_kind_name_and_ordinal(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        await run.step(calls.f)
        await run.step(calls.f)
        await run.options(kind="model").step(calls.f)
        await run.options(name="other name/1").step(calls.f)
        await run.once(calls.f)
        await run.step(way.function(lambda: 1))
        assert run.steps() == ["f#1", "f#2", "model:f#1", "other name%2F1#1", "once:f#1", "lambda#1"]
    shown = {step["key"]: step for step in await sf.steps("r")}
    assert shown["model:f#1"]["kind"] == "model"
    assert shown["other name%2F1#1"]["name"] == "other name/1"
    assert shown["f#1"]["status"] == "FINISHED"


@both
async def test_a_kind_that_belongs_to_one_shots_is_refused(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(InvalidInput, match="once"):
        async with sf.run("r") as run:
            await run.options(kind="once").step(calls.f)


@both
async def test_what_cannot_be_called_is_refused(way: Way) -> None:
    sf = way.open()
    with pytest.raises(InvalidInput, match="cannot be called"):
        async with sf.run("r") as run:
            await run.step(42)


@both
async def test_a_partial_counts_with_its_name_and_its_arguments(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        assert await run.step(partial(calls.f, 1), 2) == ["f", 1, 2]
        assert run.steps() == ["f#1"]
    async with way.crashing(sf, "r") as run:
        assert await run.step(partial(calls.f, 1), 2) == ["f", 1, 2]
    async with way.crashing(sf, "r") as run:
        with pytest.raises(Diverged):
            await run.step(partial(calls.f, 3), 2)
    assert calls.names == ["f"]


@both
async def test_inputs_stand_for_arguments_that_change_by_themselves(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.options(inputs={"question": "why"}).step(calls.f, "id-1")
    async with way.crashing(sf, "r") as run:
        assert await run.options(inputs={"question": "why"}).step(calls.f, "id-2") == ["f", "id-1"]
    async with sf.run("r") as run:
        with pytest.raises(Diverged, match="how"):
            await run.options(inputs={"question": "how"}).step(calls.f, "id-2")


@both
async def test_a_result_that_cannot_be_stored_says_where_it_is_wrong(way: Way, calls: Calls) -> None:
    sf = way.open()
    odd = calls.answering("odd", lambda: {"rows": [1, object()]})
    with pytest.raises(Unencodable, match=r"rows.*1.*object"):
        async with sf.run("r") as run:
            await run.step(odd)
    assert (await sf.steps("r")) == []


def test_a_coroutine_function_in_a_blocking_run_is_refused_by_name(tmp_path: Path) -> None:
    async def later() -> None: ...

    with (
        Stepfast(tmp_path / "stepfast.db") as sf,
        pytest.raises(InvalidInput, match=r"later is a coroutine function"),
        sf.run("r") as run,
    ):
        run.step(later)  # type: ignore[unused-coroutine]


async def test_a_plain_function_may_be_a_step_of_an_async_run(tmp_path: Path) -> None:
    async with AsyncStepfast(tmp_path / "stepfast.db") as sf, sf.run("r") as run:
        assert await run.step(len, [1, 2]) == 2


@both
async def test_a_caller_s_own_retry_is_one_step_and_not_two(way: Way, calls: Calls) -> None:
    """A call that left no record gives its key to the next equal one, so that a resumed run finds the success."""
    sf = way.open()

    async def body(run: Any, failures: int) -> Any:
        for _ in range(failures):
            with pytest.raises(Boom):
                await run.step(calls.raising("f", Boom("no")), 1)
        await run.step(calls.f, 2)
        return await run.step(calls.f, 1)

    async with way.crashing(sf, "r") as run:
        assert await body(run, 2) == ["f", 1]
        assert set(run.steps()) == {"f#1", "f#2"}
    async with sf.run("r") as run:
        assert await run.step(calls.f, 1) == ["f", 1]
        assert await run.step(calls.f, 2) == ["f", 2]
    assert calls.made == [("f", 1), ("f", 1), ("f", 2), ("f", 1)]


# Damage


@pytest.mark.parametrize("column", ["result", "input_hash", "preview", "name", "kind", "attempt", "seal"])
@both
async def test_a_damaged_record_is_not_used_and_its_step_is_not_run_again(way: Way, calls: Calls, column: str) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a, "argument")
    with closing(sqlite3.connect(way.path)) as store:
        [value] = store.execute(f"SELECT {column} FROM steps").fetchone()
        if isinstance(value, bytes):
            value = value[:-1] + bytes([value[-1] ^ 1])
        else:
            value = value + 1 if isinstance(value, int) else f"{value}x"
        store.execute(f"UPDATE steps SET {column} = ?", [value])
        store.commit()
    async with way.crashing(sf, "r") as run:
        with pytest.raises(Damaged, match="a#1"):
            await run.step(calls.a, "argument")
    assert calls.names == ["a"]


# Cancellation


async def test_a_step_cancelled_while_it_is_written_is_kept(tmp_path: Path) -> None:
    """What is on its way to the disk arrives there, so the run must know it too."""
    done: list[int] = []

    def work() -> int:
        done.append(1)
        return len(done)

    loop = asyncio.get_running_loop()
    async with AsyncStepfast(tmp_path / "stepfast.db") as sf, sf.run("r") as run:
        task = asyncio.create_task(run.options(key="k").step(work))

        def cancel() -> None:
            loop.call_soon_threadsafe(task.cancel)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(30)

        with on_failpoint("sqlite.before_commit", cancel), pytest.raises(asyncio.CancelledError):
            await task
        assert await run.options(key="k").step(work) == 1
    assert done == [1]


async def test_a_step_cancelled_while_it_works_leaves_nothing(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def work(ends: bool) -> str:
        started.set()
        if not ends:
            await asyncio.Event().wait()
        return "done"

    async with AsyncStepfast(tmp_path / "stepfast.db") as sf:
        async with sf.run("r") as run:
            task = asyncio.create_task(run.options(inputs="same").step(work, False))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert run.steps() == []
            assert await run.options(inputs="same").step(work, True) == "done"
        assert [s["key"] for s in await sf.steps("r")] == ["work#1"]


async def test_a_cancelled_run_of_a_task_is_handed_back(tmp_path: Path) -> None:
    started = asyncio.Event()

    async def body(sf: AsyncStepfast) -> None:
        async with sf.run("r") as run:
            await run.step(len, "abc")
            started.set()
            await asyncio.Event().wait()

    async with AsyncStepfast(tmp_path / "stepfast.db") as sf:
        task = asyncio.create_task(body(sf))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        intent = await sf.get_intent("r")
        assert (intent["status"], intent["lost_deliveries"]) == ("IN_PROGRESS", 0)
        async with sf.run("r") as run:
            assert run.steps() == ["len#1"]

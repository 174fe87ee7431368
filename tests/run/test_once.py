"""One-shot steps: at most once, and never again unasked."""

from __future__ import annotations

import logging
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stepfast import (
    DID_NOT_HAPPEN,
    Happened,
    InvalidInput,
    StepFailed,
    Stepfast,
    Suspended,
    Unencodable,
    idempotency_key,
)
from tests.run.kit import Boom, Calls, Crash, Way, answer_when_asked, both, counting, in_thread


def statuses(way: Way) -> list[str]:
    with closing(sqlite3.connect(way.path)) as store:
        return [status for (status,) in store.execute("SELECT status FROM steps WHERE voided = 0 ORDER BY position")]


@both
async def test_a_one_shot_is_two_commits_and_the_first_comes_before_the_effect(way: Way, calls: Calls) -> None:
    sf = way.open()
    seen: list[Any] = []

    def pay() -> str:
        seen.append((passed["sqlite.after_commit"], statuses(way)))
        return "paid"

    async with sf.run("r") as run:
        with counting() as passed:
            assert await run.once(calls.answering("pay", pay)) == "paid"
        assert passed["sqlite.after_commit"] == 2
    assert seen == [(1, ["STARTED"])]
    assert statuses(way) == ["FINISHED"]


@both
async def test_a_confirmed_one_shot_answers_from_the_journal(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        assert await run.once(calls.pay, 5) == ["pay", 5]
    async with sf.run("r") as run:
        with counting() as passed:
            assert await run.once(calls.pay, 5) == ["pay", 5]
        assert passed["sqlite.after_commit"] == 0
    assert calls.names == ["pay"]


@both
async def test_an_error_of_a_one_shot_is_its_outcome(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        with pytest.raises(ValueError, match="declined"):
            await run.once(calls.raising("pay", ValueError("declined")))
    async with sf.run("r") as run:
        with pytest.raises(ValueError, match="declined"):
            await run.once(calls.pay)
    assert calls.names == ["pay"]


@both
async def test_an_error_that_says_nothing_happened_leaves_the_one_shot_to_be_done(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(Boom):
        async with sf.run("r") as run:
            await run.options(retry_on=(Boom,)).once(calls.raising("pay", Boom("not connected")))
    async with sf.run("r") as run:
        assert await run.options(retry_on=(Boom,)).once(calls.pay) == ["pay"]
    assert calls.names == ["pay", "pay"]


@both
async def test_a_one_shot_tried_again_in_the_same_attempt_is_one_effect_after_a_crash(way: Way, calls: Calls) -> None:
    sf = way.open()
    busy = iter([True, False, False])

    def pay() -> str:
        if next(busy):
            raise Boom("not connected")
        calls.made.append(("effect",))
        return "paid"

    async def body(run: Any) -> Any:
        for _ in range(3):
            try:
                return await run.options(retry_on=(Boom,)).once(calls.answering("pay", pay))
            except Boom:
                continue
        raise AssertionError("it is not busy for ever")

    async with way.crashing(sf, "r") as run:
        assert await body(run) == "paid"
    async with sf.run("r") as run:
        assert await body(run) == "paid"
    assert calls.names.count("effect") == 1


@both
async def test_a_one_shot_cut_short_is_in_doubt_and_asks(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.once(calls.raising("pay", Crash()), 5)
    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="suspend"):
            raise AssertionError("the run must not go on before a person has answered")
    intent = await sf.get_intent("r")
    assert (intent["status"], intent["waiting_reason"]) == ("WAITING", "WAITING_FOR_HUMAN")
    assert calls.names == ["pay"]


@both
async def test_a_run_that_waits_in_its_process_goes_on_when_answered(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.once(calls.raising("pay", Crash()))
    with in_thread(lambda: answer_when_asked(way.url, "r", "done", value={"receipt": 7}, actor="ann")):
        async with sf.run("r") as run:
            assert await run.once(calls.pay) == {"receipt": 7}
    assert calls.names == ["pay"]
    decision = (await sf.decisions("r", pending=False))[0]
    assert (decision["outcome"], decision["actor"]) == ("done", "ann")


@both
async def test_retry_in_doubt_runs_the_one_shot_again(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.options(on_in_doubt="retry").once(calls.raising("pay", Crash()))
    async with sf.run("r") as run:
        assert await run.options(on_in_doubt="retry").once(calls.pay) == ["pay"]
    assert calls.names == ["pay", "pay"]


@both
async def test_fail_in_doubt_tells_the_caller_that_the_outcome_is_unknown(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.options(on_in_doubt="fail").once(calls.raising("pay", Crash()))
    for _ in range(2):
        async with way.crashing(sf, "r") as run:
            with pytest.raises(StepFailed, match="outcome is unknown"):
                await run.options(on_in_doubt="fail").once(calls.pay)
    assert calls.names == ["pay"]


@both
async def test_a_probe_that_finds_the_effect_settles_the_one_shot(way: Way, calls: Calls) -> None:
    sf = way.open()
    probe = calls.answering("probe", lambda *_: Happened({"receipt": 7}))
    async with way.crashing(sf, "r") as run:
        await run.options(on_in_doubt=probe).once(calls.raising("pay", Crash()), "card")
    async with way.crashing(sf, "r") as run:
        assert await run.options(on_in_doubt=probe).once(calls.pay, "card") == {"receipt": 7}
    async with sf.run("r") as run:
        assert await run.options(on_in_doubt=probe).once(calls.pay, "card") == {"receipt": 7}
    assert calls.made == [("pay", "card"), ("probe", "card")]


@both
async def test_a_probe_that_finds_no_effect_lets_it_be_done(way: Way, calls: Calls) -> None:
    sf = way.open()
    probe = calls.answering("probe", lambda: DID_NOT_HAPPEN)
    async with way.crashing(sf, "r") as run:
        await run.options(on_in_doubt=probe).once(calls.raising("pay", Crash()))
    async with sf.run("r") as run:
        assert await run.options(on_in_doubt=probe).once(calls.pay) == ["pay"]
    assert calls.names == ["pay", "probe", "pay"]


@both
async def test_a_probe_that_cannot_tell_leaves_it_to_a_person(way: Way, calls: Calls) -> None:
    sf = way.open()
    probe = calls.answering("probe", lambda: None)
    async with way.crashing(sf, "r") as run:
        await run.options(on_in_doubt=probe).once(calls.raising("pay", Crash()))
    with pytest.raises(Suspended):
        async with sf.run("r", on_wait="suspend") as run:
            await run.options(on_in_doubt=probe).once(calls.pay)
    await sf.answer("r", "retry")
    async with sf.run("r") as run:
        assert await run.options(on_in_doubt=probe).once(calls.pay) == ["pay"]
    assert calls.names.count("pay") == 2


@both
async def test_a_probe_can_look_by_the_key_the_effect_was_given(way: Way, calls: Calls) -> None:
    sf = way.open()
    given: list[str] = []

    def pay() -> None:
        given.append(idempotency_key())
        raise Crash

    def probe() -> Any:
        given.append(idempotency_key())
        return Happened()

    async with way.crashing(sf, "r") as run:
        await run.options(on_in_doubt=way.function(probe)).once(calls.answering("pay", pay))
    async with sf.run("r") as run:
        await run.options(on_in_doubt=way.function(probe)).once(calls.pay)
    assert len(given) == 2
    assert len(set(given)) == 1


@both
async def test_a_probe_is_asked_in_a_revived_run_too(way: Way, calls: Calls) -> None:
    """Each attempt of a journal has a number of its own, so an old one-shot is not taken for one of this attempt."""
    sf = way.open()
    probe = calls.answering("probe", lambda: Happened("paid"))
    async with way.crashing(sf, "r", max_delivery_attempts=1) as run:
        await run.options(on_in_doubt=probe).once(calls.raising("pay", Crash()))
    async with sf.run("r", on_failed="revive") as run:
        assert run.attempt == 2
        assert await run.options(on_in_doubt=probe).once(calls.pay) == "paid"
    assert calls.names == ["pay", "probe"]


@both
async def test_one_shots_that_later_attempts_settle_are_progress(way: Way, calls: Calls) -> None:
    """Each attempt learns of the one before that its one-shot happened, and is lost in the next one."""
    sf = way.open()
    probe = calls.answering("probe", lambda: Happened("paid"))
    for last in range(1, 7):
        async with way.crashing(sf, "r", max_delivery_attempts=2) as run:
            for number in range(1, last):
                await run.options(key=f"pay {number}", on_in_doubt=probe).once(calls.pay)
            await run.options(key=f"pay {last}", on_in_doubt=probe).once(calls.raising("pay", Crash()))
    async with sf.run("r") as run:
        assert run.attempt == 7
    assert [(s["attempt"], s["status"]) for s in await sf.steps("r")][:5] == [(n, "FINISHED") for n in range(2, 7)]


@both
async def test_a_result_that_cannot_be_stored_leaves_a_one_shot_in_doubt(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(Unencodable):
        async with sf.run("r") as run:
            await run.once(calls.answering("pay", object))
    with pytest.raises(Suspended):
        await sf.run("r", on_wait="suspend")
    assert [d["kind"] for d in await sf.decisions("r")] == ["in_doubt"]


@both
async def test_an_interrupt_leaves_a_one_shot_in_doubt(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(Crash):
        async with sf.run("r") as run:
            await run.once(calls.raising("pay", Crash()))
    with pytest.raises(Suspended):
        await sf.run("r", on_wait="suspend")


@both
async def test_an_unknown_policy_is_refused(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(InvalidInput, match="on_in_doubt"):
        async with sf.run("r") as run:
            await run.options(on_in_doubt="hope").once(calls.pay)
    assert calls.made == []


@both
async def test_waiting_in_the_process_says_how_to_answer(
    way: Way, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.once(calls.raising("pay", Crash()))
    with (
        caplog.at_level(logging.WARNING, "stepfast"),
        in_thread(lambda: answer_when_asked(way.url, "r", "retry")),
    ):
        async with sf.run("r") as run:
            await run.once(calls.pay)
    assert "sf.answer('r', 'done'" in caplog.text


def test_a_one_shot_that_is_at_work_is_not_begun_a_second_time(tmp_path: Path) -> None:
    done: list[str] = []

    def outer(pool: ThreadPoolExecutor, run: Any) -> None:
        with pytest.raises(InvalidInput, match="already running"):
            pool.submit(run.options(key="pay", on_drift="accept").once, done.append, "again").result()
        done.append("once")

    with (
        Stepfast(tmp_path / "stepfast.db") as sf,
        sf.run("r", on_wait="suspend") as run,
        ThreadPoolExecutor(1) as pool,
    ):
        run.options(key="pay").once(outer, pool, run)
    assert done == ["once"]

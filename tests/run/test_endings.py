"""How a run is left, and what it is when it is opened again."""

# ruff: noqa: PT012 - what is raised leaves the run, so the run is inside the block

from __future__ import annotations

from typing import Any

import pytest

from stepfast import InvalidInput, RunBusy, RunFailed, RunFinished, Unencodable
from tests.run.kit import Boom, Calls, Crash, Way, both, collect, events_of


@both
async def test_leaving_a_run_completes_it_with_its_result(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        run.complete({"rows": await run.step(calls.count)})
    intent = await sf.wait_for("r", timeout=0)
    assert (intent["status"], intent["result"]) == ("COMPLETED", {"rows": ["count"]})
    assert events_of(await sf.events("r")) == ["created", "submitted", "delivered", "in_progress", "completed"]


@both
async def test_a_completed_run_opens_again_to_give_what_was_recorded(way: Way, calls: Calls) -> None:
    sf = way.open()

    async def body(run: Any) -> list[Any]:
        return [
            await run.step(calls.a),
            await run.once(calls.b),
            await collect(run.map(calls.c, [1, 2])),
            await run.checkpoint({"n": 1}),
            await run.scope("s").step(calls.d),
        ]

    async with sf.run("r") as run:
        assert not run.replaying
        first = await body(run)
        run.complete("done")
    made = list(calls.made)
    async with sf.run("r") as run:
        assert run.replaying
        assert run.result == "done"
        assert await body(run) == first
    assert calls.made == made
    assert events_of(await sf.events("r")).count("completed") == 1


@both
async def test_a_completed_run_takes_no_new_work(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        await run.step(calls.a)
    async with sf.run("r") as run:
        await run.step(calls.a)
        for attempt in (
            lambda: run.step(calls.b),
            lambda: run.once(calls.b),
            lambda: run.checkpoint({}),
            lambda: run.ask("Deploy?"),
            lambda: collect(run.map(calls.b, [1])),
            lambda: run.rewind(),
        ):
            with pytest.raises(RunFinished, match="r is COMPLETED"):
                await attempt()
    assert calls.names == ["a"]


@both
async def test_an_exception_hands_the_run_back_and_costs_no_attempt(way: Way, calls: Calls) -> None:
    sf = way.open()
    for _ in range(5):
        with pytest.raises(Boom, match="no network"):
            async with sf.run("r", max_delivery_attempts=2) as run:
                await run.step(calls.a)
                raise Boom("no network")
    intent = await sf.get_intent("r")
    assert (intent["status"], intent["lost_deliveries"], intent["delivery_attempt"]) == ("IN_PROGRESS", 0, 5)
    async with sf.run("r") as run:
        assert run.resumed
        await run.step(calls.a)
    assert calls.names == ["a"]


@both
async def test_the_history_tells_why_a_run_was_handed_back(way: Way) -> None:
    sf = way.open()

    async def where_it_broke() -> None:
        raise Boom("no network")

    with pytest.raises(Boom):
        async with sf.run("r"):
            await where_it_broke()
    told = (await sf.events("r"))[-1]
    assert told["event_type"] == "intent.released"
    assert told["details"]["reason"] == "Boom: no network"
    assert told["data"]["message"] == "no network"
    assert "where_it_broke" in told["data"]["traceback"]


@both
async def test_an_exception_fails_the_run_where_that_is_wanted(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(Boom):
        async with sf.run("r", on_error="fail") as run:
            await run.step(calls.a)
            raise Boom("no network")
    intent = await sf.wait_for("r", timeout=0)
    assert (intent["status"], intent["reason"]) == ("FAILED", "Boom: no network")
    assert intent["error"]["type"].endswith(":Boom")
    assert "raise Boom" in intent["error"]["traceback"]
    with pytest.raises(RunFailed, match=r"no network.*sf\.revive\('r'\)") as caught:
        await sf.run("r")
    assert caught.value.details["error"]["message"] == "no network"


@both
async def test_an_interrupt_hands_the_run_back_even_where_errors_fail_it(way: Way, calls: Calls) -> None:
    sf = way.open()
    for interrupt in (KeyboardInterrupt, SystemExit, Crash):
        with pytest.raises(interrupt):
            async with sf.run("r", on_error="fail") as run:
                await run.step(calls.a)
                raise interrupt
    assert (await sf.get_intent("r"))["status"] == "IN_PROGRESS"
    async with sf.run("r") as run:
        await run.step(calls.a)
    assert calls.names == ["a"]


@both
async def test_stepfast_s_own_errors_do_not_fail_a_run(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(InvalidInput):
        async with sf.run("r", on_error="fail") as run:
            await run.options(key="").step(calls.a)
    async with sf.run("r") as run:
        await run.step(calls.a)


@both
async def test_a_run_is_not_opened_twice_at_once(way: Way) -> None:
    sf = way.open()
    async with sf.run("r"):
        with pytest.raises(RunBusy, match="wait=SECONDS"):
            await sf.run("r")
    async with sf.run("r") as run:
        assert run.replaying


@both
async def test_a_result_that_cannot_be_stored_leaves_the_run_to_be_gone_on_with(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(Unencodable):
        async with sf.run("r") as run:
            await run.step(calls.a)
            run.complete(object())
    intent = await sf.get_intent("r")
    assert (intent["status"], intent["lost_deliveries"]) == ("IN_PROGRESS", 0)
    async with sf.run("r") as run:
        await run.step(calls.a)
        run.complete("well")
    assert calls.names == ["a"]
    assert (await sf.get_intent("r"))["result"] == "well"


@both
async def test_a_poisoned_run_stops_at_its_next_call(way: Way, calls: Calls) -> None:
    """For callers that must not raise where they stand."""
    sf = way.open()
    with pytest.raises(Boom, match="stop here"):
        async with sf.run("r") as run:
            await run.step(calls.a)
            run.poison(Boom("stop here"))
            await run.step(calls.b)
    assert calls.names == ["a"]


@both
async def test_a_failed_run_goes_on_when_revived_and_keeps_its_journal(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(Boom):
        async with sf.run("r", on_error="fail", labels={"team": "etl"}, payload={"n": 1}) as run:
            await run.step(calls.a)
            await run.once(calls.pay)
            await run.checkpoint({"cursor": 7})
            raise Boom
    old = await sf.get_intent("r")
    new = await sf.revive("r", actor="ann")
    assert new["revived_from"] == old["intent_id"]
    assert (new["labels"], new["payload"], new["run_id"]) == ({"team": "etl"}, {"n": 1}, "r")
    async with sf.run("r") as run:
        assert run.resumed
        assert run.restored == {"cursor": 7}
        await run.step(calls.a)
        await run.once(calls.pay)
        await run.step(calls.b)
    assert calls.names == ["a", "pay", "b"]
    # The old ending stays as it is.
    again = await sf.get_intent(old["intent_id"])
    assert (again["status"], again["reason"]) == (old["status"], old["reason"])
    assert again["superseded_by"] == new["intent_id"]
    assert (await sf.get_intent("r"))["intent_id"] == new["intent_id"]


@both
async def test_a_failed_run_may_be_revived_by_opening_it(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(Boom):
        async with sf.run("r", on_error="fail") as run:
            await run.step(calls.a)
            raise Boom
    async with sf.run("r", on_failed="revive") as run:
        await run.step(calls.a)
    assert calls.names == ["a"]
    assert (await sf.get_intent("r"))["status"] == "COMPLETED"


@both
async def test_the_idempotency_key_of_a_step_outlives_a_revival(way: Way) -> None:
    from stepfast import idempotency_key

    sf = way.open()
    seen: list[str] = []

    def pay() -> None:
        seen.append(idempotency_key())
        raise Boom

    for options in ({"on_error": "fail"}, {"on_failed": "revive"}):
        with pytest.raises(Boom):
            async with sf.run("r", **options) as run:
                await run.step(way.function(pay))
    assert len(seen) == 2
    assert len(set(seen)) == 1


@both
async def test_a_run_with_another_payload_is_a_conflict(way: Way) -> None:
    from stepfast import Conflict

    sf = way.open()
    async with sf.run("r", payload={"source": "a"}) as run:
        assert run.payload == {"source": "a"}
    with pytest.raises(Conflict, match="different body"):
        await sf.run("r", payload={"source": "b"})
    async with sf.run("r", payload={"source": "a"}) as run:
        assert run.replaying


@pytest.mark.parametrize(
    "options",
    [{"run_id": ""}, {"run_id": "x" * 600}, {"run_id": "a\0b"}, {"total_steps": 0}, {"max_delivery_attempts": 0}],
)
@both
async def test_a_run_that_makes_no_sense_is_refused(way: Way, options: dict[str, Any]) -> None:
    sf = way.open()
    with pytest.raises(InvalidInput):
        await sf.run(**{"run_id": "r", **options})
    assert await sf.list_intents() == []

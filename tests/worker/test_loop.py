"""The worker itself: it keeps its leases, outlives its store, stops when told, and refuses what makes no sense."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepfast import AsyncStepfast, InvalidInput, OutcomeUnknown, Stepfast, StoreUnavailable
from stepfast.ops import Claim, ListRecords
from tests.stores.faults import OwnServer
from tests.worker.kit import ADDRESS, SECONDS, Outage, Team, wait_until


async def echo(run: Any, payload: Any) -> Any:
    return payload


def away() -> Exception:
    return StoreUnavailable("away for the test")


@pytest.mark.parametrize("kind", ["async"], indirect=True)
def test_a_handler_that_blocks_its_event_loop_for_longer_than_its_lease_keeps_it(team: Team) -> None:
    calls: list[int] = []
    began = threading.Event()

    async def block(run: Any, payload: Any) -> str:
        calls.append(run.attempt)
        began.set()
        time.sleep(2.5)  # noqa: ASYNC251 - blocking the loop is what is tested
        return "done"

    client = {"lease_seconds": 1.0}
    team.hire(block, client=client)
    intent_id = team.send()
    assert began.wait(SECONDS)
    team.hire(block, client=client)  # who would take it over
    assert team.result(intent_id) == "done"
    assert calls == [1]
    assert team.sf.get_intent(intent_id)["lost_deliveries"] == 0


@pytest.mark.parametrize("kind", ["async"], indirect=True)
def test_work_is_handed_back_in_time_although_a_handler_blocks_the_event_loop(team: Team) -> None:
    began = threading.Event()

    async def block(run: Any, payload: Any) -> None:
        began.set()
        time.sleep(1.5)  # noqa: ASYNC251

    hand = team.hire(block)
    intent_id = team.send()
    assert began.wait(SECONDS)
    hand.worker._words.put(0.0)  # as a signal does
    wait_until(lambda: team.history(intent_id)[-1] == "released", "it is handed back")
    with team.take() as run:
        run.complete("elsewhere")
    assert team.result(intent_id) == "elsewhere"


def test_a_finished_handler_waits_for_a_store_that_is_away_and_is_not_called_again(team: Team) -> None:
    calls: list[int] = []
    outages: list[Outage] = []

    async def handle(run: Any, payload: Any) -> str:
        calls.append(run.attempt)
        outages[0].on = True
        return "done"

    hand = team.hire(handle)
    outages.append(Outage(hand.sf.store, away))
    intent_id = team.send()
    wait_until(lambda: outages[0].refused >= 2, "the worker insists")
    outages[0].on = False
    assert team.result(intent_id) == "done"
    assert calls == [1]


def test_a_store_that_fails_a_handler_costs_it_no_attempt(team: Team) -> None:
    outages: list[Outage] = []

    async def handle(run: Any, payload: Any) -> str:
        if run.attempt == 1:
            outages[0].on = True
        return str(await run.step(str, "stored"))

    hand = team.hire(handle, retry_seconds=0.01)
    outages.append(Outage(hand.sf.store, away))
    intent_id = team.send()
    wait_until(lambda: outages[0].refused >= 2, "the worker insists")
    outages[0].on = False
    assert team.result(intent_id) == "stored"
    seen = team.sf.get_intent(intent_id)
    assert (seen["delivery_attempt"], seen["lost_deliveries"]) == (2, 0)


def test_an_idle_worker_outlives_an_outage(team: Team) -> None:
    hand = team.hire(echo)
    assert team.result(team.send("before")) == "before"
    outage = Outage(hand.sf.store, away)
    outage.on = True
    intent_id = team.send("during")
    wait_until(lambda: outage.refused >= 2, "the worker asks in vain")
    outage.on = False
    assert team.result(intent_id) == "during"


@pytest.fixture
def own_server() -> Iterator[OwnServer]:
    with tempfile.TemporaryDirectory() as folder:
        server = OwnServer(Path(folder) / "data")
        yield server
        server.stop()


def test_a_worker_and_its_handler_outlive_a_crash_of_the_database(own_server: OwnServer) -> None:
    began, go_on = threading.Event(), threading.Event()
    calls: list[Any] = []
    with Stepfast(own_server.url) as sf:

        @sf.worker(ADDRESS)
        def handle(run: Any, payload: Any) -> Any:
            calls.append(payload)
            began.set()
            assert go_on.wait(SECONDS)
            return payload

        handle.start()
        sent = [sf.send_intent({"intent_type": "t", "to_agent": ADDRESS, "payload": name}) for name in "ab"]
        assert began.wait(SECONDS)
        own_server.crash()
        go_on.set()
        own_server.restart()
        ended = [sf.wait_for(intent_id, timeout=SECONDS) for intent_id in sent]
    assert [(e["result"], e["lost_deliveries"]) for e in ended] == [("a", 0), ("b", 0)]
    assert calls == ["a", "b"]


def test_a_claim_whose_answer_was_lost_is_asked_for_again(team: Team) -> None:
    hand = team.hire(echo)
    store = hand.sf.store
    execute, submit = store.execute, store.submit
    lost: list[str] = []

    def is_first_claim(ops: Any) -> bool:
        claims = [op.token for op in ops if isinstance(op, Claim)]
        lost.extend(claims)
        return bool(claims) and len(lost) == 1

    def executed(ops: Any, **more: Any) -> Any:
        answer = execute(ops, **more)
        if is_first_claim(ops):
            raise OutcomeUnknown("lost on its way")
        return answer

    def submitted(ops: Any, done: Any, **more: Any) -> None:
        lose = is_first_claim(ops)
        submit(ops, (lambda _: done(OutcomeUnknown("lost on its way"))) if lose else done, **more)

    store.execute, store.submit = executed, submitted
    intent_id = team.send("found")
    assert team.result(intent_id) == "found"
    assert len(lost) >= 2
    assert lost[0] == lost[1]
    assert team.sf.get_intent(intent_id)["delivery_attempt"] == 1


def test_a_stopped_worker_takes_nothing_and_may_be_started_again(team: Team) -> None:
    hand = team.hire(echo)
    assert team.result(team.send("first")) == "first"
    hand.stop()
    assert not hand.worker.running
    assert team.sf.store.one(ListRecords(kind="worker")) == []
    waiting = team.send("second")
    assert team.sf.get_intent(waiting)["status"] == "DELIVERED"
    if team.kind == "sync":
        hand.worker.start()
    else:
        hand._loop.call_soon_threadsafe(hand.worker.start)  # type: ignore[union-attr]
    assert team.result(waiting) == "second"


def test_an_idle_worker_does_not_keep_its_store_busy(team: Team) -> None:
    """However many commits of others wake it: of 200, spread over a second, it looks at few."""
    hand = team.hire(echo)
    assert team.result(team.send("first")) == "first"
    asked: list[Any] = []
    execute, submit = hand.sf.store.execute, hand.sf.store.submit

    def executed(ops: Any, **more: Any) -> Any:
        asked.append(ops)
        return execute(ops, **more)

    def submitted(ops: Any, done: Any, **more: Any) -> None:
        asked.append(ops)
        submit(ops, done, **more)

    hand.sf.store.execute, hand.sf.store.submit = executed, submitted
    began = time.monotonic()
    for number in range(200):
        team.send(number, to="agent://acme/prod/other")
    spent = time.monotonic() - began
    # At most twenty looks a second, each of one or two reads, and the first few for nothing.
    assert len(asked) < 20 + 3 * 20 * (spent + 0.5)


# Several workers in one client


def test_all_workers_of_a_client_run_together_and_end_with_it(url: str) -> None:
    with Stepfast(url) as sf:
        sf.worker("agent://a")(lambda run, payload: f"a{payload}")
        sf.worker("agent://b", concurrency=2)(lambda run, payload: f"b{payload}")
        together = threading.Thread(target=sf.run_workers)
        together.start()
        sent = [sf.send_intent({"intent_type": "t", "to_agent": f"agent://{x}", "payload": 1}) for x in "ab"]
        assert [sf.wait_for(i, timeout=SECONDS)["result"] for i in sent] == ["a1", "b1"]
    together.join(SECONDS)
    assert not together.is_alive()


async def test_all_workers_of_an_async_client_run_together_and_end_when_cancelled(url: str) -> None:
    async with AsyncStepfast(url) as sf:

        @sf.worker("agent://a")
        async def _a(run: Any, payload: Any) -> str:
            return f"a{payload}"

        @sf.worker("agent://b", concurrency=2)
        async def handle_b(run: Any, payload: Any) -> str:
            return f"b{payload}"

        together = asyncio.create_task(sf.run_workers())
        sent = [await sf.send_intent({"intent_type": "t", "to_agent": f"agent://{x}", "payload": 1}) for x in "ab"]
        assert [(await sf.wait_for(i, timeout=SECONDS))["result"] for i in sent] == ["a1", "b1"]
        together.cancel()
        with pytest.raises(asyncio.CancelledError):
            await together
        assert not handle_b.running


# What makes no sense


def test_a_worker_is_still_its_function(tmp_path: Path) -> None:
    with Stepfast(f"sqlite:///{tmp_path}/w.db") as sf:

        @sf.worker(ADDRESS)
        def handle(run: Any, payload: Any) -> Any:
            """Say it again."""
            return payload

        assert handle(None, 3) == 3
        assert handle.function(None, 3) == 3
        assert (handle.address, handle.__doc__) == (ADDRESS, "Say it again.")
        handle.start()
        with pytest.raises(InvalidInput, match="running already"):
            handle.start()
        with pytest.raises(InvalidInput, match="running already"):
            handle.run()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"retry_seconds": -1.0}, "retry_seconds"),
        ({"drain_seconds": -1.0}, "drain_seconds"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with Stepfast(f"sqlite:///{tmp_path}/w.db") as sf, pytest.raises(InvalidInput, match=complaint):
        sf.worker(ADDRESS, **options)(lambda run, payload: None)


def test_a_handler_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with Stepfast(f"sqlite:///{tmp_path}/w.db") as sf:
        with pytest.raises(InvalidInput, match="coroutine function; make it a worker of AsyncStepfast"):
            sf.worker(ADDRESS)(echo)
        with pytest.raises(InvalidInput, match="takes a function"):
            sf.worker(ADDRESS)(3)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="no worker"):
            sf.run_workers()
        with pytest.raises(InvalidInput, match="address"):
            sf.worker("")(lambda run, payload: None)

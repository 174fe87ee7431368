"""The client beyond runs: intents, addresses, looking in, waiting, retention, opening and closing."""

# ruff: noqa: PT012 - what is raised leaves the run, so the run is inside the block

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stepfast import (
    AlreadyFinished,
    AsyncStepfast,
    Clock,
    Conflict,
    Fenced,
    InvalidInput,
    NotFound,
    Retention,
    RunFailed,
    Status,
    Stepfast,
    StoreUnavailable,
    Suspended,
)
from tests.run.kit import LEASE_SECONDS, Boom, Way, both, events_of, in_thread, make_way

__all__ = ["make_way"]

WORK = {"intent_type": "report.v1", "to_agent": "agent://reporter", "payload": {"month": 7}}


# Sending


@both
async def test_an_intent_is_kept_as_it_was_sent(way: Way) -> None:
    sf = way.open()
    deadline = datetime(2100, 1, 1, tzinfo=UTC)
    intent_id = await sf.send_intent(
        {
            **WORK,
            "from_agent": "agent://boss",
            "correlation_id": "c-1",
            "labels": {"team": "etl"},
            "deadline_at": deadline,
            "max_delivery_attempts": 7,
        }
    )
    intent = await sf.get_intent(intent_id)
    assert intent["intent_id"] == intent_id
    assert intent["status"] == intent["lifecycle_status"] == "DELIVERED"
    assert intent["payload"] == {"month": 7}
    assert (intent["intent_type"], intent["to_agent"]) == ("report.v1", "agent://reporter")
    assert (intent["from_agent"], intent["correlation_id"]) == ("agent://boss", "c-1")
    assert (intent["labels"], intent["max_delivery_attempts"]) == ({"team": "etl"}, 7)
    assert intent["deadline_at"] == "2100-01-01T00:00:00Z"
    assert intent["run_id"] is None
    assert events_of(await sf.events(intent_id)) == ["created", "submitted", "delivered"]


@both
async def test_the_same_key_and_body_are_the_same_intent(way: Way) -> None:
    sf = way.open()
    first = await sf.send_intent(WORK, idempotency_key="k")
    assert await sf.send_intent(WORK, idempotency_key="k") == first
    assert await sf.send_intent({**WORK, "correlation_id": "another trace"}, idempotency_key="k") == first
    for other in ({"payload": {"month": 8}}, {"to_agent": "agent://other"}, {"labels": {"a": "b"}}):
        with pytest.raises(Conflict, match="'k' was used before with a different body") as caught:
            await sf.send_intent({**WORK, **other}, idempotency_key="k")
        assert caught.value.details["intent_id"] == first
    assert await sf.send_intent(WORK) != first
    assert len(await sf.list_intents()) == 2


@both
async def test_a_key_holds_after_the_work_is_done(way: Way) -> None:
    sf = way.open()
    first = await sf.send_intent(WORK, idempotency_key="k")
    async with await sf.claim("agent://reporter") as run:
        run.complete("done")
    assert await sf.send_intent(WORK, idempotency_key="k") == first
    assert await sf.claim("agent://reporter") is None


def test_many_who_send_the_same_at_once_send_one_intent(tmp_path: Path) -> None:
    gate = threading.Barrier(8)

    def send(sf: Stepfast) -> str:
        gate.wait(30)
        return sf.send_intent(WORK, idempotency_key="k")

    with Stepfast(tmp_path / "stepfast.db") as sf, ThreadPoolExecutor(8) as pool:
        sent = {future.result() for future in [pool.submit(send, sf) for _ in range(8)]}
        assert len(sent) == 1
        assert len(sf.list_intents()) == 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"intent_type": ""}, "intent_type"),
        ({"to_agent": None}, "to_agent"),
        ({"to_agent": "x" * 513}, "512"),
        ({"too_agent": "x"}, "too_agent: not known here"),
        ({"labels": {"a": 1}}, "labels"),
        ({"labels": {str(n): "x" for n in range(65)}}, "64"),
        ({"deadline_at": "tomorrow"}, "RFC 3339"),
        ({"deadline_at": "2100-01-01T00:00:00Z", "ttl_seconds": 5}, "one of them"),
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"max_delivery_attempts": 0}, "max_delivery_attempts"),
        ({"payload": object()}, "object"),
    ],
)
@both
async def test_an_intent_that_makes_no_sense_is_refused(way: Way, wrong: dict[str, Any], says: str) -> None:
    sf = way.open()
    with pytest.raises(InvalidInput, match=says):
        await sf.send_intent({**WORK, **wrong})
    assert await sf.list_intents() == []


# Claiming


@both
async def test_work_is_claimed_by_its_address_oldest_first(way: Way) -> None:
    sf = way.open()
    first = await sf.send_intent(WORK)
    second = await sf.send_intent({**WORK, "payload": {"month": 8}})
    assert await sf.claim("agent://nobody") is None
    async with await sf.claim("agent://reporter") as run:
        assert (run.intent_id, run.run_id, run.payload) == (first, first, {"month": 7})
        assert run.attempt == 1
        run.complete({"pages": 3})
    assert (await sf.wait_for(first, timeout=0))["result"] == {"pages": 3}
    async with await sf.claim("agent://reporter") as run:
        assert run.intent_id == second
    assert await sf.claim("agent://reporter") is None


@both
async def test_what_one_has_claimed_no_other_gets(way: Way) -> None:
    sf, other = way.open(), way.open()
    ids = {await sf.send_intent(WORK) for _ in range(4)}
    claimed = [await client.claim("agent://reporter") for client in (sf, other, sf, other)]
    assert {run.intent_id for run in claimed} == ids
    assert await other.claim("agent://reporter") is None
    for run in claimed:
        await run.__aexit__(None, None, None)


@both
async def test_claimed_work_that_was_handed_back_is_claimed_again_with_its_journal(way: Way) -> None:
    sf = way.open()
    await sf.send_intent(WORK)
    done: list[str] = []
    with pytest.raises(Boom):
        async with await sf.claim("agent://reporter") as run:
            await run.step(done.append, "a")
            raise Boom
    async with await sf.claim("agent://reporter") as run:
        assert run.resumed
        await run.step(done.append, "a")
    assert done == ["a"]


@both
async def test_claimed_work_whose_worker_died_comes_again_until_it_fails(way: Way) -> None:
    sf = way.open()
    sent = await sf.send_intent({**WORK, "max_delivery_attempts": 2})
    for attempt in (1, 2):
        run = await sf.claim("agent://reporter")
        assert run.attempt == attempt
        assert await sf.claim("agent://reporter") is None
        way.lose(sf, run)
    assert await sf.claim("agent://reporter") is None
    intent = await sf.wait_for(sent, timeout=0)
    assert (intent["status"], intent["lost_deliveries"]) == ("FAILED", 2)
    await sf.revive(sent)
    async with await sf.claim("agent://reporter") as run:
        assert run.intent.revived_from == sent


@both
async def test_a_worker_is_not_held_up_by_a_question(way: Way) -> None:
    sf = way.open()
    sent = await sf.send_intent(WORK)
    with pytest.raises(Suspended):
        async with await sf.claim("agent://reporter") as run:
            await run.ask("Send it?")
    assert await sf.claim("agent://reporter") is None
    await sf.answer(sent, "approved")
    async with await sf.claim("agent://reporter") as run:
        assert await run.ask("Send it?")


@both
async def test_work_may_start_later(way: Way) -> None:
    sf = way.open()
    start = datetime.now(UTC) + timedelta(hours=1)
    await sf.send_intent({**WORK, "not_before": start.isoformat()})
    assert await sf.claim("agent://reporter") is None
    sf.store.clock.advance(3601)
    async with await sf.claim("agent://reporter") as run:
        assert run.payload == {"month": 7}


@both
async def test_work_past_its_deadline_is_not_delivered(way: Way) -> None:
    sf = way.open()
    sent = await sf.send_intent({**WORK, "ttl_seconds": 60})
    sf.store.clock.advance(61)
    assert await sf.claim("agent://reporter") is None
    assert (await sf.get_intent(sent))["status"] == "TIMED_OUT"


# Looking in


def next_millisecond() -> None:
    """Ids, by which intents are listed, tell no shorter times apart."""
    now = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == now:
        pass


@both
async def test_intents_are_listed_newest_first_by_what_they_are(way: Way) -> None:
    sf = way.open()
    for name, labels in (("a", {"team": "x", "env": "p"}), ("b", {"team": "x"}), ("c", {"team": "y"})):
        async with sf.run(name, labels=labels):
            next_millisecond()
    await sf.send_intent({**WORK, "labels": {"team": "x"}})

    async def names(**where: Any) -> list[Any]:
        return [intent["run_id"] for intent in await sf.list_intents(**where)]

    assert await names() == [None, "c", "b", "a"]
    assert await names(labels={"team": "x"}) == [None, "b", "a"]
    assert await names(labels={"team": "x", "env": "p"}) == ["a"]
    assert await names(labels={"team": "z"}) == []
    assert await names(status="COMPLETED") == ["c", "b", "a"]
    assert await names(status=[Status.DELIVERED, "IN_PROGRESS"]) == [None]
    assert await names(intent_type="report.v1") == [None]
    assert await names(to_agent="agent://reporter") == [None]
    assert await names(status="COMPLETED", labels={"team": "x"}) == ["b", "a"]
    with pytest.raises(InvalidInput, match="COMPLETED"):
        await names(status="DONE")
    with pytest.raises(InvalidInput, match="limit"):
        await names(limit=0)


@both
async def test_intents_are_listed_in_pages(way: Way) -> None:
    sf = way.open()
    ids = [await sf.send_intent({**WORK, "labels": {"n": str(n % 2)}}) for n in range(7)]
    for labels in ({}, {"n": "0"}):
        seen: list[str] = []
        while page := await sf.list_intents(limit=3, before=seen[-1] if seen else None, labels=labels):
            assert len(page) <= 3
            seen += [intent["intent_id"] for intent in page]
        assert seen == sorted((i for n, i in enumerate(ids) if not labels or n % 2 == 0), reverse=True)


@both
async def test_what_is_not_there_is_not_found(way: Way) -> None:
    sf = way.open()
    for ask in (sf.get_intent, sf.wait_for, sf.events, sf.describe, sf.steps, sf.cancel, sf.revive, sf.decisions):
        with pytest.raises(NotFound, match="no run and no intent 'nothing'"):
            await ask("nothing")


# Waiting and watching


@both
async def test_everybody_is_told_the_same_ending_for_ever(way: Way) -> None:
    sf = way.open()
    told: list[dict[str, Any]] = []

    def wait() -> None:
        with Stepfast(way.url) as other:
            told.append(other.wait_for("r", timeout=60))

    run = await sf.run("r")
    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    run.complete({"rows": 3})
    await run.__aexit__(None, None, None)
    for thread in threads:
        thread.join()
    told.append(await sf.wait_for("r"))
    with pytest.raises(AlreadyFinished):
        await sf.cancel("r")
    with pytest.raises(AlreadyFinished):
        await sf.resolve_intent("r", "FAILED")
    sf.store.clock.advance(10**6)
    told.append(await sf.wait_for("r"))
    assert len(told) == 5
    assert all(answer == told[0] for answer in told)
    assert told[0]["result"] == {"rows": 3}


@both
async def test_waiting_ends_with_its_time(way: Way) -> None:
    sf = way.open()
    async with sf.run("r"):
        with pytest.raises(TimeoutError, match="still IN_PROGRESS"):
            await sf.wait_for("r", timeout=0.01)


@both
async def test_an_observer_sees_each_event_in_its_order_up_to_the_ending(way: Way) -> None:
    sf = way.open()
    seen: list[dict[str, Any]] = []

    def observe() -> None:
        with Stepfast(way.url) as other:
            seen.extend(other.observe("r"))

    run = await sf.run("r")
    with in_thread(observe):
        await run.step(len, "a")
        await run.rewind()
        await run.__aexit__(None, None, None)
    assert events_of(seen) == ["created", "submitted", "delivered", "in_progress", "rewound", "completed"]
    assert [event["seq"] for event in seen] == [1, 2, 3, 4, 5, 6]
    assert [event async for event in sf.observe("r")] == seen
    assert [event async for event in sf.observe("r", since=4)] == seen[4:]
    assert [event async for event in sf.observe("r", since=6)] == []
    shown = [{k: v for k, v in event.items() if k != "data"} for event in await sf.events("r")]
    assert shown == seen


@both
async def test_an_ending_from_outside_must_be_one(way: Way) -> None:
    sf = way.open()
    sent = await sf.send_intent(WORK)
    for wrong in ("IN_PROGRESS", "TIMED_OUT"):
        with pytest.raises(InvalidInput, match="one of 'COMPLETED', 'FAILED', 'CANCELED'"):
            await sf.resolve_intent(sent, wrong)
    shown = await sf.resolve_intent(sent, "FAILED", reason="nobody wants it", actor="ann")
    assert (shown["status"], shown["reason"]) == ("FAILED", "nobody wants it")
    assert (await sf.resolve_intent(sent, "FAILED", reason="nobody wants it"))["status"] == "FAILED"
    with pytest.raises(AlreadyFinished, match="Revive it"):
        await sf.resolve_intent(sent, "COMPLETED")


@both
async def test_only_what_failed_is_revived_and_only_once(way: Way) -> None:
    sf = way.open()
    sent = await sf.send_intent(WORK)
    with pytest.raises(Conflict, match="DELIVERED"):
        await sf.revive(sent)
    await sf.cancel(sent)
    again = await sf.revive(sent)
    with pytest.raises(Conflict, match=str(again["intent_id"])):
        await sf.revive(sent)
    await sf.resolve_intent(again["intent_id"], "COMPLETED")
    with pytest.raises(Conflict, match="COMPLETED"):
        await sf.revive(again["intent_id"])


# Retention


async def finished_runs(sf: Any, count: int, **options: Any) -> None:
    for number in range(count):
        async with sf.run(f"{options.get('labels', {}).get('team', 'r')}-{number}", **options) as run:
            await run.step(len, "x")
            await run.checkpoint({"n": number})
        sf.store.clock.advance(60)


@both
async def test_finished_runs_go_by_their_age(way: Way) -> None:
    sf = way.open()
    await finished_runs(sf, 5)
    open_run = await sf.run("open")
    assert await sf.prune(Retention(older_than=timedelta(minutes=2, seconds=30))) == 3
    assert sorted(i["run_id"] for i in await sf.list_intents()) == ["open", "r-3", "r-4"]
    assert await sf.prune(Retention(older_than=timedelta(0))) == 2
    assert [i["run_id"] for i in await sf.list_intents()] == ["open"]
    await open_run.__aexit__(None, None, None)
    async with sf.run("r-0") as run:  # its name is free again
        assert not run.replaying


@both
async def test_the_latest_runs_stay(way: Way) -> None:
    sf = way.open()
    await finished_runs(sf, 5)
    assert await sf.prune(Retention(keep_latest=2)) == 3
    assert [i["run_id"] for i in await sf.list_intents()] == ["r-4", "r-3"]
    assert await sf.prune(Retention(keep_latest=2)) == 0


@both
async def test_a_policy_may_be_for_a_label_or_an_ending(way: Way) -> None:
    sf = way.open()
    await finished_runs(sf, 2, labels={"team": "x"})
    await finished_runs(sf, 2, labels={"team": "y"})
    await sf.resolve_intent(await sf.send_intent(WORK), "FAILED")
    sf.store.clock.advance(1)
    at_once = timedelta(0)
    assert await sf.prune(Retention(older_than=at_once, labels={"team": "x"})) == 2
    assert await sf.prune(Retention(older_than=at_once, statuses=(Status.FAILED, Status.CANCELED))) == 1
    assert sorted(i["run_id"] for i in await sf.list_intents()) == ["y-0", "y-1"]


@both
async def test_nothing_goes_without_a_limit(way: Way) -> None:
    sf = way.open()
    await finished_runs(sf, 1)
    with pytest.raises(InvalidInput, match="at least one"):
        await sf.prune(Retention())
    with pytest.raises(InvalidInput, match="finished"):
        await sf.prune(Retention(keep_latest=0, statuses=(Status.WAITING,)))
    assert len(await sf.list_intents()) == 1


@both
async def test_more_than_a_batch_goes_in_small_transactions(way: Way) -> None:
    sf = way.open(durability="process")
    for number in range(250):
        await sf.resolve_intent(await sf.send_intent({**WORK, "payload": number}), "CANCELED")
    sf.store.clock.advance(1)
    assert await sf.prune(Retention(keep_latest=10)) == 240
    assert len(await sf.list_intents(limit=100)) == 10


@both
async def test_a_journal_stays_while_a_revived_run_uses_it(way: Way) -> None:
    sf = way.open()
    done: list[str] = []
    with pytest.raises(Boom):
        async with sf.run("r", on_error="fail") as run:
            await run.step(done.append, "a")
            raise Boom
    await sf.revive("r")
    sf.store.clock.advance(1)
    assert await sf.prune(Retention(older_than=timedelta(0))) == 1
    async with sf.run("r") as run:
        await run.step(done.append, "a")
    assert done == ["a"]


def test_a_client_with_a_policy_prunes_by_itself(tmp_path: Path) -> None:
    pruned = threading.Event()
    with Stepfast(tmp_path / "stepfast.db", lease_seconds=1, retention=Retention(older_than=timedelta(hours=1))) as sf:
        with sf.run("old"):
            pass
        sf.store.clock.advance(3601)
        execute = sf.store.execute

        def watched(ops: Any, **options: Any) -> Any:
            results = execute(ops, **options)
            if type(ops[0]).__name__ == "Prune" and results == [0]:
                pruned.set()
            return results

        sf.store.execute = watched  # type: ignore[method-assign]
        with sf.run("new"):
            assert pruned.wait(30)
        assert [i["run_id"] for i in sf.list_intents()] == ["new"]


# Opening and closing


@both
async def test_a_store_proves_that_it_takes_work(way: Way) -> None:
    sf = way.open()
    first = await sf.check()
    assert first.tzinfo is not None
    sf.store.clock.advance(60)
    assert await sf.check() - first >= timedelta(seconds=60)


def test_a_client_is_opened_by_path_url_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "own name.db"
    with Stepfast(path) as sf, sf.run("r"):
        pass
    for url in (str(path), f"sqlite:///{path}", f"sqlite:///{str(path).replace(' ', '%20')}?durability=process"):
        with Stepfast(url) as sf:
            assert sf.get_intent("r")["status"] == "COMPLETED"
            assert "own name.db" in sf.url
            assert "own name.db" in repr(sf)
    monkeypatch.setenv("STEPFAST_URL", f"sqlite:///{path}")
    with Stepfast() as sf:
        assert sf.get_intent("r")["status"] == "COMPLETED"
    monkeypatch.delenv("STEPFAST_URL")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sys.platform", "linux")
    with Stepfast() as sf:
        assert sf.url == f"sqlite:///{tmp_path}/home/stepfast/stepfast.db"
    assert (tmp_path / "home" / "stepfast").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"url": "mysql://localhost/x"}, "'mysql' is not known"),
        ({"url": "https://ada:secret@example.com"}, "must not hold a user or a password"),
        ({"url": "sqlite:///:memory:", "api_key": "k"}, "api_key"),
        ({"url": "sqlite:///:memory:", "lease_seconds": 0.5}, "lease_seconds"),
    ],
)
@pytest.mark.parametrize("client", [Stepfast, AsyncStepfast])
def test_a_client_that_makes_no_sense_is_refused(client: Any, given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        client(**given)


def test_a_closed_client_refuses_and_may_be_closed_again(tmp_path: Path) -> None:
    sf = Stepfast(tmp_path / "stepfast.db")
    sf.close()
    sf.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        sf.run("r")


async def test_a_closed_async_client_refuses_and_may_be_closed_again(tmp_path: Path) -> None:
    async with AsyncStepfast(tmp_path / "stepfast.db") as sf:
        pass
    await sf.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await sf.check()


def test_nothing_is_left_behind_by_a_closed_client(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with Stepfast(tmp_path / "stepfast.db") as sf:
        with sf.run("r"):
            pass
        sf.wait_for("r")
    assert set(threading.enumerate()) <= before


def test_two_clients_may_share_a_store_s_clock(tmp_path: Path) -> None:
    clock = Clock()
    with Stepfast(tmp_path / "stepfast.db", clock=clock) as a, Stepfast(tmp_path / "stepfast.db", clock=clock) as b:
        run = a.run("r")
        clock.advance(LEASE_SECONDS + 1)
        with b.run("r") as taken:
            assert taken.attempt == 2
        with pytest.raises((Fenced, AlreadyFinished, RunFailed)):
            run.step(len, "x")
        run._on_close(run)


def test_times_are_shown_in_one_form(tmp_path: Path) -> None:
    with Stepfast(tmp_path / "stepfast.db") as sf, sf.run("r", ttl_seconds=60) as run:
        run.step(len, "x")
        shown = [*sf.get_intent("r").values(), *sf.events("r")[0].values(), *sf.steps("r")[0].values()]
        moments = [v for v in shown if isinstance(v, str) and re.match(r"\d{4}-\d\d-", v)]
        assert len(moments) >= 6
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", moment) for moment in moments)

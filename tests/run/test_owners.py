"""Who holds a run: one living owner, followed at once when it dies, and fenced off when it was too slow."""

# ruff: noqa: PT012 - what is raised leaves the run, so the run is inside the block

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepfast import AlreadyFinished, Fenced, RunBusy, RunFailed, Stepfast
from stepfast.owner import life_of, this_process
from stepfast.stored_names import RUN_TYPE
from stepfast.testing import Effects
from tests.run.kit import LEASE_SECONDS, Calls, Spawn, Way, both, collect, events_of, in_thread


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/stepfast.db"


def do(name: str) -> str:
    return f"{name} done"


def test_a_living_owner_in_another_process_keeps_its_run(spawn: Spawn, url: str) -> None:
    child = spawn("hold", url, "r", {})
    child.hear("holding")
    with Stepfast(url) as sf:
        with pytest.raises(RunBusy, match="living owner") as caught:
            sf.run("r")
        assert str(child.pid) in caught.value.details["owner"]
        child.say()
        child.say()
        child.hear("done")
        assert sf.wait_for("r", timeout=60)["status"] == "COMPLETED"


def test_who_has_time_waits_for_the_living_owner(spawn: Spawn, url: str) -> None:
    child = spawn("hold", url, "r", {})
    child.hear("holding")
    with Stepfast(url) as sf:
        with pytest.raises(RunBusy):
            sf.run("r", wait=0.01)
        child.say()
        with in_thread(child.say), sf.run("r", wait=60) as run:
            assert run.replaying
            assert run.options(name="effect").step(do, "first") == "first done"


def test_a_dead_owner_is_followed_at_once_and_its_delivery_counts_as_lost(
    spawn: Spawn, url: str, tmp_path: Path
) -> None:
    child = spawn("hold", url, "r", {"max_delivery_attempts": 5})
    child.hear("holding")
    child.kill()
    with Stepfast(url) as sf:
        with sf.run("r") as run:  # by the store's clock, its lease has hardly begun
            assert run.attempt == 2
            assert run.options(name="effect").step(do, "first") == "first done"
        lost = next(e for e in sf.events("r") if e["event_type"] == "intent.delivery_lost")
        assert lost["details"] == {"delivery_attempt": 1, "lost": 0, "reason": "its owner died"}  # it had a new step
    assert Effects(tmp_path).lines() == ["first"]


def test_who_waits_for_an_owner_that_dies_follows_it(spawn: Spawn, url: str) -> None:
    child = spawn("hold", url, "r", {})
    child.hear("holding")
    with Stepfast(url) as sf, in_thread(child.kill), sf.run("r", wait=60) as run:
        assert run.attempt == 2


def test_the_third_delivery_lost_without_progress_fails_the_run_and_a_person_revives_it(
    spawn: Spawn, url: str, tmp_path: Path
) -> None:
    for _ in range(4):  # the first of them finishes a step
        child = spawn("crash_at", url, "r", True)
        child.hear("happened")
        child.kill()
    kind, text = spawn("crash_at", url, "r", True).hear("stopped")
    assert kind == "RunFailed"
    assert "3 of 3 deliveries were lost in a row without a newly finished step" in text
    assert "sf.revive('r')" in text
    assert Effects(tmp_path).lines() == ["first", "second", "second", "second", "second"]
    with Stepfast(url) as sf:
        intent = sf.wait_for("r", timeout=0)
        assert (intent["status"], intent["lost_deliveries"]) == ("FAILED", 3)
        history = events_of(sf.events("r"))
        assert history.count("in_progress") == 4
        assert history[-2:] == ["delivery_failed", "failed"]
        sf.revive("r", actor="ann")
    spawn("crash_at", url, "r", False).hear("done")
    assert Effects(tmp_path).counts() == {"first": 1, "second": 5}


def test_a_run_with_new_steps_in_each_life_survives_five_kills(spawn: Spawn, url: str, tmp_path: Path) -> None:
    for life in range(1, 6):
        child = spawn("crash_after", url, "r", 20 * life)
        child.hear("happened")
        child.kill()
    spawn("crash_after", url, "r", None).hear("done")
    counts = Effects(tmp_path).counts()
    assert counts == {f"{n}": 2 if n % 20 == 0 else 1 for n in range(1, 121)} | {"120": 1}
    with Stepfast(url) as sf:
        intent = sf.wait_for("r", timeout=0)
        assert (intent["status"], intent["delivery_attempt"], intent["lost_deliveries"]) == ("COMPLETED", 6, 0)


@both
async def test_how_many_deliveries_may_be_lost_is_set_for_a_run_or_for_all(way: Way, calls: Calls) -> None:
    sf = way.open()
    await sf.set_max_delivery_attempts(RUN_TYPE, 2)
    for run_id, options, allowed in (("a", {}, 2), ("b", {"max_delivery_attempts": 1}, 1)):
        for _ in range(allowed):
            opened = await sf.run(run_id, **options)
            way.lose(sf, opened)
        with pytest.raises(RunFailed, match=f"{allowed} of {allowed} deliveries were lost"):
            await sf.run(run_id)


@both
async def test_a_revived_run_has_all_its_deliveries_again(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r", max_delivery_attempts=3) as run:
        await run.step(calls.a)
    for round_ in range(2):
        for _ in range(3):
            opened = await sf.run("r", on_failed="revive" if round_ else "raise")
            await opened.step(calls.a)
            way.lose(sf, opened)
        with pytest.raises(RunFailed):
            await sf.run("r")
    assert calls.names == ["a"]


@both
async def test_steps_of_every_kind_are_progress(way: Way, calls: Calls) -> None:
    sf = way.open()

    async def in_a_scope(run: Any) -> None:
        await run.scope("inner").step(calls.b)

    async def that_raises(run: Any) -> None:
        with pytest.raises(LookupError):
            await run.once(calls.raising("c", LookupError("no")))

    async def of_a_map(run: Any) -> None:
        with pytest.raises(ZeroDivisionError):
            await collect(run.map(calls.answering("d", lambda n: 1 // n), [2, 1, 0]))

    work = [
        lambda run: run.step(calls.a),
        in_a_scope,
        that_raises,
        lambda run: run.checkpoint({"n": 1}),
        lambda run: run.record("told", key="told"),
        of_a_map,
    ]
    for last in range(len(work)):
        opened = await sf.run("r", max_delivery_attempts=1)
        for each in work[: last + 1]:
            await each(opened)
        way.lose(sf, opened)
    way.lose(sf, await sf.run("r"))
    with pytest.raises(RunFailed, match="1 of 1 deliveries were lost in a row"):
        await sf.run("r")


@both
async def test_who_waits_is_told_of_an_ending_but_not_of_one_that_progress_put_off(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r", max_delivery_attempts=1) as run:
        await run.step(calls.a)
    with pytest.raises(TimeoutError, match="IN_PROGRESS"):
        await sf.wait_for("r", timeout=0.3)
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a)
    assert (await sf.wait_for("r", timeout=5))["status"] == "FAILED"


# Zombies


def test_a_worker_that_slept_past_its_lease_is_fenced_off(spawn: Spawn, url: str, tmp_path: Path) -> None:
    child = spawn("hold", url, "r", {})
    child.hear("holding")
    child.stop()
    with Stepfast(url) as sf:
        sf.store.clock.advance(LEASE_SECONDS + 1)
        with sf.run("r") as run:
            assert run.attempt == 2
            child.go_on()
            child.say()
            kind, _ = child.hear("stopped")
            assert kind == "Fenced"
            assert run.steps() == ["effect#1"]
            assert run.options(name="effect").step(do, "first") == "first done"
            assert run.options(name="effect").step(do, "second") == "second done"
        assert [(s["key"], s["attempt"]) for s in sf.steps("r")] == [("effect#1", 1), ("effect#2", 2)]
        assert events_of(sf.events("r")).count("delivery_lost") == 1
    assert Effects(tmp_path).lines()[0] == "first"


def test_a_fenced_worker_does_not_even_begin_a_one_shot(spawn: Spawn, url: str, tmp_path: Path) -> None:
    child = spawn("hold_once", url, "r")
    child.hear("holding")
    child.stop()
    with Stepfast(url) as sf:
        sf.store.clock.advance(LEASE_SECONDS + 1)
        with sf.run("r") as run:
            child.go_on()
            child.say()
            assert child.hear("stopped")[0] == "Fenced"
            assert run.options(name="effect").once(do, "pay") == "pay done"
        assert [(s["key"], s["attempt"]) for s in sf.steps("r")] == [("once:effect#1", 2)]
    assert Effects(tmp_path).lines() == []


@both
async def test_nothing_of_an_old_attempt_is_written(way: Way, calls: Calls) -> None:
    sf = way.open()
    zombie = await sf.run("r")
    await zombie.step(calls.a)
    way.lose(sf, zombie)
    async with sf.run("r") as run:
        before = (await sf.get_intent("r"))["seq"], await sf.steps("r")
        attempts: list[Callable[[], Any]] = [
            lambda: zombie.step(calls.b),
            lambda: zombie.once(calls.c),
            lambda: zombie.checkpoint({}),
            lambda: zombie.ask("Deploy?"),
            lambda: zombie.rewind(),
        ]
        for attempt in attempts:
            with pytest.raises(Fenced, match="nothing was written"):
                await attempt()
        assert ((await sf.get_intent("r"))["seq"], await sf.steps("r")) == before
        await run.step(calls.a)
    # A plain step may have run twice, a one-shot not even once.
    assert calls.names == ["a", "b"]


@both
async def test_a_fenced_worker_cannot_end_the_run(way: Way) -> None:
    sf = way.open()
    zombie = await sf.run("r")
    way.lose(sf, zombie)
    async with sf.run("r") as run:
        zombie.complete("zombie")
        with pytest.raises(Fenced):
            await zombie.__aexit__(None, None, None)
        run.complete("living")
    assert (await sf.get_intent("r"))["result"] == "living"


# The heart


class Beats:
    """Watches the heart of a client: wait for so many renewals, or for one that was refused."""

    def __init__(self, sf: Any) -> None:
        self.count = 0
        self.refused = threading.Event()
        self.changed = threading.Condition()
        self._one = sf.store.one
        sf.store.one = self.one

    def one(self, op: Any, **options: Any) -> Any:
        try:
            return self._one(op, **options)
        except Exception:
            self.refused.set()
            raise
        finally:
            with self.changed:
                self.count += 1
                self.changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.count >= count, 30)


@both
async def test_the_heart_keeps_a_run_whose_step_takes_long(way: Way, calls: Calls) -> None:
    """In an async run it even blocks the event loop."""
    sf = way.open(lease_seconds=1)
    beats = Beats(sf.inner if way.blocks else sf)

    def long() -> str:
        beats.wait_for(4)  # at a third of the lease each, so the first lease is over
        with Stepfast(way.url) as other, pytest.raises(RunBusy):
            other.run("r")
        return "done"

    async with sf.run("r") as run:
        assert await run.step(way.function(long)) == "done"
        assert run.attempt == 1
    intent = await sf.get_intent("r")
    assert (intent["lost_deliveries"], intent["delivery_attempt"]) == (0, 1)


@both
async def test_the_heart_stops_a_run_that_was_taken_over(way: Way, calls: Calls) -> None:
    sf = way.open(lease_seconds=1)
    beats = Beats(sf.inner if way.blocks else sf)
    with pytest.raises(Fenced):
        async with sf.run("r") as run:
            other = way.open()
            other.store.clock.advance(2)
            taken = await other.run("r")
            assert beats.refused.wait(30)
            await _until_poisoned(run)
            await run.step(calls.a)
    assert calls.made == []
    await taken.__aexit__(None, None, None)


@both
async def test_the_heart_stops_a_run_that_was_ended_from_outside(way: Way, calls: Calls) -> None:
    sf = way.open(lease_seconds=1)
    beats = Beats(sf.inner if way.blocks else sf)
    with pytest.raises(RunFailed, match=r"ended from outside.*CANCELED"):
        async with sf.run("r") as run:
            await sf.cancel("r", reason="not needed")
            assert beats.refused.wait(30)
            await _until_poisoned(run)
            await run.step(calls.a)
    assert calls.made == []


async def _until_poisoned(run: Any) -> None:
    """The heart has been refused; it is about to say so to the run, in its own thread."""
    while run._session.poison is None:
        threading.Event().wait(0.001)


# Who is alive


def test_an_owner_is_dead_only_if_this_machine_can_tell() -> None:
    me = this_process()
    assert life_of(me.text()) == "alive"
    assert life_of(msgspec.structs.replace(me, start="1").text()) == "dead"
    assert life_of(msgspec.structs.replace(me, boot="an earlier boot").text()) == "dead"
    assert life_of(msgspec.structs.replace(me, host="elsewhere").text()) == "unknown"
    assert life_of(msgspec.structs.replace(me, space="another container").text()) == "unknown"
    assert life_of(msgspec.structs.replace(me, start="").text()) == "unknown"
    assert life_of("worker-7") == "unknown"
    assert life_of(None) == "unknown"


@both
async def test_the_lease_of_an_owner_elsewhere_must_run_out(way: Way) -> None:
    sf = way.open()
    sf._core._owner = (this_process().pid, msgspec.structs.replace(this_process(), host="elsewhere").text())
    far = await sf.run("r")
    sf._core.heart.discard(far._session)
    near = way.open(clock=sf.store.clock)
    with pytest.raises(RunBusy):
        await near.run("r", wait=0)
    sf.store.clock.advance(LEASE_SECONDS + 1)
    async with near.run("r", wait=0) as run:
        assert run.attempt == 2


# Deadlines and endings from outside


@both
async def test_past_its_deadline_a_run_is_timed_out(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(Fenced, match="deadline"):
        async with sf.run("r", ttl_seconds=60) as run:
            await run.step(calls.a)
            sf.store.clock.advance(61)
            await run.step(calls.b)
    intent = await sf.wait_for("r", timeout=0)
    assert (intent["status"], intent["reason"]) == ("TIMED_OUT", "the deadline passed")
    assert [s["key"] for s in await sf.steps("r")] == ["a#1"]
    with pytest.raises(RunFailed, match="TIMED_OUT"):
        await sf.run("r")
    async with sf.run("r", on_failed="revive") as run:
        await run.step(calls.a)
    assert calls.names == ["a", "b"]


@both
async def test_a_deadline_passes_with_nobody_at_work(way: Way) -> None:
    sf = way.open()
    for run_id, ask in (("a", sf.get_intent), ("b", sf.describe), ("c", sf.wait_for)):
        opened = await sf.run(run_id, ttl_seconds=60)
        way.lose(sf, opened)
        sf.store.clock.advance(61)
        assert (await ask(run_id))["status"] == "TIMED_OUT"
    opened = await sf.run("d", ttl_seconds=60)
    way.lose(sf, opened)
    sf.store.clock.advance(61)
    assert [event["event_type"] async for event in sf.observe("d")][-1] == "intent.timed_out"


@both
async def test_completing_after_the_deadline_is_too_late(way: Way) -> None:
    sf = way.open()
    with pytest.raises(RunFailed, match="TIMED_OUT"):
        async with sf.run("r", ttl_seconds=60):
            sf.store.clock.advance(61)
    assert (await sf.get_intent("r"))["status"] == "TIMED_OUT"


@both
async def test_a_cancelled_run_stops_at_its_next_step(way: Way, calls: Calls) -> None:
    sf, outside = way.open(), way.open()
    with pytest.raises(AlreadyFinished, match="CANCELED"):
        async with sf.run("r") as run:
            await run.step(calls.a)
            await outside.cancel("r", reason="not needed", actor="ann")
            await run.step(calls.b)
    intent = await sf.wait_for("r", timeout=0)
    assert (intent["status"], intent["reason"]) == ("CANCELED", "not needed")
    assert [s["key"] for s in await sf.steps("r")] == ["a#1"]
    assert (await sf.events("r"))[-1]["actor"] == "ann"
    with pytest.raises(AlreadyFinished):
        await sf.cancel("r")


@both
async def test_a_cancelled_run_does_not_begin_a_one_shot(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(AlreadyFinished):
        async with sf.run("r") as run:
            await sf.cancel("r")
            await run.once(calls.pay)
    assert calls.made == []


@both
async def test_a_run_can_be_resolved_from_outside(way: Way, calls: Calls) -> None:
    sf = way.open()
    opened = await sf.run("r")
    way.lose(sf, opened)
    await sf.resolve_intent("r", "COMPLETED", result={"by": "hand"}, actor="ann")
    assert (await sf.wait_for("r", timeout=0))["result"] == {"by": "hand"}
    async with sf.run("r") as run:
        assert run.result == {"by": "hand"}

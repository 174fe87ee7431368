"""Where a run is, said by the run itself: seen from outside, cheap, and a proof that it is still the owner."""

# ruff: noqa: PT012 - what is raised leaves the run, so the run is inside the block

from __future__ import annotations

import pytest

from stepfast import Fenced, RunFailed, Suspended
from tests.run.kit import Way, both


async def told(sf: object, name: str) -> list[dict[str, object]]:
    events = await sf.events(name)  # type: ignore[attr-defined]
    return [event["details"] for event in events if event["event_type"] == "intent.progress"]


@both
async def test_what_a_run_reports_is_seen_from_outside(way: Way) -> None:
    sf = way.open()
    async with sf.run("r", total_steps=9) as run:
        await run.report("plan", step=3)
        seen = await sf.describe("r")
    assert (seen["step"], seen["total_steps"], seen["last_step"]) == (3, 9, "plan")


@both
async def test_reports_in_quick_succession_are_one_write_and_the_last_word_at_the_end(way: Way) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        for number in range(50):
            await run.report("loop", step=number)
    assert await told(sf, "r") == [{"step": 0, "doing": "loop"}, {"step": 49, "doing": "loop"}]
    assert (await sf.describe("r"))["step"] == 49


@both
async def test_what_is_not_told_yet_goes_along_with_the_renewal_of_the_lease(way: Way) -> None:
    sf = way.open(lease_seconds=1.5)
    async with sf.run("r") as run:
        await run.report("plan", every=3600)
        await run.report("a step that takes long", every=3600)
        while len(await told(sf, "r")) < 2:
            pass
        assert (await sf.describe("r"))["last_step"] == "a step that takes long"
    assert await told(sf, "r") == [{"doing": "plan"}, {"doing": "a step that takes long"}]


@both
async def test_the_last_word_is_kept_when_a_run_is_handed_back_or_waits(way: Way) -> None:
    sf = way.open()
    with pytest.raises(ZeroDivisionError):
        async with sf.run("back") as run:
            await run.report("one", step=1)
            await run.report("two", step=2)
            raise ZeroDivisionError
    with pytest.raises(Suspended):
        async with sf.run("waits", on_wait="suspend") as run:
            await run.report("one", step=1)
            await run.report("two", step=2)
            await run.ask("Go on?")
    for name in ("back", "waits"):
        assert (await sf.describe(name))["last_step"] == "two"


@both
async def test_a_report_of_nothing_is_only_the_proof(way: Way) -> None:
    sf = way.open()
    with pytest.raises(RunFailed, match="ended from outside"):
        async with sf.run("r") as run:
            await run.report("", every=0)
            assert await told(sf, "r") == []
            await sf.cancel("r")
            await run.report("", every=0)


@both
async def test_a_run_that_was_canceled_learns_it_by_its_next_report(way: Way) -> None:
    sf = way.open()
    with pytest.raises(RunFailed, match="ended from outside"):
        async with sf.run("r") as run:
            await run.report("one", every=0)
            await sf.cancel("r")
            await run.report("one", every=0)


@both
async def test_a_run_that_another_took_over_is_fenced_by_its_next_report(way: Way) -> None:
    sf, other = way.open(), way.open()
    with pytest.raises(Fenced):
        async with sf.run("r") as run:
            await run.report("one", every=0)
            sf.store.clock.advance(1000)
            other.store.clock.advance(1000)
            async with other.run("r", wait=60) as second:
                with pytest.raises(Fenced):
                    await run.report("two", every=0)
                await second.report("mine", every=0)
            await run.report("three")  # without a look at the store: it knows by now
    assert [each["doing"] for each in await told(sf, "r")] == ["one", "mine"]


@both
async def test_a_steady_report_only_renews_the_lease(way: Way) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        for _ in range(5):
            await run.report("same", step=1, every=0)
    assert await told(sf, "r") == [{"step": 1, "doing": "same"}]

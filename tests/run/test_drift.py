"""A step whose input changed since it was recorded."""

from __future__ import annotations

import logging

import pytest

from stepfast import Diverged
from tests.run.kit import Calls, Way, both


@both
async def test_a_changed_input_is_diverged_and_shows_both(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.step(calls.fetch, "customers", 10)
    async with way.crashing(sf, "r") as run:
        with pytest.raises(Diverged) as caught:
            await run.step(calls.fetch, "orders", 10)
    assert "customers" in caught.value.details["recorded"]
    assert "orders" in caught.value.details["now"]
    assert "customers" in str(caught.value)
    assert "orders" in str(caught.value)
    assert "on_drift" in str(caught.value)
    assert calls.names == ["fetch"]


@both
async def test_warn_keeps_the_record_and_says_so(way: Way, calls: Calls, caplog: pytest.LogCaptureFixture) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.step(calls.fetch, 1)
    with caplog.at_level(logging.WARNING, "stepfast"):
        async with sf.run("r") as run:
            assert await run.options(on_drift="warn").step(calls.fetch, 2) == ["fetch", 1]
    assert "fetch#1 was recorded with other input" in caplog.text
    assert calls.made == [("fetch", 1)]


@both
async def test_accept_keeps_the_record_silently(way: Way, calls: Calls, caplog: pytest.LogCaptureFixture) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.step(calls.fetch, 1)
    async with sf.run("r") as run:
        assert await run.options(on_drift="accept").step(calls.fetch, 2) == ["fetch", 1]
    assert "other input" not in caplog.text


@both
async def test_rerun_sets_the_record_aside_and_does_the_step_again(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.step(calls.fetch, 1)
    async with way.crashing(sf, "r") as run:
        assert await run.options(on_drift="rerun").step(calls.fetch, 2) == ["fetch", 2]
    async with sf.run("r") as run:
        assert await run.step(calls.fetch, 2) == ["fetch", 2]
    assert calls.made == [("fetch", 1), ("fetch", 2)]
    assert [(s["generation"], s["voided"]) for s in await sf.steps("r")] == [(0, True), (1, False)]


@both
async def test_a_run_s_policy_holds_for_all_its_steps_unless_one_says_otherwise(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a, 1)
        await run.step(calls.b, 1)
    async with sf.run("r", on_drift="accept") as run:
        assert await run.step(calls.a, 2) == ["a", 1]
        with pytest.raises(Diverged):
            await run.options(on_drift="raise").step(calls.b, 2)


@both
async def test_a_one_shot_is_not_run_again_for_a_changed_input(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.once(calls.pay, 1)
    async with way.crashing(sf, "r") as run:
        with pytest.raises(Diverged, match="one-shot"):
            await run.options(on_drift="rerun").once(calls.pay, 2)
    assert calls.made == [("pay", 1)]

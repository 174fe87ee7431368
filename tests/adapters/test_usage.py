"""Usage and cost: recorded with each call, summed for the run, complete after a resume."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import AsyncStepfast, InvalidInput, NotFound
from stepfast.adapters import RETRY, Conversation, Meter, Price, Settings, Usage, model_call, tool_call, usage_of
from tests.adapters.kit import Crash, Way, request

ONE = Usage(1, 1000, 500, 200)


def call(attempt: Any, scope: Any, way: Way, talk: Conversation, model: str = "gpt-9", measured: Any = ONE) -> Any:
    return model_call(
        attempt,
        scope,
        key=talk.key,
        agent="clerk",
        request=request(str(talk.turn), model=model),
        ask=way.says(lambda: "answer"),
        pack=lambda answer: {"response": answer},
        unpack=lambda recorded: recorded["response"],
        measure=lambda packed: measured,
        conversation=talk,
    )


def scene_of(way: Way, crashes: int) -> Any:
    """Two model calls, and one inside a tool that is answered from the journal on a resume."""

    def scene(attempt: Any, run: Any) -> Any:
        talk = Conversation()
        yield from call(attempt, run, way, talk)

        def inside() -> Any:
            return run.drive(call(attempt, run, way, Conversation(), model="small"))

        found = yield from tool_call(
            attempt, run, key="tool:1", name="ask", policy=RETRY, inputs=[], arguments={}, effect=inside
        )
        if len(way.attempts) <= crashes:
            raise Crash
        yield from call(attempt, run, way, talk)
        usage = yield from attempt.meter.complete(run)
        return {"found": found, "usage": usage.as_dict()}

    return scene


def test_the_usage_of_a_run_is_read_from_outside_at_any_time(way: Way) -> None:
    with pytest.raises(Crash):
        way.play(scene_of(way, 1), settings=Settings(prices={"*": Price(1.0, 1.0)}))
    half = usage_of(way.sf, "r")
    assert (half.requests, half.input_tokens, half.output_tokens, half.cached_tokens) == (2, 2000, 1000, 400)
    assert half.cost == pytest.approx(3000 / 1e6)
    way.play(scene_of(way, 1))

    async def outside() -> Usage:
        async with AsyncStepfast(way.path) as sf:
            return await usage_of(sf, "r")

    assert asyncio.run(outside()).requests == 3
    with pytest.raises(NotFound):
        usage_of(way.sf, "other")


@pytest.mark.parametrize("crashes", [0, 2])
def test_the_sum_is_complete_however_often_the_run_was_resumed(way: Way, crashes: int) -> None:
    prices = {"gpt-*": Price(input=2.0, output=10.0, cached=0.5), "small": Price(input=1.0, output=1.0)}
    for number in range(crashes):
        # Once without prices: what was recorded with one keeps it.
        with pytest.raises(Crash):
            way.play(scene_of(way, crashes), settings=Settings(prices=None if number else prices))
    result = way.play(scene_of(way, crashes), settings=Settings(prices=prices))
    big = (800 * 2.0 + 200 * 0.5 + 500 * 10.0) / 1e6
    assert result["usage"] == {
        "requests": 3,
        "input_tokens": 3000,
        "output_tokens": 1500,
        "cached_tokens": 600,
        "cost": pytest.approx(2 * big + 1500 / 1e6),
    }
    assert way.sf.get_intent("r")["result"] == result


def test_a_function_may_know_the_price(way: Way) -> None:
    meter = Meter(lambda model, usage: None if model == "free" else usage.requests * 0.25)
    assert meter.priced("m", ONE).cost == 0.25
    assert meter.priced("free", ONE).cost is None
    assert meter.priced("m", Usage(1, cost=3.0)).cost == 3.0


def test_without_prices_there_is_no_cost() -> None:
    meter = Meter()
    meter.add("model:0", meter.priced("m", ONE))
    meter.add("model:0", meter.priced("m", ONE))
    assert meter.total == ONE
    assert "cost" not in meter.total.as_dict()
    assert Meter({"other": Price(1, 1)}).priced("m", ONE).cost is None


def test_prices_are_checked_where_they_are_given() -> None:
    for wrong in ({"m": 5}, 5, "m"):
        with pytest.raises(InvalidInput, match=r"prices: must map model names to Price\("):
            Settings(prices=wrong)  # type: ignore[arg-type]


def test_every_shared_option_is_checked_where_it_is_given() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"on_drift": "acept"}, "on_drift: must be one of 'raise', 'warn', 'accept', not 'acept'"),
        ({"on_drift": "rerun"}, "on_drift: must be one of"),
        ({"on_wait": "suspended"}, "on_wait: must be one of 'suspend', 'block', 'return', not 'suspended'"),
        ({"on_in_doubt": "aks"}, "on_in_doubt: must be one of"),
        ({"policies": {"a": "aks"}}, "policies"),
        ({"labels": {"a": 5}}, "labels"),
        ({"labels": "a"}, "labels: must map names to texts"),
        ({"max_delivery_attempts": 0}, "max_delivery_attempts: must be at least 1"),
        ({"wait": "long"}, "wait: must be a number of seconds"),
    ]
    for options, message in wrong:
        with pytest.raises(InvalidInput, match=message):
            Settings(**options)

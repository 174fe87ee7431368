"""``sf.rewind``: a run that is not open is set back, so that it does some of its steps again."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import InvalidInput, NotFound, RunBusy, RunFinished
from tests.run.kit import Boom, Calls, Way, both


async def body(run: Any, calls: Calls, *, fails: bool = False) -> None:
    await run.step(calls.a)
    await run.options(key="model:1").step(calls.model)
    await run.once(calls.pay)
    await run.options(kind="session").step(calls.answering("add", lambda: {"numbers": [4, 6]}))
    if fails:
        raise Boom


@both
async def test_a_run_does_a_step_and_all_after_it_again(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(Boom):
        async with sf.run("r") as run:
            await body(run, calls, fails=True)
    assert await sf.rewind("r", "model:1", reason="it was refused") == 2
    async with sf.run("r") as run:
        await body(run, calls)
    assert calls.names == ["a", "model", "pay", "add", "model", "add"]
    told = [e for e in await sf.events("r") if e["event_type"] == "intent.rewound"]
    assert told[0]["details"] == {"steps": 2, "reason": "it was refused"}
    assert (await sf.get_intent("r"))["lost_deliveries"] == 0


@both
async def test_one_shots_go_only_if_they_are_meant(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await body(run, calls)
    assert await sf.rewind("r", "a#1", include_once=True) == 4
    async with sf.run("r") as run:
        await body(run, calls)
    assert calls.names == ["a", "model", "pay", "add"] * 2


@both
async def test_what_steps_did_elsewhere_is_undone_first(way: Way, calls: Calls) -> None:
    sf = way.open()
    seen: list[Any] = []
    async with way.crashing(sf, "r") as run:
        await body(run, calls)

    def undo(values: dict[str, Any]) -> None:
        seen.append(values)
        if len(seen) == 1:
            raise Boom

    async def undo_awaited(values: dict[str, Any]) -> None:
        undo(values)

    also = {"session": undo if way.blocks else undo_awaited}
    with pytest.raises(Boom):
        await sf.rewind("r", "model:1", also=also)
    assert [s["voided"] for s in await sf.steps("r")] == [False] * 4
    assert await sf.rewind("r", "model:1", also=also) == 2
    assert seen == [{"session:add#1": {"numbers": [4, 6]}}] * 2


@both
async def test_a_failed_run_is_revived_by_it(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(Boom):
        async with sf.run("r", on_error="fail") as run:
            await body(run, calls, fails=True)
    assert (await sf.get_intent("r"))["status"] == "FAILED"
    assert await sf.rewind("r", "session:add#1") == 1
    async with sf.run("r") as run:
        await body(run, calls)
    assert calls.names == ["a", "model", "pay", "add", "add"]


@both
async def test_what_cannot_be_rewound(way: Way, calls: Calls) -> None:
    sf = way.open()
    with pytest.raises(NotFound, match="no run and no intent 'nothing'"):
        await sf.rewind("nothing", "a#1")
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a)
        with pytest.raises(RunBusy):
            await sf.rewind("r", "a#1")
    with pytest.raises(InvalidInput, match=r"step: run r has no 'b#1'; it has a#1\."):
        await sf.rewind("r", "b#1")
    async with sf.run("r") as run:
        await run.step(calls.a)
    with pytest.raises(RunFinished, match="nothing to go on with"):
        await sf.rewind("r", "a#1")
    assert [s["voided"] for s in await sf.steps("r")] == [False]


@both
async def test_its_options_are_checked_at_the_call(way: Way) -> None:
    sf = way.open()
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((5, "a#1"), {}, "run_id: must be a text"),
        (("r", 5), {}, "step: must be a text"),
        (("r", "a#1"), {"include_once": "yes"}, "include_once: must be True or False"),
        (("r", "a#1"), {"reason": None}, "reason: must be a text"),
        (("r", "a#1"), {"also": {"session": 5}}, "also: must map kinds of steps to functions"),
    ]
    for args, options, message in wrong:
        with pytest.raises(InvalidInput, match=message):
            await sf.rewind(*args, **options)

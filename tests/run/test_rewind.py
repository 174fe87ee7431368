"""Setting recorded steps aside, so that they run again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stepfast import InvalidInput, Stepfast
from tests.run.kit import Calls, Way, both, collect, events_of


@both
async def test_a_rewound_run_does_its_steps_again(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a)
        await run.step(calls.b)
        assert await run.rewind("the answer could not be parsed") == 2
        assert run.steps() == []
        await run.step(calls.a)
    async with sf.run("r") as run:
        await run.step(calls.a)
        await run.step(calls.b)
    assert calls.names == ["a", "b", "a", "b"]
    history = await sf.events("r")
    told = next(event for event in history if event["event_type"] == "intent.rewound")
    assert told["details"] == {"steps": 2, "reason": "the answer could not be parsed"}
    # The old records stay for who looks into the journal.
    assert [(s["key"], s["generation"], s["voided"]) for s in await sf.steps("r")] == [
        ("a#1", 0, True),
        ("b#1", 0, True),
        ("a#1", 1, False),
        ("b#1", 1, False),
    ]


@both
async def test_a_scope_is_rewound_with_all_inside_and_nothing_beside(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        await run.step(calls.before)
        scope = run.scope("s")
        await scope.step(calls.inside)
        await scope.scope("deep").step(calls.deeper)
        await run.scope("s2").step(calls.beside)
        assert await scope.rewind() == 2
        await scope.step(calls.inside)
        await scope.scope("deep").step(calls.deeper)
        assert set(run.steps()) == {
            "before#1",
            "scope:s#1/inside#1",
            "scope:s#1/scope:deep#1/deeper#1",
            "scope:s2#1/beside#1",
        }
    assert calls.names == ["before", "inside", "deeper", "beside", "inside", "deeper"]


@both
async def test_a_run_is_rewound_to_after_a_step(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        for _ in range(3):
            await run.step(calls.f)
        assert await run.rewind(after="f#1") == 2
        await run.step(calls.f)
        assert run.steps() == ["f#1", "f#2"]
    async with sf.run("r") as run:
        for _ in range(3):
            await run.step(calls.f)
    assert calls.names == ["f"] * 5


@both
async def test_what_an_earlier_attempt_recorded_can_be_rewound(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a)
        await run.step(calls.b)
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a)
        await run.step(calls.b)
        assert await run.rewind(after="a#1") == 1
        await run.step(calls.b)
    async with sf.run("r") as run:
        await run.step(calls.a)
        await run.step(calls.b)
    assert calls.names == ["a", "b", "b"]


@both
async def test_a_confirmed_one_shot_stays_unless_it_is_named(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        await run.step(calls.a)
        await run.once(calls.pay)
        assert await run.rewind() == 1
        await run.step(calls.a)
        await run.once(calls.pay)
        assert calls.names == ["a", "pay", "a"]
        assert await run.rewind(include_once=True) == 2
        await run.step(calls.a)
        await run.once(calls.pay)
    assert calls.names == ["a", "pay", "a", "a", "pay"]


@both
async def test_a_step_to_rewind_to_must_be_there(way: Way) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        with pytest.raises(InvalidInput, match="no recorded step 'f#7'"):
            await run.rewind(after="f#7")


@both
async def test_what_was_called_before_the_rewind_keeps_its_number(way: Way, calls: Calls) -> None:
    """Questions and scopes are no steps, but they are counted, and a resumed run counts them again."""
    sf = way.open()
    bad = iter([True, False, False])

    async def body(run: Any) -> None:
        first = run.scope("s")
        await first.step(calls.inside, 1)
        await run.step(calls.anchor)
        if await run.step(calls.answering("judge", lambda: next(bad))):
            await run.rewind(after="anchor#1")
            await run.step(calls.answering("judge", lambda: next(bad)))
        await run.scope("s").step(calls.inside, 2)

    async with way.crashing(sf, "r") as run:
        await body(run)
    async with sf.run("r") as run:
        await body(run)
    assert calls.names == ["inside", "anchor", "judge", "judge", "inside"]


@both
async def test_a_question_after_a_rewind_is_not_taken_for_one_before_it(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        first = await run.ask("First?", expires_in=0.000001, default="approved")
        assert first.outcome == "approved"
        await run.step(calls.anchor)
        await run.step(calls.wrong)
        await run.rewind(after="anchor#1")
        second = await run.ask("Second?", expires_in=0.000001, default="rejected")
        assert second.outcome == "rejected"
    assert events_of(await sf.events("r"))[-1] == "completed"


def test_a_thread_opens_its_scope_again_after_a_rewind(tmp_path: Path) -> None:
    done: list[int] = []

    def branch(run: Any) -> None:
        run.scope("s").step(done.append, 1)

    with Stepfast(tmp_path / "stepfast.db") as sf, sf.run("r") as run, ThreadPoolExecutor(1) as pool:
        pool.submit(branch, run).result()
        run.rewind()
        pool.submit(branch, run).result()
        assert run.steps() == ["scope:s/append#1"]
    assert done == [1, 1]


@both
async def test_a_map_is_rewound_with_its_items(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        assert await collect(run.map(calls.item, [1, 2])) == [["item", 1], ["item", 2]]
        await run.rewind()
        again = calls.answering("item", lambda n: n * 100)
        assert await collect(run.map(again, [1, 2])) == [100, 200]
    async with sf.run("r") as run:
        assert await collect(run.map(calls.item, [1, 2])) == [100, 200]
    assert calls.names == ["item"] * 4


@both
async def test_a_resumed_run_may_rewind_to_a_step_it_has_not_reached_yet(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        for name in ("a", "b", "c"):
            await run.step(getattr(calls, name))
    async with sf.run("r") as run:
        await run.step(calls.a)
        assert await run.rewind(after="b#1") == 1
        await run.step(calls.b)
        await run.step(calls.c)
    assert calls.names == ["a", "b", "c", "c"]

"""The durable map: many items, few commits, each recorded once."""

# ruff: noqa: PT012 - what is raised leaves the run, so the run is inside the block

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepfast import (
    AsyncStepfast,
    Diverged,
    InvalidInput,
    RunFinished,
    Stepfast,
    Suspended,
    current_run,
    idempotency_key,
)
from tests.run.kit import Boom, Calls, Crash, Way, both, collect, counting

CONCURRENCY = pytest.mark.parametrize("concurrency", [1, 4])


async def take(values: Any, count: int) -> list[Any]:
    """The first values, as a loop that breaks early."""
    taken = []
    async for value in values:
        taken.append(value)
        if len(taken) == count:
            break
    await values.aclose()
    return taken


@CONCURRENCY
@both
async def test_results_come_in_the_order_of_the_items(way: Way, calls: Calls, concurrency: int) -> None:
    sf = way.open()
    double = calls.answering("double", lambda n: n * 2)
    async with sf.run("r") as run:
        assert await collect(run.map(double, range(50), concurrency=concurrency)) == [n * 2 for n in range(50)]
    assert Counter(calls.made) == Counter(("double", n) for n in range(50))


@CONCURRENCY
@both
async def test_results_may_come_as_they_are_done(way: Way, calls: Calls, concurrency: int) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        results = await collect(run.map(calls.item, range(50), concurrency=concurrency, ordered=False))
    assert sorted(results) == [["item", n] for n in range(50)]


def test_an_item_that_is_done_early_comes_out_early_if_the_order_does_not_matter(tmp_path: Path) -> None:
    last_is_out = threading.Event()

    def item(number: int) -> int:
        if number == 0:
            assert last_is_out.wait(30)
        return number

    with Stepfast(tmp_path / "stepfast.db") as sf, sf.run("r") as run:
        out = []
        for value in run.map(item, [0, 1], concurrency=2, ordered=False):
            out.append(value)
            last_is_out.set()
    assert out == [1, 0]


async def test_a_task_that_is_done_early_comes_out_early_if_the_order_does_not_matter(tmp_path: Path) -> None:
    last_is_out = asyncio.Event()

    async def item(number: int) -> int:
        if number == 0:
            await asyncio.wait_for(last_is_out.wait(), 30)
        return number

    async with AsyncStepfast(tmp_path / "stepfast.db") as sf, sf.run("r") as run:
        out = []
        async for value in run.map(item, [0, 1], concurrency=2, ordered=False):
            out.append(value)
            last_is_out.set()
    assert out == [1, 0]


@CONCURRENCY
@both
async def test_a_map_resumes_with_the_items_that_were_not_done(way: Way, calls: Calls, concurrency: int) -> None:
    sf = way.open()

    def work(number: int) -> int:
        if number == 70:
            raise Boom("the process dies")
        return -number

    async with way.crashing(sf, "r") as run:
        with pytest.raises(Boom):
            await collect(run.map(calls.answering("f", work), range(100), concurrency=concurrency))
    before = Counter(calls.made)
    assert before["f", 70] == 1
    async with sf.run("r") as run:
        again = calls.answering("f", lambda n: -n)
        assert await collect(run.map(again, range(100), concurrency=concurrency)) == [-n for n in range(100)]
    after = Counter(calls.made)
    assert after.pop(("f", 70)) == 2
    assert set(after.values()) == {1}
    assert len(after) == 99


@both
async def test_a_finished_map_does_not_run_again(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        first = await collect(run.map(calls.f, range(10)))
    async with way.crashing(sf, "r") as run:
        with counting() as passed:
            assert await collect(run.map(calls.f, range(10))) == first
        assert passed["sqlite.after_commit"] == 0
    async with sf.run("r") as run:
        # From a source that is gone, too: a finished map does not need its items.
        assert await collect(run.map(calls.f, iter(()))) == first
    assert len(calls.made) == 10


@both
async def test_a_map_named_by_a_key_gives_the_same_again_in_one_attempt(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        first = await collect(run.map(calls.f, range(10), key="k"))
        assert await collect(run.map(calls.f, range(10), key="k")) == first
    assert len(calls.made) == 10


def test_100_000_items_take_far_fewer_commits_and_each_is_recorded_once(tmp_path: Path) -> None:
    done = 0

    def item(number: int) -> int:
        nonlocal done
        done += 1
        return number + 1

    with Stepfast(tmp_path / "stepfast.db") as sf:
        with counting() as passed, sf.run("r") as run:
            assert sum(run.map(item, range(100_000))) == 5_000_050_000
        assert passed["sqlite.after_commit"] < 2_000
        recorded = [step["items"] for step in sf.steps("r") if step["kind"] == "items"]
        assert sum(recorded) == 100_000
        assert sf.describe("r")["records"] == 100_001
        with sf.run("r") as run:
            assert sum(run.map(item, range(100_000))) == 5_000_050_000
    assert done == 100_000


@both
async def test_a_result_is_durable_before_it_is_seen(way: Way, calls: Calls) -> None:
    sf = way.open()
    seen = []
    async with way.crashing(sf, "r") as run:
        async for value in run.map(calls.f, range(2000)):
            seen.append(value)
            if len(seen) == 700:
                raise Crash
    async with sf.run("r") as run:
        assert (await collect(run.map(calls.f, range(2000))))[:700] == seen
    repeated = [call for call, times in Counter(calls.made).items() if times > 1]
    assert not {number for _, number in repeated} & set(range(700))


@CONCURRENCY
@both
async def test_an_item_s_error_ends_the_map_after_what_came_before_it(way: Way, calls: Calls, concurrency: int) -> None:
    sf = way.open()

    def work(number: int) -> int:
        if number == 3:
            raise Boom("three")
        return number

    seen = []
    with pytest.raises(Boom, match="three"):
        async with sf.run("r") as run:
            async for value in run.map(calls.answering("f", work), range(10), concurrency=concurrency):
                seen.append(value)  # noqa: PERF401 - a loop that is cut short
    assert seen == [0, 1, 2]
    async with sf.run("r") as run:
        assert await collect(run.map(calls.answering("f", lambda n: n), range(10))) == list(range(10))
    made = Counter(calls.made)
    assert made["f", 3] == 2
    assert made["f", 0] == made["f", 1] == made["f", 2] == 1


@CONCURRENCY
@both
async def test_errors_can_be_results(way: Way, calls: Calls, concurrency: int) -> None:
    sf = way.open()

    def work(number: int) -> int:
        if number % 2:
            raise ValueError("odd", number)
        return number

    async def body(run: Any) -> list[Any]:
        mapped = run.map(calls.answering("f", work), range(4), concurrency=concurrency, return_exceptions=True)
        return await collect(mapped)

    async with way.crashing(sf, "r") as run:
        first = await body(run)
    async with sf.run("r") as run:
        second = await body(run)
    for results in (first, second):
        assert results[::2] == [0, 2]
        assert [type(e) for e in results[1::2]] == [ValueError, ValueError]
        assert [e.args for e in results[1::2]] == [("odd", 1), ("odd", 3)]
    assert len(calls.made) == 4


@pytest.mark.parametrize("finished", [False, True], ids=["half done", "finished"])
@both
async def test_other_items_than_those_recorded_are_diverged(way: Way, calls: Calls, finished: bool) -> None:
    sf = way.open()
    items = ["a", "b", "c", "d"]
    async with way.crashing(sf, "r") as run:
        if finished:
            await collect(run.map(calls.f, items))
        else:
            await take(run.map(calls.f, items), 2)
    before = len(calls.made)
    for other in (["a", "x", "c", "d"], ["b", "a", "c", "d"], ["a"]):
        async with way.crashing(sf, "r") as run:
            with pytest.raises(Diverged, match="other items"):
                await collect(run.map(calls.f, other))
    assert len(calls.made) == before
    async with sf.run("r") as run:
        assert await collect(run.map(calls.f, items)) == [["f", item] for item in items]
    assert Counter(calls.made) == Counter(("f", item) for item in items)


@both
async def test_a_finished_map_keeps_its_results_where_other_items_are_accepted(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await collect(run.map(calls.f, [1, 2]))
    async with sf.run("r", on_drift="accept") as run:
        assert await collect(run.map(calls.f, [3])) == [["f", 1], ["f", 2]]


@both
async def test_changed_items_run_again_where_that_is_wanted(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await take(run.map(calls.f, [1, 2, 3]), 2)
    async with way.crashing(sf, "r") as run:
        assert await collect(run.map(calls.f, [1, 20, 3], on_drift="rerun")) == [["f", 1], ["f", 20], ["f", 3]]
    async with sf.run("r") as run:
        assert await collect(run.map(calls.f, [1, 20, 3])) == [["f", 1], ["f", 20], ["f", 3]]
        assert await collect(run.map(calls.f, [7], key="other")) == [["f", 7]]
    assert ("f", 20) in calls.made
    assert calls.made.count(("f", 1)) == 1


@CONCURRENCY
@both
async def test_a_loop_may_end_early_and_go_on_after_a_restart(way: Way, calls: Calls, concurrency: int) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        assert await take(run.map(calls.f, range(20), concurrency=concurrency), 3) == [["f", n] for n in range(3)]
    async with sf.run("r") as run:
        assert await collect(run.map(calls.f, range(20), concurrency=concurrency)) == [["f", n] for n in range(20)]
    made = Counter(calls.made)
    assert made["f", 0] == made["f", 1] == made["f", 2] == 1


@both
async def test_a_loop_that_ended_early_replays_in_a_completed_run(way: Way, calls: Calls) -> None:
    sf = way.open()
    for _ in range(2):
        async with sf.run("r") as run:
            assert await take(run.map(calls.f, range(20)), 3) == [["f", n] for n in range(3)]
    made = Counter(calls.made)
    assert made["f", 0] == 1
    with pytest.raises(RunFinished):
        async with sf.run("r") as run:
            await collect(run.map(calls.f, range(1000)))


@both
async def test_items_may_come_from_a_generator(way: Way, calls: Calls) -> None:
    sf = way.open()
    pulled: list[int] = []

    def source() -> Iterator[int]:
        for number in range(10):
            pulled.append(number)
            yield number

    async with way.crashing(sf, "r") as run:
        await take(run.map(calls.f, source()), 1)
        assert len(pulled) < 10 or len(calls.made) == 10
    async with sf.run("r") as run:
        assert await collect(run.map(calls.f, source())) == [["f", n] for n in range(10)]
    assert Counter(calls.made) == Counter(("f", n) for n in range(10))


@both
async def test_a_source_that_breaks_keeps_what_was_done(way: Way, calls: Calls) -> None:
    sf = way.open()

    def source() -> Iterator[int]:
        yield from range(5)
        raise Boom("no more")

    async with way.crashing(sf, "r") as run:
        with pytest.raises(Boom):
            await collect(run.map(calls.f, source()))
    async with sf.run("r") as run:
        assert await collect(run.map(calls.f, range(5))) == [["f", n] for n in range(5)]
    assert len(calls.made) == 5


async def test_items_may_come_from_an_async_source(tmp_path: Path) -> None:
    done: Counter[int] = Counter()

    async def source() -> AsyncIterator[int]:
        for number in range(20):
            await asyncio.sleep(0)
            yield number

    async def item(number: int) -> int:
        done[number] += 1
        if number == 15 and done[number] == 1:
            raise Boom
        return number

    async with AsyncStepfast(tmp_path / "stepfast.db") as sf:
        with pytest.raises(Boom):
            async with sf.run("r") as run:
                async for _ in run.map(item, source(), concurrency=3):
                    pass
        async with sf.run("r") as run:
            assert [v async for v in run.map(item, source(), concurrency=3)] == list(range(20))
    assert done.pop(15) == 2
    assert set(done.values()) == {1}


@both
async def test_an_empty_source_gives_an_empty_map(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        assert await collect(run.map(calls.f, [])) == []
        assert run.steps() == ["map:f#1"]


@both
async def test_what_is_no_source_is_refused(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        with pytest.raises((InvalidInput, TypeError)):
            await collect(run.map(calls.f, 42))
        with pytest.raises(InvalidInput, match="concurrency"):
            await collect(run.map(calls.f, [1], concurrency=0))


@CONCURRENCY
@both
async def test_items_may_make_steps_of_their_own(way: Way, calls: Calls, concurrency: int) -> None:
    sf = way.open()
    dies = True

    if way.blocks:

        def item(number: int) -> Any:
            run = current_run()
            assert run is not None
            fetched = run.step(calls.fetch, number)
            if number == 2 and dies:
                raise Boom
            return [fetched, run.once(calls.send, number)]
    else:

        async def item(number: int) -> Any:  # type: ignore[misc]
            run: Any = current_run()
            fetched = await run.step(calls.fetch, number)
            if number == 2 and dies:
                raise Boom
            return [fetched, await run.once(calls.send, number)]

    async with way.crashing(sf, "r") as run:
        with pytest.raises(Boom):
            await collect(run.map(item, range(4), concurrency=concurrency))
        assert "map:item#1/2/fetch#1" in run.steps()
    dies = False
    async with sf.run("r") as run:
        results = await collect(run.map(item, range(4), concurrency=concurrency))
        assert results == [[["fetch", n], ["send", n]] for n in range(4)]
    assert Counter(calls.made) == Counter((name, n) for name in ("fetch", "send") for n in range(4))


@both
async def test_an_item_knows_a_key_of_its_own(way: Way) -> None:
    sf = way.open()
    seen: list[str] = []
    async with sf.run("r") as run:
        await collect(run.map(way.function(lambda _: seen.append(idempotency_key()), "f"), range(3)))
        assert [key.partition("/")[2] for key in seen] == [f"map:f#1/{n}" for n in range(3)]


@both
async def test_an_item_may_ask_a_person(way: Way, calls: Calls) -> None:
    sf = way.open()

    if way.blocks:

        def item(name: str) -> Any:
            run: Any = current_run()
            return [name, run.ask(f"Send {name}?").outcome]
    else:

        async def item(name: str) -> Any:  # type: ignore[misc]
            run: Any = current_run()
            return [name, (await run.ask(f"Send {name}?")).outcome]

    for _ in range(2):
        with pytest.raises(Suspended):
            async with sf.run("r", on_wait="suspend") as run:
                await collect(run.map(item, ["a", "b"]))
        await sf.answer("r", "approved")
    async with sf.run("r", on_wait="suspend") as run:
        assert await collect(run.map(item, ["a", "b"])) == [["a", "approved"], ["b", "approved"]]


def test_no_more_items_are_at_work_than_told(tmp_path: Path) -> None:
    lock = threading.Lock()
    now = most = 0
    full = threading.Barrier(4, timeout=30)

    def item(_number: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        full.wait()
        with lock:
            now -= 1

    with Stepfast(tmp_path / "stepfast.db") as sf, sf.run("r") as run:
        list(run.map(item, range(20), concurrency=4))
    assert most == 4


async def test_no_more_tasks_are_at_work_than_told(tmp_path: Path) -> None:
    now = most = 0
    full = asyncio.Barrier(4)

    async def item(_number: int) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await full.wait()
        now -= 1

    async with AsyncStepfast(tmp_path / "stepfast.db") as sf, sf.run("r") as run:
        async for _ in run.map(item, range(20), concurrency=4):
            pass
    assert most == 4


@both
async def test_a_result_that_cannot_be_stored_ends_the_map_with_its_place(way: Way, calls: Calls) -> None:
    sf = way.open()
    odd = calls.answering("f", lambda n: {"n": object() if n == 2 else n})
    with pytest.raises(InvalidInput, match="object"):
        async with sf.run("r") as run:
            await collect(run.map(odd, range(4)))
    async with sf.run("r") as run:
        assert len(await collect(run.map(calls.f, range(4)))) == 4
    # One result that cannot be stored does not take the others with it.
    assert Counter(calls.made)["f", 0] == Counter(calls.made)["f", 1] == 1


# Progress


@both
async def test_progress_is_silent_where_nobody_watches(
    way: Way, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        await collect(run.map(calls.f, range(10)))
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


@both
async def test_progress_is_shown_on_request(way: Way, calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        await collect(run.map(calls.f, range(10), progress=True))
        await collect(run.map(calls.f, iter(range(10)), progress=True, total=10))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("10/10") == 2


def test_progress_is_drawn_on_a_terminal(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from stepfast import Stepfast\n"
        "with Stepfast(sys.argv[1]) as sf, sf.run('r') as run:\n"
        "    sum(run.map(len, ['ab'] * 1234))\n"
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "stepfast.db")],
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    os.close(theirs)
    drawn = b""
    try:
        while data := os.read(ours, 4096):
            drawn += data
    except OSError:  # the terminal's other end is closed
        pass
    finally:
        os.close(ours)
    assert process.wait() == 0
    assert b"len" in drawn
    assert b"1,234/1,234" in drawn
    assert "█".encode() in drawn

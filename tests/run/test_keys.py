"""A call keeps its key whatever runs beside it, and in whatever order."""

# ruff: noqa: PT012 - what is raised leaves the run, so the run is inside the block

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepfast import AsyncStepfast, InvalidInput, Stepfast
from stepfast.deciding import current_frame
from tests.run.kit import LEASE_SECONDS, Calls, Crash, Way, both

ORDERS = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Program(NamedTuple):
    """Branches that work side by side, each a list of inputs; ``scoped`` ones in a scope of their own."""

    branches: list[list[int]]
    scoped: list[bool]
    first: list[set[int]]
    second: list[set[int]]
    dying: set[int]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A program, two schedules for it (who makes its next call together with whom), and a crash in the first.

    Few different inputs, so that branches make equal calls; those of ``dying`` do their work in the last round of
    the first schedule and are killed before it is recorded.
    """
    branches = draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=2, max_size=4))
    which = st.integers(0, len(branches) - 1)
    rounds = st.lists(st.sets(which, min_size=1), max_size=6)
    scoped = draw(st.lists(st.booleans(), min_size=len(branches), max_size=len(branches)))
    return Program(branches, scoped, draw(rounds), draw(rounds), draw(st.sets(which)))


def rounds_of(program: Program, schedule: list[set[int]], *, to_the_end: bool) -> Iterator[list[tuple[int, int]]]:
    """Who calls in each round, as ``(branch, number of its call)``."""
    at = [0] * len(program.branches)
    everybody = [set(range(len(at)))] * max(map(len, program.branches)) if to_the_end else []
    for wanted in [*schedule, *everybody]:
        going = [(b, at[b]) for b in sorted(wanted) if at[b] < len(program.branches[b])]
        for branch, _ in going:
            at[branch] += 1
        if going:
            yield going


class Ledger:
    """What was done, and what each call was told."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.done: Counter[int] = Counter()
        self.died: Counter[int] = Counter()
        self.told: list[dict[tuple[int, int], Any]] = []

    def check(self, program: Program) -> None:
        first, second = self.told
        assert Counter(itertools.chain(*program.branches)) + self.died == self.done
        for branch, inputs in enumerate(program.branches):
            for number, given_ in enumerate(inputs):
                assert second[branch, number][0] == given_
        for (branch, number), answer in first.items():
            if program.scoped[branch] or sum(i.count(program.branches[branch][number]) for i in program.branches) == 1:
                assert second[branch, number] == answer
        shared = [Counter(tuple(told[at]) for at in first if not program.scoped[at[0]]) for told in self.told]
        every = Counter(tuple(a) for at, a in second.items() if not program.scoped[at[0]])
        assert shared[0] <= every


def work(ledger: Ledger, gate: threading.Barrier | None, dies: bool, given_: int) -> list[int]:
    ledger.done[given_] += 1
    if gate is not None:
        gate.wait(30)
    if dies:
        ledger.died[given_] += 1
        raise Crash
    return [given_, next(ledger.numbers)]


class Worker(threading.Thread):
    """A branch of its own thread, which makes the calls it is handed."""

    def __init__(self, run: Any, scope: str | None) -> None:
        super().__init__(daemon=True)
        self.run_, self.scope = run, scope
        self.inbox: queue.Queue[Any] = queue.Queue()
        self.outbox: queue.Queue[Any] = queue.Queue()
        self.start()

    def run(self) -> None:
        place = self.run_ if self.scope is None else self.run_.scope(self.scope)
        while (call := self.inbox.get()) is not None:
            try:
                self.outbox.put(place.options(name="work", inputs=call[-1]).step(*call))
            except Crash:
                self.outbox.put(None)


@ORDERS
@given(programs())
def test_threads_in_any_order_repeat_nothing_and_are_told_the_same(tmp_path: Path, program: Program) -> None:
    ledger = Ledger()
    name = str(next(_names))
    with Stepfast(tmp_path / "threads.db", durability="process") as sf:
        for attempt, schedule in enumerate((program.first, program.second)):
            run = sf.run(name)
            workers = [Worker(run, f"s{b}" if scoped else None) for b, scoped in enumerate(program.scoped)]
            told: dict[tuple[int, int], Any] = {}
            rounds = list(rounds_of(program, schedule, to_the_end=attempt == 1))
            for number, going in enumerate(rounds):
                last = attempt == 0 and number == len(rounds) - 1
                gate = threading.Barrier(len(going)) if attempt == 0 else None
                for branch, at in going:
                    dies = last and branch in program.dying
                    given_ = program.branches[branch][at]
                    workers[branch].inbox.put((work, ledger, gate, dies, given_))
                for branch, at in going:
                    answer = workers[branch].outbox.get(timeout=30)
                    if answer is not None:
                        told[branch, at] = answer
            for worker in workers:
                worker.inbox.put(None)
                worker.join()
            ledger.told.append(told)
            if attempt == 0:
                sf._core.heart.discard(run._session)
                current_frame.set(None)
                sf.store.clock.advance(LEASE_SECONDS + 1)
            else:
                run.__exit__(None, None, None)
    ledger.check(program)


_names = itertools.count()


@ORDERS
@given(programs())
def test_tasks_in_any_order_repeat_nothing_and_are_told_the_same(tmp_path: Path, program: Program) -> None:
    ledger = Ledger()

    async def go(call: tuple[Any, ...], place: Any) -> Any:
        try:
            return await place.options(name="work", inputs=call[-1]).step(*call)
        except Crash:
            return None

    async def branch_of(run: Any, scope: str | None, inbox: asyncio.Queue[Any], outbox: asyncio.Queue[Any]) -> None:
        place = run if scope is None else run.scope(scope)
        while (call := await inbox.get()) is not None:
            await outbox.put(await go(call, place))

    async def pausing(ledger_: Ledger, gate: asyncio.Barrier | None, dies: bool, given_: int) -> list[int]:
        if gate is not None:
            await gate.wait()
        return work(ledger_, None, dies, given_)

    async def scenario(name: str) -> None:
        async with AsyncStepfast(tmp_path / "tasks.db", durability="process") as sf:
            for attempt, schedule in enumerate((program.first, program.second)):
                run = await sf.run(name)
                boxes = [(asyncio.Queue[Any](), asyncio.Queue[Any]()) for _ in program.branches]
                tasks = [
                    asyncio.create_task(branch_of(run, f"s{b}" if program.scoped[b] else None, *boxes[b]))
                    for b in range(len(boxes))
                ]
                told: dict[tuple[int, int], Any] = {}
                rounds = list(rounds_of(program, schedule, to_the_end=attempt == 1))
                for number, going in enumerate(rounds):
                    last = attempt == 0 and number == len(rounds) - 1
                    gate = asyncio.Barrier(len(going)) if attempt == 0 else None
                    for branch, at in going:
                        dies = last and branch in program.dying
                        boxes[branch][0].put_nowait((pausing, ledger, gate, dies, program.branches[branch][at]))
                    for branch, at in going:
                        answer = await boxes[branch][1].get()
                        if answer is not None:
                            told[branch, at] = answer
                for inbox, _ in boxes:
                    inbox.put_nowait(None)
                await asyncio.gather(*tasks)
                ledger.told.append(told)
                if attempt == 0:
                    sf._core.heart.discard(run._session)
                    current_frame.set(None)
                    sf.store.clock.advance(LEASE_SECONDS + 1)
                else:
                    await run.__aexit__(None, None, None)

    asyncio.run(scenario(str(next(_names))))
    ledger.check(program)


async def test_calls_gathered_by_one_task_take_their_places_in_the_order_they_are_made(tmp_path: Path) -> None:
    done: list[int] = []

    async def work_(number: int, turn: asyncio.Event, following: asyncio.Event) -> int:
        await turn.wait()
        done.append(number)
        following.set()
        return number

    async with AsyncStepfast(tmp_path / "stepfast.db") as sf, sf.run("r") as run:
        turns = [asyncio.Event() for _ in range(4)]
        turns[-1].set()
        # The last call made is the first to finish.
        calls = [run.options(inputs=n).step(work_, n, turns[n], turns[n - 1]) for n in range(4)]
        assert await asyncio.gather(*calls) == [0, 1, 2, 3]
        assert run.steps() == ["work_#1", "work_#2", "work_#3", "work_#4"]
    assert done == [3, 2, 1, 0]


@ORDERS
@given(first=st.permutations(range(5)), second=st.permutations(range(5)), stop=st.integers(0, 5))
def test_calls_keyed_by_input_may_be_gathered_in_any_order(
    tmp_path: Path, first: list[int], second: list[int], stop: int
) -> None:
    done: Counter[int] = Counter()

    def work_(number: int) -> int:
        done[number] += 1
        return number * 10

    async def scenario(name: str) -> None:
        async with AsyncStepfast(tmp_path / "inputs.db", durability="process") as sf:
            with pytest.raises(Crash):
                async with sf.run(name) as run:
                    await asyncio.gather(*(run.options(by="input").step(work_, n) for n in first[:stop]))
                    raise Crash
            async with sf.run(name) as run:
                told = await asyncio.gather(*(run.options(by="input").step(work_, n) for n in second))
                assert told == [n * 10 for n in second]

    asyncio.run(scenario(str(next(_names))))
    assert done == dict.fromkeys(range(5), 1)


# Steps inside steps


def composite(way: Way, runs: list[Any], *steps: tuple[Any, int]) -> Any:
    """A function that makes steps of its own, as this way's users would write it."""
    if way.blocks:
        return lambda: [runs[-1].inner.step(function, given_) for function, given_ in steps]

    async def outer() -> list[Any]:
        return [await runs[-1].step(function, given_) for function, given_ in steps]

    return outer


@both
async def test_steps_inside_a_step_are_kept_when_it_dies_half_way(way: Way, calls: Calls) -> None:
    sf = way.open()
    runs: list[Any] = []
    async with way.crashing(sf, "r") as run:
        runs.append(run)
        dies = calls.raising("fetch", Crash())
        await run.options(name="outer").step(composite(way, runs, (calls.fetch, 1), (dies, 2)))
    async with sf.run("r") as run:
        runs.append(run)
        outer = composite(way, runs, (calls.fetch, 1), (calls.fetch, 2))
        assert await run.options(name="outer").step(outer) == [["fetch", 1], ["fetch", 2]]
        assert set(run.steps()) == {"outer#1/fetch#1", "outer#1/fetch#2", "outer#1"}
    assert calls.made == [("fetch", 1), ("fetch", 2), ("fetch", 2)]


@both
async def test_a_finished_step_answers_without_its_inner_steps(way: Way, calls: Calls) -> None:
    sf = way.open()
    runs: list[Any] = []
    outer = composite(way, runs, (calls.fetch, 1), (calls.fetch, 2))
    async with way.crashing(sf, "r") as run:
        runs.append(run)
        await run.options(name="outer").step(outer)
    async with sf.run("r") as run:
        runs.append(run)
        await run.options(name="outer").step(outer)
        # The inner calls of the finished step do not shift the keys of what comes after it.
        assert await run.step(calls.fetch, 9) == ["fetch", 9]
        assert "fetch#1" in run.steps()
    assert calls.made == [("fetch", 1), ("fetch", 2), ("fetch", 9)]


# Scopes


@both
async def test_each_scope_has_keys_of_its_own(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        await run.step(calls.f)
        async with run.scope("a") as first:
            await first.step(calls.f)
            async with first.scope("deep") as deep:
                await deep.step(calls.f)
        async with run.scope("a") as second:
            await second.step(calls.f)
        assert run.steps() == ["f#1", "scope:a#1/f#1", "scope:a#1/scope:deep#1/f#1", "scope:a#2/f#1"]


def test_scopes_opened_in_threads_keep_their_steps_whoever_comes_first(tmp_path: Path) -> None:
    done: Counter[str] = Counter()

    def work_(name: str, number: int) -> str:
        done[f"{name}{number}"] += 1
        return f"{name}{number}"

    def branch(run: Any, name: str, mine: threading.Event, others: threading.Event, steps: int) -> list[str]:
        mine.wait(30)
        with run.scope(name) as scope:
            told = [scope.step(work_, name, n) for n in range(steps)]
        others.set()
        return told

    def both_branches(run: Any, first: str, steps: int) -> None:
        turns = {"a": threading.Event(), "b": threading.Event()}
        turns[first].set()
        with ThreadPoolExecutor(2) as pool:
            futures = {
                name: pool.submit(branch, run, name, turns[name], turns[other], steps)
                for name, other in (("a", "b"), ("b", "a"))
            }
            for name, future in futures.items():
                assert future.result(30) == [f"{name}{n}" for n in range(steps)]

    with Stepfast(tmp_path / "stepfast.db") as sf:
        with pytest.raises(Crash), sf.run("r") as run:
            both_branches(run, "a", 2)
            raise Crash
        with sf.run("r") as run:
            both_branches(run, "b", 3)
    assert done == dict.fromkeys(["a0", "a1", "a2", "b0", "b1", "b2"], 1)


def test_a_scope_handed_from_thread_to_thread_keeps_its_keys(tmp_path: Path) -> None:
    """The system may give a new thread the number of one that ended; that must not make them the same."""
    done: list[int] = []

    def in_new_thread(work_: Any) -> threading.Thread:
        thread = threading.Thread(target=work_)
        thread.start()
        return thread

    def one_after_the_other(run: Any) -> None:
        made: list[Any] = []
        in_new_thread(lambda: made.append(run.scope("s"))).join()
        in_new_thread(lambda: made[0].step(done.append, 1)).join()

    def side_by_side(run: Any) -> None:
        made: queue.Queue[Any] = queue.Queue()
        user = in_new_thread(lambda: made.get().step(done.append, 1))
        in_new_thread(lambda: made.put(run.scope("s"))).join()
        user.join()

    with Stepfast(tmp_path / "stepfast.db") as sf:
        with pytest.raises(Crash), sf.run("r") as run:
            one_after_the_other(run)
            raise Crash
        with sf.run("r") as run:
            side_by_side(run)
    assert done == [1]


def test_two_open_scopes_of_one_name_in_two_threads_are_refused(tmp_path: Path) -> None:
    with Stepfast(tmp_path / "stepfast.db") as sf, sf.run("r") as run, ThreadPoolExecutor(1) as pool:
        pool.submit(run.scope, "s").result()
        with pytest.raises(InvalidInput, match="names of their own"):
            pool.submit(run.scope, "s").result()


@both
async def test_the_path_of_a_scope_is_where_its_calls_go(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        assert run.path == ""
        scope = run.scope("s")
        assert scope.path == "scope:s#1"
        await scope.step(calls.f)
        assert run.steps() == ["scope:s#1/f#1"]

"""What is known inside a run: the run itself, a key for receivers; and what a forked child inherits."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from pathlib import Path
from typing import Any

import pytest

from stepfast import AsyncStepfast, InvalidInput, Stepfast, current_run, idempotency_key
from tests.run.kit import Boom, Calls, Spawn, Way, both


@both
async def test_the_open_run_is_the_current_one_until_it_is_left(way: Way, calls: Calls) -> None:
    sf = way.open()
    seen: list[Any] = []
    assert current_run() is None
    async with sf.run("a") as run:
        ours = run.inner if way.blocks else run
        assert current_run() is ours
        await run.step(way.function(lambda: seen.append(current_run())))
        async with sf.run("b") as inner:
            assert current_run() is (inner.inner if way.blocks else inner)
        assert current_run() is ours
    assert current_run() is None
    assert seen == [ours]


@both
async def test_an_exception_leaves_no_current_run(way: Way) -> None:
    sf = way.open()
    with pytest.raises(Boom):
        async with sf.run("a"):
            raise Boom
    assert current_run() is None


async def test_the_current_run_follows_into_tasks(tmp_path: Path) -> None:
    async def look() -> Any:
        return current_run()

    async with AsyncStepfast(tmp_path / "stepfast.db") as sf, sf.run("a") as run:
        assert await asyncio.create_task(look()) is run
        assert list(await asyncio.gather(look(), look())) == [run, run]
        assert await asyncio.to_thread(current_run) is run


def test_the_current_run_goes_into_threads_only_with_their_context(tmp_path: Path) -> None:
    seen: list[Any] = []

    def in_thread(work: Any) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    with Stepfast(tmp_path / "stepfast.db") as sf, sf.run("a") as run:
        in_thread(lambda: seen.append(current_run()))
        context = contextvars.copy_context()
        in_thread(lambda: seen.append(context.run(current_run)))
    assert seen == [None, run]


async def test_runs_in_tasks_beside_each_other_do_not_meet(tmp_path: Path) -> None:
    both_open = asyncio.Barrier(2)

    async def look() -> Any:
        run = current_run()
        return run and run.run_id

    async def work(sf: AsyncStepfast, name: str) -> None:
        async with sf.run(name) as run:
            await both_open.wait()
            assert current_run() is run
            assert await run.step(look) == name

    async with AsyncStepfast(tmp_path / "stepfast.db") as sf:
        await asyncio.gather(work(sf, "a"), work(sf, "b"))


@both
async def test_the_idempotency_key_is_the_same_in_every_attempt(way: Way) -> None:
    sf = way.open()
    seen: list[str] = []

    def pay() -> str:
        seen.append(idempotency_key())
        if len(seen) < 3:
            raise Boom
        return seen[-1]

    for _ in range(2):
        with pytest.raises(Boom):
            async with sf.run("r") as run:
                await run.step(way.function(pay))
    async with sf.run("r") as run:
        key = await run.step(way.function(pay))
        other = await run.step(way.function(idempotency_key))
        nested = await run.scope("s").step(way.function(idempotency_key))
    assert set(seen) == {key}
    assert len({key, other, nested}) == 3
    async with sf.run("another") as run:
        assert await run.step(way.function(idempotency_key)) != other


@both
async def test_outside_of_a_step_there_is_no_idempotency_key(way: Way) -> None:
    sf = way.open()
    with pytest.raises(InvalidInput, match="inside a step"):
        idempotency_key()
    async with sf.run("r"):
        with pytest.raises(InvalidInput, match="inside a step"):
            idempotency_key()


@both
async def test_a_run_knows_its_names_and_attempt(way: Way) -> None:
    sf = way.open()
    async with sf.run("r") as run:
        assert run.run_id == "r"
        assert run.intent_id == run.intent.intent_id == (await sf.get_intent("r"))["intent_id"]
        assert run.attempt == 1
        assert not run.resumed
        assert run.payload is None


# Forks


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_forked_child_uses_the_client_it_inherits(spawn: Spawn, tmp_path: Path, kind: str) -> None:
    child = spawn(f"fork_{kind}", f"sqlite:///{tmp_path}/stepfast.db")
    assert child.hear("child") == ["done in the child", "COMPLETED"]
    assert child.hear("parent") == ["done in the parent", "COMPLETED", "COMPLETED"]
    child.end()


def test_a_forked_child_does_not_keep_its_parent_s_lease_alive(spawn: Spawn, tmp_path: Path) -> None:
    child = spawn("fork_and_outlive", f"sqlite:///{tmp_path}/stepfast.db")
    assert child.hear("renewed") == ["of the child"]
    child.end()


@both
async def test_a_run_may_be_left_in_another_context_than_it_was_entered_in(way: Way) -> None:
    sf = way.open()
    if way.blocks:
        run = contextvars.copy_context().run(sf.run, "r")
    else:

        async def enter() -> Any:
            return await sf.run("r")

        run = await asyncio.create_task(enter())
    assert current_run() is None
    await run.__aexit__(None, None, None)
    assert current_run() is None
    assert (await sf.get_intent("r"))["status"] == "COMPLETED"

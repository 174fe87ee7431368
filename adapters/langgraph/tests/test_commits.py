"""One durable commit per superstep, and no write that was acknowledged without one."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from adapters.langgraph.tests.kit import CountingStore, checkpoint, counting_graph, on, put, until
from holdfast import StoreUnavailable, Unencodable, open_store
from holdfast_langgraph import HoldfastSaver

STEPS = 1000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CountingStore]:
    with CountingStore(open_store(f"sqlite:///{tmp_path}/a.db?durability=process")) as made:
        yield made


@pytest.mark.parametrize("half", ["sync", "async"])
async def test_a_thousand_steps_are_a_thousand_commits(store: CountingStore, half: str) -> None:
    # On a busy machine a checkpoint may be late; the moment is made long, so that only the rule is counted.
    saver = HoldfastSaver(store, gather_seconds=1.0)
    graph = counting_graph(saver, lambda state: {"number": 1, "log": ["x"]}, steps=STEPS)
    config: Any = {**on("t"), "recursion_limit": STEPS + 10}
    if half == "sync":
        await asyncio.to_thread(graph.invoke, {"number": 0, "log": []}, config, durability="sync")
    else:
        await graph.ainvoke({"number": 0, "log": []}, config, durability="sync")
    assert graph.get_state(config).values["number"] == STEPS
    assert store.count("PutThread") == store.commits
    assert STEPS < store.commits <= STEPS + 10
    assert len(store.batches) - store.commits <= 3  # and next to no reads


def test_parallel_tasks_of_a_step_share_one_commit(store: CountingStore) -> None:
    class State(TypedDict):
        log: Annotated[list[str], operator.add]

    graph: Any = StateGraph(State)
    for name in "abcdefgh":
        graph.add_node(name, lambda state, name=name: {"log": [name]})
        graph.add_edge(START, name)
    made = graph.compile(checkpointer=HoldfastSaver(store, gather_seconds=1.0))
    assert made.invoke({"log": []}, on("t"), durability="sync")["log"] == list("abcdefgh")
    assert store.commits <= 4  # the input, the start, the step; and at most one that came late


@pytest.mark.parametrize("half", ["sync", "async"])
async def test_writes_that_no_checkpoint_follows_are_committed_by_themselves(
    any_saver: HoldfastSaver, half: str
) -> None:
    saved = await any_saver.aput(on(), checkpoint(), {}, {})
    if half == "sync":
        any_saver.put_writes(saved, [("c", 1)], "task")
    else:
        await any_saver.aput_writes(saved, [("c", 1)], "task")
    with HoldfastSaver(any_saver._inner.opened.store) as other:  # which knows nothing of what waits elsewhere
        found = other.get_tuple(saved)
    assert found is not None
    assert found.pending_writes == [("task", "c", 1)]


def waiting(saver: HoldfastSaver, thread: str) -> bool:
    return thread in saver._inner.gather._waiting


def test_a_checkpoint_takes_the_writes_of_its_thread_along(store: CountingStore) -> None:
    saver = HoldfastSaver(store, gather_seconds=60.0)
    saved = put(saver, on("t"), x=1)
    before = store.commits
    writers = [threading.Thread(target=saver.put_writes, args=(saved, [("c", n)], f"task {n}")) for n in range(5)]
    for writer in writers:
        writer.start()
    until(lambda: len(saver._inner.gather._waiting.get("t", ())) == 5)
    put(saver, saved, x=2)
    for writer in writers:
        writer.join(30)
        assert not writer.is_alive()
    assert store.commits == before + 1
    found = saver.get_tuple(saved)
    assert found is not None
    assert len(found.pending_writes or ()) == 5


def test_a_read_sees_the_writes_that_wait(store: CountingStore) -> None:
    saver = HoldfastSaver(store, gather_seconds=60.0)
    saved = put(saver, on("t"), x=1)
    writer = threading.Thread(target=saver.put_writes, args=(saved, [("c", 1)], "task"))
    writer.start()
    until(lambda: waiting(saver, "t"))
    found = saver.get_tuple(saved)
    assert found is not None
    assert found.pending_writes == [("task", "c", 1)]
    writer.join(30)
    assert not writer.is_alive()


async def test_writes_of_a_cancelled_call_are_kept(store: CountingStore) -> None:
    saver = HoldfastSaver(store, gather_seconds=60.0)
    saved = put(saver, on("t"), x=1)
    call = asyncio.create_task(saver.aput_writes(saved, [("c", 1)], "task"))
    await asyncio.to_thread(until, lambda: waiting(saver, "t"))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    found = HoldfastSaver(store.below).get_tuple(saved)
    assert found is not None
    assert found.pending_writes == [("task", "c", 1)]


class Failing(CountingStore):
    """Refuses writes while ``away``."""

    away = False

    def execute(self, ops: Any, *, tenant: str = "local") -> list[Any]:
        if self.away and any(not op.reads for op in ops):
            raise StoreUnavailable("away")
        return super().execute(ops, tenant=tenant)


def test_an_error_reaches_both_callers_and_nothing_is_half_there(tmp_path: Path) -> None:
    with Failing(open_store(tmp_path / "a.db")) as store:
        saver = HoldfastSaver(store, gather_seconds=60.0)
        saved = put(saver, on("t"), x=1)
        errors: list[BaseException] = []

        def write() -> None:
            try:
                saver.put_writes(saved, [("c", 1)], "task")
            except StoreUnavailable as error:
                errors.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        until(lambda: waiting(saver, "t"))
        store.away = True
        with pytest.raises(StoreUnavailable):
            put(saver, saved, x=2)
        writer.join(30)
        assert not writer.is_alive()
        assert len(errors) == 1
        store.away = False
        assert not waiting(saver, "t")
        found = saver.get_tuple(on("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": 1}
        assert not found.pending_writes
        saver.put_writes(saved, [("__interrupt__", 1)], "task")
        put(saver, saved, x=2)


def test_a_value_that_cannot_be_stored_names_its_channel_and_writes_nothing(store: CountingStore) -> None:
    saver = HoldfastSaver(store)
    saved = put(saver, on("t"), x=1)
    before = store.commits
    with pytest.raises(Unencodable, match="sock"):
        put(saver, saved, sock=threading.Lock())
    with pytest.raises(Unencodable, match="sock"):
        saver.put_writes(saved, [("sock", threading.Lock())], "task")
    assert store.commits == before


def test_values_are_encoded_before_the_call_returns_its_thread(store: CountingStore) -> None:
    """What a caller changes while the commit is on its way is not what is stored."""
    saver = HoldfastSaver(store, gather_seconds=60.0)
    saved = put(saver, on("t"), x=1)
    value = {"items": [1]}
    writer = threading.Thread(target=saver.put_writes, args=(saved, [("c", value)], "task"))
    writer.start()
    until(lambda: waiting(saver, "t"))
    value["items"].append(2)
    found = saver.get_tuple(saved)
    writer.join(30)
    assert found is not None
    assert found.pending_writes == [("task", "c", {"items": [1]})]

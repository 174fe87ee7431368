"""One durable commit per superstep, and no write that was acknowledged without one."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from adapters.langgraph.tests.kit import CountingStore, checkpoint, counting_graph, on, put, until
from adapters.langgraph.tests.racing import put_and_die
from stepfast import StoreUnavailable, Unencodable, open_store
from stepfast_langgraph import StepfastSaver
from stepfast_langgraph._patience import Caller

STEPS = 1000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CountingStore]:
    with CountingStore(open_store(f"sqlite:///{tmp_path}/a.db?durability=process")) as made:
        yield made


@pytest.mark.parametrize("half", ["sync", "async"])
async def test_a_thousand_steps_are_a_thousand_commits(store: CountingStore, half: str) -> None:
    # On a busy machine a checkpoint may be late; the moment is made long, so that only the rule is counted.
    saver = StepfastSaver(store, gather_seconds=1.0)
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


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


async def test_parallel_tasks_of_a_step_share_one_commit(store: CountingStore) -> None:
    async def work(_state: Log, name: str) -> dict[str, Any]:
        return {"log": [name]}

    graph: Any = StateGraph(Log)
    for name in "abcdefgh":
        graph.add_node(name, partial(work, name=name))
        graph.add_edge(START, name)
    made = graph.compile(checkpointer=StepfastSaver(store, gather_seconds=1.0))
    ended = await made.ainvoke({"log": []}, on("t"), durability="sync")
    assert ended["log"] == list("abcdefgh")
    assert store.commits == 3  # the input, the start, the step


@pytest.mark.parametrize("half", ["sync", "async"])
async def test_writes_that_no_checkpoint_follows_are_committed_by_themselves(
    any_saver: StepfastSaver, half: str
) -> None:
    saved = await any_saver.aput(on(), checkpoint(), {}, {})
    if half == "sync":
        any_saver.put_writes(saved, [("c", 1)], "task")
    else:
        await any_saver.aput_writes(saved, [("c", 1)], "task")
    with StepfastSaver(any_saver._inner.opened.store) as other:  # which knows nothing of what waits elsewhere
        found = other.get_tuple(saved)
    assert found is not None
    assert found.pending_writes == [("task", "c", 1)]


def waiting(saver: StepfastSaver, thread: str) -> bool:
    return thread in saver._inner.gather._waiting


def test_a_checkpoint_takes_the_writes_of_its_thread_along(store: CountingStore) -> None:
    saver = StepfastSaver(store, gather_seconds=60.0)
    saved = put(saver, on("t"), x=1)
    before = store.commits
    writers = [threading.Thread(target=saver.put_writes, args=(saved, [("c", n)], f"task {n}")) for n in range(2)]
    for writer in writers:
        writer.start()
    until(lambda: len(saver._inner.gather._waiting.get("t", ())) == 2)
    put(saver, saved, x=2)
    for writer in writers:
        writer.join(30)
        assert not writer.is_alive()
    assert store.commits == before + 1
    found = saver.get_tuple(saved)
    assert found is not None
    assert len(found.pending_writes or ()) == 2


def waits_of(saver: StepfastSaver, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Each wait for a checkpoint from now on: whether it was in vain."""
    patience, waits = saver._inner.patience, []
    told = patience.waited

    def waited(thread_id: str, in_vain: bool) -> None:
        waits.append(in_vain)
        told(thread_id, in_vain)

    monkeypatch.setattr(patience, "waited", waited)
    return waits


@pytest.mark.parametrize("half", ["sync", "async"])
async def test_whoever_puts_and_writes_in_turn_soon_waits_no_more(
    store: CountingStore, half: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = StepfastSaver(store)
    waits = waits_of(saver, monkeypatch)
    for number in range(20):
        if half == "sync":
            saver.put_writes(put(saver, on("t"), x=number), [("c", number)], "task")
        else:
            saved = await saver.aput(on("t"), checkpoint(x=number), {}, {})
            await saver.aput_writes(saved, [("c", number)], "task")
    assert waits == [True, True]
    # A checkpoint from elsewhere, right after the writes: from now on it is worth waiting again.
    patience, elsewhere = saver._inner.patience, Caller(threading.Thread(), 8)
    patience.moment = 60.0
    assert not patience.writes_came("t", elsewhere, 1)
    put(saver, on("t"), x="last")
    assert patience.writes_came("t", elsewhere, 1)


def test_nobody_waits_where_that_would_hold_up_the_checkpoint(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LangGraph has one worker here: the checkpoint cannot come before the writes have left it."""
    graph: Any = StateGraph(Log)
    for name in "abcdefgh":
        graph.add_node(name, lambda state, name=name: {"log": [name]})
        graph.add_edge(START, name)
    saver = StepfastSaver(store)
    waits = waits_of(saver, monkeypatch)
    made = graph.compile(checkpointer=saver)
    assert made.invoke({"log": []}, {**on("t"), "max_concurrency": 1}, durability="sync")["log"] == list("abcdefgh")
    assert not waits


def test_a_read_sees_the_writes_that_wait(store: CountingStore) -> None:
    saver = StepfastSaver(store, gather_seconds=60.0)
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
    saver = StepfastSaver(store, gather_seconds=60.0)
    saved = put(saver, on("t"), x=1)
    call = asyncio.create_task(saver.aput_writes(saved, [("c", 1)], "task"))
    await asyncio.to_thread(until, lambda: waiting(saver, "t"))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    found = StepfastSaver(store.below).get_tuple(saved)
    assert found is not None
    assert found.pending_writes == [("task", "c", 1)]


def test_what_a_call_returned_for_survives_a_kill(sqlite_url: str) -> None:
    put_and_die(sqlite_url)
    with StepfastSaver(sqlite_url) as saver:
        found = saver.get_tuple(on("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"x": 1}
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
        saver = StepfastSaver(store, gather_seconds=60.0)
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
    saver = StepfastSaver(store)
    saved = put(saver, on("t"), x=1)
    before = store.commits
    with pytest.raises(Unencodable, match="sock"):
        put(saver, saved, sock=threading.Lock())
    with pytest.raises(Unencodable, match="sock"):
        saver.put_writes(saved, [("sock", threading.Lock())], "task")
    assert store.commits == before


def test_values_are_encoded_before_the_call_returns_its_thread(store: CountingStore) -> None:
    """What a caller changes while the commit is on its way is not what is stored."""
    saver = StepfastSaver(store, gather_seconds=60.0)
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

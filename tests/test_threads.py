"""`stepfast.threads.Threads` and its commands: found, counted, measured and expired without a value being decoded."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from stepfast import Clock, InvalidInput, NotFound, Store, open_store
from stepfast.threads import NewCheckpoint, PutThread, ReadThread, Threads, Write, Writes

NOT_A_VALUE = b"\xff\xfe no codec reads this"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/store.db", clock=clock) as opened:
        yield opened


@pytest.fixture
def threads(store: Store) -> Threads:
    return Threads(store)


def new(thread_id: str, ttl: float | None = None, ns: str = "", **meta: Any) -> PutThread:
    made = NewCheckpoint(ns=ns, checkpoint_id=f"c-{thread_id}", meta=json.dumps(meta), head=NOT_A_VALUE)
    return PutThread(thread_id=thread_id, home=uuid4().hex, checkpoint=made, ttl_seconds=ttl)


def put(store: Store, clock: Clock, *ops: PutThread) -> None:
    """One a second."""
    for op in ops:
        clock.advance(1)
        store.one(op, tenant=store.tenant)


def ids(found: Any) -> list[str]:
    return [thread.thread_id for thread in found]


def test_threads_are_listed_by_their_last_activity(store: Store, threads: Threads, clock: Clock) -> None:
    put(store, clock, *(new(name) for name in "abcd"))
    second = NewCheckpoint(ns="", checkpoint_id="later", parent_id="c-b", head=b"x" * 1000)
    view = store.one(ReadThread(thread_id="b"), tenant=store.tenant)
    assert view is not None
    put(store, clock, PutThread(thread_id="b", home=view.home, checkpoint=second))
    found = list(threads.list())
    assert ids(found) == ["b", "d", "c", "a"]
    assert (found[0].checkpoints, found[1].checkpoints) == (2, 1)
    assert found[0].size_bytes >= found[1].size_bytes + 1000
    assert (found[0].created_at, found[0].checkpoint_id) < (found[0].updated_at, "later2")
    assert ids(threads.list(limit=2)) == ["b", "d"]
    assert ids(threads.list(limit=0)) == []


def test_a_long_listing_has_no_gap_and_no_repeat(store: Store, threads: Threads, clock: Clock) -> None:
    names = [f"t{number:03}" for number in range(230)]
    for start in range(0, 230, 23):
        clock.advance(1)
        store.execute([new(name) for name in names[start : start + 23]], tenant=store.tenant)
    assert sorted(ids(threads.list())) == names
    seen, cursor = [], ""
    while True:
        page = threads.page(limit=50, cursor=cursor)
        seen += ids(page.threads)
        cursor = page.cursor
        if not cursor:
            break
    assert seen == ids(threads.list())
    assert len(ids(threads.list(limit=120))) == 120


def test_threads_are_found_by_metadata_name_and_time(store: Store, threads: Threads, clock: Clock) -> None:
    put(
        store,
        clock,
        new("ann-1", user="ann", n=1),
        new("ann-2", user="ann", n=2),
        new("bob-1", user="bob", deep={"x": [1]}),
    )
    [first] = threads.search({"user": "ann", "n": 1})
    assert first.metadata == {"user": "ann", "n": 1}
    assert ids(threads.list({"deep": {"x": [1]}})) == ["bob-1"]
    assert ids(threads.list({"n": None})) == ["bob-1"]
    assert ids(threads.list(prefix="ann")) == ["ann-2", "ann-1"]
    assert ids(threads.list(updated_after=first.updated_at)) == ["bob-1", "ann-2"]
    assert ids(threads.list(updated_before=first.updated_at + timedelta(seconds=1))) == ["ann-1"]
    assert ids(threads.search({"user": "ann"}, limit=1, offset=1)) == ["ann-1"]
    assert (threads.count(), threads.count({"user": "ann"}), threads.count(prefix="bob")) == (3, 2, 1)


ATTACKS = ["' OR '1'='1", "'; DELETE FROM threads; --", "%", "_", '"', "$.user') OR ('1", "user' = 'ann' OR '"]


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_through_filters_find_nothing(store: Store, threads: Threads, clock: Clock, attack: str) -> None:
    put(store, clock, new("victim", user="ann"))
    assert ids(threads.list({attack: "ann"})) == []
    assert ids(threads.list({"user": attack})) == []
    assert ids(threads.list(prefix=attack)) == []
    assert threads.count({attack: attack}) == 0
    assert threads.delete(attack) is False
    put(store, clock, new(attack, None, "", **{attack: attack}))
    assert ids(threads.list({attack: attack})) == ids(threads.list(prefix=attack)) == [attack]
    assert threads.count() == 2


def test_a_thread_that_is_not_there_is_said_to_be_so(threads: Threads) -> None:
    for ask in (lambda: threads.get("none"), lambda: threads.set_ttl("none", 5)):
        with pytest.raises(NotFound, match="none"):
            ask()
    assert threads.delete("none") is False


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), True, "5"])
def test_a_wrong_ttl_is_refused(threads: Threads, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="ttl"):
        threads.set_ttl("any", wrong)


def test_a_wrong_limit_or_status_is_refused(threads: Threads) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        list(threads.list(limit=-1))
    with pytest.raises(InvalidInput, match="status"):
        threads.search(status="busy")  # type: ignore[arg-type]


# --- time to live --------------------------------------------------------------------------------


def test_an_expired_thread_is_absent_at_once_and_deleted_whole(store: Store, threads: Threads, clock: Clock) -> None:
    put(store, clock, new("brief", ttl=100), new("ever"), new("later"))
    threads.set_ttl("later", timedelta(hours=1))
    assert threads.get("ever").expires_at is None
    brief = threads.get("brief")
    assert brief.expires_at == brief.updated_at + timedelta(seconds=100)
    clock.advance(101)
    assert ids(threads.list()) == ["later", "ever"]
    assert threads.count() == 2
    with pytest.raises(NotFound):
        threads.get("brief")
    assert threads.expire() == 1
    assert threads.expire() == 0
    threads.set_ttl("later", None)
    clock.advance(7200)
    assert threads.count() == 2


# --- what real graphs leave ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "status"),
    [
        ({"answered and done": [-3, -4, 0]}, None),
        ({"failed once, then done": [-1, 0]}, None),
        ({"done": [0, 1], "asks": [-3]}, "interrupted"),
        ({"done": [0], "failed": [-1]}, "error"),
        ({"asks": [-3], "failed": [-1]}, "interrupted"),
        ({"answered": [-4]}, None),
    ],
    ids=str,
)
def test_a_task_that_has_a_result_neither_waits_nor_failed(
    store: Store, threads: Threads, clock: Clock, slots: dict[str, list[int]], status: str | None
) -> None:
    op = new("t")
    writes = [
        Writes(ns="", checkpoint_id="c-t", task_id=task, writes=[Write(idx, "any", NOT_A_VALUE) for idx in found])
        for task, found in slots.items()
    ]
    put(store, clock, msgspec.structs.replace(op, writes=writes))
    assert threads.get("t").status == status


def test_each_async_method_is_the_twin_of_a_blocking_one() -> None:
    public = {name: method for name, method in vars(Threads).items() if not name.startswith("_")}
    blocking = {name for name in public if f"a{name}" in public}
    assert public.keys() == blocking | {f"a{name}" for name in blocking}
    for name in blocking:
        one, other = inspect.signature(public[name]), inspect.signature(public[f"a{name}"])
        assert one.parameters == other.parameters, name


# --- the commands --------------------------------------------------------------------------------

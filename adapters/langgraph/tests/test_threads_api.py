"""`saver.threads` and its commands: found, counted, measured and expired without a value being decoded."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from langgraph.types import Command, interrupt
from typer.testing import CliRunner

from adapters.langgraph.tests.kit import counting_graph, on
from stepfast import Clock, InvalidInput, NotFound, Store, open_store
from stepfast.threads import NewCheckpoint, PutThread, ReadThread, Write, Writes
from stepfast_langgraph import StepfastSaver
from stepfast_langgraph._cli_threads import group
from stepfast_langgraph.threads_api import Threads

NOT_A_VALUE = b"\xff\xfe no codec reads this"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(sqlite_url: str, clock: Clock) -> Iterator[Store]:
    with open_store(sqlite_url, clock=clock) as opened:
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


def test_a_savers_policy_gives_every_thread_its_time_and_each_run_renews_it(store: Store, clock: Clock) -> None:
    with StepfastSaver(store, ttl=timedelta(hours=1)) as saver:
        graph = counting_graph(saver)
        graph.invoke({"number": 0, "log": []}, on("t"))
        clock.advance(3000)
        graph.invoke({"number": 0, "log": []}, on("t"))
        clock.advance(3000)
        assert graph.get_state(on("t")).values["number"] == 2
        clock.advance(601)
        assert graph.get_state(on("t")).values == {}
        graph.invoke({"number": 0, "log": []}, on("t"))
        assert graph.get_state(on("t")).values["number"] == 1, "it begins anew, whole"


# --- what real graphs leave ----------------------------------------------------------------------


def test_status_tells_what_waits_and_what_failed(saver: StepfastSaver, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch()

    def step(state: Any) -> dict[str, Any]:
        if broken.exists():
            raise RuntimeError("no")
        return {"number": 1, "log": [interrupt("go on?")]}

    graph = counting_graph(saver, step)
    with pytest.raises(RuntimeError):
        graph.invoke({"number": 0, "log": []}, on("t"))
    assert saver.threads.get("t").status == "error"
    broken.unlink()
    graph.invoke(None, on("t"))
    waiting = saver.threads.get("t")
    assert waiting.status == "interrupted"
    counting_graph(saver).invoke({"number": 0, "log": []}, on("done"))
    assert ids(saver.threads.search(status="interrupted")) == ["t"]
    assert ids(saver.threads.search(status="error")) == []
    graph.invoke(Command(resume="yes"), on("t"))
    ended = saver.threads.get("t")
    assert (ended.status, ended.checkpoints > waiting.checkpoints) == (None, True)


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


def test_a_question_inside_a_subgraph_is_the_threads(saver: StepfastSaver) -> None:
    def ask(state: Any) -> dict[str, Any]:
        return {"number": 1, "log": [interrupt("go on?")]}

    inner = counting_graph(True, ask)
    outer = counting_graph(saver, inner)
    outer.invoke({"number": 0, "log": []}, on("t"))
    assert saver.threads.get("t").status == "interrupted"


def test_metadata_of_a_run_finds_its_thread(saver: StepfastSaver) -> None:
    graph = counting_graph(saver)
    for user in ("ann", "bob"):
        graph.invoke({"number": 0, "log": []}, {**on(f"t-{user}"), "metadata": {"user": user}})
    assert ids(saver.threads.search({"user": "ann"})) == ["t-ann"]
    assert ids(saver.threads.list({"source": "loop"})) == ["t-bob", "t-ann"]


def test_each_async_method_is_the_twin_of_a_blocking_one() -> None:
    public = {name: method for name, method in vars(Threads).items() if not name.startswith("_")}
    blocking = {name for name in public if f"a{name}" in public}
    assert public.keys() == blocking | {f"a{name}" for name in blocking}
    for name in blocking:
        one, other = inspect.signature(public[name]), inspect.signature(public[f"a{name}"])
        assert one.parameters == other.parameters, name


async def test_every_place_gives_the_same_answers(store_url: str) -> None:
    name = uuid4().hex
    with open_store(store_url) as store:
        threads = Threads(store)
        ops = [new(f"{name}-{number}", user=name, n=number) for number in range(3)]
        store.execute(ops[:1], tenant=store.tenant)
        store.execute(ops[1:], tenant=store.tenant)
        found = [thread async for thread in threads.alist(prefix=name)]
        assert sorted(ids(found)) == sorted(ids(threads.list({"user": name}))) == [f"{name}-{n}" for n in range(3)]
        assert ids(await threads.asearch({"user": name, "n": 1})) == [f"{name}-1"]
        assert await threads.acount({"user": name}) == threads.count(prefix=name) == 3
        page = await threads.apage({"user": name}, limit=2)
        rest = threads.page({"user": name}, limit=2, cursor=page.cursor)
        assert sorted(ids([*page.threads, *rest.threads])) == sorted(ids(found))
        one = await threads.aget(f"{name}-0")
        assert (one.checkpoints, one.metadata, one.status) == (1, {"user": name, "n": 0}, None)
        assert one.size_bytes >= len(NOT_A_VALUE)
        assert abs(one.updated_at - datetime.now(UTC)) < timedelta(minutes=5)
        await threads.aset_ttl(f"{name}-0", 0.000_001)
        assert await threads.aexpire() >= 1
        assert await threads.adelete(f"{name}-1") is True
        assert ids(threads.list(prefix=name)) == [f"{name}-2"]


# --- the commands --------------------------------------------------------------------------------


def run(url: str, *arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(group, [*arguments, "--url", url])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout) if "--json" in arguments and code == 0 else done.output


def test_the_commands_list_show_delete_and_expire(saver: StepfastSaver, sqlite_url: str) -> None:
    graph = counting_graph(saver)
    for user in ("ann", "bob", "eve"):
        graph.invoke({"number": 0, "log": []}, {**on(f"t-{user}"), "metadata": {"user": user, "age": 7}})
    told = run(sqlite_url, "list", "--json", "--where", "user=ann", "--where", "age=7")
    assert [each["thread_id"] for each in told["threads"]] == ["t-ann"]
    page = run(sqlite_url, "list", "--json", "--limit", "2")
    rest = run(sqlite_url, "list", "--json", "--limit", "2", "--cursor", page["next_cursor"])
    assert [each["thread_id"] for each in page["threads"] + rest["threads"]] == ["t-eve", "t-bob", "t-ann"]
    assert "t-bob" in run(sqlite_url, "list")
    one = run(sqlite_url, "get", "t-ann", "--json")
    assert (one["checkpoints"], one["metadata"]["user"]) == (saver.threads.get("t-ann").checkpoints, "ann")
    assert "t-ann" in run(sqlite_url, "get", "t-ann")
    run(sqlite_url, "get", "t-zoe", code=3)
    run(sqlite_url, "list", "--where", "user", code=2)
    run(sqlite_url, "delete", "t-ann", "--json", code=2)
    assert run(sqlite_url, "delete", "t-ann", "t-zoe", "--yes", "--json") == {
        "deleted": ["t-ann"],
        "not_found": ["t-zoe"],
    }
    run(sqlite_url, "delete", "t-zoe", "--yes", code=3)
    run(sqlite_url, "expire", "--thread", "t-bob", code=2)
    assert run(sqlite_url, "expire", "--thread", "t-bob", "--ttl", "30d", "--json")["expires_at"] is not None
    assert "never" in run(sqlite_url, "expire", "--thread", "t-bob", "--never")
    assert run(sqlite_url, "expire", "--json") == {"deleted": 0}
    assert ids(saver.threads.list()) == ["t-eve", "t-bob"]


def test_a_store_that_holds_no_threads_lists_none(sqlite_url: str) -> None:
    assert run(sqlite_url, "list", "--json") == {"threads": [], "next_cursor": None}
    assert "no such threads" in run(sqlite_url, "list")
    assert asyncio.run(_count(sqlite_url)) == 0


async def _count(url: str) -> int:
    with open_store(url) as store:
        return await Threads(store).acount()

"""`saver.threads`: what graphs leave in a store is found, measured and expired without a value being decoded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langgraph.types import Command, interrupt
from typer.testing import CliRunner

from adapters.langgraph.tests.kit import counting_graph, on
from stepfast import Clock, Store, open_store
from stepfast.cli.app import app
from stepfast.threads import NewCheckpoint, PutThread, Threads
from stepfast_langgraph import StepfastSaver

NOT_A_VALUE = b"\xff\xfe no codec reads this"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(sqlite_url: str, clock: Clock) -> Iterator[Store]:
    with open_store(sqlite_url, clock=clock) as opened:
        yield opened


def new(thread_id: str, ttl: float | None = None, ns: str = "", **meta: Any) -> PutThread:
    made = NewCheckpoint(ns=ns, checkpoint_id=f"c-{thread_id}", meta=json.dumps(meta), head=NOT_A_VALUE)
    return PutThread(thread_id=thread_id, home=uuid4().hex, checkpoint=made, ttl_seconds=ttl)


def ids(found: Any) -> list[str]:
    return [thread.thread_id for thread in found]


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


def run(url: str, *arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["threads", *arguments, "--url", url])
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

"""The cache: a node's work is done once, in whatever process, and what cannot be trusted is worked out again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.cache.memory import InMemoryCache
from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy

from stepfast import Clock, Codec, InvalidInput, KeyRing, Unencodable, open_store
from stepfast.threads import GetRecord, ListRecords, PutRecord
from stepfast_langgraph import StepfastCache

KIND = "langgraph.cache"


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[StepfastCache[Any]]:
    with StepfastCache[Any](f"sqlite:///{tmp_path}/c.db") as opened:
        yield opened


def rows_of(cache: StepfastCache[Any]) -> list[str]:
    place = cache._place
    return [record.record_id for record in place.store.one(ListRecords(kind=KIND), tenant=place.tenant)]


def test_values_come_back_exactly_and_only_those_that_are_there(cache: StepfastCache[Any]) -> None:
    value = [("channel", (1, {2}, "\ud800", 10**30)), ("other", float("inf"))]
    cache.set({(("a", "b"), "k"): (value, None), ((), ""): (None, None)})
    found = cache.get([(("a", "b"), "k"), (("a",), "k"), ((), ""), (("a", "b"), "K")])
    assert found == {(("a", "b"), "k"): value, ((), ""): None}
    assert cache.get([]) == {}


def test_namespaces_that_look_alike_are_kept_apart(cache: StepfastCache[Any]) -> None:
    names = [
        (("a", "b"), "k"),
        (("a,b",), "k"),
        (("a/b",), "k"),
        (("a",), "b/k"),
        (("a", ""), "b"),
        (("",), "k"),
        ((), "k"),
    ]
    cache.set({name: (number, None) for number, name in enumerate(names)})
    assert cache.get(names) == {name: number for number, name in enumerate(names)}


def test_clearing_takes_the_namespaces_named_or_all(cache: StepfastCache[Any]) -> None:
    names = [(("a",), "1"), (("a",), "2"), (("a", "b"), "1"), (("ab",), "1"), (("c",), "1")]
    cache.set(dict.fromkeys(names, (1, None)))
    cache.clear([("a",), ("c",)])
    assert set(cache.get(names)) == {(("a", "b"), "1"), (("ab",), "1")}
    asyncio.run(cache.aclear())
    assert rows_of(cache) == []


def test_clearing_reaches_beyond_one_page(cache: StepfastCache[Any]) -> None:
    cache.set({(("a",), str(number)): (number, None) for number in range(1201)})
    cache.clear([("a",)])
    assert rows_of(cache) == []


def test_a_value_is_gone_when_its_time_is_over_and_a_sweep_deletes_it(tmp_path: Path) -> None:
    clock = Clock()
    with open_store(f"sqlite:///{tmp_path}/c.db", clock=clock) as raw, StepfastCache[Any](raw) as cache:
        cache.set({((), "short"): (1, 60), ((), "ever"): (2, None), ((), "again"): (3, 60)})
        clock.advance(59)
        assert len(cache.get([((), "short"), ((), "ever")])) == 2
        cache.set({((), "again"): (4, 60)})
        clock.advance(2)
        assert cache.get([((), "short"), ((), "ever"), ((), "again")]) == {((), "ever"): 2, ((), "again"): 4}
        assert cache.sweep() == 1
        assert rows_of(cache) == ["//again", "//ever"]
        assert asyncio.run(cache.asweep()) == 0


def test_what_cannot_be_stored_is_refused_and_writes_nothing(cache: StepfastCache[Any]) -> None:
    with pytest.raises(Unencodable, match="generator"):
        cache.set({((), "good"): (1, None), ((), "bad"): ((number for number in range(3)), None)})
    for wrong in (-1, float("nan")):
        with pytest.raises(InvalidInput, match="ttl"):
            cache.set({((), "good"): (1, wrong)})  # type: ignore[dict-item]
    assert rows_of(cache) == []


def test_a_forged_or_unreadable_value_counts_as_not_there(
    tmp_path: Path, cache: StepfastCache[Any], caplog: pytest.LogCaptureFixture
) -> None:
    cache.set({(("ann",), "k"): ("hers", None), (("bob",), "k"): ("his", None)})
    raw, tenant = cache._place.store, cache._place.tenant
    hers = raw.one(GetRecord(kind=KIND, record_id="/ann//k"), tenant=tenant)
    assert hers is not None
    forged = {"/bob//k": hers.body, "/short//k": b"", "/pickled//k": b"\0" * 8 + b"\x80\x04cos\nsystem\n"}
    for name, body in forged.items():
        raw.one(PutRecord(kind=KIND, record_id=name, body=body, write_id=f"forged {name}"), tenant=tenant)
    names = [((who,), "k") for who in ("ann", "bob", "short", "pickled")]
    assert cache.get(names) == {(("ann",), "k"): "hers"}
    assert "not used" in caplog.text
    with StepfastCache[Any](raw, codec=Codec(keyring=KeyRing({"k1": os.urandom(32)}))) as locked:
        assert locked.get(names) == {}, "a plain row is not trusted once there is a key"
        locked.set({((), "secret"): ("zzyzzx", None)})
    with StepfastCache[Any](raw) as without:
        assert without.get([((), "secret")]) == {}
    assert b"zzyzzx" not in b"".join(each.read_bytes() for each in tmp_path.iterdir())


class State(TypedDict, total=False):
    x: int
    y: int


def build(counter: Path, cache: Any, ttl: int | None = None) -> Any:
    def node(state: State) -> State:
        with counter.open("a") as file:
            file.write("x")
        return {"y": state["x"] * 2}

    builder = StateGraph(State)
    builder.add_node("double", node, cache_policy=CachePolicy(ttl=ttl))
    builder.add_edge(START, "double")
    return builder.compile(cache=cache)


@pytest.mark.parametrize("kind", ["stock", "ours"])
def test_a_node_with_a_cache_policy_runs_once_for_an_input(tmp_path: Path, kind: str) -> None:
    counter = tmp_path / "ran"
    stock: Any = InMemoryCache()
    for _ in range(3):  # ours is closed and opened again each time, as by another process
        cache: Any = stock if kind == "stock" else StepfastCache[Any](tmp_path / "c.db")
        graph = build(counter, cache)
        assert graph.invoke({"x": 2}) == {"x": 2, "y": 4}
        assert asyncio.run(graph.ainvoke({"x": 2})) == {"x": 2, "y": 4}
        assert graph.invoke({"x": 3}) == {"x": 3, "y": 6}
        if kind == "ours":
            cache.close()
    assert counter.read_text() == "xx"


def test_a_cleared_cache_lets_a_node_run_again(tmp_path: Path, cache: StepfastCache[Any]) -> None:
    counter = tmp_path / "ran"
    graph = build(counter, cache)
    graph.invoke({"x": 2})
    graph.clear_cache()
    graph.invoke({"x": 2})
    assert counter.read_text() == "xx"


_SETTER = """
import sys
from stepfast_langgraph import StepfastCache
cache = StepfastCache(sys.argv[1])
for number in range(10_000):
    cache.set({(("n",), str(number)): (number, None)})
    print(number, flush=True)
"""


def test_what_was_set_survives_a_kill(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    process = subprocess.Popen([sys.executable, "-c", _SETTER, url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = 0
    for line in process.stdout:
        last = int(line)
        if last == 20:
            process.send_signal(signal.SIGKILL)
    process.stdout.close()
    process.wait()
    with StepfastCache[Any](url) as cache:
        assert len(cache.get([(("n",), str(number)) for number in range(last + 1)])) == last + 1


async def test_every_place_keeps_what_is_cached(store_url: str) -> None:
    async with StepfastCache[Any](store_url) as cache:
        await cache.aset({(("a",), "k"): ({"v": (1,)}, 3600), (("a", "b"), "k"): (2, None), (("a",), "over"): (3, 0)})
        names = [(("a",), "k"), (("a", "b"), "k"), (("a",), "over")]
        assert cache.get(names) == await cache.aget(names) == {(("a",), "k"): {"v": (1,)}, (("a", "b"), "k"): 2}
        assert await cache.asweep() >= 1
        await cache.aclear([("a",)])
        assert set(await cache.aget(names)) == {(("a", "b"), "k")}
        cache.clear()
        assert cache.get(names) == {}

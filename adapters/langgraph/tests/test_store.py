"""The store: what LangGraph's own in-memory store answers, on a disk, exactly, and for nobody else to bend."""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

from adapters.langgraph.tests.store_kit import INDEX, KINDS, embed, perform, rows_of
from stepfast import Codec, Damaged, InvalidInput, KeyRing, Unencodable
from stepfast.threads import GetRecord, PutRecord
from stepfast_langgraph import StepfastStore
from stepfast_langgraph._names import from_record_id, namespace_id, record_id


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StepfastStore]:
    with StepfastStore(f"sqlite:///{tmp_path}/s.db") as opened:
        yield opened


# --- the same answers as the stock store ---------------------------------------------------------

LABELS = ("a", "b", "a/b", "%", "a%0", "é", "*x", "langgraphs", "'; DROP TABLE records; --")
namespaces = st.lists(st.sampled_from(LABELS), min_size=1, max_size=3).map(tuple)
prefixes = st.lists(st.sampled_from(LABELS), max_size=2).map(tuple)
patterns = st.lists(st.sampled_from((*LABELS[:4], "*")), max_size=2).map(tuple)
keys = st.sampled_from(("", "k", "/", "k/k", "%", "\ud800", "\x00", "ключ", "*"))
leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(("", "x", "$y"))
values = st.fixed_dictionaries(
    {"n": st.integers(-3, 3)},
    optional={"v": leaves, "o": st.dictionaries(st.sampled_from("pq"), leaves), "l": st.lists(leaves, max_size=2)},
)
orders = st.fixed_dictionaries({}, optional={name: st.integers(-2, 2) for name in ("$gt", "$gte", "$lt", "$lte")})
filters = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "n": orders.filter(bool) | st.integers(-3, 3),
        "v": leaves | st.fixed_dictionaries({"$ne": leaves}) | st.fixed_dictionaries({"$eq": leaves}),
        "o": st.dictionaries(st.sampled_from("pq"), leaves),
        "l": st.lists(leaves, max_size=2),
    },
)


def _listing(given: Any) -> ListNamespacesOp:
    return ListNamespacesOp(tuple(MatchCondition(*each) for each in given[0]), *given[1:])


conditions = st.lists(st.tuples(st.sampled_from(("prefix", "suffix")), patterns), max_size=2)
depths = st.none() | st.integers(1, 3)
operations = st.one_of(
    st.tuples(namespaces, keys, values | st.none()).map(lambda given: PutOp(*given)),
    st.tuples(namespaces, keys).map(lambda given: GetOp(*given)),
    st.tuples(prefixes, filters).map(lambda given: SearchOp(*given, limit=1000)),
    st.tuples(conditions, depths, st.integers(0, 5), st.integers(0, 2)).map(_listing),
)


def told(result: Any) -> Any:
    """An answer without its times, and without the order that the stock stores do not agree on."""
    if isinstance(result, list):
        return sorted(map(repr, map(told, result)))
    if hasattr(result, "value"):
        return (result.namespace, result.key, result.value)
    return result


@pytest.fixture(scope="module")
def emptied() -> Iterator[StepfastStore]:
    """One for all examples, each of which empties it first: to open one takes longer than an example."""
    with StepfastStore("sqlite:///:memory:") as store:
        yield store


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches=st.lists(st.lists(operations, min_size=1, max_size=6), min_size=1, max_size=8), on_a_loop=st.booleans())
def test_any_operations_get_the_answers_of_the_stock_store(
    emptied: StepfastStore, batches: list[list[Any]], on_a_loop: bool
) -> None:
    emptied.batch([PutOp(item.namespace, item.key, None) for item in emptied.search((), limit=10_000)])
    stock = InMemoryStore()
    with asyncio.Runner() as runner:
        for batch in batches:
            for empty in [namespace for namespace, items in stock._data.items() if not items]:
                del stock._data[empty]  # there it keeps namespaces that hold nothing
            expected = stock.batch(batch) if not any(isinstance(op, GetOp) for op in batch) else _careful(stock, batch)
            found = runner.run(emptied.abatch(batch)) if on_a_loop else emptied.batch(batch)
            assert [told(each) for each in found] == [told(each) for each in expected]


def _careful(stock: InMemoryStore, batch: list[Any]) -> list[Any]:
    """One by one, since a get there makes a namespace that a listing of the same batch would show."""
    reads = [(n, op) for n, op in enumerate(batch) if not isinstance(op, PutOp)]
    results: list[Any] = [None] * len(batch)
    for n, op in reads:
        [results[n]] = stock.batch([op])
        if isinstance(op, GetOp) and not stock._data[op.namespace]:
            del stock._data[op.namespace]
    stock.batch([op for op in batch if isinstance(op, PutOp)])
    return results


text = st.text(st.characters(exclude_categories=()), max_size=6) | st.sampled_from(("", "/", "//", "%", "%0025", "0"))


@given(one=st.tuples(st.lists(text, max_size=3), text), other=st.tuples(st.lists(text, max_size=3), text))
def test_no_two_names_share_an_id_and_each_is_found_again(one: Any, other: Any) -> None:
    (first, key), (second, other_key) = (tuple(one[0]), one[1]), (tuple(other[0]), other[1])
    assert from_record_id(record_id(first, key)) == (first, key)
    assert (record_id(first, key) == record_id(second, other_key)) == ((first, key) == (second, other_key))
    below = second[: len(first)] == first
    assert record_id(second, other_key).startswith(namespace_id(first)) == below or not first
    record_id(first, key).encode()


def test_search_gives_the_newest_first_and_pages_do_not_overlap(store: StepfastStore) -> None:
    for number in range(7):
        store.put(("n",), f"k{number}", {"even": number % 2 == 0, "number": number})
    store.put(("n",), "k2", {"even": True, "number": 22})
    assert [item.key for item in store.search(("n",))] == ["k2", "k6", "k5", "k4", "k3", "k1", "k0"]
    assert [item.key for item in store.search(("n",), limit=2, offset=1)] == ["k6", "k5"]
    assert [item.key for item in store.search(("n",), filter={"even": True}, limit=2, offset=1)] == ["k6", "k4"]
    assert store.search(("n",), limit=0) == []


def test_searches_and_listings_reach_beyond_any_page(store: StepfastStore) -> None:
    store.batch([PutOp(("many",), f"k{number:04}", {"n": number, "rare": number % 300 == 7}) for number in range(1300)])
    store.batch([PutOp(("own", f"n{number:03}"), "k", {"n": number}) for number in range(600)])
    assert len(store.search((), limit=10_000)) == 1900
    assert {item.key for item in store.search(("many",), filter={"rare": True})} == {
        f"k{number:04}" for number in (7, 307, 607, 907, 1207)
    }
    assert len(store.search(("many",), limit=700, offset=650)) == 650
    assert store.list_namespaces(limit=10_000) == [("many",), *(("own", f"n{number:03}") for number in range(600))]
    assert store.list_namespaces(max_depth=1) == [("many",), ("own",)]


def test_an_item_that_is_put_while_a_search_turns_a_page_is_not_missed(store: StepfastStore) -> None:
    store.batch([PutOp(("n",), f"k{number:03}", {"wanted": number == 99}) for number in range(100)])
    search = store._batch([SearchOp(("n",), filter={"wanted": True}, limit=5)])
    answer = perform(store, next(search))
    assert "n//k099" not in [record.record_id for record in answer[0]], "it must lie on a later page"
    store.put(("n",), "k099", {"wanted": True, "moved": "to the front"})
    found: list[Any] = []
    try:
        while True:
            answer = perform(store, search.send(answer))
    except StopIteration as ended:
        [found] = ended.value
    assert [item.key for item in found] == ["k099"]


def test_what_cannot_be_compared_is_not_found_and_breaks_no_search(store: StepfastStore) -> None:
    for key, n in (("number", 5), ("text", "five"), ("missing", None), ("list", [5])):
        store.put(("n",), key, {"n": n})
    assert [item.key for item in store.search(("n",), filter={"n": {"$gt": 4}})] == ["number"]
    assert [item.key for item in store.search(("n",), filter={"n": {"$gte": "f"}})] == ["text"]


def test_times_are_kept_and_an_overwritten_item_keeps_its_creation(store: StepfastStore) -> None:
    before = datetime.now(UTC)
    store.put(("n",), "k", {"v": 1})
    first = store.get(("n",), "k")
    store.put(("n",), "k", {"v": 2})
    second = store.get(("n",), "k")
    assert first is not None
    assert second is not None
    assert before <= first.created_at == first.updated_at
    assert second.created_at == first.created_at < second.updated_at


# --- exact, all or nothing -----------------------------------------------------------------------


def test_values_come_back_with_their_types(store: StepfastStore) -> None:
    value = {
        "tuple": (1, (2,)),
        "set": {1, 2},
        "bytes": b"\x00\xff",
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        "infinity": math.inf,
        "big": 10**40,
        "half": "\ud800",
        "keys": {1: "one", None: "none"},
    }
    store.put(("n",), "k", value)
    found = store.get(("n",), "k")
    assert found is not None
    assert found.value == value
    assert type(found.value["tuple"]) is tuple
    found.value["tuple"] = None
    again = store.get(("n",), "k")
    assert again is not None
    assert again.value == value, "what a reader does to a value is its own affair"


def test_a_value_that_cannot_be_stored_takes_its_whole_batch_with_it(store: StepfastStore) -> None:
    with pytest.raises(Unencodable, match=r"n//bad.*generator"):
        store.batch([PutOp(("n",), "good", {"v": 1}), PutOp(("n",), "bad", {"v": (number for number in range(3))})])
    assert store.get(("n",), "good") is None


def test_a_batch_of_puts_is_one_transaction(store: StepfastStore, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = store._place.store
    batches: list[int] = []
    execute = raw.execute

    def counting(ops: Any, **more: Any) -> list[Any]:
        batches.append(len(ops))
        return execute(ops, **more)

    monkeypatch.setattr(raw, "execute", counting)
    store.batch([PutOp(("n",), f"k{number}", {"v": number}) for number in range(20)])
    assert batches == [20]


def test_the_last_put_of_a_batch_counts(store: StepfastStore) -> None:
    store.batch([PutOp(("n",), "k", {"v": 1}), PutOp(("n",), "k", None), PutOp(("n",), "k", {"v": 3})])
    found = store.get(("n",), "k")
    assert found is not None
    assert found.value == {"v": 3}


def test_reads_of_a_batch_see_what_was_before_its_puts(store: StepfastStore) -> None:
    store.put(("n",), "k", {"v": 1})
    found: Any = store.batch([PutOp(("n",), "k", {"v": 2}), GetOp(("n",), "k")])[1]
    assert found.value == {"v": 1}


# --- names and filters from outside --------------------------------------------------------------

BAD = [("",), ("a.b",), ("a\0",), (1,), "text", None]


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_namespaces_are_checked_in_batches_too(store: StepfastStore, bad: Any) -> None:
    for op in (
        PutOp(bad, "k", {"v": 1}),
        PutOp(bad, "k", None),
        GetOp(bad, "k"),
        SearchOp(bad),
        ListNamespacesOp(match_conditions=(MatchCondition("prefix", bad),)),
    ):
        with pytest.raises(InvalidNamespaceError):
            store.batch([PutOp(("n",), "other", {"v": 1}), op])
    assert store.get(("n",), "other") is None


@pytest.mark.parametrize(
    ("op", "field"),
    [
        (PutOp(("n",), 5, {"v": 1}), "key"),  # type: ignore[arg-type]
        (PutOp(("n",), "k", [1]), "value"),  # type: ignore[arg-type]
        (PutOp(("n",), "k", {"v": 1}, ttl=-1), "ttl"),
        (PutOp(("n",), "k" * 2001, {"v": 1}), "key"),
        (SearchOp(("n",), limit=-1), "limit"),
        (SearchOp(("n",), offset="1; DROP TABLE records"), "offset"),  # type: ignore[arg-type]
        (SearchOp(("n",), filter={"v": {"$gt; DROP TABLE records": 1}}), "operator"),
        (SearchOp(("n",), filter={"v": {"$regex": "x"}}), "operator"),
        (SearchOp(("n",), filter={"v": {"deep": [{"$where": 1}]}}), "operator"),
        (SearchOp(("n",), filter="1=1"), "filter"),  # type: ignore[arg-type]
        (ListNamespacesOp(match_conditions=(MatchCondition("like", ("n",)),)), "match_type"),  # type: ignore[arg-type]
        (ListNamespacesOp(max_depth=-1), "limit"),
        ("SELECT 1", "operation"),
    ],
)
def test_a_wrong_operation_is_named_and_writes_nothing(store: StepfastStore, op: Any, field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        store.batch([PutOp(("n",), "other", {"v": 1}), op])
    assert rows_of(store, KINDS[0]) == []


ATTACKS = [
    "' OR '1'='1",
    "'; DELETE FROM records; --",
    '"',
    "%",
    "_",
    "a%' --",
    "$.v') = 1 OR ('1",
    "k/../other",
    "*",
    "\\",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_through_names_and_filters_find_nothing_of_others(store: StepfastStore, attack: str) -> None:
    store.put(("victim",), "secret", {"v": 1, "owner": "ann"})
    assert store.get(("victim",), attack) is None
    assert store.search((attack.replace(".", ""),)) == []
    assert store.search(("victim",), filter={attack: 1}) == []
    assert store.search(("victim",), filter={"owner": attack}) == []
    store.delete(("victim",), attack)
    store.put((attack.replace(".", ""),), attack, {"v": attack})
    [own] = store.search((attack.replace(".", ""),), filter={"v": attack})
    assert (own.key, own.value) == (attack, {"v": attack})
    victim = store.get(("victim",), "secret")
    assert victim is not None
    assert victim.value["owner"] == "ann"


def test_a_namespace_does_not_reach_into_one_that_begins_like_it(store: StepfastStore) -> None:
    for namespace in (("foo",), ("foobar",), ("foo", "x"), ("FOO",)):
        store.put(namespace, "k", {"v": 1})
    assert {item.namespace for item in store.search(("foo",))} == {("foo",), ("foo", "x")}
    assert store.list_namespaces(prefix=("foo",)) == [("foo",), ("foo", "x")]


def test_a_value_moved_to_another_name_is_refused(store: StepfastStore) -> None:
    store.put(("ann",), "k", {"balance": 1_000_000})
    store.put(("bob",), "k", {"balance": 1})
    raw, tenant = store._place.store, store._place.tenant
    rich = raw.one(GetRecord(kind=KINDS[0], record_id="ann//k"), tenant=tenant)
    assert rich is not None
    raw.one(PutRecord(kind=KINDS[0], record_id="bob//k", body=rich.body, write_id="forged"), tenant=tenant)
    with pytest.raises(Damaged):
        store.get(("bob",), "k")
    with pytest.raises(Damaged):
        store.search(("bob",))


def test_encryption_covers_values_and_vectors_but_not_names(tmp_path: Path) -> None:
    ring = KeyRing({"k1": os.urandom(32)})
    index: Any = {"embed": embed, "dims": 26, "fields": ["note"]}
    path = tmp_path / "s.db"
    with StepfastStore(path, codec=Codec(keyring=ring), index=index) as store:
        store.put(("people", "ann"), "diary", {"note": "zzyzzx", "n": 1})
        assert store.search(("people",), query="zzyzzx")[0].score == pytest.approx(1.0)
    content = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert b"people/ann//diary" in content
    assert b"zzyzzx" not in content


# --- in the world --------------------------------------------------------------------------------


def test_one_object_serves_threads_and_any_event_loop(store: StepfastStore) -> None:
    async def use(name: str) -> None:
        await store.aput(("n",), name, {"v": name})
        store.put(("n",), f"{name}-blocking", {"v": name})  # the stock async stores refuse this
        assert (await store.aget(("n",), f"{name}-blocking")) is not None

    asyncio.run(use("first"))
    asyncio.run(use("second"))
    assert len(store.search(("n",))) == 4


def test_many_threads_may_share_one_object(store: StepfastStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(("n",), f"k{number}", {"n": number}), range(80)))
        found = list(pool.map(lambda number: store.get(("n",), f"k{number}"), range(80)))
    assert [item.value["n"] for item in found if item is not None] == list(range(80))


def test_a_graph_remembers_across_threads_and_restarts(tmp_path: Path) -> None:
    from langgraph.config import get_store
    from langgraph.graph import START, StateGraph

    def node(state: dict[str, Any]) -> dict[str, Any]:
        memory = get_store()
        known = memory.get(("people",), "ann")
        memory.put(("people",), "ann", {"visits": (known.value["visits"] if known else 0) + 1})
        return {"visits": memory.get(("people",), "ann").value["visits"]}  # type: ignore[union-attr]

    for visit in (1, 2, 3):
        with StepfastStore(tmp_path / "s.db") as store:
            builder: Any = StateGraph(dict)
            builder.add_node("n", node)
            builder.add_edge(START, "n")
            assert builder.compile(store=store).invoke({}) == {"visits": visit}


_WRITER = """
import sys
from stepfast_langgraph import StepfastStore
store = StepfastStore(sys.argv[1])
for number in range(10_000):
    store.put(("n",), f"k{number}", {"v": number})
    print(number, flush=True)
"""


def test_what_was_put_survives_a_kill(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    process = subprocess.Popen([sys.executable, "-c", _WRITER, url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 20:
            break
    process.send_signal(signal.SIGKILL)
    last = int(re.findall(r"\d+", line + process.stdout.read())[-1])
    process.stdout.close()
    process.wait()
    with StepfastStore(url) as store:
        assert [store.get(("n",), f"k{number}").value["v"] for number in range(last + 1)] == list(range(last + 1))  # type: ignore[union-attr]


async def test_every_place_gives_the_same_answers(store_url: str) -> None:
    root = f"place {uuid4().hex}"  # the databases are shared
    home = (root, "x/y")
    async with StepfastStore(store_url, index=INDEX, ttl={"default_ttl": 5}) as store:
        await store.abatch([PutOp(home, key, {"text": key, "n": n}) for n, key in enumerate(("dog", "god", "\ud800"))])
        store.put((f"{root}bo",), "other", {"text": "dog"})
        found = await store.aget(home, "\ud800")
        assert found is not None
        assert (found.namespace, found.key, found.value["n"]) == (home, "\ud800", 2)
        assert {item.key for item in await store.asearch((root,), filter={"n": {"$gte": 1}})} == {"god", "\ud800"}
        near = store.search((root,), query="dog", limit=2)
        assert [round(item.score or 0, 6) for item in near] == [1.0, 1.0]
        assert await store.alist_namespaces(prefix=(root,), suffix=("x/y",)) == [home]
        assert {(root,), (f"{root}bo",)} <= set(store.list_namespaces(max_depth=1, limit=10_000))
        await store.aput(home, "brief", {"text": "cat"}, ttl=0)
        assert store.get(home, "brief") is None
        assert await store.asweep_ttl() >= 1
        assert f"{namespace_id(home)}/brief" not in rows_of(store, KINDS[0])
        await store.adelete(home, "dog")
        assert store.get(home, "dog") is None
        assert len(store.search((root,))) == 2

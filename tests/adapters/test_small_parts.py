"""Keys of calls, calls under way, the context object, and marks of replayed items."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from stepfast import Codec, Stepfast
from stepfast.adapters import Attempt, ContextKeeper, Occurrences, Ordinals, mark_replayed, replayed


def test_ordinals_count_each_kind() -> None:
    ordinals = Ordinals()
    assert [ordinals.key("model"), ordinals.key("tool"), ordinals.key("model")] == ["model:0", "tool:0", "model:1"]
    assert Ordinals(first=1).key("get") == "get:1"


def test_occurrences_are_the_same_in_any_order_of_threads() -> None:
    calls = [("search", "a")] * 20 + [("search", "b")] * 20

    def keys() -> set[str]:
        occurrences = Occurrences()
        with ThreadPoolExecutor(8) as pool:
            return set(pool.map(lambda call: occurrences.key("tool", *call), calls))

    found = keys()
    assert found == keys()
    assert len(found) == 40
    assert {"tool:search.a", "tool:search.a.20", "tool:search.b.2"} <= found
    assert Occurrences().key("tool", "x") == "tool:x"


def test_an_attempt_is_settled_when_no_call_is_under_way() -> None:
    with Stepfast("sqlite:///:memory:") as sf, sf.run("r") as run:
        attempt = Attempt(run)
        assert attempt.settled(timeout=0)
        leave = threading.Event()

        def call() -> None:
            with attempt.flying():
                leave.wait()

        with attempt.flying(), ThreadPoolExecutor(1) as pool:
            assert not attempt.settled(timeout=0)
            other = pool.submit(call)
            leave.set()
            other.result()
            assert not attempt.settled(timeout=0)
        assert attempt.settled()


@dataclass
class Order:
    total: int = 0
    notes: list[str] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)


class Plain:
    def __init__(self) -> None:
        self.total = 0


@pytest.mark.parametrize("make", [Order, Plain, lambda: {"total": 0}])
def test_changes_to_a_context_are_taken_and_applied(make: Any) -> None:
    def total(context: Any) -> Any:
        return context["total"] if isinstance(context, dict) else context.total

    keeper, live, later = ContextKeeper(Codec()), make(), make()
    before = keeper.take(live)
    assert keeper.changes(before, live) is None
    if isinstance(live, dict):
        live["total"] = 5
    else:
        live.total = 5
    kept = keeper.changes(before, live)
    assert kept is not None
    assert kept["set"] == {"total": 5}
    ContextKeeper(Codec()).apply(kept, later)
    assert total(later) == 5


def test_of_two_changes_the_later_one_counts() -> None:
    keeper, context = ContextKeeper(Codec()), {"a": 0, "b": 0}
    keeper.apply({"set": {"a": 2}, "gone": ["b"], "at": 2}, context)
    keeper.apply({"set": {"a": 1, "b": 1}, "gone": [], "at": 1}, context)
    assert context == {"a": 2}
    keeper.apply(None, context)
    keeper.apply({"set": {"a": 3}, "gone": [], "at": 3}, None)


def test_a_context_without_fields_is_left_alone() -> None:
    keeper = ContextKeeper(Codec())
    assert keeper.take(5) is None
    assert keeper.changes(None, 5) is None


def test_items_of_a_stream_carry_a_mark() -> None:
    for item in (Plain(), "chunk", {"delta": 1}):
        assert not replayed(item)
        marked = mark_replayed(item)
        assert replayed(marked)
        assert marked == item
    live = Plain()
    assert mark_replayed(live, old=False) is live
    assert not replayed(live)

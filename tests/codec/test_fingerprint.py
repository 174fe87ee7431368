"""Fingerprints: the same for the same arguments, different for others, never an error."""

from __future__ import annotations

import array
import collections
import functools
import json
import os
import random
import subprocess
import sys
import threading
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.codec import Codec, TypeRegistry
from tests.codec import zoo
from tests.codec.test_exact_values import VALUES

codec = Codec()


def mark(*args: Any, **kwargs: Any) -> bytes:
    return codec.fingerprint(args, kwargs)[0]


def preview(*args: Any, **kwargs: Any) -> str:
    return codec.fingerprint(args, kwargs)[1].decode()


class Zone(tzinfo):
    def utcoffset(self, dt: Any) -> None:
        return None

    dst = tzname = utcoffset


class Text(str):
    __slots__ = ()


class Broken:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise ZeroDivisionError

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError

    def __hash__(self) -> int:
        return 1

    def __repr__(self) -> str:
        raise ZeroDivisionError


class Cyclic:
    pass


def cycle() -> Any:
    value: list[Any] = []
    value += [value, value, {"again": value}]
    return value


DIFFERENT: list[Any] = [
    None, True, False, 0, 1, 1.0, "1", b"1", 2**70, -1, 0.5, "", b"", "a", "\ud800", "\udc00",
    [], [1], [1, 2], [2, 1], [[1], 2], {}, {"a": 1}, {"a": 2}, {"b": 1}, {1: 1}, {1: 2}, {"1": 1}, {(1,): 1},
    {1, 2}, {1, 3}, {"x"}, Decimal("1"), Decimal("1.0"), datetime(2024, 1, 1, tzinfo=UTC),
    datetime(2024, 1, 2, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=Zone()), datetime(2024, 1, 3, tzinfo=Zone()),
    zoo.Point(1, 2), zoo.Point(1, 3), zoo.FrozenPoint(1, 2), zoo.User(id=1), zoo.User(id=2), zoo.Place("a"),
    zoo.Colour.RED, zoo.Colour.GREEN, zoo.Size.SMALL, zoo.Rights.READ, zoo.Rights.ALL, zoo.Item("a"),
    zoo.Opaque(), zoo.Opaque, zoo.difference, len, sys, str.upper, [].append, functools.partial(len, []),
    functools.partial(len, [1]), Text("a"), Text("b"), collections.OrderedDict(a=1), collections.deque([1]),
    range(3), range(4), Path("a"), Path("b"), array.array("i", [1]), array.array("i", [2]), memoryview(b"1"),
    ValueError("a"), ValueError("b"), KeyError("a"), threading.Lock(), lambda: 1, bytearray(b"1"), 1j, cycle(),
]  # fmt: skip


def test_different_arguments_have_different_fingerprints() -> None:
    marks = [mark(value) for value in DIFFERENT]
    assert all(len(one) == 16 for one in marks)
    assert len(set(marks)) == len(marks)
    assert len({mark(), mark(None), mark(None, None), mark(a=None), mark([None]), mark(b=None)}) == 6


def test_what_does_not_matter_does_not_count() -> None:
    assert mark({"a": 1, "b": {"x": 1, "y": 2}}) == mark({"b": {"y": 2, "x": 1}, "a": 1})
    assert mark({1: 1, "b": 2, (3,): 4}) == mark({(3,): 4, "b": 2, 1: 1})
    assert mark(a=1, b=2) == mark(b=2, a=1)
    assert mark({f"{i}" for i in range(50)}) == mark({f"{i}" for i in reversed(range(50))})
    assert mark([1, 2]) == mark((1, 2))
    assert mark([1, {"a": (1,)}, {3}]) == mark((1, {"a": [1]}, frozenset({3})))
    assert mark(zoo.Opaque(1)) == mark(zoo.Opaque(2))
    assert mark(zoo.Derived("a", seen=1)) == mark(zoo.Derived("a", seen=2))
    assert mark({zoo.Opaque(): 1, threading.Lock(): 2}) == mark({threading.Lock(): 2, zoo.Opaque(): 1})


def test_what_a_class_holds_privately_does_not_count() -> None:
    one, two = zoo.Profile(user=zoo.User(id=1)), zoo.Profile(user=zoo.User(id=1))
    two._cache["client"] = threading.Lock()
    assert mark(one) == mark(two)
    assert mark(one) != mark(zoo.Profile(user=zoo.User(id=1), more=1))  # type: ignore[call-arg]


@settings(max_examples=300, deadline=None)
@given(VALUES, VALUES)
def test_a_stored_value_has_the_fingerprint_it_had_before(one: Any, two: Any) -> None:
    stored = codec.decode(codec.encode((one, two)))
    assert codec.fingerprint((one, two), {})[0] == codec.fingerprint(stored, {})[0]
    assert len(codec.fingerprint((one,), {"two": two})[1]) <= 1024


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.integers(), max_size=8), st.randoms())
def test_the_order_of_a_dict_never_counts(value: dict[str, int], rng: random.Random) -> None:
    items = list(value.items())
    rng.shuffle(items)
    assert mark(value) == mark(dict(items))
    assert mark((value, {1})) == mark((dict(items), {1}))


PROGRAM = """
import sys, json
from tests.codec import zoo
from stepfast.codec import Codec
value = ({"b": {"x", "y", "z", 1}, "a": (1, zoo.Point(1, zoo.Mood.GOOD))}, zoo.Opaque(), print, {1: zoo.User(id=1)})
print(Codec().fingerprint(value, {"k": frozenset("abcdef")})[0].hex())
"""


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    marks = set()
    for seed in ("0", "1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(["src", "."])}
        root = Path(__file__).parents[2]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, cwd=root, check=True
        )
        marks.add(done.stdout.strip())
    assert len(marks) == 1
    value = ({"b": {"x", "y", "z", 1}, "a": (1, zoo.Point(1, zoo.Mood.GOOD))}, zoo.Opaque(), print, {1: zoo.User(id=1)})
    assert codec.fingerprint(value, {"k": frozenset("abcdef")})[0].hex() in marks


def test_fingerprints_are_the_ones_that_stores_hold() -> None:
    """If this test fails, every waiting run would seem to have new inputs: the change is wrong, not the test."""
    assert mark(1, "a", {"b": [1.5, None]}, k=True).hex() == "08a74414564f45223ff808dd3f592a16"
    assert (
        mark((1, {2}, {3: 4}), zoo.Point(1, Decimal("2")), zoo.Opaque(), len).hex()
        == "84ab5c21fd854f73a6f8a0cd1529fc24"
    )


def test_nothing_makes_a_fingerprint_raise() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    deeper: Any = 1
    for _ in range(5000):
        deeper = {"k": (deeper, {1})}
    for value in (
        deep,
        deeper,
        Broken(),
        [Broken()],
        {Broken(): 1},
        {Broken()},
        cycle(),
        iter([1]),
        type,
        object(),
    ):
        one, text = codec.fingerprint((value,), {"k": value})
        assert len(one) == 16
        assert len(text) <= 1024


def test_a_registered_function_that_never_ends_leaves_the_types() -> None:
    def forever(value: Any) -> Any:
        return forever(value)

    registry = TypeRegistry()
    registry.register(zoo.Opaque, to=forever, build=zoo.Opaque)
    own = Codec(registry=registry)
    assert own.fingerprint((zoo.Opaque(),), {}) == own.fingerprint((zoo.Opaque(),), {})
    assert own.fingerprint((zoo.Opaque(),), {}) != own.fingerprint((1,), {})


def test_a_fingerprint_can_be_made_at_the_bottom_of_a_deep_stack() -> None:
    value: Any = {"a": (1,)}
    for _ in range(190):
        value = zoo.Box(value)

    def at_the_bottom(frames: int) -> Any:
        return at_the_bottom(frames - 1) if frames else codec.fingerprint((value,), {})

    depth = 0
    frame: Any = sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    assert at_the_bottom(sys.getrecursionlimit() - depth - 60)[0] == mark(value)


def test_a_registered_class_counts_by_its_name_and_what_it_stores() -> None:
    registry = TypeRegistry()
    registry.register(zoo.Opaque, name="o", to=lambda o: o.value, build=zoo.Opaque)
    own = Codec(registry=registry)
    assert own.fingerprint((zoo.Opaque(1),), {}) != own.fingerprint((zoo.Opaque(2),), {})
    assert own.fingerprint((zoo.Opaque(1),), {}) == own.fingerprint((zoo.Opaque(1),), {})


def test_all_of_a_large_argument_counts_and_the_preview_stays_short() -> None:
    rows = [{"id": i, "text": "x" * 50} for i in range(100_000)]
    one = codec.fingerprint((rows,), {})
    rows[-1]["id"] = -1
    two = codec.fingerprint((rows,), {})
    assert one[0] != two[0]
    assert one[1] == two[1]
    assert len(one[1]) <= 1024
    assert len(codec.fingerprint(("é" * 10**6,), {})[1]) <= 1024


PREVIEWS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {}, ""),
    ((1, "a"), {}, "1, 'a'"),
    ((1,), {"k": None}, "1, k=None"),
    ((), {"k": [1, (2,)]}, "k=[1, (2,)]"),
    (({"q": "weather"},), {"limit": 5}, "{'q': 'weather'}, limit=5"),
    ((zoo.Point(1, {2}),), {}, "Point(x=1, y={2})"),
    ((zoo.Derived("n", secret="hush"),), {}, "Derived(name='n', tags=[], total=0, secret=…, seen=0)"),
    ((zoo.Profile.model_construct(user=1, token="hush"),), {}, "Profile(user=1, when=None, token=…)"),
    ((zoo.Opaque("hush"), len, zoo.Colour.RED), {}, "<tests.codec.zoo.Opaque>, <len>, Colour.RED"),
    ((10**4000,), {}, f"<int of {(10**4000).bit_length()} bits>"),
    (("\u202etxt\u200b\x1b[31m\u3164",), {}, r"'\u202etxt\u200b\x1b[31m\u3164'"),
    ((Text("x"),), {}, "<tests.codec.test_fingerprint.Text>"),
    ((collections.OrderedDict(a=1), Decimal("1.5")), {}, "OrderedDict('a': 1), 1.5"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "kwargs", "text"), PREVIEWS, ids=[text[:20] for _, _, text in PREVIEWS])
def test_a_preview_tells_what_the_arguments_were(args: Any, kwargs: Any, text: str) -> None:
    assert preview(*args, **kwargs) == text


def test_a_long_preview_is_cut() -> None:
    assert preview("x" * 5000).startswith("'xxx")
    assert preview(list(range(10_000))).startswith("[0, 1, 2, ")
    assert preview(list(range(10_000))).endswith("…")
    assert json.dumps(preview(["é"] * 1000))

"""What goes in comes out: equal, and of the same types at every depth."""

from __future__ import annotations

import math
import struct
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Context, Decimal, localcontext
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.codec import Codec
from tests.codec import zoo
from tests.codec.zoo import difference

codec = Codec()


def round_trip(value: Any) -> Any:
    return codec.decode(codec.encode(value))


PLAIN: list[Any] = [
    None, True, False, 0, 1, -1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**5000, -(10**30),
    0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324, sys.float_info.max,
    "", "text", "\0", "a\0b", "\ud800", "ok \udfff \U0001f600", "\u202e", "日本語", "x" * 100_000,
    b"", b"\0\xff", bytearray(b"abc"), bytearray(),
    [], {}, (), set(), frozenset(), [[]], [()], ((),), {"a": ()}, [1, [2, [3, (4,)]]],
    {1: "int", "1": "str", 1.5: "float", b"1": "bytes", None: "none"}, {True: "bool"}, {"b": 1, "a": 2},
    {(1, 2): "tuple"}, {frozenset({1}): 1}, {2**100: "large"}, {"\ud800": "odd"}, {-0.0: "zero"},
    {1, "a", 2.5, None, (1, 2), b"x"}, frozenset({frozenset({1}), 2}), {True, 2}, {"\ud800", "b"}, {2**70, 1},
    1 + 2j, complex(math.nan, -0.0),
    [1, 2.0, "3", None, True, b"4"], list(range(100)), [*range(100), (1,)], {str(i): i for i in range(100)},
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=[f"{type(v).__name__}-{n}" for n, v in enumerate(PLAIN)])
def test_a_value_of_built_in_types_comes_back_exactly(value: Any) -> None:
    assert difference(round_trip(value), value) is None


BERLIN = ZoneInfo("Europe/Berlin")
SUMMER = datetime.fromisoformat("2024-10-27T02:30:00.123456")

RICH: list[Any] = [
    date(1, 1, 1), date(9999, 12, 31), SUMMER, SUMMER.replace(tzinfo=UTC), SUMMER.replace(tzinfo=BERLIN),
    SUMMER.replace(tzinfo=BERLIN, fold=1), SUMMER.replace(fold=1),
    SUMMER.replace(tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
    SUMMER.replace(tzinfo=timezone(timedelta(hours=1), "CET")), SUMMER.replace(tzinfo=timezone(timedelta(0), "Z")),
    SUMMER.replace(tzinfo=timezone(timedelta(seconds=1, microseconds=5))),
    time(1, 2, 3, 4), time(23, 59, 59, 999999, tzinfo=UTC, fold=1), time(1, tzinfo=BERLIN),
    timedelta.min, timedelta.max, timedelta(days=-1, microseconds=1), UTC, BERLIN, timezone(timedelta(hours=2)),
    Decimal("1.10"), Decimal("-0"), Decimal("NaN"), Decimal("-sNaN123"), Decimal("Infinity"), Decimal("1E+999999"),
    Decimal("0E-10"), Decimal("9" * 10_000), UUID(int=0), UUID(int=2**128 - 1),
    Path("a/b"), Path("/"), PurePosixPath("x/\udc80"), PureWindowsPath("C:\\x"),
    OrderedDict([("b", 1), ("a", (2,))]), OrderedDict({1: 2}), Counter("hello"), Counter({"a": -1}),
    defaultdict(list, a=[1]), defaultdict(None, a=(1,)), defaultdict(int), deque([1, (2,)], maxlen=3), deque(),
    range(10), range(5, -5, -2), range(2**70),
]  # fmt: skip


@pytest.mark.parametrize("value", RICH, ids=[f"{type(v).__name__}-{n}" for n, v in enumerate(RICH)])
def test_a_value_of_standard_types_comes_back_exactly(value: Any) -> None:
    for wrapped in (value, [value, 1], {"k": value, "n": {"deep": [value]}}, (value,)):
        assert difference(round_trip(wrapped), wrapped) is None


def test_the_same_zone_object_comes_back() -> None:
    assert round_trip(SUMMER.replace(tzinfo=BERLIN)).tzinfo is BERLIN
    assert round_trip(SUMMER.replace(tzinfo=UTC)).tzinfo is UTC


def test_the_bits_of_a_nan_are_kept() -> None:
    odd = struct.unpack(">d", bytes.fromhex("7ff4000000000001"))[0]
    for value in (odd, [odd], (odd,)):
        back = round_trip(value)
        assert struct.pack(">d", back if isinstance(back, float) else back[0]) == struct.pack(">d", odd)


def test_a_decimal_is_exact_whatever_the_context_says() -> None:
    value = Decimal("1." + "3" * 60)
    with localcontext(Context(prec=3, capitals=0)):
        assert round_trip(value).as_tuple() == value.as_tuple()


def test_the_order_of_a_dict_is_kept() -> None:
    value = {name: (i,) for i, name in enumerate("zyxabc")}
    assert list(round_trip(value)) == list("zyxabc")
    assert list(round_trip({"b": 1, "a": 2})) == ["b", "a"]


def test_equal_sets_have_equal_bytes_whatever_their_history() -> None:
    one = {f"item{i}" for i in range(100)}
    other = {f"item{i}" for i in reversed(range(100))}
    assert codec.encode(one) == codec.encode(other)


def test_encoding_changes_nothing_in_the_value() -> None:
    inner = (1, {"a": {1, 2}})
    value: dict[str, Any] = {"list": [inner, [inner]], "dict": {"x": inner}}
    copy = {"list": [inner, [inner]], "dict": {"x": inner}}
    codec.encode(value)
    assert value == copy
    assert value["list"][0] is inner


def hashable(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(children, st.tuples(children), st.frozensets(children, max_size=3))


ZONES = st.one_of(
    st.none(),
    st.just(UTC),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kolkata"]).map(ZoneInfo),
    st.timedeltas(min_value=timedelta(hours=-23), max_value=timedelta(hours=23)).map(timezone),
)
TEXT = st.one_of(st.text(max_size=20), st.text(st.characters(), max_size=5))
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), TEXT, st.binary(max_size=20), st.complex_numbers(),
    st.dates(), st.datetimes(timezones=ZONES), st.times(), st.timedeltas(), st.decimals(), st.uuids(),
    st.binary(max_size=5).map(bytearray), st.sampled_from(list(zoo.Colour)), st.sampled_from(list(zoo.Size)),
    st.sampled_from(list(zoo.Mood)), st.integers(0, 7).map(zoo.Rights), st.integers(0, 100).map(zoo.Bits),
    TEXT.filter(lambda t: "\0" not in t).map(PurePosixPath),
)  # fmt: skip
KEYS = st.one_of(
    TEXT, st.integers(), st.booleans(), st.none(), st.binary(max_size=4), st.tuples(TEXT, st.integers()),
    st.sampled_from(list(zoo.Mood)), st.dates(), st.builds(zoo.FrozenPoint, st.integers(), TEXT),
)  # fmt: skip
NAMES = st.sampled_from(["a", "b", "c_d"])


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(TEXT, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict),
        st.sets(KEYS, max_size=4),
        st.frozensets(KEYS, max_size=4),
        st.lists(inner, max_size=3).map(deque),
        st.builds(zoo.Point, inner, inner),
        st.builds(zoo.SlottedPoint, x=inner),
        st.builds(zoo.Box, inner),
        st.builds(zoo.Extended, inner),
        st.builds(zoo.Place, TEXT, inner),
        st.builds(zoo.FrozenItem, a=inner, b=inner),
        st.builds(zoo.Profile, user=st.builds(zoo.User, id=st.integers()), when=inner),
        st.builds(zoo.Profile.model_construct, user=inner, extra=inner),
    )


VALUES = st.recursive(SCALARS, containers, max_leaves=15)


@settings(max_examples=600, deadline=None)
@given(VALUES)
def test_any_value_comes_back_exactly(value: Any) -> None:
    assert difference(round_trip(value), value) is None


PLAIN_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT, st.binary(max_size=9)),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(TEXT, inner, max_size=5)),
    max_leaves=30,
)


@settings(max_examples=300, deadline=None)
@given(PLAIN_VALUES, st.binary(max_size=20))
def test_any_plain_value_comes_back_exactly_for_its_row(value: Any, bind: bytes) -> None:
    assert difference(codec.decode(codec.encode(value, bind=bind), bind=bind), value) is None


def deep(levels: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


WRAPS: dict[str, Callable[[Any], Any]] = {
    "list": lambda v: [v],
    "dict": lambda v: {"k": v},
    "tuple": lambda v: (v,),
    "keyed": lambda v: {(1,): v},
    "dataclass": lambda v: zoo.Box(v),
    "model": lambda v: zoo.Profile.model_construct(user=v),
    "extra": lambda v: zoo.Profile.model_construct(more=v),
    "ordered": lambda v: OrderedDict(k=v),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS.keys())
def test_two_hundred_levels_are_stored_even_from_the_bottom_of_a_deep_stack(wrap: Callable[[Any], Any]) -> None:
    value = deep(199, wrap)  # a key that is a tuple is one level more

    def at_the_bottom(frames: int) -> Any:
        if frames:
            return at_the_bottom(frames - 1)
        return codec.decode(codec.encode(value))

    free = sys.getrecursionlimit() - len(list(_frames()))
    back = at_the_bottom(free - 60)
    for _ in range(199):
        before, back = back, next(iter(_contents(back)))
        assert type(before) is type(wrap(1))
    assert back == 1


def _frames() -> Any:
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


def _contents(value: Any) -> Any:
    if isinstance(value, zoo.Profile):
        return [value.__dict__["user"]] if "user" in value.__dict__ else (value.__pydantic_extra__ or {}).values()
    if isinstance(value, zoo.Box):
        return [value.content]
    return value.values() if isinstance(value, dict) else value


def test_one_codec_serves_many_threads() -> None:
    big = {"text": "compress me " * 2000, "when": SUMMER, "t": (1, 2)}
    failures: list[Any] = []

    def work() -> None:
        for _ in range(50):
            failures.extend(filter(None, [difference(round_trip(big), big)]))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures

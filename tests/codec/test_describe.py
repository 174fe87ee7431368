"""Stored values as text for people: bounded, harmless, and never an error."""

from __future__ import annotations

import unicodedata
from collections import OrderedDict, deque
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.msgpack import Ext

from stepfast.codec import Codec, KeyRing, _envelope
from stepfast.codec import _marks as m
from tests.codec import zoo
from tests.codec.test_exact_values import VALUES

codec = Codec()

TEXTS: list[tuple[Any, str]] = [
    (None, "None"),
    ({"a": [1, 2.5, True], "b": b"x"}, "{'a': [1, 2.5, True], 'b': b'x'}"),
    ((1, {2}, frozenset()), "(1, {2}, {})"),
    (zoo.Point(1, zoo.Mood.GOOD), "tests.codec.zoo:Point(x=1, y=tests.codec.zoo:Mood.GOOD)"),
    (zoo.User(id=1), "tests.codec.zoo:User(id=1, name='nobody', tags=[])"),
    (zoo.Rights.READ | zoo.Rights.RUN, "tests.codec.zoo:Rights.READ|RUN"),
    (zoo.Bits(64), "tests.codec.zoo:Bits.0x40"),
    (zoo.Bits(0), "tests.codec.zoo:Bits.0x0"),
    (zoo.Profile.model_construct(user=1), "tests.codec.zoo:Profile(user=1, when=None, token='', _cache={})"),
    (Decimal("1.50"), "1.50"),
    (datetime(2024, 5, 6, tzinfo=UTC), "datetime.datetime(2024, 5, 6, 0, 0, tzinfo=datetime.timezone.utc)"),
    (PurePosixPath("a/b"), "PurePosixPath('a/b')"),
    (OrderedDict(a=1), "OrderedDict('a': 1)"),
    (deque([1]), "deque(1)"),
    (10**2000, f"<int of {(10**2000).bit_length()} bits>"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "text"), TEXTS, ids=[text[:30] for _, text in TEXTS])
def test_a_value_is_shown_as_what_it_is(value: Any, text: str) -> None:
    assert codec.describe(codec.encode(value)) == text


def test_a_type_that_is_not_known_here_is_shown_by_name_and_fields() -> None:
    tree = [m.MARK[m.OBJECT], "gone:Invoice", 1, {"no": 7, "lines": [m.MARK[m.TUPLE], 1, 2]}]
    data = _envelope.wrap(msgpack.encode(tree), True, b"", None, 1 << 30, 1 << 30)
    assert codec.describe(data) == "gone:Invoice(no=7, lines=(1, 2))"


def test_a_leaf_that_cannot_be_read_here_hides_nothing_else() -> None:
    tree = {"when": Ext(m.ZONE, b"zMars/Olympus"), "n": 1}
    data = _envelope.wrap(msgpack.encode(tree), True, b"", None, 1 << 30, 1 << 30)
    assert codec.describe(data) == "{'when': unreadable(12, b'zMars/Olympus'), 'n': 1}"


HOSTILE = "\x1b[2J\x07\r\n\u202eevil\u2066\u200b\u200d\ufeff\u00ad\u3164\u115f\u034f\ufe0f\U000e0041\ud800<b>"


@pytest.mark.parametrize(
    "value",
    [HOSTILE, [HOSTILE], {HOSTILE: 1}, (HOSTILE,), zoo.Point(HOSTILE, 1), Decimal("1"), PurePosixPath(HOSTILE)],
    ids=lambda v: type(v).__name__,
)
def test_nothing_that_a_screen_would_obey_comes_through(value: Any) -> None:
    assert_harmless(codec.describe(codec.encode(value)))
    assert_harmless(codec.fingerprint((value,), {})[1].decode())


def test_names_in_the_bytes_are_escaped_too() -> None:
    for tree in (
        [m.MARK[m.OBJECT], "x\u202e\x1b[31m", 1, {"\u200b\n": 1}],
        [m.MARK[m.ENUM], "a:b", "\x1b]0;\u202e"],
        [m.MARK[m.FLAG], "a:b", 0, "\x1b]0;\u202e"],
    ):
        assert_harmless(codec.describe(_envelope.wrap(msgpack.encode(tree), True, b"", None, 1 << 30, 1 << 30)))


def assert_harmless(text: str) -> None:
    assert text.isprintable()
    assert not set(text) & set("\u3164\u115f\u034f\ufe0f")
    assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") for c in text)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_any_value_can_be_shown(value: Any) -> None:
    text = codec.describe(codec.encode(value))
    assert 0 < len(text) <= 2000
    assert_harmless(text)


@pytest.mark.parametrize(
    "value", ["x" * 10**6, list(range(10**5)), {str(i): (i,) for i in range(10**4)}, [[["a" * 99] * 99] * 99]]
)
def test_the_text_of_a_large_value_is_short(value: Any) -> None:
    assert len(codec.describe(codec.encode(value))) <= 2000
    assert len(codec.describe(codec.encode(value), limit=100)) <= 100
    assert codec.describe(codec.encode(value), limit=100).endswith("…")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=100))
def test_damaged_bytes_are_shown_as_such(data: bytes) -> None:
    assert codec.describe(data)[0] == "<"


def test_what_cannot_be_read_is_said_in_words() -> None:
    data = codec.encode({"a": 1})
    assert codec.describe(data[:-1]).startswith("<damaged: Stored bytes are damaged: 3 bytes follow")
    assert codec.describe(data, bind=b"x").startswith("<damaged: ")
    assert codec.describe(b"x" * 50).startswith("<unknown format: ")
    assert codec.describe(b"").startswith("<damaged: ")
    assert codec.describe(None).startswith("<damaged: ")  # type: ignore[arg-type]
    keyed = Codec(keyring=KeyRing({"k1": bytes(32)}))
    assert codec.describe(keyed.encode(1)).startswith("<encrypted: ")
    assert keyed.describe(keyed.encode(1)) == "1"
    assert len(codec.describe(data[:-1], limit=20)) == 20

"""Text that others wrote is harmless on a terminal, and nothing in it is hidden."""

from __future__ import annotations

import json
import unicodedata
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.cli.text import as_text, clean, plain, short, to_json, without_secrets

SEQUENCES = [
    ("a\x1b[31mred\x1b[0mb", "aredb"),
    ("a\x1b[2J\x1b[1;1Hb", "ab"),
    ("a\x1b]0;title\x07b", "ab"),
    ("a\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\b", "alinkb"),
    ("a\x1b]52;c;c3RvbGVu\x07b", "ab"),
    ("a\x1bPq#0;2\x1b\\b", "ab"),
    ("a\x1b_apc\x9cb", "ab"),
    ("a\x9b31mred", "ared"),
    ("a\x9d0;title\x9cb", "ab"),
    ("a\x1bcb", "ab"),
    ("a\x1b(0b", "ab"),
]


@pytest.mark.parametrize(("text", "shown"), SEQUENCES, ids=[repr(text) for text, _ in SEQUENCES])
def test_sequences_that_a_terminal_acts_upon_are_gone(text: str, shown: str) -> None:
    assert clean(text) == shown


UNSEEN = [
    ("a\u202eb", "a<U+202E>b"),
    ("a\u2066b", "a<U+2066>b"),
    ("a\u200bb", "a<U+200B>b"),
    ("a\u200db", "a<U+200D>b"),
    ("a\ufeffb", "a<U+FEFF>b"),
    ("a\u2028b", "a<U+2028>b"),
    ("a\u00adb", "a<U+00AD>b"),
    ("a\U000e0041b", "a<U+E0041>b"),
    ("a\u3164b", "a<U+3164>b"),
    ("a\ufe0ab", "a<U+FE0A>b"),
    ("a\x00b", "a<U+0000>b"),
    ("a\x08b", "a<U+0008>b"),
    ("a\rb", "a<U+000D>b"),
    ("a\x85b", "a<U+0085>b"),
    ("a\ud800b", "a<U+D800>b"),
    ("cut off \x1b", "cut off <U+001B>"),
    ("cut off \x1b]0;never ended", "cut off 0;never ended"),
    ("cut off \x1b[", "cut off "),
]


@pytest.mark.parametrize(("text", "shown"), UNSEEN, ids=[ascii(text) for text, _ in UNSEEN])
def test_what_would_be_invisible_is_shown(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_plain_text_of_any_language_stays() -> None:
    text = "Grüße, 你好, שלום, 🙂 [bold]not markup[/bold] 1½"
    assert clean(text) == text


def test_line_ends_stay_only_where_they_may() -> None:
    assert clean("a\n\tb") == "a  b"
    assert clean("a\n\tb", lines=True) == "a\n\tb"
    assert clean("a\r\nb", lines=True) == "a<U+000D>\nb"


@given(st.text())
def test_nothing_unseen_is_left_and_cleaning_twice_is_cleaning_once(text: str) -> None:
    once = clean(text)
    assert not any(unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} for c in once)
    assert clean(once) == once


@given(st.text(alphabet="\x1b[]0;?m\x07\\\x9b\x9d\x9cab\n"))
def test_no_mix_of_sequences_leaves_one(text: str) -> None:
    assert not set(clean(text, lines=True)) & {"\x1b", "\x07", "\x9b", "\x9d", "\x9c"}


class Odd:
    def __repr__(self) -> str:
        return "<odd \x1b[31m>"


VALUES: dict[str, Any] = {
    "nan": float("nan"),
    "infinity": float("inf"),
    "keys that are no text": {1: 2},
    "set": {"a", "b"},
    "tuple": (1, 2),
    "bytes": b"x",
    "long number": 10**5000,
    "moment": datetime(2026, 1, 1, tzinfo=UTC),
    "object": Odd(),
    "hostile text": "\ud800\x1b\u202e",
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_any_value_is_valid_ascii_json(value: Any) -> None:
    text = to_json({"value": value})
    assert text.isascii()
    assert "\x1b" not in text
    assert json.loads(text)
    assert "\x1b" not in as_text(value)


def test_values_of_json_are_kept_as_they_are() -> None:
    value = {"a": [1, 2.5, None, True, "x"], "b": {}}
    assert plain(value) == value


def test_a_url_is_shown_without_its_password() -> None:
    assert without_secrets("postgresql://me:se:cret@host:5432/db?password=x") == "postgresql://me:***@host:5432/db"
    assert without_secrets("postgresql://me@host/db") == "postgresql://me@host/db"
    assert without_secrets("sqlite:////tmp/a@b:c.db") == "sqlite:////tmp/a@b:c.db"


def test_a_long_text_is_cut() -> None:
    assert short("abcdef", 4) == "abc…"
    assert as_text(None) == "-"

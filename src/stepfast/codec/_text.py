"""Values as text for people: bounded in length and in work, and with nothing in it that a screen would obey.

No code of a user's class runs: not its ``__repr__``, which may be slow, fail or tell secrets. Characters that
do not print (controls, bidi marks, zero-width ones) come out escaped, so that stored text cannot pose as
something else in a terminal or an approval page.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from re import Match
from re import compile as regex
from typing import Any, Final

from . import _leaves, _shapes
from ._marks import SCALARS, UNSET_FIELD
from ._read import Shown

# repr() escapes whatever Unicode calls unprintable. These are "printable" and yet show as nothing.
_INVISIBLE = regex("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_NAME = regex(r"[\w.:<>|\[\], ]{1,200}")
_BRACKETS: Final[dict[type, str]] = {list: "[]", tuple: "()", set: "{}", frozenset: "{}"}
_MAX_DEPTH: Final = 20


def visible(text: str) -> str:
    """Text that went through repr(), with what still would not be seen escaped."""
    return text if text.isascii() else _INVISIBLE.sub(_escaped, text)


def _escaped(match: Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def text_of(value: Any, limit: int) -> str:
    """A value as text of at most ``limit`` characters."""
    writer = _Writer(limit)
    try:
        writer.value(value, _MAX_DEPTH)
    except _Full:
        pass
    return writer.text()


def arguments_text(args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> str:
    """The arguments of a call as text of at most ``limit`` characters."""
    writer = _Writer(limit)
    try:
        writer.items(args, _MAX_DEPTH)
        for number, (name, value) in enumerate(kwargs.items()):
            writer.put(f", {_name(name)}=" if args or number else f"{_name(name)}=")
            writer.value(value, _MAX_DEPTH)
    except _Full:
        pass
    return writer.text()


def _name(name: Any) -> str:
    if type(name) is str and _NAME.fullmatch(name):
        return visible(name)
    return visible(repr(name)[:200]) if type(name) is str else "?"


class _Full(Exception):
    """The text is as long as it may be."""


class _Writer:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[str] = []
        self._left = limit
        self._full = False

    def text(self) -> str:
        text = "".join(self._parts)
        return text[: self._limit - 1] + "…" if self._full else text

    def put(self, text: str) -> None:
        self._parts.append(text)
        self._left -= len(text)
        if self._left < 0:
            self._full = True
            raise _Full

    def value(self, value: Any, room: int) -> None:
        kind = type(value)
        if kind is str or kind is bytes or kind is bytearray:
            self._string(value)
        elif kind is int and value.bit_length() > 1000:  # repr() of a huge int is slow, and refused
            self.put(f"<int of {value.bit_length()} bits>")
        elif kind in SCALARS or kind is complex:
            self.put(repr(value))
        elif room <= 0:
            self.put("…")
        elif kind is dict:
            self.put("{")
            self._pairs(value, room - 1)
            self.put("}")
        elif kind in _BRACKETS:
            self.put(_BRACKETS[kind][0])
            self.items(value, room - 1)
            self.put(_BRACKETS[kind][1])
        elif kind is Shown:
            self._shown(value, room - 1)
        elif kind in _leaves.PACK or _leaves.late_packer(kind):
            self.put(visible(str(value) if kind.__name__ == "Decimal" else repr(value)))
        elif _shapes.is_enum(kind):
            self.put(f"{_name(kind.__qualname__)}.{_name(value._name_)}")
        else:
            self._object(value, kind, room - 1)

    def _string(self, value: Any) -> None:
        if len(value) <= self._left:
            self.put(visible(repr(value)))
        else:
            self.put(visible(repr(value[: self._left])) + f"…({len(value):,})")

    def items(self, items: Iterable[Any], room: int) -> None:
        for number, item in enumerate(items):
            if number:
                self.put(", ")
            self.value(item, room)

    def _pairs(self, pairs: dict[Any, Any], room: int) -> None:
        for number, (key, item) in enumerate(dict.items(pairs)):
            if number:
                self.put(", ")
            self.value(key, room)
            self.put(": ")
            self.value(item, room)

    def _fields(self, fields: dict[str, Any], hidden: frozenset[str], room: int) -> None:
        number = 0
        for name, item in fields.items():
            if item is UNSET_FIELD:
                continue
            self.put(f"{', ' if number else ''}{_name(name)}=")
            number += 1
            if name in hidden:
                self.put("…")
            else:
                self.value(item, room)

    def _shown(self, shown: Shown, room: int) -> None:
        if type(shown.fields) is str:
            self.put(f"{_name(shown.name)}.{_name(shown.fields)}")
            return
        self.put(f"{_name(shown.name)}(")
        if type(shown.fields) is dict:
            self._fields(shown.fields, frozenset(), room)
        elif type(shown.fields) is list:
            self.items(shown.fields, room)
        self.put(")")

    def _object(self, value: Any, kind: type, room: int) -> None:
        try:
            shape = _shapes.shape_of(kind)
            fields, _ = shape.apart(value)
        except Exception:
            self._other(value, kind, room)
            return
        self.put(f"{_name(kind.__qualname__)}(")
        self._fields(fields, shape.hidden(), room)
        self.put(")")

    def _other(self, value: Any, kind: type, room: int) -> None:
        for base in (dict, list, tuple, set, frozenset, deque):
            if base in kind.__mro__:  # its contents are read as the base has them, whatever the class says
                self.put(f"{_name(kind.__qualname__)}(")
                if base is dict:
                    self._pairs(value, room)
                else:
                    self.items(base.__iter__(value), room)
                self.put(")")
                return
        name = getattr(value, "__qualname__", None)  # a function or a class
        self.put(f"<{_name(name if type(name) is str else f'{kind.__module__}.{kind.__qualname__}')}>")

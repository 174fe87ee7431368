"""Whether an object that was stored is still exactly as it was, told without storing it again.

A *part* is what an element is made of: every container inside it, every object with attributes, and every
value that they hold, by identity. Immutable values need no more than that: the same object is the same value.
So an element is unchanged if each container still holds the same objects in the same order. What is equal but
not the same object (True for 1, a copy of a list) counts as changed, and is then packed and compared as
bytes: a wrong "changed" costs time; a wrong "unchanged" would lose data, and cannot happen.

The parts of many elements are merged into one, which asks in a few passes over flat lists that run in C:
about a microsecond for a chat message, where packing it again would be ten.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from itertools import chain
from operator import attrgetter, is_
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from types import MemberDescriptorType
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

LEAVES: Final = frozenset(
    (
        *(type(None), bool, int, float, complex, str, bytes, range),
        *(Decimal, UUID, date, time, datetime, timedelta, timezone, ZoneInfo),
        *(PosixPath, PurePosixPath, PureWindowsPath, WindowsPath),
    )
)
"""Exact types whose objects never change."""

_DICTS: Final = frozenset((dict, OrderedDict, Counter))
_ROWS: Final = frozenset((list, set, deque))
_FIXED: Final = frozenset((tuple, frozenset))
_MODEL_SLOTS: Final = frozenset(("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"))
# An element with more containers than this is compared as bytes; so is one that contains itself.
_MOST: Final = 20_000

_chain = chain.from_iterable
_values = dict.values
_space = attrgetter("__dict__")
_given = attrgetter("__pydantic_fields_set__")
_extra = attrgetter("__pydantic_extra__")
_private = attrgetter("__pydantic_private__")


class Part:
    """What some elements are made of: one, or, after merge(), many."""

    __slots__ = (
        "dicts",
        "empties",
        "extras",
        "givens",
        "items",
        "kinds",
        "models",
        "names",
        "owners",
        "privates",
        "rows",
        "sizes",
        "spaces",
        "stored",
        "values",
        "widths",
    )

    def __init__(self) -> None:
        self.owners: list[Any] = []  # objects with attributes, with their classes and __dict__s
        self.kinds: list[type] = []
        self.spaces: list[dict[str, Any]] = []
        self.widths: list[int] = []  # of the __dict__s the sizes, and all names and values
        self.names: list[str] = []
        self.values: list[Any] = []
        self.models: list[Any] = []  # the pydantic models among the owners, with their three slots
        self.givens: list[Any] = []
        self.extras: list[Any] = []
        self.privates: list[Any] = []
        self.empties: list[Any] = []  # containers that hold nothing
        self.rows: list[Any] = []  # all other containers, with their sizes and what iterating over them gives
        self.sizes: list[int] = []
        self.items: list[Any] = []
        self.dicts: list[dict[Any, Any]] = []  # the dicts among those, with their values
        self.stored: list[Any] = []

    def merge(self, other: Part) -> None:
        for name in Part.__slots__:
            more = getattr(other, name)
            if more:
                getattr(self, name).extend(more)

    @classmethod
    def joined(cls, parts: list[Part]) -> Part:
        whole = cls()
        parts = [part for part in parts if part is not NOTHING]
        for name in Part.__slots__:
            setattr(whole, name, list(_chain(map(attrgetter(name), parts))))
        return whole

    def holds(self) -> bool:
        """Whether nothing has changed since."""
        try:
            return (
                list(map(type, self.owners)) == self.kinds
                and all(map(is_, map(_space, self.owners), self.spaces))
                and not any(self.empties)
                and list(map(len, self.spaces)) == self.widths
                and list(_chain(self.spaces)) == self.names
                and all(map(is_, _chain(map(_values, self.spaces)), self.values))
                and list(map(len, self.rows)) == self.sizes
                and all(map(is_, _chain(self.rows), self.items))
                and all(map(is_, _chain(map(_values, self.dicts)), self.stored))
                and all(map(is_, map(_given, self.models), self.givens))
                and all(map(is_, map(_extra, self.models), self.extras))
                and all(map(is_, map(_private, self.models), self.privates))
            )
        except (AttributeError, RuntimeError):  # a slot that was deleted; a change under our eyes
            return False


def part_of(value: Any) -> Part | None:
    """What an element is made of now; None if that cannot be told, so that only its bytes can be compared."""
    if type(value) in LEAVES:
        return NOTHING
    following = _Following()
    try:
        following.follow(value)
    except (_Unfollowed, AttributeError, RecursionError, RuntimeError):
        return None
    return following.part


NOTHING: Final = Part()
"""The part of an element that never changes."""


class _Unfollowed(Exception):
    """Something inside is of a type whose state is not known from outside."""


class _Following:
    """One element on its way to a part."""

    __slots__ = ("part", "room")

    def __init__(self) -> None:
        self.part = Part()
        self.room = _MOST

    def follow(self, value: Any) -> None:
        kind = type(value)
        if kind in LEAVES:
            return
        self.room -= 1
        if self.room < 0:
            raise _Unfollowed
        if kind in _DICTS:
            if value:
                self._row(value)
                self.part.dicts.append(value)
                self.part.stored += _values(value)
                self._each(_values(value))
            else:
                self.part.empties.append(value)
        elif kind in _ROWS:
            if value:
                self._row(value)
            else:
                self.part.empties.append(value)
        elif kind in _FIXED:
            self._each(value)
        else:
            follow = _FOLLOW.get(kind)
            if follow is None:
                follow = _FOLLOW[kind] = _follower(kind)
            follow(self, value)

    def _row(self, value: Any) -> None:
        part = self.part
        part.rows.append(value)
        part.sizes.append(len(value))
        part.items += value
        self._each(value)

    def _each(self, values: Iterable[Any]) -> None:
        for value in values:
            if type(value) not in LEAVES:
                self.follow(value)

    def object(self, value: Any) -> None:
        part = self.part
        space = _space(value)
        part.owners.append(value)
        part.kinds.append(type(value))
        part.spaces.append(space)
        part.widths.append(len(space))
        part.names += space
        part.values += _values(space)
        self._each(_values(space))

    def model(self, value: Any) -> None:
        self.object(value)
        part = self.part
        part.models.append(value)
        for slot, kept in ((_given, part.givens), (_extra, part.extras), (_private, part.privates)):
            found = slot(value)
            kept.append(found)
            if found is not None:
                self.follow(found)

    def row(self, value: Any) -> None:
        self._each(tuple.__iter__(value))

    def leaf(self, value: Any) -> None:
        pass

    def refuse(self, value: Any) -> None:
        raise _Unfollowed


_FOLLOW: Final[dict[type, Callable[[_Following, Any], None]]] = {}


def _follower(cls: type) -> Callable[[_Following, Any], None]:
    """How to follow the objects of a class."""
    if issubclass(type(cls), enum.EnumMeta):
        return _Following.leaf  # stored by its name alone
    if any("__getattribute__" in vars(base) for base in cls.__mro__ if base not in (object, tuple)):
        return _Following.refuse
    if tuple in cls.__mro__:
        plain = cls.__dictoffset__ == 0 and hasattr(cls, "_fields")
        return _Following.row if plain else _Following.refuse
    if cls.__dictoffset__ == 0:
        return _Following.refuse
    slots = {name for base in cls.__mro__ for name, found in vars(base).items() if type(found) is MemberDescriptorType}
    pydantic: Any = sys.modules.get("pydantic.main")
    if pydantic is not None and pydantic.BaseModel in cls.__mro__:
        return _Following.model if slots <= _MODEL_SLOTS else _Following.refuse
    return _Following.object if dataclasses.is_dataclass(cls) and not slots else _Following.refuse

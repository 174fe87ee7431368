"""Exact copies of a decoded value, many times faster than decoding it again.

A *recipe* is made once of a value that nobody else holds, and then gives any number of fresh copies: all
containers and objects are new in each, and what never changes is shared. Like reading, it runs no code of
the classes.
"""

from __future__ import annotations

import enum
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from types import MemberDescriptorType
from typing import Any, Final

from ._snapshots import LEAVES

Recipe = Callable[[], Any]


class Unclonable(Exception):
    """A value of a type that can only be decoded again."""


def recipe(value: Any) -> Recipe:
    """What makes copies of a value, or Unclonable."""
    made = _recipe(value)
    return (lambda: value) if made is None else made


def _recipe(value: Any) -> Recipe | None:
    """The same, and None for what needs no copy."""
    kind = type(value)
    if kind in LEAVES:
        return None
    make = _MAKERS.get(kind)
    if make is None:
        make = _MAKERS[kind] = _of_class(kind)
    return make(value)


def _of_class(kind: Any) -> Callable[[Any], Recipe | None]:
    """How recipes for the objects of a class are made."""
    if issubclass(type(kind), enum.EnumMeta):
        return lambda value: None
    pydantic: Any = sys.modules.get("pydantic.main")
    if pydantic is not None and pydantic.BaseModel in kind.__mro__ and not kind.__pydantic_root_model__:
        if not _has_slots(kind, pydantic.BaseModel):
            return _models(kind, pydantic.BaseModel)
    elif tuple in kind.__mro__ and kind.__dictoffset__ == 0 and hasattr(kind, "_fields"):
        return _tuple
    elif hasattr(kind, "__dataclass_fields__") and kind.__dictoffset__ != 0 and not _has_slots(kind):
        return _object
    return _refuse


def _refuse(value: Any) -> Recipe | None:
    raise Unclonable(type(value))


def _parts(items: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Recipe]]:
    """The places whose values must be copied."""
    found: list[tuple[Any, Recipe]] = []
    for place, item in items:
        kind = type(item)
        if kind in LEAVES:
            pass
        elif (kind is dict or kind is list) and not item:  # most containers in messages are empty
            found.append((place, kind))
        else:
            made = _recipe(item)
            if made is not None:
                found.append((place, made))
    return found


def _dict(value: dict[Any, Any]) -> Recipe:
    if not value:
        return dict
    _check_keys(value)
    return _copied(value, _parts(value.items()))


def _check_keys(value: Any) -> None:
    if not LEAVES.issuperset(map(type, value)) and _parts((None, key) for key in value):
        raise Unclonable(type(value))  # a key that must be copied would have to be hashed


def _list(value: list[Any]) -> Recipe:
    return _copied(value, _parts(enumerate(value))) if value else list


def _mapping(value: Any) -> Recipe:
    _check_keys(value)
    if getattr(value, "__dict__", None):
        raise Unclonable(type(value))
    return _copied(value, _parts(value.items()))


def _copied(value: Any, parts: list[tuple[Any, Recipe]]) -> Recipe:
    copy: Recipe = value.copy
    if not parts:
        return copy

    def make() -> Any:
        made = copy()
        for place, part in parts:
            made[place] = part()
        return made

    return make


def _set(value: Any) -> Recipe | None:
    if _parts((None, item) for item in value):
        raise Unclonable(type(value))
    return None if type(value) is frozenset else value.copy


def _tuple(value: Any) -> Recipe | None:
    kind = type(value)
    parts = _parts(enumerate(tuple.__iter__(value)))
    if not parts:
        return None
    build = _copied(list(tuple.__iter__(value)), parts)
    return lambda: tuple.__new__(kind, build())


def _deque(value: deque[Any]) -> Recipe:
    return _copied(value, _parts(enumerate(value)))


def _bytearray(value: bytearray) -> Recipe:
    return value.copy


def _object(value: Any) -> Recipe:
    kind = type(value)
    space = _dict(object.__getattribute__(value, "__dict__"))
    blank, put = object.__new__, object.__setattr__

    def make() -> Any:
        made = blank(kind)
        put(made, "__dict__", space())
        return made

    return make


def _models(kind: Any, base: Any) -> Callable[[Any], Recipe]:
    """How recipes for the models of a class are made."""
    slots = [base.__dict__[f"__pydantic_{name}__"] for name in ("fields_set", "extra", "private")]
    get_given, get_extra, get_private = (slot.__get__ for slot in slots)
    put_given, put_extra, put_private = (slot.__set__ for slot in slots)
    blank, put = object.__new__, object.__setattr__

    def model(value: Any) -> Recipe:
        space: dict[str, Any] = object.__getattribute__(value, "__dict__")
        _check_keys(space)
        copy, parts = space.copy, _parts(space.items())
        given = get_given(value).copy
        extra, private = _recipe(get_extra(value)), _recipe(get_private(value))

        def make() -> Any:
            made = blank(kind)
            fields = copy()
            for place, part in parts:
                fields[place] = part()
            put(made, "__dict__", fields)
            put_given(made, given())
            put_extra(made, None if extra is None else extra())
            put_private(made, None if private is None else private())
            return made

        return make

    return model


def _has_slots(kind: type, base: type | None = None) -> bool:
    return any(
        type(found) is MemberDescriptorType for cls in kind.__mro__ if cls is not base for found in vars(cls).values()
    )


_MAKERS: Final[dict[type, Callable[[Any], Recipe | None]]] = {
    dict: _dict,
    list: _list,
    tuple: _tuple,
    set: _set,
    frozenset: _set,
    OrderedDict: _mapping,
    Counter: _mapping,
    defaultdict: _mapping,
    deque: _deque,
    bytearray: _bytearray,
}

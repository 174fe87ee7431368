"""Fingerprints of a call's arguments: the same for the same arguments, in every process, and never an error.

Arguments need not be storable: a step may be given a client or a session. Such an object counts as its type's
name and nothing more, so two sessions are the same argument. Order in dicts and sets does not count, nor does
list against tuple. Fields that a dataclass leaves out of comparison are left out here.

What is hashed is part of the stored format. To change it is to make every journal look as if its inputs had
changed.
"""

from __future__ import annotations

import enum
import functools
import types
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from itertools import repeat
from typing import Any, Final

from msgspec.msgpack import Encoder, Ext

from stepfast.stored_names import ARGUMENTS_PERSON, stored_module

from . import _leaves, _shapes
from . import _marks as m
from ._marks import MARK, MAX_DEPTH, SCALARS, UNSET_FIELD, Refusal, type_name
from ._registry import TypeRegistry
from ._text import arguments_text, visible
from ._write import enum_node, sound

_encode = Encoder(order="deterministic").encode
_all_scalars = SCALARS.issuperset

PREVIEW_SIZE: Final = 1024
# Encoded arguments of this size have a repr() that is short and quick to make.
_SMALL: Final = 1000


def fingerprint(args: tuple[Any, ...], kwargs: dict[str, Any], registry: TypeRegistry) -> tuple[bytes, bytes]:
    """A 16-byte hash of a call's arguments, and a text of at most 1 KiB that says what they were."""
    try:
        if _is_plain(args, MAX_DEPTH) and (not kwargs or _is_plain(kwargs, MAX_DEPTH)):
            canonical = _encode((args, kwargs))
            if len(canonical) <= _SMALL:
                return _digest(canonical), _short_preview(args, kwargs)
            return _digest(canonical), _preview(args, kwargs)
    except RecursionError:
        raise
    except Exception:  # noqa: S110  # an int too large, a str not Unicode, a dict that changes meanwhile
        pass
    canonical = _encode(_Canon(registry).lower([args, kwargs], MAX_DEPTH + 1))
    return _digest(canonical), _preview(args, kwargs)


def of_types(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, bytes]:
    """The fingerprint of arguments that nothing else can be made of: the names of their types."""
    names = [_safe_name(type(value)) for value in (*args, *kwargs.values())]
    return _digest(repr(names).encode()), _preview(args, kwargs)


def _digest(canonical: bytes) -> bytes:
    return blake2b(canonical, digest_size=16, person=ARGUMENTS_PERSON).digest()


def _short_preview(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    text = repr(args)[1 : -2 if len(args) == 1 else -1]
    if kwargs:
        named = ", ".join([f"{name}={value!r}" for name, value in kwargs.items()])
        text = f"{text}, {named}" if text else named
        if not text.isprintable():  # a name with odd characters; repr() has seen to the rest
            return _preview(args, kwargs)
    if text.isascii() and len(text) <= PREVIEW_SIZE:
        return text.encode()
    return _bounded(visible(text))


def _preview(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    try:
        text = arguments_text(args, kwargs, PREVIEW_SIZE)
    except Exception:  # a container that changes meanwhile, or an object that lies about itself
        return b"?"
    return _bounded(text)


def _bounded(text: str) -> bytes:
    data = text.encode()
    if len(data) <= PREVIEW_SIZE:
        return data
    end = "…".encode()
    return data[: PREVIEW_SIZE - len(end)].decode("utf-8", "ignore").encode() + end


def _is_plain(value: Any, room: int) -> bool:
    """Whether arguments are exact plain types whose encoding is canonical as it is."""
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                return False
        value = value.values()
    elif len(value) > 16 and _all_scalars(map(type, value)):
        return True
    for item in value:
        kind = type(item)
        if kind is str or kind is int or kind in SCALARS:
            continue
        if kind is not dict and kind is not list and kind is not tuple:
            return False
        if room <= 1 or not _is_plain(item, room - 1):
            return False
    return True


class _Canon:
    """One call's arguments on their way to a tree whose encoding is the same for the same arguments."""

    def __init__(self, registry: TypeRegistry) -> None:
        self._registry = registry
        self._open: set[int] = set()  # containers around the present value, to end a cycle

    def lower(self, value: Any, room: int) -> Any:
        kind = type(value)
        if kind is int or kind is str:
            return sound(value)
        if kind in SCALARS:
            return value
        if room <= 0 or id(value) in self._open:
            return _named("…")
        self._open.add(id(value))
        try:
            if kind is list or kind is tuple:
                # map() and not a comprehension, which would be one more frame for each level.
                return list(map(self.lower, value, repeat(room - 1)))
            if kind is dict:
                return self._dict(value, room - 1)
            if kind is set or kind is frozenset:
                return self._set(value, room - 1)
            return self._object(value, kind, room - 1)
        except RecursionError:
            raise
        except Exception:
            return _named(_safe_name(kind))
        finally:
            self._open.discard(id(value))

    def _dict(self, value: dict[Any, Any], room: int) -> Any:
        pairs = []
        plain = True
        for key, item in value.items():
            lowered = self.lower(key, room)
            plain = plain and type(lowered) is str
            pairs.append((lowered, self.lower(item, room)))
        if plain:
            return dict(pairs)
        pairs.sort(key=_encode)
        return [MARK[m.DICT], *(part for pair in pairs for part in pair)]

    def _set(self, value: Any, room: int) -> list[Any]:
        return [MARK[m.SET], *sorted(map(self.lower, value, repeat(room)), key=_encode)]

    def _object(self, value: Any, kind: type, room: int) -> Any:
        pack = _leaves.PACK.get(kind) or _leaves.late_packer(kind)
        if pack is not None:
            return _packed(value, pack)
        entry = self._registry.registered(kind)
        name = type_name(kind) if entry is None else entry.name
        if entry is not None and entry.to is not None:
            return [MARK[m.CUSTOM], name, self.lower(entry.to(value), room)]
        if isinstance(value, enum.Enum):
            return enum_node(value, name)
        if kind is range:
            return _named(name, [sound(value.start), sound(value.stop), sound(value.step)])
        if kind is functools.partial:
            return _named(name, self.lower([value.func, value.args, value.keywords], room))
        try:
            shape = entry.shape if entry is not None and entry.shape else _shapes.shape_of(kind)
        except _shapes.NotStructural:
            return self._other(value, kind, name, room)
        fields, state = shape.apart(value)
        fields = {**shape.compared(fields), **((state or {}).get("extra") or {})}
        present = {field: item for field, item in fields.items() if item is not UNSET_FIELD}
        return [MARK[m.OBJECT], name, self._dict(present, room)]

    def _other(self, value: Any, kind: type, name: str, room: int) -> Any:
        if kind is types.ModuleType:
            return _named(value.__name__)
        own_name = getattr(value, "__qualname__", None)
        if type(own_name) is str:  # a function, a method, a class, or what a decorator made of one
            return _named(f"{stored_module(value.__module__)}:{own_name}", "definition")
        if isinstance(value, BaseException):
            return _named(name, self.lower(list(value.args), room))
        # A subclass of a built-in type counts with what it holds.
        for base in kind.__mro__:
            if base in _CONTENT:
                return _named(name, self.lower(_CONTENT[base](value), room))
            if base in _leaves.PACK:
                return _named(name, _packed(value, _leaves.PACK[base]))
        try:
            view = memoryview(value)
        except TypeError:
            return _named(name)
        if "O" in view.format:  # pointers, which differ in each process
            return _named(name, self.lower(value.tolist(), room))
        return _named(name, [view.format, list(view.shape or ()), Ext(m.BUFFER, view.tobytes())])


def _packed(value: Any, pack: Callable[[Any], Ext]) -> Any:
    try:
        return pack(value)
    except Refusal:  # a datetime with a time zone of another library
        return _named(type_name(type(value)), value.isoformat())


def _named(name: str, *content: Any) -> list[Any]:
    return [MARK[m.NAMED], sound(name), *content]


def _safe_name(kind: type) -> str:
    try:
        return type_name(kind)
    except Exception:
        return "?"


_CONTENT: Final[dict[type, Callable[[Any], Any]]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: bytes.__bytes__,
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: list(tuple.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: set(frozenset.__iter__(value)),
    deque: lambda value: list(deque.__iter__(value)),
}

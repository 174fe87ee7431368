"""Values to MessagePack, exactly.

MessagePack would take a tuple for a list, an IntEnum for an int and an OrderedDict for a dict. So a value is
first checked to be made of exact plain types alone, which most are: those go to the encoder as they stand.
Any other is lowered to a tree of plain data, leaves and nodes (see _marks), or refused with the place where
the trouble sits.
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec.msgpack import Encoder

from stepfast.errors import Unencodable

from . import _leaves, _shapes
from . import _marks as m
from ._marks import MARK, MAX_DEPTH, SCALARS, Refusal
from ._registry import TypeRegistry

_encode = Encoder().encode
_all_scalars = SCALARS.issuperset

# In a first pass ints and strs are taken as they are: hardly ever is one too large or not valid Unicode.
# The encoder says so if it meets one, and then a second pass looks at each.
_SAFE: Final = frozenset((type(None), bool, float, bytes))

FACTORIES: Final[dict[str, type]] = {
    cls.__name__: cls for cls in (bool, bytes, dict, float, frozenset, int, list, set, str, tuple)
}


def is_plain(value: Any, room: int = MAX_DEPTH) -> bool:
    """Whether a list or dict holds nothing but exact plain types, not too deep."""
    if type(value) is dict:
        for key, item in value.items():
            if type(key) is not str and type(key) not in SCALARS:
                return False
            kind = type(item)
            if kind is str or kind is int or kind in SCALARS:
                continue
            if (kind is not list and kind is not dict) or room <= 1 or not is_plain(item, room - 1):
                return False
        return True
    if len(value) > 16 and _all_scalars(map(type, value)):
        return True
    for item in value:
        kind = type(item)
        if kind is str or kind is int or kind in SCALARS:
            continue
        if (kind is not list and kind is not dict) or room <= 1 or not is_plain(item, room - 1):
            return False
    return True


def to_msgpack(value: Any, registry: TypeRegistry, strict: bool, label: str) -> tuple[bytes, bool]:
    """The MessagePack of a value, and whether it is typed; Unencodable if it cannot be read again exactly."""
    return _to_msgpack(value, _Lowering(registry, strict, careful=False), label)


def writer(registry: TypeRegistry, strict: bool, label: str) -> Callable[[Any], tuple[bytes, bool]]:
    """to_msgpack() for many values, which looks up each class once."""
    lowering = _Lowering(registry, strict, careful=False)
    return lambda value: _to_msgpack(value, lowering, label)


def _to_msgpack(value: Any, lowering: _Lowering, label: str) -> tuple[bytes, bool]:
    kind = type(value)
    try:
        if kind in SCALARS or ((kind is dict or kind is list) and is_plain(value)):
            return _encode(value), False
    except (OverflowError, UnicodeEncodeError):
        pass
    except RecursionError:
        raise
    except RuntimeError as error:
        raise _changed(error, label) from error
    try:
        try:
            return _encode(lowering.lower(value, MAX_DEPTH)), True
        except (OverflowError, UnicodeEncodeError):
            return _encode(lowering.with_care().lower(value, MAX_DEPTH)), True
    except Refusal as refusal:
        raise _unencodable(refusal, label) from refusal.__cause__
    except RecursionError:
        raise
    except RuntimeError as error:
        raise _changed(error, label) from error
    except ValueError as error:  # longer than MessagePack can say, or an attribute whose name is not Unicode
        raise Unencodable(f"{label} cannot be stored: {error}.") from error


def _changed(error: RuntimeError, label: str) -> Unencodable:
    return Unencodable(f"{label} changed while it was being stored ({error}). Store a copy of it.")


def _unencodable(refusal: Refusal, label: str) -> Unencodable:
    if refusal.deep:
        if len(set(refusal.holders)) < len(refusal.holders):
            why = "contains itself, and a cycle cannot be stored. Store ids instead of references"
        else:
            why = f"is nested more than {MAX_DEPTH} levels deep. Flatten it"
        where = label + _path(refusal.path[-6:], cut=len(refusal.path) > 6)
        return Unencodable(f"{where} {why}.", path=where, type=None)
    where = label + _path(refusal.path, cut=False)
    cls = refusal.kind or object
    name = m.type_name(cls)
    return Unencodable(
        f"{where} is of type {name}, which cannot be stored exactly: {refusal.why}. {_remedy(cls)}.",
        path=where,
        type=name,
    )


def _remedy(cls: type) -> str:
    registered = f"stepfast.register({cls.__name__}, to=..., build=...)"
    if cls.__module__.partition(".")[0] == "numpy":
        return f"Convert it with .item() or .tolist(), or {registered}"
    for base in _CONVERTIBLE:
        if base in cls.__mro__ and not _shapes.is_enum(cls):
            return f"Convert it with {base.__name__}(...), or {registered}"
    if "<locals>" in cls.__qualname__:
        return f'Define the class at module level, or stepfast.register({cls.__name__}, name="...")'
    return f"Use plain data, a dataclass or a pydantic model instead, or {registered}"


_CONVERTIBLE = (int, float, str, bytes, list, dict, tuple, set, frozenset)


def _path(steps: list[str], *, cut: bool) -> str:
    return "".join(reversed(steps)) + ("…" if cut else "")


def _key_step(key: Any) -> str:
    if type(key) in SCALARS and type(key) is not int:
        text = repr(key[:60] if type(key) in (str, bytes) else key)
        return '["' + text[1:-1] + '"]' if type(key) is str and '"' not in text else f"[{text}]"
    if type(key) is int and key.bit_length() < 100:
        return f"[{key}]"
    return f"[<{type(key).__name__}>]"


class _Lowering:
    """One value on its way to a tree."""

    __slots__ = ("_careful", "_entries", "_registry", "_scalars", "_strict")

    def __init__(self, registry: TypeRegistry, strict: bool, careful: bool) -> None:
        self._registry = registry
        self._strict = strict
        self._careful = careful
        self._scalars = _SAFE if careful else SCALARS
        self._entries: dict[type, Any] = {}

    def with_care(self) -> _Lowering:
        return _Lowering(self._registry, self._strict, careful=True)

    def lower(self, value: Any, room: int) -> Any:
        kind = type(value)
        if kind in self._scalars:
            return value
        if kind in SCALARS:
            return sound(value)
        container = _CONTAINERS.get(kind)
        if container is not None:
            if room <= 0:
                raise Refusal("", deep=True)
            return container(self, value, room - 1)
        if kind not in self._entries:
            pack = _leaves.PACK.get(kind) or _leaves.late_packer(kind)
            if pack is not None:
                return pack(value)
        return self._object(value, kind, room)

    def _items(self, head: list[Any], items: Iterable[Any], room: int) -> list[Any]:
        start = len(head)
        lower = self.lower
        scalars = self._scalars
        add = head.append
        try:
            for item in items:
                add(item if type(item) in scalars else lower(item, room))
        except Refusal as refusal:
            refusal.inside(items, f"[{len(head) - start}]")
            raise
        return head

    def _list(self, value: list[Any], room: int) -> Any:
        if self._scalars.issuperset(map(type, value)):
            return value
        return self._items([], value, room)

    def _tuple(self, value: tuple[Any, ...], room: int) -> Any:
        return self._items([MARK[m.TUPLE]], value, room)

    def _set(self, value: set[Any] | frozenset[Any], room: int) -> Any:
        mark = MARK[m.SET if type(value) is set else m.FROZENSET]
        try:
            return [mark, *sorted((self.lower(item, room) for item in value), key=_encode)]
        except Refusal as refusal:
            refusal.inside(value, "{…}")
            raise

    def _dict(self, value: dict[Any, Any], room: int) -> Any:
        key: Any = None
        tree = {}
        lower = self.lower
        scalars = self._scalars
        try:
            for key, item in value.items():
                if type(key) not in scalars and (self._careful is False or lower(key, room) is not key):
                    break
                tree[key] = item if type(item) in scalars else lower(item, room)
            else:
                return tree
        except Refusal as refusal:
            refusal.inside(value, _key_step(key))
            raise
        return self._pairs([MARK[m.DICT]], value, room)

    def _pairs(self, head: list[Any], value: dict[Any, Any], room: int) -> list[Any]:
        key: Any = None
        for key, item in value.items():
            try:
                head.append(self.lower(key, room))
            except Refusal as refusal:
                refusal.inside(value, ".keys()")
                raise
            try:
                head.append(self.lower(item, room))
            except Refusal as refusal:
                refusal.inside(value, _key_step(key))
                raise
        return head

    def _named_pairs(self, value: dict[Any, Any], room: int) -> list[Any]:
        return self._pairs([MARK[m.STD], type(value).__name__, None], value, room)

    def _defaultdict(self, value: defaultdict[Any, Any], room: int) -> list[Any]:
        factory = value.default_factory
        name = None if factory is None else getattr(factory, "__name__", None)
        if factory is not None and FACTORIES.get(name or "") is not factory:
            raise Refusal("its default_factory is not a built-in type; store dict(it)", defaultdict)
        return self._pairs([MARK[m.STD], "defaultdict", name], value, room)

    def _deque(self, value: deque[Any], room: int) -> list[Any]:
        return self._items([MARK[m.STD], "deque", value.maxlen], value, room)

    def _range(self, value: range, room: int) -> list[Any]:
        return self._items([MARK[m.STD], "range", None], (value.start, value.stop, value.step), room)

    def _object(self, value: Any, kind: type, room: int) -> Any:
        entry = self._entries.get(kind)
        if entry is None:
            entry = self._entries[kind] = self._registry.for_class(kind, self._strict)
        if entry.to is not None:
            return self._custom(value, entry, room)
        if entry.shape is None:
            return enum_node(value, entry.name)
        if room <= 0:
            raise Refusal("", deep=True)
        try:
            fields, state = entry.shape.apart(value)
        except RecursionError:
            raise
        except Exception as error:
            raise Refusal(f"its fields cannot be read ({type(error).__name__}: {error})", kind) from error
        tree = self._fields(value, fields, room - 1)
        if state is None:
            return [MARK[m.OBJECT], entry.name, entry.version, tree]
        rest = {part: given if part == "set" else self._fields(value, given, room - 1) for part, given in state.items()}
        return [MARK[m.OBJECT], entry.name, entry.version, tree, rest]

    def _fields(self, holder: Any, fields: dict[str, Any], room: int) -> Any:
        name = ""
        tree = {}
        scalars = self._scalars
        try:
            for name, item in fields.items():
                kind = type(item)
                if type(name) is not str:
                    raise Refusal("an attribute name is not a str", type(name))
                # An empty list or dict is itself, and most of the containers in messages are empty.
                plain = kind in scalars or ((kind is list or kind is dict) and not item)
                tree[name] = item if plain else self.lower(item, room)
        except Refusal as refusal:
            refusal.inside(holder, f".{name}")
            raise
        return tree

    def _custom(self, value: Any, entry: Any, room: int) -> Any:
        if room <= 0:
            raise Refusal("", deep=True)
        try:
            given = entry.to(value)
        except RecursionError:
            raise
        except Exception as error:
            raise Refusal(f"its to function failed ({type(error).__name__}: {error})", entry.cls) from error
        if type(given) is entry.cls:
            raise Refusal("its to function returned the same type again", entry.cls)
        try:
            return [MARK[m.CUSTOM], entry.name, entry.version, self.lower(given, room - 1)]
        except Refusal as refusal:
            refusal.inside(value, "→to()")
            raise


def sound(value: Any) -> Any:
    """An int or str as it is if MessagePack can hold it, or its leaf."""
    if type(value) is int:
        return value if -(1 << 63) <= value < 1 << 64 else _leaves.pack_int(value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return _leaves.pack_str(value)
    return value


def enum_node(value: Any, name: str) -> list[Any]:
    if isinstance(value, enum.Flag):
        bits, names = _shapes.flag_parts(value)
        return [MARK[m.FLAG], name, sound(bits), *names]
    if type(value)._member_map_.get(value._name_) is not value:
        raise Refusal("it is not one of the members that its enum declares", type(value))
    return [MARK[m.ENUM], name, value._name_]


_CONTAINERS: Final[dict[type, Callable[[_Lowering, Any, int], Any]]] = {
    list: _Lowering._list,
    dict: _Lowering._dict,
    tuple: _Lowering._tuple,
    set: _Lowering._set,
    frozenset: _Lowering._set,
    OrderedDict: _Lowering._named_pairs,
    Counter: _Lowering._named_pairs,
    defaultdict: _Lowering._defaultdict,
    deque: _Lowering._deque,
    range: _Lowering._range,
}

"""MessagePack to values, with nothing executed that the bytes could choose.

Plain bytes are what the decoder makes of them. Typed bytes are walked once, and each leaf and node (see
_marks) becomes its value: classes come from the registry, and objects are put together without their code.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, Final

from msgspec.msgpack import Decoder, Ext

from stepfast.errors import CodecError, Damaged, UnknownFormat, UnknownType

from . import _leaves, _shapes
from . import _marks as m
from ._marks import MAX_DEPTH, UNSET_FIELD
from ._registry import Entry, TypeRegistry
from ._write import FACTORIES


def _no_ext(code: int, data: memoryview) -> Any:
    raise ValueError("a typed part in plain data")


_decode_plain = Decoder(ext_hook=_no_ext).decode
_decode_tree = Decoder().decode
_NESTED: Final = frozenset((list, dict, Ext))
_NODES: Final = {
    m.TUPLE: "_tuple",
    m.SET: "_set",
    m.FROZENSET: "_frozenset",
    m.DICT: "_dict",
    m.OBJECT: "_object",
    m.ENUM: "_enum",
    m.FLAG: "_flag",
    m.CUSTOM: "_custom",
    m.STD: "_std",
}


def from_msgpack(payload: bytes | memoryview, typed: bool, registry: TypeRegistry, strict: bool) -> Any:
    """The value that was stored; CodecError and its kinds are all that this raises."""
    return _guarded(payload, typed, _Building(registry, strict) if typed else None)


def reader(registry: TypeRegistry, strict: bool) -> Callable[[bytes | memoryview, bool], Any]:
    """from_msgpack() for many values, which looks up each class once."""
    building = _Building(registry, strict)
    build_object = building._object

    def read(payload: bytes | memoryview, typed: bool) -> Any:
        if typed:
            try:
                tree = _decode_tree(payload)
                if type(tree) is list and tree and type(tree[0]) is Ext and tree[0].code == m.OBJECT:
                    return build_object(tree, MAX_DEPTH - 1)
            except (CodecError, RecursionError):
                raise
            except Exception:
                return _guarded(payload, typed, building)  # says what is wrong
        return _guarded(payload, typed, building)

    return read


def to_shown(payload: bytes | memoryview, typed: bool) -> Any:
    """The same for people to look at: objects of user classes are Shown, and no class is looked up."""
    return _guarded(payload, typed, _Showing())


def _guarded(payload: bytes | memoryview, typed: bool, building: _Building | None) -> Any:
    try:
        if not typed or building is None:
            return _decode_plain(payload)
        return building.build(_decode_tree(payload), MAX_DEPTH)
    except (CodecError, RecursionError):
        raise
    except MemoryError as error:
        raise CodecError("There is not enough memory to read a stored value.") from error
    except Exception as error:
        raise Damaged(
            f"Stored bytes pass their checksum but make no value ({type(error).__name__}: {error}). They "
            "were not written by this codec, or a __hash__ or __eq__ of a stored key failed.",
        ) from error


class _Building:
    """One tree on its way to a value. It is fresh from the decoder, so it is changed in place."""

    __slots__ = ("_entries", "_registry", "_strict")

    def __init__(self, registry: TypeRegistry, strict: bool) -> None:
        self._registry = registry
        self._strict = strict
        self._entries: dict[str, Entry] = {}

    def build(self, tree: Any, room: int) -> Any:
        kind = type(tree)
        if kind is list:
            if room <= 0:
                raise Damaged(f"Stored bytes are nested more than {MAX_DEPTH} levels deep.")
            if tree and type(tree[0]) is Ext:
                code = tree[0].code
                if code == m.OBJECT:
                    return self._object(tree, room - 1)
                node = _NODES.get(code)
                if node is not None:
                    return getattr(self, node)(tree, room - 1)
            return self._items(tree, 0, room - 1)
        elif kind is dict:
            if room <= 0:
                raise Damaged(f"Stored bytes are nested more than {MAX_DEPTH} levels deep.")
            self._values(tree, room - 1)
        elif kind is Ext:
            return self._leaf(tree)
        return tree

    def _leaf(self, ext: Ext) -> Any:
        read = _leaves.READ.get(ext.code)
        if read is None:
            raise UnknownFormat(f"Stored bytes have a part of kind {ext.code}; a newer Stepfast wrote them.")
        return read(bytes(ext.data))

    def _items(self, items: list[Any], start: int, room: int) -> list[Any]:
        # No comprehension: before Python 3.12 it is a frame of its own, for each of 200 levels.
        build = self.build
        del items[:start]
        for index, item in enumerate(items):
            if type(item) in _NESTED:
                items[index] = build(item, room)
        return items

    def _values(self, fields: dict[Any, Any], room: int) -> dict[Any, Any]:
        for key, item in fields.items():
            # An empty list or dict is ready as it is, and most of the containers in messages are empty.
            if type(item) in _NESTED and (item or type(item) is Ext):
                fields[key] = self.build(item, room)
        return fields

    def _tuple(self, node: list[Any], room: int) -> Any:
        return tuple(self._items(node, 1, room))

    def _set(self, node: list[Any], room: int) -> Any:
        return set(self._items(node, 1, room))

    def _frozenset(self, node: list[Any], room: int) -> Any:
        return frozenset(self._items(node, 1, room))

    def _dict(self, node: list[Any], room: int) -> Any:
        return self._pairs({}, node, 1, room)

    def _pairs(self, found: Any, node: list[Any], start: int, room: int) -> Any:
        items = self._items(node, start, room)
        put = dict.__setitem__
        if type(found) is OrderedDict:
            put = OrderedDict.__setitem__
        for key, item in zip(items[::2], items[1::2], strict=True):
            put(found, key, item)
        return found

    def _std(self, node: list[Any], room: int) -> Any:
        _, kind, detail = node[:3]
        if kind == "OrderedDict":
            return self._pairs(OrderedDict(), node, 3, room)
        if kind == "Counter":
            return self._pairs(Counter(), node, 3, room)
        if kind == "defaultdict":
            factory = None if detail is None else FACTORIES[detail]
            return self._pairs(defaultdict(factory), node, 3, room)
        items = self._items(node, 3, room)
        if kind == "deque":
            return deque(items, detail)
        if kind == "range":
            return range(*items)
        raise UnknownFormat(f"Stored bytes have a container of kind {kind!r}; a newer Stepfast wrote them.")

    def _entry(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = self._registry.for_name(name, self._strict)
        return entry

    def _object(self, node: list[Any], room: int) -> Any:
        state: dict[str, Any] = {}
        if len(node) == 5:
            _, name, version, fields, state = node
        else:
            _, name, version, fields = node
        entry = self._entries.get(name) or self._entry(name)
        whole = True
        for key, item in fields.items():
            if type(item) in _NESTED:
                if type(item) is Ext:
                    fields[key] = made = self._leaf(item)
                    whole = whole and made is not UNSET_FIELD
                elif item:
                    fields[key] = self.build(item, room)
        for part in state.values():
            if type(part) is dict:
                self._values(part, room)
        if whole and version == entry.version and entry.shape is not None and not entry.renames:
            made = entry.shape.quickly(fields, state)
            if made is not None:
                return made
        return entry.assemble(fields, state, version)

    def _enum(self, node: list[Any], room: int) -> Any:
        _, name, member = node
        return self._entry(name).member(member)

    def _flag(self, node: list[Any], room: int) -> Any:
        _, name, rest, *names = node
        bits = self.build(rest, room)
        entry = self._entry(name)
        for each in names:
            bits |= entry.member(each)._value_
        try:
            return _shapes.flag_member(entry.cls, bits)
        except ValueError as error:
            raise UnknownType(
                f"{entry.name} has no member with the bits {bits:#x}, which a stored value has. Add them.",
                type=entry.name,
            ) from error

    def _custom(self, node: list[Any], room: int) -> Any:
        _, name, version, stored = node
        entry = self._entry(name)
        return entry.custom(self.build(stored, room), version)


class Shown:
    """An object of a user class as its bytes tell it."""

    __slots__ = ("fields", "name")

    def __init__(self, name: Any, fields: Any) -> None:
        self.name = name if type(name) is str else "?"
        self.fields = fields


class _Showing(_Building):
    """Builds what is built in, and Shown for the rest."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(TypeRegistry(), strict=True)

    def _leaf(self, ext: Ext) -> Any:
        try:
            return super()._leaf(ext)
        except CodecError:
            return Shown("unreadable", [ext.code, bytes(ext.data)])

    def _object(self, node: list[Any], room: int) -> Any:
        _, name, _, fields, *rest = node
        shown = dict(self._values(fields, room))
        for part in (rest[0] if rest else {}).values():
            if type(part) is dict:
                shown.update(self._values(part, room))
        return Shown(name, shown)

    def _enum(self, node: list[Any], room: int) -> Any:
        return Shown(node[1], node[2])

    def _flag(self, node: list[Any], room: int) -> Any:
        rest = self.build(node[2], room)
        return Shown(node[1], "|".join([str(name) for name in node[3:]] + [hex(rest)] * bool(rest or not node[3:])))

    def _custom(self, node: list[Any], room: int) -> Any:
        return Shown(node[1], [self.build(node[3], room)])

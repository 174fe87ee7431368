"""Shapes: how an object of a class is taken apart into fields, and put together again without its code.

Five kinds of class say in a public way what they are made of: dataclasses, pydantic models, named tuples,
enums and msgspec structs. Putting one together runs none of its own code: no ``__init__``, ``__post_init__``,
validator, ``__setattr__`` or ``_missing_``. What a class declares as the default of a field that the bytes do
not have yet is used, and a ``default_factory`` called, because that is what the declaration asks for.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Container, KeysView
from functools import cached_property, lru_cache
from types import MemberDescriptorType
from typing import Any, Protocol

import msgspec

from ._marks import UNSET_FIELD

Fields = dict[str, Any]
_new, _put = object.__new__, object.__setattr__


class NotStructural(Exception):
    """A class is of no kind that can be stored by its fields; the text says why."""


class NoDefault(Exception):
    """A field has no default, or the default cannot be had without the class's own code."""


class Mismatch(Exception):
    """Stored state has no place in the class as it is now; the text says which."""


class Shape(Protocol):
    kind: str

    def names(self) -> KeysView[str]:
        """The fields that the class declares now."""

    def apart(self, obj: Any) -> tuple[Fields, Fields | None]:
        """The fields, and what else is needed to make an equal object."""

    def default(self, name: str, known: Fields) -> Any:
        """The declared default of a field, or NoDefault."""

    def together(self, fields: Fields, state: Fields, added: set[str], ignore_extra: bool) -> Any:
        """An object with these fields, made without running code of the class.

        ``added`` are the fields that were not stored and have their default.
        """

    def quickly(self, fields: Fields, state: Fields) -> Any:
        """The same for an object of the ordinary kind of a class that has not changed; None for any other."""

    def hidden(self) -> frozenset[str]:
        """Fields that the class keeps out of its own repr."""

    def compared(self, fields: Fields) -> Fields:
        """The fields that say whether two objects are the same."""


@lru_cache(maxsize=1024)
def shape_of(cls: type) -> Shape:
    """The shape of a class, or NotStructural."""
    if any("__del__" in vars(base) for base in cls.__mro__):
        # Nothing would call it on read, but the garbage collector would, with whatever the bytes say.
        raise NotStructural("it has a __del__ method, which would run on stored data")
    if msgspec.Struct in cls.__mro__:
        return _StructShape(cls)
    for name in ("pydantic.main", "pydantic.v1.main"):
        pydantic = sys.modules.get(name)
        if pydantic is not None and pydantic.BaseModel in cls.__mro__:
            from ._shapes_v1 import ModelV1Shape, is_v1

            return ModelV1Shape(cls, pydantic.BaseModel) if is_v1(pydantic.BaseModel) else _ModelShape(cls)
    if tuple in cls.__mro__ and type(_static(cls, "_fields")) is tuple:
        return _TupleShape(cls)
    if _static(cls, "__dataclass_fields__") is not None:
        return _DataclassShape(cls)
    raise NotStructural("it is no dataclass, pydantic model, NamedTuple, Enum or msgspec.Struct")


def is_enum(cls: type) -> bool:
    return issubclass(type(cls), enum.EnumMeta)


def _blank(cls: type) -> Any:
    return object.__new__(cls)


def _check_blank(cls: type) -> None:
    try:
        _blank(cls)
    except TypeError:
        raise NotStructural("it derives from a built-in type that holds data of its own") from None


def _instance_dict(obj: Any) -> Fields:
    """The ``__dict__`` itself; empty for an object that has none."""
    try:
        found: Fields = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return {}
    return found


def _attrs(cls: type, obj: Any, fields: Container[str]) -> Fields:
    """What was set on an object besides its fields. A cached property is left out: it is computed again."""
    return {
        name: value
        for name, value in _instance_dict(obj).items()
        if name not in fields and name != "__orig_class__" and not isinstance(_static(cls, name), cached_property)
    }


def _static(cls: type, name: str) -> Any:
    """An attribute of a class as it stands there, with no descriptor run."""
    for base in cls.__mro__:
        space = vars(base)
        if name in space:
            return space[name]
    return None


def _set_attrs(obj: Any, state: Fields, ignore_extra: bool) -> None:
    attrs: Fields | None = state.get("attrs")
    if not attrs:
        return
    try:
        object.__getattribute__(obj, "__dict__").update(attrs)
    except AttributeError:
        if not ignore_extra:
            raise Mismatch(f"the attribute {next(iter(attrs))!r}, and the class has slots now") from None


class _DataclassShape:
    kind = "dataclass"

    def __init__(self, cls: type) -> None:
        import dataclasses

        self._cls = cls
        self._missing = dataclasses.MISSING
        self._fields = {f.name: f for f in dataclasses.fields(cls)}
        self._slots: dict[str, Callable[[Any], Any]] = {}
        for name in self._fields:
            found = _static(cls, name)
            if type(found) is MemberDescriptorType:
                self._slots[name] = found.__get__
            elif hasattr(type(found), "__set__"):
                raise NotStructural(f"its field {name!r} is a property, whose code would run")
        for base in cls.__mro__:
            for name, found in vars(base).items():
                if type(found) is MemberDescriptorType and name not in self._fields:
                    raise NotStructural(f"its slot {name!r} is not a field")
        _check_blank(cls)

    def names(self) -> KeysView[str]:
        return self._fields.keys()

    def apart(self, obj: Any) -> tuple[Fields, Fields | None]:
        space = _instance_dict(obj)
        fields: Fields = {}
        for name in self._fields:
            slot = self._slots.get(name)
            if slot is None:
                fields[name] = space.get(name, UNSET_FIELD)
            else:
                try:
                    fields[name] = slot(obj)
                except AttributeError:
                    fields[name] = UNSET_FIELD
        if space.keys() <= fields.keys():
            return fields, None
        attrs = _attrs(self._cls, obj, self._fields)
        return fields, {"attrs": attrs} if attrs else None

    def default(self, name: str, known: Fields) -> Any:
        field = self._fields[name]
        if field.default is not self._missing:
            return field.default
        if field.default_factory is not self._missing:
            return field.default_factory()
        raise NoDefault

    def together(self, fields: Fields, state: Fields, added: set[str], ignore_extra: bool) -> Any:
        obj = _blank(self._cls)
        put = object.__setattr__
        for name, value in fields.items():
            if value is not UNSET_FIELD:
                put(obj, name, value)
        _set_attrs(obj, state, ignore_extra)
        return obj

    def quickly(self, fields: Fields, state: Fields) -> Any:
        if state or self._slots or fields.keys() != self._fields.keys():
            return None
        obj = _blank(self._cls)
        object.__setattr__(obj, "__dict__", fields)
        return obj

    def hidden(self) -> frozenset[str]:
        return frozenset(name for name, field in self._fields.items() if not field.repr)

    def compared(self, fields: Fields) -> Fields:
        return {name: value for name, value in fields.items() if self._fields[name].compare}


class _ModelShape:
    kind = "pydantic model"

    def __init__(self, cls: Any) -> None:
        self._cls = cls
        self._root = bool(cls.__pydantic_root_model__)
        for base in cls.__mro__:
            if "__pydantic_private__" in vars(base).get("__slots__", ()):
                break  # BaseModel itself, and what it derives from
            for name, found in vars(base).items():
                if type(found) is MemberDescriptorType:
                    raise NotStructural(f"its slot {name!r} is not a field")
        _check_blank(cls)
        slots = [_static(cls, f"__pydantic_{name}__") for name in ("fields_set", "extra", "private")]
        # Of this kind are all models but root models and those with private attributes.
        self._plain = all(type(slot) is MemberDescriptorType for slot in slots) and not cls.__private_attributes__
        if self._plain:
            (self._get_given, self._get_extra, self._get_private) = (slot.__get__ for slot in slots)
            (self._put_given, self._put_extra, self._put_private) = (slot.__set__ for slot in slots)
        self._allows_extra = cls.model_config.get("extra") == "allow"

    # Asked each time: model_rebuild() may change them.
    def _declared(self) -> dict[str, Any]:
        declared = getattr(self._cls, "__pydantic_fields__", None)
        found: dict[str, Any] = self._cls.model_fields if declared is None else declared
        return found

    def names(self) -> KeysView[str]:
        return self._declared().keys()

    def apart(self, obj: Any) -> tuple[Fields, Fields | None]:
        space = _instance_dict(obj)
        declared = self._declared()
        if self._plain and space.keys() == declared.keys():
            try:
                given = self._get_given(obj)
                if not self._get_extra(obj) and not self._get_private(obj):
                    return space, None if given == space.keys() else {"set": sorted(given)}
            except (AttributeError, TypeError):  # a model that was put together by hand
                pass
        state: Fields = {}
        if space.keys() == declared.keys():
            fields = space
        else:
            fields = {name: value for name, value in space.items() if name in declared}
            fields.update((name, UNSET_FIELD) for name in declared if name not in space)
            attrs = _attrs(self._cls, obj, {*declared, "__pydantic_extra__", "__pydantic_private__"})
            if attrs:
                state["attrs"] = attrs
        extra = _slot(obj, "__pydantic_extra__")
        private = _slot(obj, "__pydantic_private__")
        given = _slot(obj, "__pydantic_fields_set__") or set()
        if extra:
            state["extra"] = extra
        if private:
            state["private"] = private
        if given != fields.keys() | (extra or {}).keys():
            state["set"] = sorted(given)
        return fields, state or None

    def default(self, name: str, known: Fields) -> Any:
        field = self._declared()[name]
        if field.is_required():
            raise NoDefault
        factory = field.default_factory
        if factory is None:
            return field.get_default()
        if getattr(field, "default_factory_takes_validated_data", False):
            return factory(dict(known))
        return factory()

    def together(self, fields: Fields, state: Fields, added: set[str], ignore_extra: bool) -> Any:
        extra = state.get("extra") or {}
        given = {*fields, *extra} - added
        if "set" in state:
            given &= set(state["set"])
        allows_extra = self._allows_extra
        if extra and not allows_extra:
            if not ignore_extra:
                raise Mismatch(f"the extra field {next(iter(extra))!r}, and the model allows none")
            given -= extra.keys()
        obj = _blank(self._cls)
        put = object.__setattr__
        space = {name: value for name, value in fields.items() if value is not UNSET_FIELD}
        space.update(state.get("attrs", {}))
        put(obj, "__dict__", space)
        put(obj, "__pydantic_fields_set__", given)
        private = self._private(state.get("private") or {}, ignore_extra)
        # A root model has these two as class attributes, so it must be left to those where there is none.
        if not self._root or allows_extra:
            put(obj, "__pydantic_extra__", extra if allows_extra else None)
        if not self._root or private is not None:
            put(obj, "__pydantic_private__", private)
        return obj

    def _private(self, stored: Fields, ignore_extra: bool) -> Fields | None:
        declared = self._cls.__private_attributes__
        gone = [name for name in stored if name not in declared]
        if gone and not ignore_extra:
            raise Mismatch(f"the private attribute {gone[0]!r}")
        private: Fields = {}
        for name, attribute in declared.items():
            value = stored[name] if name in stored else attribute.get_default()
            if type(value).__name__ != "PydanticUndefinedType":
                private[name] = value
        return private if declared else None

    def quickly(self, fields: Fields, state: Fields) -> Any:
        if not self._plain:
            return None
        declared = getattr(self._cls, "__pydantic_fields__", None)
        if fields.keys() != (self._declared() if declared is None else declared).keys():
            return None
        if not state:
            given = set(fields)
        elif len(state) == 1 and "set" in state:
            given = set(state["set"]).intersection(fields)
        else:
            return None
        obj = _new(self._cls)
        _put(obj, "__dict__", fields)
        self._put_given(obj, given)
        self._put_extra(obj, {} if self._allows_extra else None)
        self._put_private(obj, None)
        return obj

    def hidden(self) -> frozenset[str]:
        return frozenset(name for name, field in self._declared().items() if not field.repr)

    def compared(self, fields: Fields) -> Fields:
        return fields


def _slot(obj: Any, name: str) -> Any:
    try:
        return object.__getattribute__(obj, name)
    except AttributeError:  # a model that was put together by hand
        return None


class _TupleShape:
    kind = "named tuple"

    def __init__(self, cls: Any) -> None:
        self._cls = cls
        if any(base.__flags__ & _HEAP_TYPE == 0 for base in cls.__mro__ if base not in (tuple, object)):
            raise NotStructural("it derives from a built-in type that holds data of its own")
        self._names = dict.fromkeys(cls._fields)
        self._defaults: Fields = dict(getattr(cls, "_field_defaults", {}))

    def names(self) -> KeysView[str]:
        return self._names.keys()

    def apart(self, obj: Any) -> tuple[Fields, Fields | None]:
        items = tuple.__iter__(obj)
        fields = dict(zip(self._names, items, strict=True))
        attrs = _attrs(self._cls, obj, ())
        return fields, {"attrs": attrs} if attrs else None

    def default(self, name: str, known: Fields) -> Any:
        if name not in self._defaults:
            raise NoDefault
        return self._defaults[name]

    def together(self, fields: Fields, state: Fields, added: set[str], ignore_extra: bool) -> Any:
        obj = tuple.__new__(self._cls, [fields[name] for name in self._names])
        _set_attrs(obj, state, ignore_extra)
        return obj

    def quickly(self, fields: Fields, state: Fields) -> Any:
        return None

    def hidden(self) -> frozenset[str]:
        return frozenset()

    def compared(self, fields: Fields) -> Fields:
        return fields


_HEAP_TYPE = 1 << 9  # set on every class that a class statement makes


class _StructShape:
    kind = "msgspec struct"

    def __init__(self, cls: Any) -> None:
        # There is no other way to make a struct than to call its class, which runs nothing but this hook.
        if hasattr(cls, "__post_init__"):
            raise NotStructural("it is a msgspec.Struct with a __post_init__, which would run on read")
        if type(cls).__call__ is not type(msgspec.Struct).__call__:
            raise NotStructural("it is a msgspec.Struct whose metaclass has a __call__ of its own")
        self._cls = cls
        self._names = dict.fromkeys(cls.__struct_fields__)
        last = len(self._names) - len(cls.__struct_defaults__)
        self._defaults = dict(zip(cls.__struct_fields__[last:], cls.__struct_defaults__, strict=True))

    def names(self) -> KeysView[str]:
        return self._names.keys()

    def apart(self, obj: Any) -> tuple[Fields, Fields | None]:
        attrs = _attrs(self._cls, obj, ())
        return {name: getattr(obj, name) for name in self._names}, {"attrs": attrs} if attrs else None

    def default(self, name: str, known: Fields) -> Any:
        found = self._defaults.get(name, msgspec.NODEFAULT)
        if found is msgspec.NODEFAULT:
            raise NoDefault
        return found.factory() if type(found).__name__ == "Factory" else found

    def together(self, fields: Fields, state: Fields, added: set[str], ignore_extra: bool) -> Any:
        obj = self._cls(**fields)
        _set_attrs(obj, state, ignore_extra)
        return obj

    def quickly(self, fields: Fields, state: Fields) -> Any:
        return None

    def hidden(self) -> frozenset[str]:
        return frozenset()

    def compared(self, fields: Fields) -> Fields:
        return fields


def flag_parts(member: enum.Flag) -> tuple[int, list[str]]:
    """The bits of a flag that have no name, and the names of those that do."""
    cls = type(member)
    rest: int = member._value_
    names = []
    for name in cls._member_names_:
        bits: int = cls._member_map_[name]._value_
        if bits and rest & bits == bits:
            names.append(name)
            rest &= ~bits
    return rest, names


def flag_member(cls: Any, bits: int) -> Any:
    """The member with these bits, made as enum makes it even where the class has its own ``_missing_``."""
    found = cls._value2member_map_.get(bits)
    if found is None:
        found = enum.Flag.__dict__["_missing_"].__func__(cls, bits)
    return found

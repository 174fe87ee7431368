"""The shape of models of pydantic 1, which pydantic 2 still brings as ``pydantic.v1``."""

from __future__ import annotations

from collections.abc import KeysView
from types import MemberDescriptorType
from typing import Any

from ._marks import UNSET_FIELD
from ._shapes import Fields, Mismatch, NoDefault, NotStructural


def is_v1(base: Any) -> bool:
    """Whether a BaseModel is the one of pydantic 1."""
    return type(vars(base).get("__fields_set__")) is MemberDescriptorType


class ModelV1Shape:
    kind = "pydantic 1 model"

    def __init__(self, cls: Any, base: Any) -> None:
        self._cls = cls
        self._set: Any = vars(base)["__fields_set__"]
        self._private: dict[str, Any] = {}
        for each in cls.__mro__:
            for name, found in vars(each).items():
                if type(found) is MemberDescriptorType and each is not base:
                    if name not in cls.__private_attributes__:
                        raise NotStructural(f"its slot {name!r} is not a field")
                    self._private.setdefault(name, found)
        try:
            object.__new__(cls)
        except TypeError:
            raise NotStructural("it derives from a built-in type that holds data of its own") from None

    def names(self) -> KeysView[str]:
        names: KeysView[str] = self._cls.__fields__.keys()
        return names

    def apart(self, obj: Any) -> tuple[Fields, Fields | None]:
        space: Fields = object.__getattribute__(obj, "__dict__")
        names = self.names()
        fields = {name: space.get(name, UNSET_FIELD) for name in names}
        state: Fields = {}
        attrs = {name: value for name, value in space.items() if name not in names}
        if attrs:
            state["attrs"] = attrs
        private = {}
        for name, slot in self._private.items():
            try:
                private[name] = slot.__get__(obj)
            except AttributeError:  # declared and not set
                continue
        if private:
            state["private"] = private
        try:
            given = self._set.__get__(obj)
        except AttributeError:  # a model that was put together by hand
            given = set()
        if given != space.keys():
            state["set"] = sorted(given)
        return fields, state or None

    def default(self, name: str, known: Fields) -> Any:
        field = self._cls.__fields__[name]
        if field.required:
            raise NoDefault
        return field.get_default()

    def together(self, fields: Fields, state: Fields, added: set[str], ignore_extra: bool) -> Any:
        attrs: Fields = state.get("attrs") or {}
        space = {name: value for name, value in fields.items() if value is not UNSET_FIELD}
        space.update(attrs)
        given = set(space) - added
        if "set" in state:
            given &= set(state["set"])
        obj = object.__new__(self._cls)
        object.__setattr__(obj, "__dict__", space)
        self._set.__set__(obj, given)
        for name, value in (state.get("private") or {}).items():
            slot = self._private.get(name)
            if slot is not None:
                slot.__set__(obj, value)
            elif not ignore_extra:
                raise Mismatch(f"the private attribute {name!r}")
        return obj

    def quickly(self, fields: Fields, state: Fields) -> Any:
        return None

    def hidden(self) -> frozenset[str]:
        return frozenset(name for name, field in self._cls.__fields__.items() if not field.field_info.repr)

    def compared(self, fields: Fields) -> Fields:
        return fields

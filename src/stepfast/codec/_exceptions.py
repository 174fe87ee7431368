"""Exceptions as class, arguments and attributes; put together again without the class's own code.

Frameworks keep the exception of a failed task and look at it when the work goes on: in error handlers, and in
``except`` around a task's result. So it comes back as what it was, without its traceback.
"""

from __future__ import annotations

import sys
from types import MemberDescriptorType
from typing import Any

from stepfast.stored_names import loaded_module

from ._registry import TypeRegistry


def meet_class(registry: TypeRegistry, cls: type) -> None:
    """Make an exception class known, if it is one that can be found and put together again."""
    if issubclass(cls, BaseException) and registry.registered(cls) is None and _why_not(cls) is None:
        module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
        if _loaded(module, cls.__qualname__) is cls:
            registry.register(cls, to=_of_error, build=_build(cls))


def meet_name(registry: TypeRegistry, name: str) -> None:
    """The same for the class that bytes name, if a loaded module has it."""
    module, _, qualname = name.partition(":")
    cls = _loaded(loaded_module(module), qualname)
    if cls is not None and issubclass(type(cls), type) and BaseException in cls.__mro__:
        meet_class(registry, cls)


def _loaded(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        # vars(), because getattr() would run a module's __getattr__ and a class's descriptors.
        if found is None or not (issubclass(type(found), type) or type(found) is type(sys)):
            return None
        found = vars(found).get(part)
    return found


def _why_not(cls: type) -> str | None:
    """What of the class would have to run, or would be lost."""
    for base in cls.__mro__:
        if base.__module__ != "builtins":
            space = vars(base)
            if "__new__" in space or "__del__" in space:
                return "it has a __new__ or __del__ of its own"
            if any(type(found) is MemberDescriptorType for found in space.values()):
                return "it has slots"
    return None


def _of_error(error: BaseException) -> list[Any]:
    fields = {name: member.__get__(error) for name, member in _members(type(error)).items()}
    return [
        BaseException.args.__get__(error),  # type: ignore[attr-defined]
        dict(object.__getattribute__(error, "__dict__")),
        {name: value for name, value in fields.items() if value is not None},
    ]


def _members(cls: type) -> dict[str, Any]:
    """What C keeps of an exception beside its arguments, such as a file's name."""
    return {
        name: found
        for base in cls.__mro__
        if base.__module__ == "builtins"
        for name, found in vars(base).items()
        # Not the object that lacked an attribute: it may be anything, and is no part of the message.
        if type(found) is MemberDescriptorType and name not in ("obj", "__suppress_context__")
    }


def _build(cls: type) -> Any:
    native = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    members = _members(cls)

    def build(given: list[Any]) -> Any:
        args, attributes, fields = given
        if type(args) is not tuple or type(attributes) is not dict or type(fields) is not dict:
            raise TypeError("no exception")
        error = native.__new__(cls, *args)
        try:
            native.__init__(error, *args)  # type: ignore[misc]
        except TypeError:  # arguments that the class's own __init__ made other ones of
            pass
        BaseException.args.__set__(error, args)  # type: ignore[attr-defined]
        for name, value in fields.items():
            try:
                members[name].__set__(error, value)
            except AttributeError:  # read-only, and told by the arguments
                pass
        object.__getattribute__(error, "__dict__").update(attributes)
        return error

    return build

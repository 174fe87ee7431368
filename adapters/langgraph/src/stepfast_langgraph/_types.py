"""The saver's codec: which types it knows besides those that say what they are made of.

A type of another library gets a pair of functions here, which are ours: what is read from a store can choose
among them, and nothing else. A library's types become known when the first of them is met, so that none is
imported by a process that has no use for it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Final

from stepfast import Codec, KeyRing, TypeRegistry
from stepfast.codec import register_standard

COMPRESS_ABOVE: Final = 1024
"""Rows of more bytes than this are compressed where it helps."""


def make_codec(keyring: KeyRing | None = None, types: Iterable[type] = ()) -> Codec:
    """A codec that knows what LangGraph, LangChain, numpy and pandas put into a graph's state.

    ``types`` are further classes, each stored by its fields; a class that needs its own functions is given
    to ``stepfast.register``.
    """
    registry = _Types()
    for cls in types:
        registry.register(cls)
    return Codec(registry=registry, keyring=keyring, compress_above=COMPRESS_ABOVE)


class _Types(TypeRegistry):
    """What register() made known to all, and the types of some libraries."""

    def __init__(self) -> None:
        super().__init__(shared=True)
        self._lock = threading.Lock()
        self._late = dict(_LATE)
        register_standard(self)  # a journal's fingerprints have always counted their contents here

    def missing_class(self, cls: type) -> None:
        self._meet(cls.__module__)

    def missing_name(self, name: str) -> None:
        self._meet(name.partition(":")[0])

    def _meet(self, module: str) -> None:
        root = module.partition(".")[0]
        with self._lock:  # another thread that meets the library at the same time waits until all is registered
            if root in self._late:
                try:
                    self._late[root](self)
                except ImportError:  # not installed here: the class's name will be in the error
                    pass
                self._late.pop(root, None)


def _load(module: str) -> Callable[[TypeRegistry], None]:
    """A state is read wherever a thread is looked at, also by a process that has not used the library itself."""

    def load(_registry: TypeRegistry) -> None:
        import_module(module)

    return load


def _langchain(registry: TypeRegistry) -> None:
    from langchain_core.runnables.utils import AddableDict

    _mapping(registry, AddableDict)


def _langgraph(registry: TypeRegistry) -> None:
    from langgraph.store.base import Item, SearchItem

    registry.register(Item, to=_item, build=lambda given: Item(**given))
    registry.register(
        SearchItem,
        to=lambda item: {**_item(item), "score": item.score},
        build=lambda given: SearchItem(**given),
    )
    try:
        from langgraph.types import Send
    except ImportError:  # the checkpoint package alone
        return
    registry.register(Send, to=_of_send, build=_send)
    for module in ("langgraph.pregel._io", "langgraph.pregel.io"):
        for name in ("AddableValuesDict", "AddableUpdatesDict"):
            cls = getattr(sys.modules.get(module), name, None)
            if cls is not None and cls.__module__ == module:
                _mapping(registry, cls)


def _of_send(send: Any) -> dict[str, Any]:
    return {name: getattr(send, name) for name in type(send).__slots__ if hasattr(send, name)}


def _send(given: dict[str, Any]) -> Any:
    from langgraph.types import Send

    send = object.__new__(Send)
    for name in Send.__slots__:
        setattr(send, name, given.pop(name, None))
    if any(rest is not None for rest in given.values()):
        raise TypeError(f"a newer langgraph wrote it, with {', '.join(given)}")
    return send


_LATE: Final[dict[str, Callable[[TypeRegistry], None]]] = {
    "numpy": _load("numpy"),
    "pandas": _load("pandas"),
    "langchain_core": _langchain,
    "langgraph": _langgraph,
}


def _item(item: Any) -> dict[str, Any]:
    return {name: getattr(item, name) for name in ("namespace", "key", "value", "created_at", "updated_at")}


def _mapping(registry: TypeRegistry, cls: Any) -> None:
    def to(value: Any) -> dict[Any, Any]:
        if vars(value):
            raise TypeError("it has attributes besides its items")
        return dict(value)

    registry.register(cls, to=to, build=cls)

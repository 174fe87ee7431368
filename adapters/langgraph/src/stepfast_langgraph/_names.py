"""Namespaces and keys as the ids of records: readable, one to one, and sorted so that a namespace is a prefix.

``("users", "ann")`` and ``"prefs"`` are ``users/ann//prefs``. No two names give the same id, whatever characters
they hold, and the id of a namespace begins with the ids of those above it and with no other's.
"""

from __future__ import annotations

import re
from typing import Any

from langgraph.store.base import InvalidNamespaceError

from stepfast import InvalidInput

_SPECIAL = re.compile("[%/\x00\ud800-\udfff]")  # our own marks, and what no database takes as text
_ESCAPED = re.compile("%([0-9a-f]{4})?")
_LONGEST = 2000  # bytes; an index entry of PostgreSQL holds 2,700, with the tenant and the kind


def record_id(namespace: tuple[str, ...], key: str) -> str:
    """The id of an item; `InvalidInput` if it is too long for an index."""
    name = f"{namespace_id(namespace)}/{_escape(key)}"
    if len(name) * 4 > _LONGEST and len(name.encode()) > _LONGEST:
        raise InvalidInput(
            f"namespace, key: together longer than {_LONGEST} bytes. Put long text into the value, or use its hash as "
            "the key. Nothing was written."
        )
    return name


def namespace_id(namespace: tuple[str, ...]) -> str:
    """What the ids of all items of this namespace, and of those below it, begin with."""
    return "".join([f"{_escape(label) or '%'}/" for label in namespace])


def from_record_id(name: str) -> tuple[tuple[str, ...], str]:
    """The namespace and the key that gave this id."""
    *labels, _, key = name.split("/")
    return tuple(map(_unescape, labels)), _unescape(key)


def check_namespace(namespace: Any) -> tuple[str, ...]:
    """A namespace as LangGraph's own methods accept it; its `InvalidNamespaceError` otherwise."""
    if isinstance(namespace, str) or not isinstance(namespace, tuple | list):
        raise InvalidNamespaceError(f"A namespace is a tuple of labels, not {namespace!r}. Write ({namespace!r},).")
    for label in namespace:
        if not isinstance(label, str):
            raise InvalidNamespaceError(f"A label of {namespace!r} is {type(label).__name__}; labels are text.")
        if not label:
            raise InvalidNamespaceError(f"A label of {namespace!r} is empty; leave it out or name it.")
        if "." in label or "\0" in label:
            raise InvalidNamespaceError(f"The label {label!r} of {namespace!r} holds a period or a NUL; replace it.")
    return tuple(namespace)


def check_home(namespace: Any) -> tuple[str, ...]:
    """A namespace in which an item may be put."""
    checked = check_namespace(namespace)
    if not checked:
        raise InvalidNamespaceError("An item needs a namespace of at least one label.")
    if checked[0] == "langgraph":
        raise InvalidNamespaceError(f"The first label of {namespace!r} is reserved for LangGraph; use another.")
    return checked


def check_key(key: Any) -> str:
    if not isinstance(key, str):
        raise InvalidInput(f"key: must be text, not {type(key).__name__}. Nothing was written.")
    return key


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):04x}", text)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else "", text) if "%" in text else text

"""The vocabulary of a stored value: what the MessagePack bytes may hold besides plain data.

A value that is made of None, bool, 64-bit int, float, str, bytes, list and dict alone is stored as plain
MessagePack. Anything else is *typed*, which the envelope's flag says, and uses two more forms:

* a **leaf** is one Ext whose data is the whole value (a Decimal, a datetime, an integer of 200 digits);
* a **node** is an array whose first element is an empty Ext, the mark, which says how to read the rest.

No plain value can be mistaken for either, because a caller's own Ext objects are refused. Marks rather than
nested Ext data: nesting would copy the contents once for each level.

======== ==============================================================================================
TUPLE    items …
SET      items …, in the order of their encodings (FROZENSET the same)
DICT     key, value, key, value …: a dict with a key that MessagePack has no exact form for
OBJECT   type name, version, {field: value}, and perhaps {attrs, set, extra, private}
ENUM     type name, member name
FLAG     type name, the bits without a name, names of the single bits …
CUSTOM   type name, version, what the registered ``to`` returned
STD      kind, parts …: OrderedDict, defaultdict, Counter, deque, range
======== ==============================================================================================

The numbers are for ever: a store holds them. Add, never change.
"""

from __future__ import annotations

from typing import Final

from msgspec.msgpack import Ext

from stepfast.stored_names import stored_module

BIG_INT: Final = 1
ODD_STR: Final = 2
COMPLEX: Final = 3
BYTEARRAY: Final = 4
DECIMAL: Final = 5
UUID: Final = 6
DATE: Final = 7
TIME: Final = 8
DATETIME: Final = 9
TIMEDELTA: Final = 10
PATH: Final = 11
ZONE: Final = 12
UNSET: Final = 13
BUFFER: Final = 14  # only in fingerprints

TUPLE: Final = 32
SET: Final = 33
FROZENSET: Final = 34
DICT: Final = 35
OBJECT: Final = 36
ENUM: Final = 37
FLAG: Final = 38
CUSTOM: Final = 39
STD: Final = 40
NAMED: Final = 41  # only in fingerprints

MARK: Final = {code: Ext(code, b"") for code in range(TUPLE, NAMED + 1)}

MAX_DEPTH: Final = 200
"""How deep containers may nest, counted in the caller's own containers."""

SCALARS: Final = frozenset((type(None), bool, int, float, str, bytes))
"""Types that MessagePack keeps exactly, alone and as dict keys (bar huge ints and lone surrogates)."""


class Unset:
    """A declared field that the object did not have when it was stored."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<unset>"


UNSET_FIELD: Final = Unset()


class Refusal(Exception):
    """A value cannot be stored. Travels up through the containers, each of which adds where it stands."""

    def __init__(self, why: str, kind: type | None = None, *, deep: bool = False) -> None:
        self.why = why
        self.kind = kind
        self.deep = deep
        self.path: list[str] = []
        self.holders: list[int] = []

    def inside(self, holder: object, step: str) -> None:
        self.holders.append(id(holder))
        self.path.append(step)


def type_name(cls: type) -> str:
    """The name that bytes use for a class, where no other was registered."""
    # In a worker that multiprocessing spawned, the script's own module has another name.
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    return f"{stored_module(module)}:{cls.__qualname__}"

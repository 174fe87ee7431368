"""What no store takes, found before anything is sent: text that a database cannot hold.

PostgreSQL has no NUL in text and nothing has half a surrogate pair in UTF-8. Both stores refuse
them in the same words, in the thread of the caller who is to blame.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, get_args

import msgspec

from stepfast.errors import InvalidInput
from stepfast.ops import Op, RecordStep

# Told as JSON, or made plain by the plans: an error's message must not keep a run from ending.
_FREE = frozenset({"reason", "details"})


def check_text(batch: Sequence[Op[Any]], tenant: str) -> None:
    """Raise `InvalidInput`, naming the field, if some text cannot be stored."""
    if not tenant.isascii() or "\0" in tenant:
        _check("tenant", tenant)
    for op in batch:
        if type(op) is RecordStep:
            step, lease = op.step, op.lease
            text = f"{lease.intent_id}{lease.token}{op.journal_id}{step.key}{step.kind}{step.name}{step.scope}"
            if step.blob_id is None and text.isascii() and "\0" not in text:
                continue
        _walk("", op)


def _walk(name: str, value: Any) -> None:
    if isinstance(value, str):
        if not value.isascii() or "\0" in value:
            _check(name, value)
    elif isinstance(value, msgspec.Struct):
        for field in _fields_with_text(type(value)):
            item = getattr(value, field)
            if not (item is None or (type(item) is str and item.isascii() and "\0" not in item)):
                _walk(f"{name}.{field}" if name else field, item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _walk(name, key)
            _walk(f"{name}[{key!r}]", item)
    elif isinstance(value, list | tuple):
        for item in value:
            _walk(name, item)


@cache
def _fields_with_text(cls: type[msgspec.Struct]) -> tuple[str, ...]:
    fields = msgspec.structs.fields(cls)
    return tuple(f.name for f in fields if f.name not in _FREE and _may_hold_text(f.type))


def _may_hold_text(kind: Any) -> bool:
    inner = get_args(kind)
    if inner:
        return any(map(_may_hold_text, inner))
    textless = kind in (int, float, bool, bytes, NoneType) or (isinstance(kind, type) and issubclass(kind, Enum))
    return not textless


def _check(name: str, value: str) -> None:
    if "\0" in value:
        raise InvalidInput(f"{name}: text with a NUL character cannot be stored. Nothing was written.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{name}: text with half a surrogate pair cannot be stored. Nothing was written.") from None

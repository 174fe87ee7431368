"""Marks on the items of a stream that report what an earlier attempt had finished."""

from __future__ import annotations

from typing import Any

__all__ = ["mark_replayed", "replayed"]

_MARK = "stepfast_replayed"


def mark_replayed(item: Any, old: bool = True) -> Any:
    """Return ``item`` with the mark; a text or a dictionary comes back as an equal one that can carry it."""
    if old and type(item) is str:
        return _Text(item)
    if old and type(item) is dict:
        return _Dict(item)
    if old or hasattr(item, _MARK):
        object.__setattr__(item, _MARK, old)
    return item


def replayed(item: Any) -> bool:
    """Whether an item of a stream reports what an earlier attempt had finished."""
    return bool(getattr(item, _MARK, False))


class _Text(str):
    stepfast_replayed = True


class _Dict(dict[Any, Any]):
    stepfast_replayed = True

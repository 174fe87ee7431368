"""Which items a search finds, and which namespaces a listing shows: pure, on decoded values, never as SQL."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from langgraph.store.base import MatchCondition

from stepfast import InvalidInput

_EQUALITY: dict[str, Callable[[Any, Any], Any]] = {"$eq": operator.eq, "$ne": operator.ne}
_ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_MATCH_TYPES = ("prefix", "suffix")


def check_filter(wanted: Any) -> None:
    """Refuse what `matches` would not understand, before anything is read."""
    if wanted is None:
        return
    if not isinstance(wanted, Mapping):
        raise InvalidInput(f"filter: must be a dict of fields, not {type(wanted).__name__}.")
    for value in wanted.values():
        _check(value)


def _check(wanted: Any) -> None:
    if isinstance(wanted, Mapping):
        if _has_operators(wanted):
            unknown = [name for name in wanted if name not in _EQUALITY and name not in _ORDER]
            if unknown:
                known = ", ".join([*_EQUALITY, *_ORDER])
                raise InvalidInput(f"filter: the operator {unknown[0]!r} is not known. Use one of {known}.")
        else:
            for value in wanted.values():
                _check(value)
    elif isinstance(wanted, list | tuple):
        for value in wanted:
            _check(value)


def matches(value: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Whether all fields are as wanted. A field that is missing counts as None."""
    return not wanted or all(_fits(value.get(name), each) for name, each in wanted.items())


def _fits(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        if _has_operators(wanted):
            return all(_holds(value, name, other) for name, other in wanted.items())
        # As PostgreSQL's JSONB contains: the fields that are named, at any depth.
        return isinstance(value, Mapping) and all(_fits(value.get(name), each) for name, each in wanted.items())
    if isinstance(wanted, list | tuple):
        return isinstance(value, list | tuple) and len(value) == len(wanted) and all(map(_fits, value, wanted))
    return _true(operator.eq, value, wanted)


def _has_operators(wanted: Mapping[Any, Any]) -> bool:
    return any(isinstance(name, str) and name.startswith("$") for name in wanted)


def _holds(value: Any, name: str, other: Any) -> bool:
    if name in _EQUALITY:
        return _true(_EQUALITY[name], value, other)
    return _true(_ORDER[name], value, other)


def _true(compare: Callable[[Any, Any], Any], value: Any, other: Any) -> bool:
    """What cannot be compared does not match; so one odd item cannot break a search."""
    try:
        return bool(compare(value, other))
    except (TypeError, ValueError):
        return False


def check_conditions(conditions: Iterable[MatchCondition] | None) -> None:
    for condition in conditions or ():
        if condition.match_type not in _MATCH_TYPES:
            raise InvalidInput(f"match_type: {condition.match_type!r} is not known. Use prefix or suffix.")


def namespace_matches(namespace: tuple[str, ...], conditions: Iterable[MatchCondition] | None) -> bool:
    return all(_agrees(namespace, condition) for condition in conditions or ())


def _agrees(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    path = tuple(condition.path)
    if len(path) > len(namespace):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(pattern in ("*", label) for pattern, label in zip(path, part, strict=True))


def narrowest_prefix(conditions: Iterable[MatchCondition] | None) -> tuple[str, ...]:
    """The labels that every namespace that matches must begin with, so that the others need not be read."""
    longest: tuple[str, ...] = ()
    for condition in conditions or ():
        if condition.match_type == "prefix":
            path = tuple(condition.path)
            plain = path[: path.index("*")] if "*" in path else path
            longest = max(longest, plain, key=len)
    return longest

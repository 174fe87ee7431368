"""Checks of what callers pass: each raises `InvalidInput` that names the field, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from inspect import signature
from math import isfinite
from typing import Any

from stepfast.clock import to_micros
from stepfast.errors import InvalidInput
from stepfast.intents import Status

_MOST_CHARACTERS = 512


def choice(field: str, given: Any, allowed: Collection[str], *, also: str = "") -> Any:
    """Return ``given`` if it is one of the allowed words; ``also`` describes what else the field takes."""
    if isinstance(given, str) and given in allowed:
        return given
    words = tuple(map(str, allowed))
    listed = ", ".join(map(repr, words)) + (f" or {also}" if also else "")
    raise InvalidInput(f"{field}: must be {'one of ' if len(words) > 1 else ''}{listed}, not {given!r}.")


def flag(field: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise InvalidInput(f"{field}: must be True or False, not {given!r}.")
    return given


def whole(field: str, given: Any, *, least: int = 0, optional: bool = False) -> Any:
    """Return a whole number of at least ``least``."""
    if given is None and optional:
        return None
    if not isinstance(given, int) or isinstance(given, bool):
        raise InvalidInput(f"{field}: must be a whole number, not {given!r}.")
    if given < least:
        raise InvalidInput(f"{field}: must be at least {least}, not {given}.")
    return given


def seconds(field: str, given: Any, *, positive: bool = False, least: float = 0.0, optional: bool = True) -> Any:
    """Return a number of seconds, not below ``least``, or more than 0 where it must be ``positive``."""
    if given is None and optional:
        return None
    if isinstance(given, timedelta):
        raise InvalidInput(f"{field}: must be a number of seconds, not {given!r}; pass its total_seconds().")
    if not isinstance(given, int | float) or isinstance(given, bool) or not isfinite(given):
        raise InvalidInput(f"{field}: must be a number of seconds, not {given!r}.")
    if positive and given <= 0:
        raise InvalidInput(f"{field}: must be more than 0 seconds, not {given}.")
    if given < least:
        raise InvalidInput(f"{field}: must be at least {least:g}, not {given}.")
    return given


def text(field: str, given: Any, *, empty: bool = True, optional: bool = True) -> Any:
    if given is None and optional:
        return None
    if not isinstance(given, str):
        raise InvalidInput(f"{field}: must be a text, not {given!r}.")
    if not given and not empty:
        raise InvalidInput(f"{field}: must not be empty.")
    return given


def name(field: str, given: Any, *, optional: bool = False) -> Any:
    """Return a text that every store takes as an identifier."""
    if given is None and optional:
        return None
    if not isinstance(given, str) or not given:
        raise InvalidInput(f"{field}: must be a text that is not empty, not {given!r}.")
    if len(given) > _MOST_CHARACTERS:
        raise InvalidInput(f"{field}: has {len(given)} characters; {_MOST_CHARACTERS} is the most.")
    if "\0" in given or any("\ud800" <= c <= "\udfff" for c in given):
        raise InvalidInput(f"{field}: must not hold NUL characters or lone surrogates.")
    return given


def function(field: str, given: Any, *, optional: bool = False) -> Any:
    if given is None and optional:
        return None
    if not callable(given):
        raise InvalidInput(f"{field}: must be a function, not {given!r}.")
    return given


def mapping(field: str, given: Any) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise InvalidInput(f"{field}: must map names to values, not {given!r}.")
    return given


def known(options: Mapping[str, Any], taker: Callable[..., Any]) -> None:
    """Raise for an option that ``taker`` does not have, naming those that it has."""
    names = [p.name for p in signature(taker).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in names:
            raise InvalidInput(f"{option}: not an option here. Known: {', '.join(names)}.")


def exceptions(field: str, given: Any, *, flags: bool = False) -> tuple[type[Exception], ...]:
    """Return a tuple of exception classes; with ``flags``, True stands for all of them and False for none."""
    if flags and isinstance(given, bool):
        return (Exception,) if given else ()
    kinds = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        also = "True, False or " if flags else ""
        raise InvalidInput(f"{field}: must be {also}a tuple of exception classes, not {given!r}.")
    return kinds


def labels(given: Any, field: str = "labels") -> dict[str, str]:
    """Return labels as a dictionary of at most 64 names and texts."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{field}: must map names to texts, not {given!r}.")
    if len(given) > 64:
        raise InvalidInput(f"{field}: {len(given)} given; 64 is the most.")
    return {name(field, key): name(f"{field}[{key!r}]", value) for key, value in given.items()}


def moment(field: str, given: Any) -> int | None:
    """Return a moment in microseconds, from a datetime with a time zone or its RFC 3339 text."""
    if given is None:
        return None
    found = given
    if isinstance(given, str):
        try:
            found = datetime.fromisoformat(given)
        except ValueError:
            found = None
    if not isinstance(found, datetime):
        raise InvalidInput(
            f"{field}: must be a datetime or an RFC 3339 text such as 2026-01-31T12:00:00Z, not {given!r}."
        )
    return to_micros(found)


def statuses(given: Any, field: str = "status") -> list[Status]:
    """Return statuses, from one or several of them or of their names."""
    try:
        found = [given] if isinstance(given, str) else list(given or ())
        return [Status(each) for each in found]
    except (TypeError, ValueError):
        known = ", ".join(status.value for status in Status)
        raise InvalidInput(f"{field}: {given!r} is not one of {known}.") from None

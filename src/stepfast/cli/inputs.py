"""What people type: JSON, names and values, spans of time, moments."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from stepfast.cli.failures import Usage

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d|w)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def read_json(name: str, text: str) -> Any:
    """A JSON value: the text itself, ``@file``, or ``-`` for stdin."""
    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text("utf-8")
    except OSError as error:
        raise Usage(f"{name}: {text[1:]} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise Usage(f"{name}: is not UTF-8.") from None
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise Usage(f"{name}: is nested too deeply.") from None
    except ValueError as error:
        raise Usage(f"{name}: is not JSON: {error}. Quote it for the shell, or give it as @file.") from None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")


def read_object(name: str, text: str) -> dict[str, Any]:
    value = read_json(name, text)
    if not isinstance(value, dict):
        raise Usage(f"{name}: must be a JSON object, such as '{{\"n\": 1}}'.")
    return value


def pairs(name: str, given: Sequence[str]) -> dict[str, str]:
    """``k=v`` each."""
    found: dict[str, str] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise Usage(f"{name}: {each!r} must be name=value.")
        found[key] = value
    return found


def span(name: str, text: str) -> timedelta:
    """``30s``, ``15m``, ``12h``, ``7d``, ``2w``."""
    match = _SPAN.fullmatch(text.strip().lower())
    if match is None:
        raise Usage(f"{name}: {text!r} must be a number with a unit: 30s, 15m, 12h, 7d or 2w.")
    seconds = float(match[1]) * _UNITS[match[2]]
    if not math.isfinite(seconds) or seconds > 1e10:
        raise Usage(f"{name}: {text!r} is too long.")
    return timedelta(seconds=seconds)


def moment(name: str, text: str) -> datetime:
    """An RFC 3339 time; without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Usage(f"{name}: {text!r} must be a time such as 2026-01-31T12:00:00Z.") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)

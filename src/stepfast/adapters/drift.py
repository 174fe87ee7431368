"""Requests in short, so that a replayed model call can be compared with the recorded one.

An adapter leaves out what changes by itself (ids, times) when it makes the sections and items of a `Request`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from stepfast.errors import Diverged

__all__ = ["Digests", "OnDrift", "Request", "compare", "differences", "digest", "items_of", "plain", "shorten"]

log = logging.getLogger("stepfast")

OnDrift = Literal["raise", "warn", "accept"]

_LONG = 4000
_SHOWN = 300


def plain(value: Any) -> Any:
    """Return a value as JSON data, as far as it goes; what has no such form becomes its text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if is_model(value):
        return value.model_dump(mode="json", exclude_unset=True, warnings=False)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return str(value)


def is_model(value: Any) -> bool:
    """Whether a value is a pydantic model; pydantic itself is not needed to know."""
    kind = type(value)
    return hasattr(kind, "__pydantic_fields_set__") and hasattr(kind, "model_dump")


_encode = msgspec.json.Encoder(order="sorted", enc_hook=plain).encode


def digest(value: Any, *, without: Collection[str] = ()) -> str:
    """Return twelve hexadecimal digits that stand for a value; of a mapping the names ``without`` do not count."""
    if without and isinstance(value, Mapping):
        value = {name: item for name, item in value.items() if name not in without}
    return blake2b(_encode(value), digest_size=6).hexdigest()


def shorten(text: str | None) -> Any:
    """Return a text as it is kept in a request: of a long one its beginning, its length and its digest."""
    if text is None or len(text) <= _LONG:
        return text
    return {"begins": text[:1000], "length": len(text), "digest": digest(text)}


class Digests:
    """Describes the items of successive requests; what a request shares with the one before is not digested again.

    ``describe`` returns what an item is and its digest, such as ``"message of user 3f2a…"``: words, a space, digits.
    """

    __slots__ = ("_describe", "_described", "_items")

    def __init__(self, describe: Callable[[Any], str] | None = None) -> None:
        self._describe = describe or _describe
        self._items: list[Any] = []
        self._described: list[str] = []

    def of(self, items: list[Any]) -> list[str]:
        """Return the descriptions of a request's items."""
        same = _shared(items, self._items)
        # Copies: the user's own code may change the items in place.
        kept = [dict(item) if type(item) is dict else item for item in items[same:]]
        self._items = [*self._items[:same], *kept]
        self._described = [*self._described[:same], *(self._describe(item) for item in items[same:])]
        return self._described


def _describe(item: Any) -> str:
    data = item if type(item) is dict else plain(item)
    if not isinstance(data, dict):
        return f"item {digest(data)}"
    return f"{data.get('type') or data.get('role') or 'item'} {digest(data)}"


def _shared(items: list[Any], before: list[Any]) -> int:
    """Return how many items at the beginning are those of the request before."""
    count = len(before)
    # Most requests go on where the one before ended: lists compare that in one go, and the same objects at once.
    if items[:count] == before:
        return count
    same = 0
    for ours, theirs in zip(items, before, strict=False):
        if ours is not theirs and (type(ours) not in (dict, str) or ours != theirs):
            break
        same += 1
    return same


class Request:
    """One request to a model: its sections by name, and its input as a list of short descriptions.

    ``sections`` has a "model"; values of other sections are texts, numbers or mappings of names to those.
    """

    __slots__ = ("items", "sections")

    def __init__(self, sections: dict[str, Any], items: list[str]) -> None:
        self.sections = sections
        self.items = items

    def pack(self, before: list[str]) -> dict[str, Any]:
        """Return the request as it is recorded: of the items only those that the request before did not have."""
        same = _shared(self.items, before)
        return {**self.sections, "input": [same, *self.items[same:]]}

    @property
    def summary(self) -> dict[str, Any]:
        """What the journal shows of the request."""
        return {"model": self.sections["model"], "items": len(self.items), "request": digest(self.sections)}


def items_of(packed: dict[str, Any], before: list[str]) -> list[str]:
    """Return all items of a recorded request; ``before`` are those of the recorded request before it."""
    same, *items = packed["input"]
    return [*before[:same], *items]


def compare(
    policy: OnDrift,
    recorded: dict[str, Any],
    items: list[str],
    now: Request,
    *,
    key: str,
    agent: str,
    remedy: str = "",
) -> list[str]:
    """Compare a recorded request with the one that would be sent now, as ``on_drift`` says.

    *raise* raises `Diverged` with the differences in words, *warn* logs them, *accept* does not look. Returns the
    differences. ``remedy`` says what else the user can do where the recorded answer cannot be used in any case: the
    policy then counts as *raise*.
    """
    found = differences(recorded, items, now) if policy != "accept" or remedy else []
    if not found:
        return found
    shown = "\n  ".join(found)
    text = f"model call {key} of agent {agent} was recorded for another request:\n  {shown}"
    if not remedy:
        if policy == "warn":
            log.warning("%s", text)
            return found
        remedy = (
            "Put the agent back as it was, pass on_drift='warn' or 'accept' to go on with the recorded answer, "
            f"or rewind the run to {key}."
        )
    raise Diverged(f"{text}\n{remedy}", key=key, differences=found)


def differences(recorded: dict[str, Any], items: list[str], now: Request) -> list[str]:
    """Return what differs between a recorded request and the one that would be sent now, in words."""
    found: list[str] = []
    for name, value in now.sections.items():
        before = recorded.get(name)
        if before == value:
            continue
        if isinstance(before, dict) and isinstance(value, dict):
            found += _compare_names(name, before, value)
        else:
            found.append(f"{name}: {_show(before)} → {_show(value)}")
    return found + _compare_items(items, now.items)


def _compare_names(section: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    found = []
    for name in [*before, *(n for n in now if n not in before)]:
        if name not in now:
            found.append(f"{section}: {name} is gone")
        elif name not in before:
            found.append(f"{section}: {name} is new")
        elif before[name] != now[name]:
            is_digest = section in ("tools", "handoffs")
            found.append(
                f"{section}: {name} has another description or schema"
                if is_digest
                else f"{section}: {name}: {_show(before[name])} → {_show(now[name])}"
            )
    return found


def _compare_items(before: list[str], now: list[str]) -> list[str]:
    found: list[str] = []
    if now == before:
        return found
    for number, (ours, theirs) in enumerate(zip(now, before, strict=False)):
        if ours != theirs:
            what, _, _ = ours.rpartition(" ")
            was, _, _ = theirs.rpartition(" ")
            found.append(f"input: item {number} ({was if was == what else f'{was} → {what}'}) changed")
    if len(now) != len(before):
        found.append(f"input: {len(before)} items → {len(now)} items")
    return found


def _show(value: Any) -> str:
    text = value if isinstance(value, str) else _encode(value).decode()
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")

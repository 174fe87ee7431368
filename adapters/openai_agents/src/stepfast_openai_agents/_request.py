"""The request of a model call in short, so that a replayed turn can be compared with the recorded one.

What changes by itself is left out: ids of items, calls and responses, and the SDK's prompt cache key.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec

from ._plain import plain

_encode = msgspec.json.Encoder(order="sorted", enc_hook=plain).encode
_ONLY_IDS = frozenset({"id", "call_id", "response_id", "approval_request_id", "item_id"})
_GENERATED = frozenset({"prompt_cache_key"})
_LONG = 4000
_NOT_SENT = frozenset({"retry"})


def digest(value: Any) -> str:
    return blake2b(_encode(value), digest_size=6).hexdigest()


class Known:
    """The input of the request before: nearly all of it comes again in the next, and need not be digested again."""

    __slots__ = ("_items", "_tell", "_told")

    def __init__(self, tell: Callable[[Any], str] | None = None) -> None:
        self._tell = tell or _item
        self._items: list[Any] = []
        self._told: list[str] = []

    def digests(self, items: list[Any]) -> list[str]:
        before, told = self._items, self._told
        same = 0
        for ours, theirs in zip(items, before, strict=False):
            if ours is not theirs and (type(ours) is not dict or ours != theirs):
                break
            same += 1
        # Copies: a filter of the user's may change the items in place.
        self._items = [*before[:same], *(dict(item) if type(item) is dict else item for item in items[same:])]
        self._told = [*told[:same], *(self._tell(item) for item in items[same:])]
        return self._told


class Request:
    """One request: its sections, and its input as a list of short digests with what each item is."""

    __slots__ = ("items", "sections")

    def __init__(
        self,
        model: Any,
        instructions: str | None,
        given: str | list[Any],
        settings: Any,
        tools: list[Any],
        output_schema: Any,
        handoffs: list[Any],
        prompt: Any,
        known: Known,
    ) -> None:
        self.sections: dict[str, Any] = {
            "model": str(getattr(model, "model", None) or type(model).__name__),
            "instructions": shorten(instructions),
            "settings": _settings(settings),
            "tools": {_tool_name(tool): digest(_tool_shape(tool)) for tool in tools},
            "handoffs": {h.tool_name: digest([h.tool_description, h.input_json_schema]) for h in handoffs},
            "output": None if output_schema is None else _output(output_schema),
            "prompt": None if prompt is None else plain(prompt),
        }
        self.items = known.digests(given) if isinstance(given, list) else [f"text {digest(given)}"]

    def pack(self, before: list[str]) -> dict[str, Any]:
        """For the journal: of the input only what is not the same as in the request before."""
        same = 0
        for ours, theirs in zip(self.items, before, strict=False):
            if ours != theirs:
                break
            same += 1
        return {**self.sections, "input": [same, *self.items[same:]]}

    @property
    def summary(self) -> dict[str, Any]:
        """What a person sees in the journal."""
        return {"model": self.sections["model"], "items": len(self.items), "request": digest(self.sections)}


def input_of(packed: dict[str, Any], before: list[str]) -> list[str]:
    same, *items = packed["input"]
    return [*before[:same], *items]


def differences(recorded: dict[str, Any], items: list[str], now: Request) -> list[str]:
    """What differs between a recorded request and the one that would be sent now, in words."""
    told: list[str] = []
    for name, value in now.sections.items():
        before = recorded.get(name)
        if before == value:
            continue
        if isinstance(before, dict) and isinstance(value, dict):
            told += _compare(name, before, value)
        else:
            told.append(f"{name}: {_show(before)} → {_show(value)}")
    told += _compare_items(items, now.items)
    return told


def _compare(section: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    told = []
    for name in [*before, *(n for n in now if n not in before)]:
        if name not in now:
            told.append(f"{section}: {name} is gone")
        elif name not in before:
            told.append(f"{section}: {name} is new")
        elif before[name] != now[name]:
            hidden = section in ("tools", "handoffs")
            told.append(
                f"{section}: {name} has another description or schema"
                if hidden
                else f"{section}: {name}: {_show(before[name])} → {_show(now[name])}"
            )
    return told


def _compare_items(before: list[str], now: list[str]) -> list[str]:
    told = []
    for number, (ours, theirs) in enumerate(zip(now, before, strict=False)):
        if ours != theirs:
            what, _, _ = ours.rpartition(" ")
            was, _, _ = theirs.rpartition(" ")
            told.append(f"input: item {number} ({was if was == what else f'{was} → {what}'}) changed")
    if len(now) != len(before):
        told.append(f"input: {len(before)} items → {len(now)} items")
    return told


def _show(value: Any) -> str:
    text = value if isinstance(value, str) else _encode(value).decode()
    return repr(text if len(text) <= 300 else f"{text[:300]}…")


def shorten(text: str | None) -> Any:
    if text is None or len(text) <= _LONG:
        return text
    return {"begins": text[:1000], "length": len(text), "digest": digest(text)}


def _settings(settings: Any) -> dict[str, Any]:
    found = plain(settings)
    if not isinstance(found, dict):
        return {}
    extra = found.get("extra_args")
    if isinstance(extra, dict):
        found["extra_args"] = {n: v for n, v in extra.items() if n not in _GENERATED} or None
    return {n: v for n, v in found.items() if v is not None and n not in _NOT_SENT}


def _item(item: Any) -> str:
    data = item if type(item) is dict else plain(item)
    if not isinstance(data, dict):
        return f"item {digest(data)}"
    kind = data.get("type") or data.get("role") or "item"
    what = f"{kind} of {data['role']}" if data.get("role") and kind != data["role"] else str(kind)
    return f"{what} {digest({name: value for name, value in data.items() if name not in _ONLY_IDS})}"


def _tool_name(tool: Any) -> str:
    return str(getattr(tool, "qualified_name", None) or getattr(tool, "name", None) or type(tool).__name__)


def _tool_shape(tool: Any) -> Any:
    """What of a tool the model sees, as far as it is known without asking the provider's converter."""
    schema = getattr(tool, "params_json_schema", None)
    if schema is not None:
        return [tool.name, getattr(tool, "description", ""), schema]
    config = getattr(tool, "tool_config", None)
    return [type(tool).__name__, _tool_name_only(tool), plain(config)]


def _tool_name_only(tool: Any) -> str:
    return str(getattr(tool, "name", ""))


def _output(schema: Any) -> str:
    if schema.is_plain_text():
        return "text"
    return f"{schema.name()} {digest(schema.json_schema())}"

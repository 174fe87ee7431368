"""The request of a model call in short, so that a replayed turn can be compared with the recorded one.

What changes by itself is left out: ids of items, calls and responses, and the SDK's prompt cache key.
"""

from __future__ import annotations

from typing import Any

from stepfast.adapters import Digests, Request, digest, plain, shorten

_ONLY_IDS = frozenset({"id", "call_id", "response_id", "approval_request_id", "item_id"})
_GENERATED = frozenset({"prompt_cache_key"})
_NOT_SENT = frozenset({"retry"})
_POSITIONAL = ("system_instructions", "input", "model_settings", "tools", "output_schema", "handoffs", "tracing")


def request_of(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], digests: Digests) -> Request:
    """Return the request that the SDK makes of a model by these arguments."""
    given = {**dict(zip(_POSITIONAL, args, strict=False)), **kwargs}
    output, prompt, items = given["output_schema"], given.get("prompt"), given["input"]
    sections: dict[str, Any] = {
        "model": str(getattr(model, "model", None) or type(model).__name__),
        "instructions": shorten(given["system_instructions"]),
        "settings": _settings(given["model_settings"]),
        "tools": {_tool_name(tool): digest(_tool_shape(tool)) for tool in given["tools"]},
        "handoffs": {h.tool_name: digest([h.tool_description, h.input_json_schema]) for h in given["handoffs"]},
        "output": None if output is None else _output(output),
        "prompt": None if prompt is None else plain(prompt),
    }
    return Request(sections, digests.of(items) if isinstance(items, list) else [f"text {digest(items)}"])


def describe_item(item: Any) -> str:
    data = item if type(item) is dict else plain(item)
    if not isinstance(data, dict):
        return f"item {digest(data)}"
    kind = data.get("type") or data.get("role") or "item"
    what = f"{kind} of {data['role']}" if data.get("role") and kind != data["role"] else str(kind)
    return f"{what} {digest(data, without=_ONLY_IDS)}"


def _settings(settings: Any) -> dict[str, Any]:
    found = plain(settings)
    if not isinstance(found, dict):
        return {}
    extra = found.get("extra_args")
    if isinstance(extra, dict):
        found["extra_args"] = {n: v for n, v in extra.items() if n not in _GENERATED} or None
    return {n: v for n, v in found.items() if v is not None and n not in _NOT_SENT}


def _tool_name(tool: Any) -> str:
    return str(getattr(tool, "qualified_name", None) or getattr(tool, "name", None) or type(tool).__name__)


def _tool_shape(tool: Any) -> Any:
    """What of a tool the model sees, as far as it is known without asking the provider's converter."""
    schema = getattr(tool, "params_json_schema", None)
    if schema is not None:
        return [tool.name, getattr(tool, "description", ""), schema]
    return [type(tool).__name__, str(getattr(tool, "name", "")), plain(getattr(tool, "tool_config", None))]


def _output(schema: Any) -> str:
    return "text" if schema.is_plain_text() else f"{schema.name()} {digest(schema.json_schema())}"

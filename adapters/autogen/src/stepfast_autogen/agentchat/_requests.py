"""A request to a model in short, so that a replayed one can be compared with the recorded one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autogen_core.tools import Tool

from stepfast.adapters import Conversation, Request, digest, plain, shorten


def describe(message: Any) -> str:
    """Return what a message of a request is, and its digest."""
    source = getattr(message, "source", "")
    kind = str(getattr(message, "type", type(message).__name__)).removesuffix("Message")
    # Not by which fields were set: all are, in a message that comes out of a saved state.
    said = digest(message.model_dump(mode="json", exclude_defaults=True))
    return f"{kind} of {source} {said}" if source else f"{kind} {said}"


def request_of(client: Any, messages: Sequence[Any], options: Mapping[str, Any], talk: Conversation) -> Request:
    """Return the request that a call of ``create`` or ``create_stream`` would send."""
    messages = list(messages)
    first = messages[0] if messages else None
    leading = first is not None and getattr(first, "type", "") == "SystemMessage"
    sections: dict[str, Any] = {
        "model": model_name(client),
        "instructions": shorten(str(first.content)) if first is not None and leading else None,
        "tools": dict(map(_tool, options.get("tools") or ())),
    }
    choice = options.get("tool_choice", "auto")
    if choice != "auto":
        sections["tool_choice"] = choice.name if isinstance(choice, Tool) else choice
    output = options.get("json_output")
    if output is not None:
        sections["json_output"] = output if isinstance(output, bool) else digest(output.model_json_schema())
    extra = options.get("extra_create_args")
    if extra:
        sections["settings"] = plain(extra)
    return Request(sections, talk.digests.of(messages[1:] if leading else messages))


def _tool(tool: Any) -> tuple[str, str]:
    schema = tool.schema if isinstance(tool, Tool) else tool
    return schema["name"], digest(schema)


def model_name(client: Any) -> str:
    """Return the name of a client's model; clients keep it in different places, and some nowhere."""
    for found in (getattr(client, "model", None), getattr(client, "_create_args", {})):
        name = found.get("model") if isinstance(found, Mapping) else found
        if isinstance(name, str):
            return name
    return type(client).__name__

"""The SDK's values as plain data, and back: JSON, so that what one version of the SDK wrote another can read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

import pydantic
from agents import ModelResponse, Usage
from agents.items import TResponseOutputItem
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from stepfast.adapters import Usage as Used
from stepfast.adapters import plain


def result_of(value: Any) -> Any:
    """Return a final output as it is seen from outside the run: whole, unlike what goes into a request."""
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json", warnings=False)
    if isinstance(value, list | tuple):
        return [result_of(item) for item in value]
    return plain(value)


@cache
def _items() -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(TResponseOutputItem)


@cache
def _usage() -> pydantic.TypeAdapter[Usage]:
    return pydantic.TypeAdapter(Usage)


def pack_items(items: list[Any]) -> list[dict[str, Any]]:
    """Output items; the few that a model gave as dictionaries are wrapped, so that they come back as such."""
    return [{"raw": plain(item)} if isinstance(item, Mapping) else plain(item) for item in items]


def unpack_items(packed: list[dict[str, Any]]) -> list[Any]:
    return [item["raw"] if len(item) == 1 and "raw" in item else _unpack_item(item) for item in packed]


def _unpack_item(item: dict[str, Any]) -> Any:
    try:
        return _items().validate_python(item)
    except pydantic.ValidationError:
        return item  # of another version of the SDK; it takes dictionaries too


def pack_response(response: ModelResponse) -> dict[str, Any]:
    return {
        "output": pack_items(response.output),
        "usage": _usage().dump_python(response.usage, mode="json", warnings=False),
        "response_id": response.response_id,
        "request_id": getattr(response, "request_id", None),
        "raw_usage": getattr(response, "raw_usage", None),
    }


_RESPONSE_FIELDS = frozenset(f.name for f in dataclasses.fields(ModelResponse))


def unpack_response(packed: dict[str, Any]) -> ModelResponse:
    extra = {
        name: packed[name]
        for name in ("request_id", "raw_usage")
        if name in _RESPONSE_FIELDS and packed.get(name) is not None
    }
    response = ModelResponse(output=[], usage=unpack_usage(packed["usage"]), response_id=packed["response_id"], **extra)
    response.output = unpack_items(packed["output"])  # not checked again, for the sake of items that are not known here
    return response


_USAGE_FIELDS = frozenset(f.name for f in dataclasses.fields(Usage))


def unpack_usage(packed: dict[str, Any] | None) -> Usage:
    """What another version counted and this one does not is left out; what it did not count yet is 0."""
    known = {name: value for name, value in (packed or {}).items() if name in _USAGE_FIELDS}
    _complete(known)
    for entry in known.get("request_usage_entries") or ():
        _complete(entry)
    return _usage().validate_python(known)


def _complete(counted: dict[str, Any]) -> None:
    for name, kind in (("input_tokens_details", InputTokensDetails), ("output_tokens_details", OutputTokensDetails)):
        found = counted.get(name)
        if isinstance(found, dict):
            needed = [field for field, about in kind.model_fields.items() if about.is_required()]
            counted[name] = {**dict.fromkeys(needed, 0), **found}


def usage_of(recorded: dict[str, Any]) -> Used | None:
    """Return what a recorded model call used."""
    found = recorded["response"].get("usage")
    if not isinstance(found, dict):
        return None
    details = found.get("input_tokens_details")
    if isinstance(details, list):  # so some versions keep them
        details = details[0] if details else None
    return Used(
        requests=found.get("requests") or 0,
        input_tokens=found.get("input_tokens") or 0,
        output_tokens=found.get("output_tokens") or 0,
        cached_tokens=(details.get("cached_tokens") or 0) if isinstance(details, dict) else 0,
    )

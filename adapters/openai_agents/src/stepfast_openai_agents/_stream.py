"""Streamed answers: what of them is kept, and how a kept one is told again as events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openai.types import responses as r
from openai.types.responses import Response, ResponseCompletedEvent, ResponseUsage

from stepfast.adapters import mark_replayed, plain

from ._values import pack_items, unpack_items

_DETAILS = ("input_tokens_details", "output_tokens_details")


def pack_completed(response: Response) -> dict[str, Any]:
    """The same record as of a call that was not streamed: a run may go on either way."""
    usage = plain(response.usage)
    return {
        "output": pack_items(response.output),
        "usage": None if usage is None else {"requests": 1, **usage},
        "response_id": response.id,
        "request_id": getattr(response, "_request_id", None),
        "raw_usage": None,
        "model": plain(response.model),
    }


def _usage_of(packed: dict[str, Any]) -> ResponseUsage | None:
    usage = packed["usage"]
    if usage is None:
        return None
    return ResponseUsage.model_construct(
        input_tokens=usage.get("input_tokens", 0),
        output_tokens=usage.get("output_tokens", 0),
        total_tokens=usage.get("total_tokens", 0),
        **{name: _details(name, usage.get(name)) for name in _DETAILS},
    )


def _details(name: str, found: Any) -> Any:
    kind = ResponseUsage.model_fields[name].annotation
    assert kind is not None  # noqa: S101
    data = found[0] if isinstance(found, list) and found else found
    return kind.model_construct(**(data if isinstance(data, dict) else {}))


def _response(packed: dict[str, Any], items: list[Any], status: str) -> Response:
    response = Response.model_construct(
        id=packed["response_id"] or "replayed",
        created_at=0.0,
        model=packed.get("model") or "",
        object="response",
        output=items,
        parallel_tool_calls=True,
        status=status,
        tool_choice="auto",
        tools=[],
        usage=_usage_of(packed) if status == "completed" else None,
    )
    if packed.get("request_id") is not None:
        object.__setattr__(response, "_request_id", packed["request_id"])
    return response


class _Numbered:
    """Numbers events as a stream does."""

    def __init__(self) -> None:
        self.number = -1

    def __call__(self, kind: Any, event_type: str, **fields: Any) -> Any:
        self.number += 1
        return mark_replayed(kind.model_construct(type=event_type, sequence_number=self.number, **fields))


def events_of(packed: dict[str, Any]) -> Iterator[Any]:
    """A recorded answer as a stream: each text and each call's arguments in one piece."""
    items = unpack_items(packed["output"])
    make = _Numbered()
    yield make(r.ResponseCreatedEvent, "response.created", response=_response(packed, [], "in_progress"))
    for index, item in enumerate(items):
        yield from _events_of_item(make, index, item)
    completed = _response(packed, items, "completed")
    yield make(ResponseCompletedEvent, "response.completed", response=completed)


def _events_of_item(make: _Numbered, index: int, item: Any) -> Iterator[Any]:
    yield make(r.ResponseOutputItemAddedEvent, "response.output_item.added", item=item, output_index=index)
    kind = getattr(item, "type", None)
    at = {"item_id": getattr(item, "id", None) or "", "output_index": index}
    if kind == "message":
        for number, part in enumerate(item.content):
            yield from _events_of_part(make, {**at, "content_index": number}, part)
    elif kind == "function_call":
        delta = "response.function_call_arguments.delta"
        yield make(r.ResponseFunctionCallArgumentsDeltaEvent, delta, delta=item.arguments, **at)
        done = "response.function_call_arguments.done"
        yield make(r.ResponseFunctionCallArgumentsDoneEvent, done, arguments=item.arguments, name=item.name, **at)
    yield make(r.ResponseOutputItemDoneEvent, "response.output_item.done", item=item, output_index=index)


def _events_of_part(make: _Numbered, at: dict[str, Any], part: Any) -> Iterator[Any]:
    yield make(r.ResponseContentPartAddedEvent, "response.content_part.added", part=part, **at)
    if part.type == "output_text":
        yield make(r.ResponseTextDeltaEvent, "response.output_text.delta", delta=part.text, logprobs=[], **at)
        yield make(r.ResponseTextDoneEvent, "response.output_text.done", text=part.text, logprobs=[], **at)
    yield make(r.ResponseContentPartDoneEvent, "response.content_part.done", part=part, **at)

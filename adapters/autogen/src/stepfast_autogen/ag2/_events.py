"""AG2's events as data: how they are recorded, and what of them counts in a request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ag2.events import (
    BaseEvent,
    ClientToolCallEvent,
    DataInput,
    Field,
    HumanInputRequest,
    HumanMessage,
    Input,
    ModelRequest,
    TextInput,
    ToolCallEvent,
    ToolCallsEvent,
    ToolErrorEvent,
    ToolResult,
    ToolResultEvent,
)
from ag2.events import is_conversational as conversational
from ag2.events.task_events import TaskEvent
from fast_depends.pydantic import PydanticSerializer

from stepfast import InvalidInput, StepfastError
from stepfast.adapters import Usage, digest
from stepfast.codec import Codec


class Carrier(BaseEvent):
    """Lets AG2 itself write and read events of any class."""

    events: list[Any] = Field(default_factory=list)


def pack(events: Iterable[Any]) -> list[Any]:
    """Return events as plain data."""
    packed: list[Any] = Carrier(events=list(events)).to_dict()["events"]
    return packed


def unpack(packed: Sequence[Any]) -> list[Any]:
    """Return the events that `pack` made data of."""
    events: list[Any] = Carrier.from_dict({"events": list(packed)}).events  # type: ignore[attr-defined]
    for event, data in zip(events, packed, strict=True):
        if not isinstance(event, BaseEvent):
            name = data.get("__event__") if isinstance(data, dict) else type(data).__name__
            raise InvalidInput(f"event: {name} cannot be imported; define the class at the top of a module.")
    return events


# --- input ---------------------------------------------------------------------------------------


def pack_input(given: Iterable[Any]) -> Any:
    """Return what an agent is asked as data that is the same each time: one text, or a list of parts."""
    parts = [_plain_part(part) for part in ModelRequest.ensure_request(list(given)).parts]
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts


def _plain_part(part: Input) -> Any:
    if type(part) is TextInput and not part.metadata:
        return part.content
    return timeless(pack([part])[0])


def unpack_input(packed: Any) -> list[Any]:
    """Return the parts that `pack_input` made data of."""
    parts = [packed] if isinstance(packed, str) else list(packed)
    return [part if isinstance(part, str) else unpack([part])[0] for part in parts]


def timeless(data: Any) -> Any:
    """Return an event's data without the times at which it and its parts were made."""
    if isinstance(data, dict):
        return {name: timeless(value) for name, value in data.items() if name != "created_at"}
    return [timeless(item) for item in data] if isinstance(data, list) else data


# --- requests ------------------------------------------------------------------------------------

# A provider is sent the responses and collected results; these stand beside them, in the order of the moment.
_BESIDE = (
    ToolCallEvent,
    ToolCallsEvent,
    ToolResultEvent,
    ClientToolCallEvent,
    HumanInputRequest,
    HumanMessage,
    TaskEvent,
)


def sent_of(messages: Iterable[Any]) -> list[Any]:
    """Return the events of a request that a provider is sent."""
    return [event for event in messages if conversational(event) and not isinstance(event, _BESIDE)]


def describe(event: Any) -> str:
    """Return what an event of a request is, and its digest."""
    return f"{type(event).__name__} {digest(timeless(event.to_dict()))}"


def usage_of(packed: dict[str, Any]) -> Usage | None:
    """Return the usage of a recorded model call."""
    found = packed["response"][0].get("usage") or {}
    counts = found.get("data", found)
    given, made = counts.get("prompt_tokens") or 0, counts.get("completion_tokens") or 0
    if not given and not made:
        made = counts.get("total_tokens") or 0
    return Usage(1, int(given), int(made), int(counts.get("cache_read_input_tokens") or 0))


# --- results of tools ----------------------------------------------------------------------------

_serializer = PydanticSerializer(pydantic_config={"arbitrary_types_allowed": True}, use_fastdepends_errors=False)


def pack_result(codec: Codec, event: Any) -> dict[str, Any]:
    """Return a tool's result as data; a part that cannot be stored becomes the text that a model sees of it."""
    data: dict[str, Any] = _kept(codec, pack([event])) or pack([_as_text(event)])[0]
    packed = {"event": data}
    error = getattr(event, "error", None)
    if error is not None and _encodable(codec, error):
        packed["error"] = error
    return packed


def unpack_result(packed: dict[str, Any]) -> Any:
    """Return the result that `pack_result` made data of."""
    event = unpack([packed["event"]])[0]
    if "error" in packed:
        event.error = packed["error"]
    return event


def _kept(codec: Codec, packed: list[Any]) -> Any:
    try:
        codec.encode(packed)
        unpack(packed)
    except Exception:  # of classes that the user wrote
        return None
    return packed[0]


def _as_text(event: Any) -> Any:
    parts = [
        TextInput(_serializer.encode(part.data).decode()) if isinstance(part, DataInput) else part
        for part in event.result.parts
    ]
    plain = ToolResult(parts=parts, final=event.result.final)
    made: dict[str, Any] = {"parent_id": event.parent_id, "name": event.name, "result": plain}
    return ToolErrorEvent(error=event.error, **made) if isinstance(event, ToolErrorEvent) else ToolResultEvent(**made)


def storable(codec: Codec, values: dict[Any, Any]) -> dict[str, Any]:
    """Return the variables of a context that can be stored."""
    return {name: value for name, value in values.items() if isinstance(name, str) and _encodable(codec, value)}


def _encodable(codec: Codec, value: Any) -> bool:
    try:
        codec.encode(value)
    except StepfastError:
        return False
    return True

"""Streams: what an earlier attempt had finished comes as one piece, with a mark; the rest comes live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from crewai.events.event_bus import crewai_event_bus
from crewai.events.types.llm_events import LLMStreamChunkEvent

from stepfast.adapters import mark_replayed, replayed

from ._place import Place


def repeat(llm: Any, answer: Any, task: Any = None, agent: Any = None) -> None:
    """Emit an answer of an earlier attempt where a live call of the LLM would have been streamed."""
    if not getattr(llm, "stream", False):
        return
    calls = [{**call, "index": number} for number, call in enumerate(answer if isinstance(answer, list) else ())]
    pieces: list[dict[str, Any]] = [{"chunk": call["function"]["arguments"], "tool_call": call} for call in calls]
    call_id = str(uuid4())
    for piece in pieces or [{"chunk": answer if isinstance(answer, str) else ""}]:
        event = LLMStreamChunkEvent(**piece, from_task=task, from_agent=agent, call_id=call_id)
        crewai_event_bus.emit(llm, mark_replayed(event))


def marked(place: Place, original: Callable[..., Any], event: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of what makes a piece of a stream from an event: the piece has the event's mark."""
    return mark_replayed(original(event, *args, **kwargs), replayed(event))

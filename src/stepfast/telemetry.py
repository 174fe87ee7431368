"""OpenTelemetry spans of runs and steps, where the program around us uses OpenTelemetry.

Nothing is imported on its own account: without the API package in the program this costs one look-up a run. A run
that goes on after a crash links to the attempt before it, whose span is told in the history of the intent.
"""

from __future__ import annotations

import sys
from typing import Any

from stepfast.intents import TERMINAL, Event, Intent, Status

NAME = "stepfast"
EVENT = "intent.traced"


def active() -> bool:
    """Whether somebody in this process collects spans."""
    trace = sys.modules.get("opentelemetry.trace")
    return trace is not None and type(trace.get_tracer_provider()).__name__ not in _IDLE


# What the API has in place as long as nobody has set a provider of their own.
_IDLE = frozenset({"ProxyTracerProvider", "NoOpTracerProvider"})


class RunSpan:
    """The span of one attempt, and those of its steps under it."""

    def __init__(self, intent: Intent, attempt: int, before: str | None) -> None:
        from opentelemetry import context, trace

        self._trace, self._context = trace, context
        self._tracer = trace.get_tracer(NAME)
        earlier = _parse(before)
        self._span = self._tracer.start_span(
            f"run {intent.run_id or intent.intent_type}",
            attributes={
                "stepfast.intent_id": intent.intent_id,
                "stepfast.intent_type": intent.intent_type,
                "stepfast.to_agent": intent.to_agent,
                "stepfast.attempt": attempt,
            },
            links=[trace.Link(earlier, {"stepfast.relation": "resumes"})] if earlier is not None else None,
        )
        self._token: Any = None

    @property
    def text(self) -> str:
        """The span as a W3C traceparent."""
        found = self._span.get_span_context()
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"

    def enter(self) -> None:
        """Make it the current span of this thread or task."""
        self._token = self._context.attach(self._trace.set_span_in_context(self._span))

    def leave(self, status: Status) -> None:
        self._span.set_attribute("stepfast.status", status.value)
        if status in TERMINAL and status is not Status.COMPLETED:
            self._span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, status.value))
        self._span.end()
        if self._token is not None:
            self._context.detach(self._token)
            self._token = None

    def start_step(self, key: str, kind: str, name: str) -> tuple[Any, Any]:
        """A step that is really done; what the journal answers has none."""
        span = self._tracer.start_span(
            f"{kind} {name}", attributes={"stepfast.step": key, "stepfast.kind": kind, "stepfast.name": name}
        )
        return span, self._context.attach(self._trace.set_span_in_context(span))

    def end_step(self, opened: tuple[Any, Any], error: BaseException | None) -> None:
        span, token = opened
        if error is not None:
            # The kind alone: an error's text may hold what nobody wants in a trace.
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, type(error).__name__))
        span.end()
        self._context.detach(token)


def begin(intent: Intent, attempt: int, history: list[Event]) -> RunSpan:
    """The span of an attempt, linked to the latest one that the history tells of."""
    told = [event.details.get("traceparent") for event in history if event.event_type == EVENT]
    return RunSpan(intent, attempt, told[-1] if told else None)


def _parse(text: Any) -> Any:
    """A span context from a traceparent; None where there is none to be had."""
    from opentelemetry.trace import SpanContext, TraceFlags

    parts = text.split("-") if isinstance(text, str) else []
    if len(parts) != 4:
        return None
    try:
        trace_id, span_id, flags = (int(part, 16) for part in parts[1:])
    except ValueError:
        return None
    found = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return found if found.is_valid else None

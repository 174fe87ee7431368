"""Marks in the SDK's traces: a replayed step has a span that says so."""

from __future__ import annotations

from agents.tracing import custom_span, get_current_trace


def mark_replayed(key: str) -> None:
    """A span of no length under the current one. Nothing is exported that would not be, and nothing is hidden."""
    if get_current_trace() is not None:
        with custom_span("stepfast.replayed", {"step": key}):
            pass

"""CrewAI's events in the history of the run, for those who watch it. Nothing depends on them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from crewai.events.stream_context import add_stream_sink, reset_stream_sinks

from stepfast.flow import Flow

if TYPE_CHECKING:
    from ._place import CrewAttempt

_TYPE = "intent.crewai"
_SHOWN = re.compile(
    r"(crew_kickoff|task|agent_execution|tool_usage|llm_call|llm_guardrail|flow|method_execution|memory_save"
    r"|memory_query|knowledge_query|human_feedback|mcp_tool_execution)_\w+"
)
_DETAILS = ("crew_name", "flow_name", "method_name", "task_name", "agent_role", "tool_name", "model", "error")
_MOST = 500
_EVERY = 1.0


class Mirror:
    """Collects events of one attempt, at most 500, and writes them in few commits: one in a second, and one at last."""

    def __init__(self, attempt: CrewAttempt, *, on: bool) -> None:
        self._attempt = attempt
        self._on = on
        self._lock = threading.Lock()
        self._left = _MOST
        self._unwritten: list[dict[str, Any]] = []
        self._written_at = time.monotonic()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Collect the events of what is called in a ``with`` block, in all its threads."""
        token = add_stream_sink(self._collect if self._on else _nothing)
        try:
            yield
        finally:
            reset_stream_sinks(token)

    def _collect(self, _source: Any, event: Any) -> None:
        if not _SHOWN.fullmatch(event.type) or event.type == "llm_call_started":
            return
        found = {name: getattr(event, name, None) for name in _DETAILS}
        details = {name: self._attempt.redacted(str(value))[:100] for name, value in found.items() if value}
        with self._lock:
            self._left -= 1
            if self._left >= 0:
                self._unwritten.append({"event": event.type, **details})
            elif self._left == -1:
                self._unwritten.append({"event": "and more, which are not kept"})

    def writing(self, *, last: bool = False) -> Flow[None]:
        """Return the flow that writes what was collected, if it is time to."""
        with self._lock:
            if not self._unwritten or not (last or time.monotonic() - self._written_at >= _EVERY):
                return
            notes, self._unwritten = self._unwritten, []
            self._written_at = time.monotonic()
        yield from self._attempt.run.noting(_TYPE, notes)


def _nothing(_source: Any, _event: Any) -> None:
    """Take the place of `Mirror._collect` where events are not wanted."""

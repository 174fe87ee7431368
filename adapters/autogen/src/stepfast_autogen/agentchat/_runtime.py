"""AgentChat's runtime without the work that it does for nobody.

The runtime turns each message into JSON three times for a log, and opens four spans for it, whether or not anyone
looks. That is half of its own time, which counts in a replay, where no model is waited for.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Any

from autogen_core import EVENT_LOGGER_NAME, SingleThreadedAgentRuntime
from opentelemetry.trace import INVALID_SPAN, ProxyTracerProvider, get_tracer_provider

_events = logging.getLogger(EVENT_LOGGER_NAME)


class LightRuntime(SingleThreadedAgentRuntime):
    """The runtime of a durable team: it logs and traces only where logs and traces are kept."""

    def __init__(self) -> None:
        super().__init__(ignore_unhandled_exceptions=False)
        self._traced = not isinstance(get_tracer_provider(), ProxyTracerProvider)
        if not self._traced:
            self._tracer_helper: Any = _NoTraces()

    def _try_serialize(self, message: Any) -> str:
        return super()._try_serialize(message) if _events.isEnabledFor(logging.INFO) else ""

    async def _create_otel_attributes(self, *args: Any, **kwargs: Any) -> Any:
        return await super()._create_otel_attributes(*args, **kwargs) if self._traced else {}


class _NoTraces:
    def trace_block(self, *args: Any, **kwargs: Any) -> Any:
        return nullcontext(INVALID_SPAN)

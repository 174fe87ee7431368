"""Streamed runs: the events of finished turns are repeated (or left out), and the rest comes live.

The SDK's own streamed result is made anew for each pass over the run and after each approval. The caller holds one
object throughout, which shows whatever the current one shows.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

from agents import RunContextWrapper, RunResultStreaming
from agents.run import AgentRunner

from stepfast.adapters import mark_replayed, replayed

from ._attempt import AgentAttempt
from ._execution import Execution

_END = object()


class DurableStream(RunResultStreaming):
    """The SDK's streamed result, for a run that may take more than one pass."""

    async def stream_events(self) -> AsyncIterator[Any]:
        """The events, those of finished turns first; raises what the run raises."""
        conductor: _Conductor = self.__dict__["_stepfast"]
        while (event := await conductor.queue.get()) is not _END:
            yield event
        conductor.queue.put_nowait(_END)  # for another iteration
        await conductor.over()

    def cancel(self, mode: Any = "immediate") -> None:
        """Stop as the SDK does; the run stays unfinished and goes on when it is started again."""
        conductor: _Conductor = self.__dict__["_stepfast"]
        conductor.cancelled = True
        if conductor.inner is not None:
            conductor.inner.cancel(mode)
        else:
            conductor.task.cancel()


class _Cancelled(Exception):
    """The caller cancelled the stream: the run is handed back."""


class _Conductor:
    """Drives a durable run in the background and hands its events on."""

    def __init__(self, execution: Execution, base: AgentRunner, agent: Any, given: Any, options: Any) -> None:
        self.base = base
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.cancelled = False
        self.inner: RunResultStreaming | None = None
        self.shown = _dormant(agent, given, options)
        self.shown.__dict__["_stepfast"] = self
        self.told = 0  # items that were handed on, over all passes
        self._attempt: AgentAttempt | None = None
        self._skip = 0
        self.task = asyncio.create_task(self._run(execution, agent, given, options))

    async def over(self) -> None:
        """Wait for the end, and raise what the run raised."""
        await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.result()

    async def _run(self, execution: Execution, agent: Any, given: Any, options: dict[str, Any]) -> None:
        try:
            # A stream of events has no place for what a call in doubt is asked: that is raised.
            await execution.execute(agent, given, options, self._play, return_doubts=False)
        except _Cancelled:
            pass
        finally:
            self.queue.put_nowait(_END)

    async def _play(self, attempt: AgentAttempt, view: Any, given: Any, options: dict[str, Any]) -> RunResultStreaming:
        if attempt is not self._attempt:
            self._attempt, self._skip = attempt, self.told
        inner = self.inner = self.base.run_streamed(view, given, **options)
        # What the caller holds shows the state of this one from now on.
        inner.__dict__["_stepfast"] = self
        object.__setattr__(self.shown, "__dict__", inner.__dict__)
        await self._hand_on(attempt, inner)
        if self.cancelled and not inner.interruptions:
            attempt.check()
            raise _Cancelled
        return inner

    async def _hand_on(self, attempt: AgentAttempt, inner: RunResultStreaming) -> None:
        """Each event once: a pass after the first comes by the same events again."""
        quiet = not attempt.settings.replay_events
        repeats = self._skip > 0
        async for event in RunResultStreaming.stream_events(inner):
            old = _is_old(attempt, event)
            mark_replayed(event, old)
            if event.type == "raw_response_event":
                if not (old and (quiet or repeats)):
                    self.queue.put_nowait(event)
            elif self._skip:
                self._skip -= 1
            else:
                self.told += 1
                if not (old and quiet):
                    self.queue.put_nowait(event)


def _is_old(attempt: AgentAttempt, event: Any) -> bool:
    if event.type == "raw_response_event":
        return replayed(event.data)
    if event.type == "run_item_stream_event":
        raw = getattr(event.item, "raw_item", None)
        found = raw if isinstance(raw, dict) else getattr(raw, "__dict__", {})
        return (found.get("call_id") or found.get("id") or "") in attempt.old_ids
    return not attempt.live and attempt.replays


def _dormant(agent: Any, given: Any, options: dict[str, Any]) -> DurableStream:
    """A streamed result before anything has happened: which fields there are differs between versions."""
    context = options.get("context")
    known: dict[str, Any] = {
        "input": given if given is not None else "",
        "new_items": [],
        "raw_responses": [],
        "input_guardrail_results": [],
        "output_guardrail_results": [],
        "tool_input_guardrail_results": [],
        "tool_output_guardrail_results": [],
        "context_wrapper": context if isinstance(context, RunContextWrapper) else RunContextWrapper(context=context),
        "current_agent": agent,
        "current_turn": 0,
        "max_turns": options.get("max_turns", 10),
    }
    missing = dataclasses.MISSING
    needed = [
        f.name
        for f in dataclasses.fields(RunResultStreaming)
        if f.init and f.default is missing and f.default_factory is missing
    ]
    fields: dict[str, Any] = {name: known.get(name) for name in needed}
    return DurableStream(**fields)


def stream(execution: Execution, base: AgentRunner, agent: Any, given: Any, options: dict[str, Any]) -> DurableStream:
    return _Conductor(execution, base, agent, given, options).shown

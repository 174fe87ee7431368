"""Streamed runs: finished turns are told again as events (or left out), and the rest comes live.

The SDK's own streamed result is made anew for each pass over the run and after each approval. The caller holds one
object throughout, which shows whatever the current one shows.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from agents import RunContextWrapper, RunResultStreaming
from agents.run import AgentRunner

from stepfast import Suspended, Suspension

from ._conduct import answers_to, apply, dressed, enter, resuming, with_originals
from ._current import Drive, Here, standing
from ._view import view_of

if TYPE_CHECKING:
    from .runner import Durable

_END = object()
_MARK = "stepfast_replayed"


def replayed(event: Any) -> bool:
    """Whether an event of a stream tells of what an earlier attempt had finished."""
    return bool(getattr(event, _MARK, False))


def nested_streamed(base: AgentRunner, at: Here, agent: Any, given: Any, options: dict[str, Any]) -> Any:
    """A streamed loop inside a tool of a durable run; its background task stands where it is started."""
    drive = at.drive
    loop = enter(at, agent, given)
    with standing(Here(drive, loop, loop.scope)):
        return base.run_streamed(view_of(drive, agent), given, **dressed(drive, options))


class DurableStream(RunResultStreaming):
    """The SDK's streamed result, for a run that may take more than one pass."""

    async def stream_events(self) -> AsyncIterator[Any]:
        """The events, those of finished turns first; raises what the run raises."""
        conductor: _Conductor = self.__dict__["_stepfast"]
        while (event := await conductor.queue.get()) is not _END:
            yield event
        conductor.queue.put_nowait(_END)  # for whoever asks once more
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

    def __init__(self, durable: Durable, base: AgentRunner, agent: Any, given: Any, options: dict[str, Any]) -> None:
        self.durable, self.base, self.agent, self.given, self.options = durable, base, agent, given, options
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.cancelled = False
        self.inner: RunResultStreaming | None = None
        self.shown = _dormant(agent, given, options)
        self.shown.__dict__["_stepfast"] = self
        self.told = 0  # items that were handed on, over all passes
        self.task = asyncio.create_task(self._run())

    async def over(self) -> None:
        """Wait for the end, and raise what the run raised."""
        await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.result()

    async def _run(self) -> None:
        try:
            await self._execute()
        except _Cancelled:
            pass
        finally:
            self.queue.put_nowait(_END)

    async def _execute(self) -> None:
        from .runner import after, summary

        drive: Drive | None = None
        result: RunResultStreaming | None = None
        durable = self.durable
        try:
            async with durable.opened(self.agent, self.given) as (run, scope, start):
                passes = 0
                while result is None:
                    passes += 1
                    drive = Drive(run, durable.settings)
                    try:
                        result = await self._pass(drive, scope, start)
                    except BaseException as error:
                        await after(drive, error, passes)
                if durable.owns and not run.replaying:
                    run.complete(summary(result))
        except (Suspended, Suspension) as waits:
            if drive is None or drive.pending is None:
                raise  # an event stream has no place for what a one-shot in doubt is asked
            await durable.waiting(drive, waits)

    async def _pass(self, drive: Drive, scope: Any, start: Any) -> RunResultStreaming:
        loop = drive.loop(scope, self.agent.name)
        view = view_of(drive, self.agent)
        skip = self.told
        drive.replays = loop.scope.recorded("model:0") is not None
        with standing(Here(drive, loop, loop.scope)):
            dressing = dressed(drive, self.options)
            inner = self._adopt(self.base.run_streamed(view, start, **dressing))
            skip = await self._hand_on(drive, inner, skip)
            while inner.interruptions:
                drive.check()
                answers = await answers_to(drive, loop, inner)
                state = inner.to_state()
                apply(state, answers)
                inner = self._adopt(self.base.run_streamed(view, state, **resuming(dressing)))
                skip = await self._hand_on(drive, inner, skip)
            drive.check()
        if self.cancelled:
            raise _Cancelled
        with_originals(drive, inner)
        return inner

    def _adopt(self, inner: RunResultStreaming) -> RunResultStreaming:
        """What the caller holds shows the state of this one from now on."""
        self.inner = inner
        inner.__dict__["_stepfast"] = self
        object.__setattr__(self.shown, "__dict__", inner.__dict__)
        return inner

    async def _hand_on(self, drive: Drive, inner: RunResultStreaming, skip: int) -> int:
        """Each event once: a pass after the first comes by the same events again."""
        quiet = not drive.settings.replay_events
        repeats = skip > 0
        async for event in RunResultStreaming.stream_events(inner):
            old = _is_old(drive, event)
            setattr(event, _MARK, old)
            if event.type == "raw_response_event":
                if not (old and (quiet or repeats)):
                    self.queue.put_nowait(event)
                continue
            if skip:
                skip -= 1
                continue
            self.told += 1
            if not (old and quiet):
                self.queue.put_nowait(event)
        return skip


def _is_old(drive: Drive, event: Any) -> bool:
    if event.type == "raw_response_event":
        return bool(getattr(event.data, _MARK, False))
    if event.type == "run_item_stream_event":
        raw = getattr(event.item, "raw_item", None)
        found = raw if isinstance(raw, dict) else getattr(raw, "__dict__", {})
        return (found.get("call_id") or found.get("id") or "") in drive.old_ids
    return not drive.live and drive.replays


def _dormant(agent: Any, given: Any, options: dict[str, Any]) -> DurableStream:
    """A streamed result before anything has happened: what fields there are differs between versions."""
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


def stream(durable: Durable, base: AgentRunner, agent: Any, given: Any, options: dict[str, Any]) -> DurableStream:
    return _Conductor(durable, base, agent, given, options).shown

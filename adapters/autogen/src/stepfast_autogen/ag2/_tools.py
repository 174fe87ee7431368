"""Tool calls: started before they run where that matters, recorded before their result is handed on."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

from ag2.events import ToolErrorEvent, ToolResult, ToolResultEvent
from ag2.tools.subagents.subagent_tool import SubagentTool

from stepfast import Fenced, StepFailed, StoreError, Suspended, Suspension
from stepfast.adapters import COMPOSITE, STOPPED, Doubt, Policy, Stopped, declared, tool_call

from ._events import pack, pack_result, unpack, unpack_result
from ._place import Here, Recording, ToolCall, place


class _Cut(Exception):
    """The run stopped inside of a tool, which has no result: it is entered again when the run goes on."""


def at_call(original: Any) -> Any:
    """Wrap the call of one tool: what stops the run in it stops it at the next model call, and not the tools beside."""

    @functools.wraps(original)
    async def execute(context: Any, event: Any) -> Any:
        here = place.here()
        if here is None or here.loop is None:
            return await original(context, event)
        attempt, loop = here.attempt, here.loop
        call = ToolCall(attempt.key(loop.scope, "tool", f"{event.name}.{loop.talk.turn}"), here.call)
        if attempt.stopped:
            return stopped(event)
        scope = loop.scope.scope(call.key, shared=True)
        with place.standing(Here(attempt, scope, loop, call)):
            try:
                return await original(context, event)
            except Suspension as signal:
                attempt.stop(signal)
            except Stopped:
                pass
        call.cut_short()
        return stopped(event)

    return execute


def stopped(event: Any) -> Any:
    """Return what the framework gets in place of a result when the run has stopped; no model sees it."""
    return ToolResultEvent.from_call(event, STOPPED)


def at_tool(original: Any) -> Any:
    """Wrap the execution of a tool, inside of the hooks around it."""

    @functools.wraps(original)
    async def execute(self: Any, event: Any, context: Any) -> Any:
        here = place.here()
        if here is None or here.call is None or here.busy:
            return await original(self, event, context)
        policy = here.attempt.settings.policies.of(self.name, marked(self), fallback_of(self))
        call = functools.partial(original, self, event)
        if policy.kind == "composite":
            with place.standing(here._replace(busy=True)):
                return _no_signal(here, await call(context))
        return await _perform(here, here.call, self, policy, event, context, call)

    return execute


async def _perform(
    here: Here, call: ToolCall, tool: Any, policy: Policy, event: Any, context: Any, execute: Any
) -> Any:
    attempt, loop = here.attempt, here.loop
    assert loop is not None  # noqa: S101
    stream = Recording(context.stream, hold=False)
    made: list[Any] = []

    async def effect() -> Any:
        call.started = True
        with place.standing(here._replace(busy=True)):
            try:
                result = _no_signal(here, await execute(dataclasses.replace(context, stream=stream)))
            except Suspension as signal:
                attempt.stop(signal)
                raise _Cut from signal
            except Stopped as signal:
                raise _Cut from signal
            finally:
                call.started = False
        if call.cut:
            raise _Cut
        if policy.on_error == "ask" and isinstance(result, ToolErrorEvent) and _has_run(tool, result.error):
            raise Doubt from result.error
        made.append(result)
        packed = pack_result(attempt.run.codec, result)
        return {"result": packed, "sent": pack(stream.sent), "enqueued": pack(stream.enqueued)}

    arguments = arguments_of(event)
    flow = tool_call(
        attempt,
        loop.scope,
        key=call.next_key(),
        name=tool.name,
        policy=policy._replace(on_error="show"),  # AG2 returns an error as an event, so `effect` looks at it
        inputs=[tool.name, arguments],
        arguments=arguments,
        effect=effect,
        context=context.variables,
        agent=loop.agent,
        turn=loop.talk.turn,
    )
    try:
        output, _ = await loop.scope.drive(flow)
    except _Cut as cut:
        if call.asked is None:
            raise Stopped from cut
        asked, call.asked, call.cut = call.asked, None, False
        await asked()
        attempt.enter_again(here.scope)
        call.made -= 1
        return await _perform(here, call, tool, policy, event, context, execute)
    except StepFailed as error:
        return ToolErrorEvent(parent_id=event.id, name=event.name, error=error, result=ToolResult(str(error)))
    if output is STOPPED:
        raise Stopped
    if made:
        return made[0]
    if not isinstance(output, dict) or output.keys() != {"result", "sent", "enqueued"}:  # said by a person or a probe
        return ToolResultEvent.from_call(event, "done" if output is None else output)
    for sent in unpack(output["sent"]):
        await context.send(sent)
    for part in unpack(output["enqueued"]):
        context.stream.enqueue(part)
    return unpack_result(output["result"])


def _no_signal(here: Here, result: Any) -> Any:
    """Return a tool's result; what says that a run waits, or that its store is away, is none, and stops this run."""
    error = getattr(result, "error", None)
    if isinstance(error, Suspended | StoreError | Fenced):
        here.attempt.stop(error)
        raise Stopped from error
    return result


def arguments_of(event: Any) -> dict[str, Any]:
    """Return the arguments of a call; what is no JSON object is shown as it came."""
    try:
        found = event.serialized_arguments
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"input": event.arguments}


def marked(tool: Any) -> Any:
    """Return what carries a tool's policy: itself, or the function that it was made of."""
    function = getattr(getattr(tool, "model", None), "call", None)
    return tool if declared(tool) is not None or declared(function) is None else function


_AGENTS = ("ag2.agent", "ag2.tools.subagents.background", "ag2.network.client.tools.delegate")


def fallback_of(tool: Any) -> Policy | None:
    """Return what is known of a kind of tool: one that runs agents is entered again."""
    function = getattr(getattr(tool, "model", None), "call", None)
    runs = isinstance(tool, SubagentTool) or (
        getattr(function, "__module__", "") in _AGENTS and getattr(function, "__name__", "") != "knowledge"
    )
    return COMPOSITE if runs else None


def _has_run(tool: Any, error: BaseException) -> bool:
    """Whether a tool's own code was reached; arguments that do not fit are refused before."""
    function = inspect.unwrap(getattr(getattr(tool, "model", None), "call", None) or tool.__call__)
    code, trace = getattr(function, "__code__", None), error.__traceback__
    while trace is not None and code is not None:
        if trace.tb_frame.f_code is code:
            return True
        trace = trace.tb_next
    return code is None

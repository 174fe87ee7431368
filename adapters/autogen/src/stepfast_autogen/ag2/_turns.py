"""A turn of an agent, its people and its observers; and the seams that all of this goes into."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from ag2 import Middleware
from ag2.events import BaseEvent, HumanMessage, ToolApprovalRequest
from ag2.middleware import BaseMiddleware
from fast_depends.utils import is_coroutine_callable, run_in_threadpool

from stepfast import Answer
from stepfast.adapters import Seam, Stopped, digest
from stepfast.adapters import install as install_seams

from ._events import timeless
from ._model import DurableClient
from ._place import Here, Loop, place
from ._tools import at_call, at_tool
from ._upkeep import at_upkeep


def at_turn(original: Any) -> Any:
    """Wrap the scope of a turn, through which every way to call an agent goes."""

    @functools.wraps(original)
    @asynccontextmanager
    async def drive_scope(self: Any, event: Any, *, client: Any, **options: Any) -> AsyncIterator[Any]:
        here = place.here()
        if isinstance(client, DurableClient):  # of a reply that the agent goes on from
            client = client.inner
        if here is None:
            async with original(self, event, client=client, **options) as drive:
                yield drive
            return
        loop = _loop_of(here, self, event)
        inner = Here(here.attempt, loop.scope, loop, here.call)
        hooked = bool(options.get("hitl_hook") or options.get("plugin_hitl_hook") or self.has_hitl_hook)
        if not hooked:
            options["hitl_hook"] = _nobody
        more = (*options.pop("additional_middleware", ()), Middleware(People, hooked=hooked))
        async with AsyncExitStack() as stack:
            with place.standing(inner):
                await loop.next_inbox()
                scope = original(self, event, client=DurableClient(client, loop), additional_middleware=more, **options)
                drive = await stack.enter_async_context(scope)

            async def driven() -> Any:
                with place.standing(inner):
                    return await drive()

            yield driven

    return drive_scope


def _loop_of(here: Here, agent: Any, event: Any) -> Loop:
    """Return the outermost turn of a run, or one inside of a tool call, which has a scope of its own."""
    if here.loop is None:
        here.attempt.outermost = Loop(here.attempt, here.scope, agent.name)
        return here.attempt.outermost
    name = "subtask" if agent.name.startswith("subtask-") else agent.name  # AG2 numbers those at random
    key = here.attempt.key(here.scope, "agent", name, digest(timeless(event.to_dict())))
    return Loop(here.attempt, here.scope.scope(key, shared=True), name)


def at_exit(original: Any) -> Any:
    """Wrap the end of an `AgentRun`, which leaves its scope open where the turn ends by what is no ``Exception``."""

    @functools.wraps(original)
    async def leave(self: Any, *error: Any) -> Any:
        try:
            return await original(self, *error)
        except BaseException:
            await self._AgentRun__stack.aclose()  # or the stream stays locked, and the next turn hangs
            raise

    return leave


def at_id(original: Any) -> Any:
    """Wrap the making of the ids of tasks, which a model is shown."""

    @functools.wraps(original)
    def uuid4() -> Any:
        here = place.here()
        return original() if here is None else here.attempt.uuid(here.scope)

    return uuid4


def at_background(original: Any) -> Any:
    """Wrap the work of an agent in the background: where the run has stopped, it ends without a word."""

    @functools.wraps(original)
    async def deliver(*args: Any, **options: Any) -> None:
        with suppress(Stopped):
            await original(*args, **options)

    return deliver


def at_inbox(original: Any) -> Any:
    """Wrap the taking of messages out of a turn's inbox."""

    @functools.wraps(original)
    def drain(context: Any) -> Any:
        here = place.here()
        return original(context) if here is None or here.loop is None else here.loop.drain(context, original)

    return drain


# --- people --------------------------------------------------------------------------------------


async def _nobody() -> str:
    raise AssertionError("People asks")


class People(BaseMiddleware):
    """Where AG2 asks a person: the agent's own hook as a step, or, where it has none, a decision of the run."""

    def __init__(self, event: Any, context: Any, *, hooked: bool) -> None:
        super().__init__(event, context)
        self._hooked = hooked

    async def on_human_input(self, call_next: Any, event: Any, context: Any) -> Any:
        here = place.here()
        if here is None:
            return await call_next(event, context)
        scope = here.scope
        try:
            here.attempt.check()
            key = here.attempt.key(scope, "human", digest(event.content))
            if not self._hooked:
                said = _words(await self._ask(here, key, event))
            else:

                async def call() -> str:
                    return str((await call_next(event, context)).content)

                flow = scope.performing(call, key=key, name="human input", kind="human", inputs=event.content)
                with here.attempt.guarded():
                    said = await scope.drive(flow)
        except Stopped:
            if here.call is not None:
                here.call.cut_short()
            raise
        return HumanMessage.ensure_message(said, parent_id=event.id)

    async def _ask(self, here: Here, key: str, event: Any) -> Answer:
        """Ask, and wait where that is safe: a run that waits inside of a step would leave it in doubt.

        So a tool that asks in its body is left, and entered again once the answer is there.
        """
        attempt, scope = here.attempt, here.scope
        evidence = {
            "agent": None if here.loop is None else here.loop.agent,
            "tool": here.call.key if here.call is not None and isinstance(event, ToolApprovalRequest) else None,
        }

        async def wait() -> Answer:
            with attempt.guarded():
                return await scope.drive(scope.asking(event.content, key=key, evidence=evidence))

        step = None if here.call is None else here.call.outermost_started()
        if step is None:
            return await wait()
        with attempt.guarded():
            answer = await scope.drive(scope.posing(event.content, key=key, evidence=evidence))
        if answer is None:
            step.asked = wait
            raise Stopped
        return answer


def _words(answer: Answer) -> str:
    """Return a person's answer as AG2 reads it: what was said, or yes or no."""
    if isinstance(answer.value, str) and answer.value:
        return answer.value
    return answer.comment or ("y" if answer else "n")


# --- observers -----------------------------------------------------------------------------------


def at_register(original: Any) -> Any:
    """Wrap the registration of an observer's function: in a durable run each event is a step, and not told twice."""

    @functools.wraps(original)
    def register(self: Any, stack: Any, context: Any) -> None:
        here = place.here()
        if here is None or here.loop is None or self.interrupt:
            return original(self, stack, context)  # type: ignore[no-any-return]
        callback = _stepped(self.callback, here.loop, self.sync_to_thread)
        return original(dataclasses.replace(self, callback=callback), stack, context)  # type: ignore[no-any-return]

    return register


def _stepped(callback: Any, loop: Loop, in_thread: bool) -> Any:
    name = getattr(callback, "__name__", type(callback).__name__)

    @functools.wraps(callback)
    async def observe(*args: Any, **kwargs: Any) -> None:
        async def call() -> None:
            if is_coroutine_callable(callback):
                await callback(*args, **kwargs)
            elif in_thread:
                await run_in_threadpool(callback, *args, **kwargs)
            else:
                callback(*args, **kwargs)

        event = next((each for each in (*args, *kwargs.values()) if isinstance(each, BaseEvent)), None)
        if event is None or type(event).__transient__:
            return await call()
        if loop.attempt.stopped:
            return None

        async def step() -> None:
            key = loop.attempt.key(loop.scope, "observer", name, digest(timeless(event.to_dict())))
            with loop.attempt.guarded():
                await loop.scope.drive(
                    loop.scope.performing(call, key=key, name=name, kind="callback", inputs=type(event).__name__)
                )

        # In the turn's own place: where a tool is answered from the journal, the events that it sent are sent again.
        return await asyncio.get_running_loop().create_task(step(), context=loop.context.copy())

    return observe


# --- seams ---------------------------------------------------------------------------------------

VERSIONS = ("1.2", "2")

SEAMS = [
    Seam("ag2.agent:Agent", "_drive_scope", at_turn),
    Seam("ag2.agent:AgentRun", "__aexit__", at_exit),
    Seam("ag2.agent", "_drain_pending", at_inbox),
    Seam("ag2.tools.executor", "_execute_call", at_call),
    Seam("ag2.tools.final.function_tool:FunctionTool", "__call__", at_tool),
    Seam("ag2.tools.builtin.anthropic_bash:AnthropicBashTool", "__call__", at_tool),
    Seam("ag2.agent:_CompactionMiddleware", "__init__", at_upkeep),
    Seam("ag2.agent:_AggregationMiddleware", "__init__", at_upkeep),
    Seam("ag2.tools.subagents.background", "_run_and_deliver", at_background),
    Seam("ag2.tools.subagents.background", "uuid4", at_id),
    Seam("ag2.tools.subagents.run_task", "uuid4", at_id),
    Seam("ag2.observers.observer:SimpleObserver", "register", at_register),
    Seam("ag2.observers.observer:StreamObserver", "register", at_register),
]


# Tools of an MCP server, where AG2 has found the package that they need.
MCP = Seam("ag2.tools.toolkits.mcp_server.toolkit:_MCPProxyTool", "__call__", at_tool)


def install() -> None:
    """Put the seams into AG2, once; `InvalidInput` names one that its version does not have."""
    install_seams("ag2", VERSIONS, [*SEAMS, MCP] if "mcp" in sys.modules else SEAMS)

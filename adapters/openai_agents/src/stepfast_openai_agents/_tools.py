"""Tool calls: started before they run where that matters, recorded before their output is handed on.

The user's tools are never touched: a run sees copies, whose invoker is ours.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import json
from collections.abc import Callable
from typing import Any

from agents import AsyncComputer, Computer, FunctionTool, ModelBehaviorError
from agents import tool as sdk_tools
from agents.tool import invoke_function_tool
from agents.tool_context import ToolContext

from stepfast import StepFailed
from stepfast.adapters import COMPOSITE, STOPPED, Policy, Stopped, tool_call

from ._attempt import Here, place, show_replay

Effect = Callable[[], Any]

# Not in every version that we work with.
_CUSTOM_TOOL: tuple[type[Any], ...] = tuple(filter(None, [getattr(sdk_tools, "CustomTool", None)]))


def durable_tool(tool: Any) -> Any:
    """The tool as a durable run sees it; kinds that nothing local runs for are left as they are."""
    if isinstance(tool, FunctionTool):
        return _function_tool(tool)
    if isinstance(tool, _CUSTOM_TOOL):
        return _custom_tool(tool)
    for name, wrap in (("executor", _executor), ("editor", _editor), ("computer", _computer)):
        inner = getattr(tool, name, None)
        if inner is not None and (callable(inner) or name != "executor"):
            wrapped = wrap(tool, inner)
            if wrapped is not None:
                copied = copy.copy(tool)
                object.__setattr__(copied, name, wrapped)
                return copied
    return tool


# --- the step ------------------------------------------------------------------------------------


async def perform(
    at: Here,
    *,
    key: str,
    name: str,
    policy: Policy,
    inputs: Any,
    arguments: dict[str, Any],
    effect: Effect,
    context: Any = None,
    keep_errors: bool = False,
) -> Any:
    """Make a tool call as a step of the run; what stops the run stops it at the next boundary, not here."""
    flow = tool_call(
        at.attempt,
        at.scope,
        key=key,
        name=name,
        policy=policy,
        inputs=inputs,
        arguments=arguments,
        effect=effect,
        context=context,
        keep_errors=keep_errors,
        agent=at.loop.agent,
        turn=at.loop.talk.turn + 1,
    )
    output, replayed = await at.scope.drive(flow)
    if replayed:
        show_replay(key)
    return output


def fallback_of(tool: Any) -> Policy | None:
    """What is known of a kind of tool: one made of an agent is entered again."""
    return COMPOSITE if getattr(tool, "_is_agent_tool", False) else None


def parsed(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call; what is no JSON object is shown as it came."""
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"input": arguments}


# --- function tools ------------------------------------------------------------------------------


def _function_tool(tool: FunctionTool) -> FunctionTool:
    invoke = functools.partial(_invoke, tool)

    # The SDK looks at the annotation of the first parameter to choose what it passes.
    async def on_invoke_tool(ctx: ToolContext[Any], arguments: str) -> Any:
        return await invoke(ctx, arguments)

    on_invoke_tool.__annotations__ = {"ctx": ToolContext, "arguments": str, "return": Any}
    copied = copy.copy(tool)
    copied.on_invoke_tool = _dressed(tool.on_invoke_tool, on_invoke_tool)
    # Enforced inside instead, so that the output of a time-out is in the journal.
    copied.timeout_seconds = None
    return copied


def _dressed(theirs: Any, ours: Any) -> Any:
    """Our invoker as the SDK's own kind, which it asks for more than to be called (approvals look at arguments)."""
    kind: Any = type(theirs)
    if not hasattr(kind, "__agents_bind_function_tool__") or not hasattr(kind, "prepare_arguments"):
        return ours
    dressed: Any = object.__new__(_kind_of(kind))
    dressed.__dict__.update(theirs.__dict__)
    dressed.stepfast_call = ours
    return dressed


@functools.cache
def _kind_of(kind: Any) -> Any:
    async def call(self: Any, ctx: ToolContext[Any], input: str) -> Any:  # noqa: A002 - the SDK's name
        return await self.stepfast_call(ctx, input)

    # Not as texts: the SDK resolves them where this class stands.
    call.__annotations__ = {"ctx": ToolContext, "input": str, "return": Any}

    def bind(self: Any, function_tool: FunctionTool) -> Any:
        return self

    return type(kind.__name__, (kind,), {"__call__": call, "__agents_bind_function_tool__": bind})


async def _invoke(tool: FunctionTool, ctx: ToolContext[Any], arguments: str) -> Any:
    at = place.here()
    if at is None:
        return await invoke_function_tool(function_tool=tool, context=ctx, arguments=arguments)
    policy = at.attempt.settings.policies.of(tool.name, tool, fallback_of(tool))
    key = f"tool:{ctx.tool_call_id}"
    if policy.kind == "composite":
        return await _enter(at, key, tool, ctx, arguments)
    strict = policy.on_error == "ask"

    async def effect() -> Any:
        raw = _unhandled(tool) if strict else tool
        try:
            return await invoke_function_tool(function_tool=raw, context=ctx, arguments=arguments)
        except ModelBehaviorError:  # arguments that do not fit: the tool's own code has not run
            return await invoke_function_tool(function_tool=tool, context=ctx, arguments=arguments)
        except asyncio.CancelledError as error:
            if _is_cancelled() or strict:
                raise
            # The tool's own, which the SDK shows to the model.
            return await _shown(tool, ctx, RuntimeError(str(error) or "Tool execution cancelled."))

    try:
        return await perform(
            at,
            key=key,
            name=tool.name,
            policy=policy,
            inputs=[tool.name, parsed(arguments)],
            arguments=parsed(arguments),
            context=ctx.context,
            effect=effect,
        )
    except StepFailed as error:
        return await _shown(tool, ctx, error)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _enter(at: Here, key: str, tool: FunctionTool, ctx: ToolContext[Any], arguments: str) -> Any:
    """A tool that runs agents: entered again, with what they had finished answered from the journal."""
    inner = at.scope.scope(key, shared=True)
    with place.standing(at._replace(scope=inner)):
        try:
            return await invoke_function_tool(function_tool=tool, context=ctx, arguments=arguments)
        except Stopped:
            return STOPPED


def _unhandled(tool: FunctionTool) -> FunctionTool:
    """The same tool without what turns its errors into texts for the model."""
    raw = copy.copy(tool)
    for name, value in (("_failure_error_function", None), ("_use_default_failure_error_function", False)):
        object.__setattr__(raw, name, value)
    raw.timeout_behavior = "raise_exception"
    return raw


async def _shown(tool: FunctionTool, ctx: ToolContext[Any], error: Exception) -> Any:
    """An error as the tool's own way of telling the model; raised if it has none."""
    failing = copy.copy(tool)

    async def fail(_ctx: ToolContext[Any], _arguments: str) -> Any:
        raise error

    kind = type(tool.on_invoke_tool)
    if hasattr(kind, "__agents_bind_function_tool__") and hasattr(tool.on_invoke_tool, "_invoke_tool_impl"):
        invoker: Any = copy.copy(tool.on_invoke_tool)
        invoker._invoke_tool_impl = fail
        failing.on_invoke_tool = invoker.__agents_bind_function_tool__(failing)
        return await invoke_function_tool(function_tool=failing, context=ctx, arguments="{}")
    return str(error)


# --- the other tools that run here ---------------------------------------------------------------


async def _other(tool: Any, key: Callable[[Here], str], name: str, effect: Effect, **call: Any) -> Any:
    """A call of a tool whose exceptions the SDK shows to the model itself."""
    at = place.here()
    if at is None:
        output = effect()
        return await output if inspect.isawaitable(output) else output
    policy = at.attempt.settings.policies.of(tool.name, tool)
    return await perform(at, key=key(at), name=name, policy=policy, effect=effect, keep_errors=True, **call)


def _custom_tool(tool: Any) -> Any:
    copied = copy.copy(tool)

    async def on_invoke_tool(ctx: ToolContext[Any], given: str) -> Any:
        return await _other(
            tool,
            lambda _: f"tool:{ctx.tool_call_id}",
            tool.name,
            lambda: tool.on_invoke_tool(ctx, given),
            inputs=[tool.name, given],
            arguments={"input": given},
            context=ctx.context,
        )

    copied.on_invoke_tool = on_invoke_tool
    return copied


def _executor(tool: Any, executor: Any) -> Any:
    """Of shell tools: the request names its call."""

    async def run(request: Any) -> Any:
        call_id = getattr(getattr(request, "data", None), "call_id", None)
        at = place.here()
        if call_id is None and at is not None:
            turn = at.loop.talk.turn
            call_id = f"{turn}.{at.loop.ordinals.number(f'shell {turn}')}"
        return await _other(
            tool,
            lambda _: f"tool:{call_id}",
            tool.name,
            lambda: executor(request),
            inputs=[tool.name, call_id],
            arguments={"request": request},
            context=getattr(getattr(request, "ctx_wrapper", None), "context", None),
        )

    return run


_EDITS = ("create_file", "update_file", "delete_file")
_ACTIONS = ("screenshot", "click", "double_click", "scroll", "type", "wait", "move", "keypress", "drag")


def _journaled(tool: Any, inner: Any, methods: tuple[str, ...]) -> Any:
    """An object of the user's whose methods are steps, told apart by their order within the turn; still of its class,
    which the SDK asks for."""
    kind: Any = type(inner)
    proxy: Any = object.__new__(_proxy_class(kind, methods))
    proxy.__dict__.update(stepfast_tool=tool, stepfast_inner=inner)
    return proxy


@functools.cache
def _proxy_class(kind: Any, methods: tuple[str, ...]) -> Any:
    def __getattr__(self: Any, name: str) -> Any:  # noqa: N807
        return getattr(self.__dict__["stepfast_inner"], name)

    made = {name: _step_of(name, getattr(kind, name)) for name in methods if hasattr(kind, name)}
    return type(kind.__name__, (kind,), {**made, "__getattr__": __getattr__})


def _step_of(name: str, method: Any) -> Any:
    @functools.wraps(method)  # the SDK looks at what it takes
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        tool, inner = self.__dict__["stepfast_tool"], self.__dict__["stepfast_inner"]

        def key(at: Here) -> str:
            turn = at.loop.talk.turn
            return f"tool:{tool.name}:{turn}.{at.loop.ordinals.number(f'{tool.name} {turn}')}"

        return await _other(
            tool,
            key,
            f"{tool.name}.{name}",
            lambda: getattr(inner, name)(*args, **kwargs),
            inputs=[name],
            arguments={"operation": args},
        )

    return call


def _editor(tool: Any, editor: Any) -> Any:
    return _journaled(tool, editor, _EDITS)


def _computer(tool: Any, computer: Any) -> Any:
    """One that is made for each run anew is left alone: it has no state that an earlier attempt could have changed."""
    return _journaled(tool, computer, _ACTIONS) if isinstance(computer, Computer | AsyncComputer) else None

"""Tool calls and executed code: started before they run where that matters, recorded before the output is handed on.

Nothing is raised here, since an exception that leaves a workbench makes AgentChat's agent hang.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from autogen_agentchat.tools._task_runner_tool import TaskRunnerTool
from autogen_core.code_executor import CodeResult
from autogen_core.tools import FunctionTool, StaticWorkbench, TextResultContent, ToolResult, Workbench
from pydantic import ValidationError

from stepfast import StepFailed
from stepfast.adapters import COMPOSITE, STOPPED, Policy, carried, declared, digest, plain, tool_call

from ._attempt import Actor, TeamAttempt
from ._messages import Item, unpack


async def perform(
    actor: Actor,
    attempt: TeamAttempt,
    *,
    key: str,
    name: str,
    policy: Policy,
    arguments: Mapping[str, Any],
    effect: Callable[[], Any],
) -> Any:
    """Make a call as a step of the run; returns its output as plain data.

    `STOPPED` is returned once the run has stopped, here or elsewhere; the attempt has the reason.
    """
    flow = tool_call(
        attempt,
        actor.scope,
        key=key,
        name=name,
        policy=policy,
        inputs=[name, plain(arguments)],
        arguments=arguments,
        effect=effect,
        agent=actor.name,
        turn=actor.talk.turn,
    )
    try:
        output, _ = await attempt.calling(actor.scope.drive(flow))
    except StepFailed:
        raise
    except BaseException as error:
        # Cancelled with the pass, or raised by the call: in both cases raised to the caller of the run, not here.
        if not attempt.stopping:
            attempt.stop(error)
        return STOPPED
    return output


# --- workbenches ---------------------------------------------------------------------------------


def durable_workbench(workbench: Workbench, actor: Actor) -> Workbench:
    """Return the workbench as an agent of a durable team sees it: of the same class, with the same state."""
    kind: Any = type(workbench)

    async def call_tool(self: Any, name: str, arguments: Any = None, *args: Any, **kwargs: Any) -> ToolResult:
        _, result = await _call(actor, workbench, name, arguments, args, kwargs)
        return result

    async def call_tool_stream(
        self: Any, name: str, arguments: Any = None, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        attempt = actor.attempt
        if attempt is None or policy_of(actor, workbench, name).kind == "composite":
            async for item in workbench.call_tool_stream(name, arguments, *args, **kwargs):  # type: ignore[attr-defined]
                yield item
            return
        events, result = await _call(actor, workbench, name, arguments, args, kwargs)
        for event in events:
            yield event
        yield result

    methods: dict[str, Any] = {"call_tool": call_tool, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    if hasattr(kind, "call_tool_stream"):
        methods["call_tool_stream"] = call_tool_stream
    made: Any = object.__new__(type(kind.__name__, (kind,), methods))
    object.__setattr__(made, "__dict__", workbench.__dict__)
    return made  # type: ignore[no-any-return]


def tool_of(workbench: Workbench, name: str) -> Any:
    """Return a tool of a workbench; None where it is not kept as an object, as behind MCP."""
    original = getattr(workbench, "_override_name_to_original", {}).get(name, name)
    return next((each for each in getattr(workbench, "_tools", ()) if each.name == original), None)


def says(tool: Any) -> Any:
    """Return what carries a tool's policy: the tool, or the function that it was made of."""
    function = getattr(tool, "_func", None)
    return function if declared(tool) is None and declared(function) is not None else tool


def kind_of(tool: Any) -> Policy | None:
    """Return what is known of a kind of tool: one that runs an agent or a team is entered again."""
    return COMPOSITE if isinstance(tool, TaskRunnerTool) else None


def policy_of(actor: Actor, workbench: Workbench, name: str) -> Policy:
    tool = tool_of(workbench, name)
    attempt = actor.stage.attempt
    assert attempt is not None  # noqa: S101
    return attempt.settings.policies.of(name, says(tool), kind_of(tool))


async def _call(
    actor: Actor, workbench: Any, name: str, arguments: Any, args: Any, kwargs: Any
) -> tuple[list[Item], ToolResult]:
    attempt = actor.attempt
    policy = None if attempt is None else policy_of(actor, workbench, name)
    if attempt is None or policy is None or policy.kind == "composite":
        return [], await workbench.call_tool(name, arguments, *args, **kwargs)
    tool = tool_of(workbench, name)
    strict = policy.on_error == "ask" and _fits(tool, arguments)

    async def effect() -> dict[str, Any]:
        events, result = await _use(_carrying(workbench, tool), name, arguments, args, kwargs)
        if strict and result.is_error:
            raise RuntimeError(f"tool {name} failed: {result.to_text()}")
        kept = {"events": [event.dump() for event in events]} if events else {}
        return {"result": result.model_dump(mode="json"), **kept}

    given = dict(arguments or {})
    try:
        output = await perform(
            actor,
            attempt,
            key=actor.occurrences.key("tool", f"{actor.talk.turn}.{name}", digest(plain(given))),
            name=name,
            policy=policy,
            arguments=given,
            effect=effect,
        )
    except StepFailed as error:
        return [], _text(name, str(error), is_error=True)
    if isinstance(output, dict) and isinstance(output.get("result"), dict) and "name" in output["result"]:
        events = unpack(actor.stage.factory, output.get("events", ()))
        return events, ToolResult.model_validate(output["result"])
    # A person said what the output was, or the run has stopped.
    return [], _text(name, output if isinstance(output, str) else str(output), is_error=output is STOPPED)


def _text(name: str, text: str, *, is_error: bool) -> ToolResult:
    return ToolResult(name=name, result=[TextResultContent(content=text)], is_error=is_error)


async def _use(workbench: Any, name: str, arguments: Any, args: Any, kwargs: Any) -> tuple[list[Item], ToolResult]:
    """Call a tool as its agent would, and return what it streamed and its result."""
    if not hasattr(workbench, "call_tool_stream"):
        return [], await workbench.call_tool(name, arguments, *args, **kwargs)
    events: list[Item] = []
    result: ToolResult | None = None
    async for item in workbench.call_tool_stream(name, arguments, *args, **kwargs):
        if isinstance(item, ToolResult):
            result = item
        elif isinstance(item, Item):
            events.append(item)
    if result is None:
        raise RuntimeError(f"tool {name} returned nothing")
    return events, result


def _carrying(workbench: Any, tool: Any) -> Any:
    """Return a view of the workbench in which a blocking function keeps its context, and so `idempotency_key()`.

    AgentChat calls such a function in a thread, to which it does not hand the context on.
    """
    if not isinstance(workbench, StaticWorkbench) or not isinstance(tool, FunctionTool):
        return workbench
    if inspect.iscoroutinefunction(tool._func):
        return workbench
    inside = copy.copy(tool)
    inside._func = carried(tool._func)
    view = copy.copy(workbench)
    view._tools = [inside if each is tool else each for each in workbench._tools]
    return view


def _fits(tool: Any, arguments: Any) -> bool:
    """Whether the tool's own code runs with these arguments; where it does not, nothing has happened."""
    try:
        tool.args_type().model_validate(arguments or {})
    except ValidationError:
        return False
    except AttributeError:  # the workbench keeps no tools
        return True
    return True


# --- code ----------------------------------------------------------------------------------------


def durable_code(agent: Any, actor: Actor) -> None:
    """Make the execution of code by an agent a step of the run, the approval by its ``approval_func`` included."""
    original = agent.execute_code_block

    async def execute_code_block(code_blocks: Any, cancellation_token: Any) -> CodeResult:
        attempt = actor.attempt
        if attempt is None:
            return await original(code_blocks, cancellation_token)  # type: ignore[no-any-return]

        async def effect() -> dict[str, Any]:
            result = await original(code_blocks, cancellation_token)
            return {"exit_code": result.exit_code, "output": result.output}

        try:
            output = await perform(
                actor,
                attempt,
                key=actor.ordinals.key("code"),
                name=agent.name,
                policy=attempt.settings.policies.of(agent.name, agent),
                arguments={"code": [plain(block) for block in code_blocks]},
                effect=effect,
            )
        except StepFailed as error:
            return CodeResult(exit_code=1, output=str(error))
        if isinstance(output, dict) and "exit_code" in output:
            return CodeResult(exit_code=output["exit_code"], output=output["output"])
        return CodeResult(exit_code=int(output is STOPPED), output=str(output))

    agent.execute_code_block = execute_code_block

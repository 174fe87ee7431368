"""A run's own view of the user's agents: copies whose model, tools, handoffs and hooks go through the journal."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from agents import Agent, Handoff, Model

from stepfast.adapters import RETRY

from ._attempt import AgentAttempt, Here, place
from ._hooks import agent_hooks
from ._model import durable_model
from ._tools import durable_tool, fallback_of, parsed, perform


def view_of(attempt: AgentAttempt, agent: Any) -> Any:
    """The same view for the same agent in a pass over the run, so that handoffs in a circle end."""
    if id(agent) in attempt.originals:
        return agent
    known = attempt.views.get(id(agent))
    if known is not None:
        return known[1]
    view = copy.copy(agent)
    kind: Any = type(agent)
    object.__setattr__(view, "__class__", _class_of(kind))
    attempt.views[id(agent)] = (agent, view)
    attempt.originals[id(view)] = agent
    if isinstance(getattr(agent, "model", None), Model):
        object.__setattr__(view, "model", durable_model(agent.model))
    if getattr(agent, "handoffs", None):
        object.__setattr__(view, "handoffs", [_handoff(attempt, target) for target in agent.handoffs])
    if getattr(agent, "hooks", None) is not None:
        object.__setattr__(view, "hooks", agent_hooks(attempt, agent.hooks))
    return view


@functools.cache
def _class_of(kind: Any) -> Any:
    """A subclass, because the SDK copies agents on its way and a copy keeps its class."""

    async def get_all_tools(self: Any, *args: Any, **kwargs: Any) -> list[Any]:
        tools = await kind.get_all_tools(self, *args, **kwargs)
        at = place.here()
        if at is None:
            return tools  # type: ignore[no-any-return]
        made = [_tool(at, self, tool) for tool in tools]
        local = [tool for tool, ours in zip(tools, made, strict=True) if ours is not tool]
        at.attempt.settings.policies.announce((tool.name, tool, fallback_of(tool)) for tool in local)
        return made

    made = type(kind.__name__, (kind,), {"get_all_tools": get_all_tools})
    made.__module__, made.__qualname__ = kind.__module__, kind.__qualname__
    return made


def _tool(at: Here, agent: Any, tool: Any) -> Any:
    """The same copy each turn for the agent's own tools; those of MCP servers are new each turn anyway."""
    known = at.attempt.tools.get(id(tool))
    if known is not None and known[0] is tool:
        return known[1]
    made = durable_tool(tool)
    if any(own is tool for own in agent.tools):
        at.attempt.tools[id(tool)] = (tool, made)
    return made


def _handoff(attempt: AgentAttempt, target: Any) -> Any:
    if not isinstance(target, Handoff):
        return view_of(attempt, target) if isinstance(target, Agent) else target
    invoke = target.on_invoke_handoff
    copied = copy.copy(target)
    copied.on_invoke_handoff = _invoker(attempt, target, invoke)
    return copied


def _invoker(attempt: AgentAttempt, handoff: Handoff[Any, Any], invoke: Callable[..., Any]) -> Callable[..., Any]:
    async def on_invoke_handoff(ctx: Any, arguments: str) -> Any:
        at = place.here()
        if at is None:
            return await invoke(ctx, arguments)
        at.attempt.check()
        chosen: list[Any] = []

        async def effect() -> str:
            chosen.append(await invoke(ctx, arguments))
            return str(chosen[0].name)

        name = await perform(
            at,
            key=f"handoff:{at.loop.talk.turn}",
            name=handoff.tool_name,
            policy=attempt.settings.policies.of(handoff.tool_name, None, RETRY),
            inputs=[handoff.tool_name, parsed(arguments)],
            arguments=parsed(arguments),
            context=ctx.context,
            effect=effect,
        )
        at.attempt.check()
        agent = chosen[0] if chosen else _named(attempt, handoff, name)
        if agent is None:  # made by the callback itself, so there is no other way to have it again
            agent = await invoke(ctx, arguments)
        at.loop.agent = agent.name
        return view_of(attempt, agent)

    return on_invoke_handoff


def _named(attempt: AgentAttempt, handoff: Handoff[Any, Any], name: str) -> Any:
    """The agent a recorded handoff went to, among those that are known."""
    reference = getattr(handoff, "_agent_ref", None)
    target = reference() if reference is not None else None
    if target is not None and target.name == name:
        return target
    return next((agent for agent, _ in attempt.views.values() if agent.name == name), None)

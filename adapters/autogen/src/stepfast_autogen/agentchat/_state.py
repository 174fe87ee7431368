"""The state of a team between its runs: AgentChat's own, and what that leaves out.

AgentChat's ``save_state`` omits what agents and teams inside of tools know, the model contexts of CodeExecutorAgent and
SocietyOfMindAgent, the agent behind a MessageFilterAgent, and which edges of a graph have fired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from autogen_agentchat.agents import CodeExecutorAgent, MessageFilterAgent, SocietyOfMindAgent
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import AgentId

from ._agents import Found, Thing, things_in, workbenches_of
from ._runtime import LightRuntime

_GROUPS = "_triggered_activation_groups"


async def save(thing: Thing) -> dict[str, Any]:
    """Return the whole state of a team or an agent, as plain data."""
    extra: dict[str, Any] = {}
    for found in things_in(thing):
        kept = {name: state for name, state in (await _save_extra(found.thing)).items() if state}
        if kept:
            extra[_place(found)] = kept
    return {"state": await thing.save_state(), "extra": extra}


async def load(thing: Thing, saved: Mapping[str, Any]) -> None:
    """Bring a new team or agent into a saved state."""
    await thing.load_state(saved["state"])
    for found in things_in(thing):
        kept = saved["extra"].get(_place(found))
        if kept is not None:
            await _load_extra(found.thing, kept)


def _place(found: Found) -> str:
    return "/".join((*found.path, type(found.thing).__name__))


async def _save_extra(thing: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    if isinstance(thing, CodeExecutorAgent | SocietyOfMindAgent):
        kept["context"] = await thing.model_context.save_state()
    if isinstance(thing, MessageFilterAgent):
        kept["wrapped"] = await thing._wrapped_agent.save_state()
    states = [await each.save_state() for each in workbenches_of(thing)]
    if any(map(_says_something, states)):
        kept["workbenches"] = states
    manager = await _manager(thing)
    groups = getattr(manager, _GROUPS, None)
    if groups:
        kept["groups"] = {node: sorted(names) for node, names in groups.items() if names}
    return kept


def _says_something(state: Mapping[str, Any]) -> bool:
    """Whether the state of a workbench is more than a list of tools without one."""
    tools = state.get("tools")
    return any(tools.values()) if isinstance(tools, Mapping) else bool(state)


async def _load_extra(thing: Any, kept: Mapping[str, Any]) -> None:
    if "context" in kept:
        await thing.model_context.load_state(kept["context"])
    if "wrapped" in kept:
        await thing._wrapped_agent.load_state(kept["wrapped"])
    for workbench, state in zip(workbenches_of(thing), kept.get("workbenches", ()), strict=False):
        await workbench.load_state(state)
    if "groups" in kept:
        setattr(await _manager(thing), _GROUPS, {node: set(names) for node, names in kept["groups"].items()})


async def _manager(thing: Any) -> Any:
    """Return the manager of a team, which lives in the team's runtime; None for an agent."""
    if not isinstance(thing, BaseGroupChat):
        return None
    if not thing._initialized:
        await thing._init(thing._runtime)
    runtime: Any = thing._runtime
    return await runtime.try_get_underlying_agent_instance(
        AgentId(type=thing._group_chat_manager_topic_type, key=thing._team_id)
    )


async def renew(thing: Thing, saved: Mapping[str, Any]) -> None:
    """Make a team that was used as if it were new, in a saved state.

    Managers and message buffers live in the runtime of a team, so a new runtime has new ones.
    """
    for found in things_in(thing):
        team = found.thing
        if isinstance(team, BaseGroupChat):
            team._runtime = LightRuntime()
            team._output_message_queue = asyncio.Queue()
            team._initialized = team._is_running = False
            if team._termination_condition is not None:
                await team._termination_condition.reset()
    await load(thing, saved)

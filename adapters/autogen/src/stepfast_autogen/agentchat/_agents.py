"""Which agents a team has, and what each of them does that must be recorded.

A team object is prepared once, before its first use: AgentChat reads the model client of a manager when it first runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autogen_agentchat.agents import (
    AssistantAgent,
    BaseChatAgent,
    CodeExecutorAgent,
    MessageFilterAgent,
    SocietyOfMindAgent,
    UserProxyAgent,
)
from autogen_agentchat.teams import BaseGroupChat
from autogen_agentchat.tools._task_runner_tool import TaskRunnerTool
from autogen_core.models import ChatCompletionClient

from stepfast import InvalidInput

from ._attempt import Actor, Stage
from ._messages import factory_of
from ._models import DurableClient
from ._people import durable_input
from ._runtime import LightRuntime
from ._tools import durable_code, durable_workbench, kind_of, says
from ._turns import durable_memory, durable_turns

Thing = BaseGroupChat | BaseChatAgent

# Agents whose turns are played again, call by call; the turns of others are recorded as a whole.
_KNOWN = (AssistantAgent, CodeExecutorAgent, MessageFilterAgent, SocietyOfMindAgent, UserProxyAgent)


class Found:
    """An agent or a team, and where it is: names from the outermost team inwards."""

    def __init__(self, thing: Any, path: tuple[str, ...]) -> None:
        self.thing = thing
        self.path = path


def things_in(thing: Any, path: tuple[str, ...] = ()) -> Iterator[Found]:
    """Walk through a team or an agent, and all that runs inside of it."""
    yield Found(thing, path)
    if isinstance(thing, BaseGroupChat):
        for each in thing._participants:
            yield from things_in(each, (*path, each.name))
    if isinstance(thing, SocietyOfMindAgent):
        yield from things_in(thing._team, path)
    if isinstance(thing, MessageFilterAgent):
        yield from things_in(thing._wrapped_agent, (*path, thing._wrapped_agent.name))
    for workbench in workbenches_of(thing):
        for tool in getattr(workbench, "_tools", ()):
            if isinstance(tool, TaskRunnerTool):
                yield from things_in(tool._task_runner, (*path, f"tool:{tool.name}", tool._task_runner.name))


def workbenches_of(thing: Any) -> list[Any]:
    """Return the workbenches of an agent."""
    return list(getattr(thing, "_workbench", None) or ())


def prepare(thing: Thing, *, own_input: bool) -> Stage:
    """Put the journal's boundaries into a team or an agent that has not been used; each of its actors has a scope."""
    stage = Stage(factory_of(thing), own_input)
    seen: set[int] = set()
    for found in list(things_in(thing)):
        each = found.thing
        if id(each) in seen:
            raise InvalidInput(
                f"team: {each.name} is in two places. Its calls could not be told apart after a restart; "
                "make one object for each place."
            )
        if hasattr(each, "_stepfast"):
            raise InvalidInput(
                f"team: {each.name} was in a durable team before. A function that makes a team must make its agents."
            )
        if isinstance(each, BaseGroupChat) and not each._embedded_runtime:
            raise InvalidInput(
                "team: has a runtime of its own (runtime=…), which cannot be started again; leave it out."
            )
        if isinstance(each, BaseGroupChat) and not each._initialized:
            each._runtime = LightRuntime()
        seen.add(id(each))
        _equip(each, found.path or (each.name,), stage)
    return stage


def _equip(thing: Any, path: tuple[str, ...], stage: Stage) -> None:
    manager = isinstance(thing, BaseGroupChat)
    name = thing._group_chat_manager_name if manager else thing.name
    actor = stage.actor((*path, name) if manager else path, name)
    thing._stepfast = actor
    clients = _clients(thing, actor)
    if manager:
        return
    if workbenches_of(thing):
        stage.tools += [
            (tool.name, says(tool), kind_of(tool))
            for each in workbenches_of(thing)
            for tool in getattr(each, "_tools", ())
        ]
        thing._workbench = [durable_workbench(each, actor) for each in workbenches_of(thing)]
    if getattr(thing, "_memory", None):
        thing._memory = [durable_memory(each, actor) for each in thing._memory]
    if isinstance(thing, CodeExecutorAgent):
        durable_code(thing, actor)
    if isinstance(thing, UserProxyAgent):
        durable_input(thing, actor)
    if not _is_known(thing):
        durable_turns(thing, actor, repeatable=clients)


def _clients(thing: Any, actor: Actor) -> bool:
    """Put a durable client in place of each model client that an agent or a manager has; whether it has one."""
    found = {name: value for name, value in vars(thing).items() if isinstance(value, ChatCompletionClient)}
    for name, client in found.items():
        inner = client.stepfast_client if isinstance(client, DurableClient) else client
        setattr(thing, name, DurableClient(inner, actor))
    return bool(found)


def _is_known(thing: Any) -> bool:
    """Whether an agent's turn is that of a class we know, and not one of its own."""
    for known in _KNOWN:
        if isinstance(thing, known):
            own = type(thing)
            return own.on_messages is known.on_messages and own.on_messages_stream is known.on_messages_stream
    return False

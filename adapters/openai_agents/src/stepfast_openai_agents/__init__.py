"""Durable runs for the OpenAI Agents SDK: agents and tools stay as they are."""

import typing

if typing.TYPE_CHECKING:
    from stepfast import DID_NOT_HAPPEN, Happened, Suspended, idempotency_key

    from ._policies import composite, idempotent, once
    from ._streaming import replayed
    from .process import durable_agents
    from .runner import DurableRunner
    from .session import StepfastSession
    from .worker import agent_worker

__all__ = [
    "DID_NOT_HAPPEN",
    "DurableRunner",
    "Happened",
    "StepfastSession",
    "Suspended",
    "agent_worker",
    "composite",
    "durable_agents",
    "idempotency_key",
    "idempotent",
    "once",
    "replayed",
]

# Each name is loaded from its module when it is first used: `.swarm` works where the SDK is not installed.
_HOMES = {
    "stepfast": "DID_NOT_HAPPEN Happened Suspended idempotency_key",
    "stepfast_openai_agents._policies": "composite idempotent once",
    "stepfast_openai_agents._streaming": "replayed",
    "stepfast_openai_agents.process": "durable_agents",
    "stepfast_openai_agents.runner": "DurableRunner",
    "stepfast_openai_agents.session": "StepfastSession",
    "stepfast_openai_agents.worker": "agent_worker",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> typing.Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})

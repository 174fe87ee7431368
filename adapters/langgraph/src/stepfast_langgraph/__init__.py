"""Stepfast for LangGraph: a checkpointer that stores the change, and graphs that outlive their process."""

import typing

if typing.TYPE_CHECKING:
    from stepfast import current_run, idempotency_key
    from stepfast.adapters import composite, idempotent, once
    from stepfast_langgraph._durable import Durable, durable
    from stepfast_langgraph._node_calls import calls
    from stepfast_langgraph._tools import durable_tool
    from stepfast_langgraph.cache import StepfastCache
    from stepfast_langgraph.factory import create_checkpointer
    from stepfast_langgraph.saver import LostUpdate, StepfastSaver
    from stepfast_langgraph.store import StepfastStore

__version__ = "0.1.0"

__all__ = [
    "Durable",
    "LostUpdate",
    "StepfastCache",
    "StepfastSaver",
    "StepfastStore",
    "__version__",
    "calls",
    "composite",
    "create_checkpointer",
    "current_run",
    "durable",
    "durable_tool",
    "idempotency_key",
    "idempotent",
    "once",
]

# Each name is loaded from its module when it is first used: the saver alone needs neither langgraph nor langchain.
_HOMES = {
    "stepfast": "current_run idempotency_key",
    "stepfast.adapters": "composite idempotent once",
    "stepfast_langgraph._durable": "Durable durable",
    "stepfast_langgraph._node_calls": "calls",
    "stepfast_langgraph._tools": "durable_tool",
    "stepfast_langgraph.cache": "StepfastCache",
    "stepfast_langgraph.factory": "create_checkpointer",
    "stepfast_langgraph.saver": "StepfastSaver LostUpdate",
    "stepfast_langgraph.store": "StepfastStore",
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

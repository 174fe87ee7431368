"""Holdfast for LangGraph: a checkpointer that stores the change, and graphs that outlive their process."""

import typing

if typing.TYPE_CHECKING:
    from holdfast_langgraph._durable import Durable, durable
    from holdfast_langgraph._tools import durable_tool, once, step
    from holdfast_langgraph.cache import HoldfastCache
    from holdfast_langgraph.factory import create_checkpointer
    from holdfast_langgraph.saver import HoldfastSaver, LostUpdate
    from holdfast_langgraph.store import HoldfastStore
    from holdfast_langgraph.threads_api import Threads, ThreadSummary

__version__ = "0.1.0"

__all__ = [
    "Durable",
    "HoldfastCache",
    "HoldfastSaver",
    "HoldfastStore",
    "LostUpdate",
    "ThreadSummary",
    "Threads",
    "__version__",
    "create_checkpointer",
    "durable",
    "durable_tool",
    "once",
    "step",
]

# Each name is loaded from its module when it is first used: the saver alone needs neither langgraph nor langchain.
_HOMES = {
    "holdfast_langgraph._durable": "Durable durable",
    "holdfast_langgraph._tools": "durable_tool once step",
    "holdfast_langgraph.cache": "HoldfastCache",
    "holdfast_langgraph.factory": "create_checkpointer",
    "holdfast_langgraph.saver": "HoldfastSaver LostUpdate",
    "holdfast_langgraph.store": "HoldfastStore",
    "holdfast_langgraph.threads_api": "Threads ThreadSummary",
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

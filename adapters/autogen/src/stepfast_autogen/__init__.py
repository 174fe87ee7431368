"""Stepfast for AutoGen: conversations of agents that survive their process and go on at the last finished call.

The names of this module are AgentChat's (``pip install "stepfast-autogen[agentchat]"``), from
`stepfast_autogen.agentchat`. `stepfast_autogen.classic` is for ``import autogen``, `stepfast_autogen.ag2` for
``import ag2``. A framework is imported with the first name that needs it, since no environment holds all three.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agentchat import (
        DID_NOT_HAPPEN,
        DurableTeam,
        Happened,
        composite,
        current_run,
        durable,
        idempotency_key,
        idempotent,
        once,
        replayed,
        team_worker,
    )

__all__ = [
    "DID_NOT_HAPPEN",
    "DurableTeam",
    "Happened",
    "composite",
    "current_run",
    "durable",
    "idempotency_key",
    "idempotent",
    "once",
    "replayed",
    "team_worker",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.agentchat"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

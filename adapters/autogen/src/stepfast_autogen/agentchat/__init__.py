"""AgentChat 0.7: teams and agents that go on at the last finished call."""

from __future__ import annotations

from .._extras import missing

try:
    import autogen_agentchat  # noqa: F401
except ImportError as error:
    raise missing("agentchat", error) from error

from stepfast import DID_NOT_HAPPEN, Happened, current_run, idempotency_key
from stepfast.adapters import composite, idempotent, once, replayed

from .team import DurableTeam, durable, team_worker

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

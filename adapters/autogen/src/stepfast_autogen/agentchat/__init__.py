"""AgentChat 0.7: teams and agents that go on at the last finished call."""

from __future__ import annotations

from .._extras import missing

try:
    import autogen_agentchat  # noqa: F401
except ImportError as error:
    raise missing("agentchat", error) from error

__all__: list[str] = []

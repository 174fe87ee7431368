"""Durable runs for the OpenAI Agents SDK: agents and tools stay as they are."""

from stepfast import DID_NOT_HAPPEN, Happened, Suspended, Waiting, current_run, idempotency_key
from stepfast.adapters import Price, Usage, replayed

from .durable import DurableAgent, durable
from .policies import composite, idempotent, once
from .process import durable_agents
from .runner import DurableRunner
from .session import StepfastSession
from .worker import agent_worker

__all__ = [
    "DID_NOT_HAPPEN",
    "DurableAgent",
    "DurableRunner",
    "Happened",
    "Price",
    "StepfastSession",
    "Suspended",
    "Usage",
    "Waiting",
    "agent_worker",
    "composite",
    "current_run",
    "durable",
    "durable_agents",
    "idempotency_key",
    "idempotent",
    "once",
    "replayed",
]

"""Durable runs for OpenAI's Swarm: agents and functions stay as they are."""

from stepfast import DID_NOT_HAPPEN, Happened, Suspended, Waiting, current_run, idempotency_key
from stepfast.adapters import Price, Usage, composite, idempotent, once

from .swarm import DurableAgent, DurableSwarm, durable

__all__ = [
    "DID_NOT_HAPPEN",
    "DurableAgent",
    "DurableSwarm",
    "Happened",
    "Price",
    "Suspended",
    "Usage",
    "Waiting",
    "composite",
    "current_run",
    "durable",
    "idempotency_key",
    "idempotent",
    "once",
]

"""Durable conversations for AG2 1.x (``import ag2``): agents and tools stay as they are."""

from stepfast import DID_NOT_HAPPEN, Happened, Suspended, Waiting, current_run, idempotency_key
from stepfast.adapters import Price, Usage, composite, idempotent, once

from .._extras import missing

try:
    import ag2 as _framework  # noqa: F401 - before the modules that need it
except ImportError as error:
    raise missing("ag2", error) from None

from .agent import DurableAgent, durable
from .conversation import DurableReply, DurableRun

__all__ = [
    "DID_NOT_HAPPEN",
    "DurableAgent",
    "DurableReply",
    "DurableRun",
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

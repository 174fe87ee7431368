"""Classic AutoGen, ``import autogen``: chats that survive their process and go on at the last finished call.

For the ``autogen`` package 0.14, ag2 below 1.0, and pyautogen 0.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._extras import missing

try:
    from autogen import ConversableAgent  # noqa: F401
except ImportError as error:
    raise missing("classic", error) from error

from stepfast import DID_NOT_HAPPEN, Happened, Suspended, Waiting, current_run, idempotency_key
from stepfast.adapters import (
    OnDrift,
    OnInDoubt,
    OnWait,
    PolicyLike,
    Prices,
    RunName,
    StoreLike,
    composite,
    idempotent,
    once,
)

from .chat import DurableChat, Options
from .worker import chat_worker

__all__ = [
    "DID_NOT_HAPPEN",
    "DurableChat",
    "Happened",
    "Suspended",
    "Waiting",
    "chat_worker",
    "composite",
    "current_run",
    "durable",
    "idempotency_key",
    "idempotent",
    "once",
]


def durable(
    agents: Any,
    run_id: RunName = None,
    store: StoreLike = None,
    *,
    on_in_doubt: OnInDoubt = "ask",
    policies: Mapping[str, PolicyLike] | None = None,
    on_drift: OnDrift = "warn",
    on_wait: OnWait = "suspend",
    labels: Mapping[str, str] | None = None,
    prices: Prices | None = None,
    max_delivery_attempts: int | None = None,
    wait: float | None = None,
) -> DurableChat:
    """Make the chats of an agent durable: each has a name, and begun again it goes on where it stopped.

    ``agents`` is the agent that begins the chat, a list with that agent first and its partner second, or a
    GroupChatManager, whose first agent then begins. The options are described in the documentation of adapters.
    """
    options = Options(
        run_id, store, on_in_doubt, policies, on_drift, on_wait, labels, prices, max_delivery_attempts, wait
    )
    return DurableChat(agents, options)

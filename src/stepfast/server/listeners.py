"""Who listens, and what they hold: the state of deliveries, without any I/O."""

from __future__ import annotations

import asyncio

from stepfast.addresses import last_name, same_agent
from stepfast.core import iso
from stepfast.intents import Intent
from stepfast.ops import Lease
from stepfast.server.caller import Caller
from stepfast.server.sse import frame
from stepfast.server.wakes import Bell


def key_of(caller: Caller) -> str:
    return caller.key_id or "local"


class Listener:
    """One open agent stream."""

    __slots__ = ("address", "claiming", "delivery", "frame", "key", "left", "name", "signal", "since", "tenant", "told")

    def __init__(self, caller: Caller, address: str, since: int, signal: asyncio.Event) -> None:
        self.tenant = caller.tenant
        self.key = key_of(caller)
        self.address = address
        self.name = last_name(address)
        self.since = since
        self.signal = signal
        self.delivery: Delivery | None = None
        self.frame: bytes | None = None  # the one that waits to be written: the whole queue of a listener
        self.claiming = False
        self.left = False
        self.told = False  # that its time is over


class Delivery:
    """An intent in the hands of a listener; ``listener`` is None once its stream has ended and the lease stays."""

    __slots__ = ("bell", "intent", "key", "lease", "listener", "seq", "tenant", "timer")

    def __init__(self, tenant: str, intent: Intent, seq: int, listener: Listener) -> None:
        self.tenant = tenant
        self.intent = intent
        self.lease = Lease(intent.intent_id, intent.attempt, intent.lease_token or "")
        self.seq = seq
        self.key = listener.key
        self.listener: Listener | None = listener
        self.bell: Bell | None = None
        self.timer: asyncio.TimerHandle | None = None

    def frame(self) -> bytes:
        intent = self.intent
        data = {
            "intent_id": intent.intent_id,
            "seq": self.seq,
            "event_type": "intent.delivered",
            "status": "DELIVERED" if intent.attempt == 1 else "IN_PROGRESS",
            "at": iso(intent.updated_at),
            "intent_type": intent.intent_type,
            "to_agent": intent.to_agent,
            "from_agent": intent.from_agent,
            "correlation_id": intent.correlation_id,
            "delivery_attempt": intent.attempt,
            "max_delivery_attempts": intent.max_delivery_attempts,
            "redelivered": intent.attempt > 1,
            "attempt_token": f"{intent.attempt}.{self.lease.token}",
        }
        return frame("intent.delivered", data, self.seq)


class Room:
    """The listeners of a tenant that are free."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.idle: dict[str, dict[Listener, None]] = {}
        self.bells: dict[str, Bell] = {}
        self.news = asyncio.Event()
        self.pump: asyncio.Task[None] | None = None
        self.listeners = 0

    def matching(self, address: str, most: int) -> list[Listener]:
        """Those who may have an intent for that address, the longest waiting first."""
        if address.startswith("run://"):  # an embedded run, which its own process goes on with
            return []
        found = []
        for listener in self.idle.get(last_name(address), ()):
            if same_agent(listener.address, address):
                found.append(listener)
                if len(found) == most:
                    break
        return found

"""Who is asking, and what they may do. Identity comes from the key alone, never from a body, path or header.

For authors of routes:

* ``caller.tenant`` goes with every call of the store, so another workspace's id is simply not there.
* ``caller.require("create")`` raises Forbidden (403) where the key lacks that right.
* ``caller.can_receive(address)``: may it take deliveries for that address?
* ``caller.can_touch(intent)``: may it see, answer or change that intent? Where not, answer as if the intent
  did not exist: ``caller.check_touch(intent)`` raises the same NotFound the store would.
* ``caller.sender(claimed)`` is the from_agent of an intent that it creates.
* ``caller.actor`` is the text for the ``actor`` of events.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from stepfast.addresses import same_agent
from stepfast.errors import NotFound
from stepfast.intents import Intent
from stepfast.server.errors import Forbidden

Role = Literal["workspace", "agent", "local"]
Scope = Literal["admin", "ops", "create", "read", "receive", "resume", "answer"]

# admin: accounts, keys, kill switch, bulk changes; ops: the raw store port; answer: people's tasks.
WORKSPACE_SCOPES: frozenset[str] = frozenset({"admin", "ops", "create", "read", "receive", "resume", "answer"})
AGENT_SCOPES: frozenset[str] = frozenset({"create", "read", "receive", "resume"})


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A verified identity. ``agent`` is set for agent keys only: the one address the key speaks for."""

    tenant: str
    org: str
    workspace: str
    key_id: str
    role: Role
    agent: str | None = None
    scopes: frozenset[str] = WORKSPACE_SCOPES

    def has(self, scope: Scope) -> bool:
        return scope in self.scopes

    def require(self, scope: Scope) -> None:
        if scope not in self.scopes:
            raise Forbidden(
                f"this key may not do that: it needs the scope {scope!r}. Use a key of the workspace that has it."
            )

    def can_receive(self, address: str) -> bool:
        """Deliveries for an address: any in the workspace, or for an agent key its own alone."""
        if "receive" not in self.scopes:
            return False
        return self.agent is None or same_agent(self.agent, address)

    def check_receive(self, address: str) -> None:
        if not self.can_receive(address):
            raise Forbidden("this key may not receive for that address. Use the agent's own key or a workspace key.")

    def can_touch(self, intent: Intent) -> bool:
        """An intent of the workspace; for an agent key one that it sent or that is addressed to it."""
        if self.agent is None:
            return True
        sent = intent.from_agent is not None and same_agent(self.agent, intent.from_agent)
        return sent or same_agent(self.agent, intent.to_agent)

    def check_touch(self, intent: Intent) -> None:
        if not self.can_touch(intent):
            raise missing_intent(intent.intent_id)

    def can_resume(self, intent: Intent) -> bool:
        """Answering for the work itself: the addressed agent, or the workspace."""
        if "resume" not in self.scopes:
            return False
        return self.agent is None or same_agent(self.agent, intent.to_agent)

    def sender(self, claimed: str | None = None) -> str:
        """The from_agent of what it creates: an agent key's own address, whatever was claimed."""
        if self.agent is not None:
            return self.agent
        return claimed or f"agent://{self.org}/{self.workspace}/client"

    @property
    def actor(self) -> str:
        return self.agent or (f"key:{self.key_id}" if self.key_id else "local")


def missing_intent(intent_id: str) -> NotFound:
    """The same answer for an intent that is not there and for one that the caller may not see."""
    return NotFound(f"there is no intent {intent_id} in this store.", intent_id=intent_id)

"""How a worker finds its work: whose intents these are, who died over some, and what has become due."""

from __future__ import annotations

import logging
import time

from stepfast.addresses import same_agent
from stepfast.clock import new_id
from stepfast.core import Core
from stepfast.flow import Do, Flow, do
from stepfast.intents import Intent
from stepfast.ops import (
    Claim,
    DeleteRecord,
    ListAddresses,
    ListRecords,
    NextDue,
    PutRecord,
    Record,
    ReleaseOwner,
    Sweep,
)
from stepfast.owner import life_of

log = logging.getLogger("stepfast")

PRESENCE = "worker"
_PAGE = 1000
_STREAK = 16
_UPKEEP_SECONDS = 0.5
_SWEEP_SECONDS = 1.0
_PRESENT_SECONDS = 6 * 3600.0
_FORGOTTEN_US = 24 * 3600 * 1_000_000


class Forager:
    """Looks for the intents of one agent, however their address was written."""

    def __init__(self, core: Core, address: str) -> None:
        self._core = core
        self._address = address
        self._asked: Claim | None = None  # a claim whose answer has not come: it may hold intents by now
        self._streak = 0
        self._name = new_id()
        # A server sees by itself when a process is gone.
        self._registers = not core.store.session
        self._present_until = self._next_upkeep = self._next_peers = self._next_sweep = 0.0

    def look(self, free: int) -> Flow[list[Intent]]:
        """At most ``free`` intents, each with a lease; and what upkeep is due is done by the way."""
        if not free and time.monotonic() < self._next_upkeep:
            return []
        if free and (self._asked is not None or 0 < self._streak < _STREAK):
            taken = yield from self._claim(self._address, free)
            if taken:
                self._streak += 1
                return taken
        self._next_upkeep = time.monotonic() + _UPKEEP_SECONDS
        yield from self._meet_peers()
        due, listed = yield Do([NextDue(), ListAddresses(limit=_PAGE)])
        yield from self._sweep(due)
        if not free:
            return []
        found = [a for a in listed if same_agent(a, self._address)]
        while len(listed) == _PAGE:
            listed = yield from do(ListAddresses(after=listed[-1], limit=_PAGE))
            found += [a for a in listed if same_agent(a, self._address)]
        # Its own address first, unless that has had its share.
        found.sort(key=lambda a: (a == self._address) == (self._streak >= _STREAK))
        self._streak = 0
        for address in found:
            taken = yield from self._claim(address, free)
            if taken:
                self._streak = 1
                return taken
        return []

    def _claim(self, address: str, free: int) -> Flow[list[Intent]]:
        """An answer that was lost is asked for again by the same token, so that nothing stays taken unseen."""
        op = self._asked or Claim(
            to_agent=address,
            token=new_id(),
            owner=self._core.owner,
            lease_seconds=self._core.lease_seconds,
            limit=min(free, _PAGE),
        )
        self._asked = op
        taken = yield from do(op)
        self._asked = None
        return taken

    def last_answer(self) -> Flow[list[Intent]]:
        """What a claim may have taken whose answer was lost."""
        return [] if self._asked is None else (yield from self._claim(self._address, 1))

    def _sweep(self, due: int | None) -> Flow[None]:
        """Deadlines and expired questions settle themselves only if somebody looks."""
        if due is not None and due <= self._core.store.clock.now_us() and time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP_SECONDS
            yield from do(Sweep())

    # --- other workers of this machine ------------------------------------------------------------

    def _meet_peers(self) -> Flow[None]:
        """Say that we are here, and hand on what a dead worker of this machine held: its leases need not run out."""
        now = time.monotonic()
        if not self._registers or now < self._next_peers:
            return
        self._next_peers = now + _UPKEEP_SECONDS
        if now >= self._present_until:
            body = self._core.owner.encode()
            yield from do(PutRecord(kind=PRESENCE, record_id=self._name, body=body, write_id=new_id()))
            self._present_until = now + _PRESENT_SECONDS
        peers: list[Record] = yield from do(ListRecords(kind=PRESENCE))
        forgotten = self._core.store.clock.now_us() - _FORGOTTEN_US
        for peer in peers:
            if peer.record_id == self._name:
                continue
            owner = peer.body.decode()
            if life_of(owner) == "dead":
                count = yield from do(ReleaseOwner(owner=owner, reason="its worker died", limit=_PAGE))
                if count < _PAGE:
                    yield from do(DeleteRecord(kind=PRESENCE, record_id=peer.record_id))
                log.warning("a worker of this machine died: %d intents of its are handed on (%s)", count, owner)
            elif peer.updated_at < forgotten:
                yield from do(DeleteRecord(kind=PRESENCE, record_id=peer.record_id))

    def leave(self) -> Flow[None]:
        if self._registers and self._present_until:
            yield from do(DeleteRecord(kind=PRESENCE, record_id=self._name))

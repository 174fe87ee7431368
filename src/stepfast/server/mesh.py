"""Who is alive, and who is stopped: heartbeats, and the kill switch of agents, the same on every server."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from stepfast.addresses import bare, same_agent
from stepfast.clock import new_id
from stepfast.errors import Conflict
from stepfast.ops import DeleteRecord, GetRecord, ListRecords, Op, PutRecord, Record
from stepfast.server.errors import Forbidden
from stepfast.server.state import Platform
from stepfast.server.store_time import StoreTime
from stepfast.server.wakes import Bell, Board

BEAT, KILLED, EVENT = "mesh", "mesh_killed", "mesh_event"
HEALTHY_SECONDS, DEGRADED_SECONDS = 90, 300
HEALTHS = ("healthy", "degraded", "unreachable", "killed", "unknown")
_REFRESH_US = 1_000_000
_PAGE = 1000
_MOST_EVENTS = 5000
_SUMS = ("intents_total", "intents_succeeded", "intents_failed", "cost_usd")
_LATEST_FIRST = 1 << 62


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """The last sign of life of an agent, and what it has told of its work so far."""

    address: str
    first_at: int
    last_at: int
    metrics: dict[str, float] = {}


class Mesh:
    """One per app. What is killed is kept in memory, and forgotten when the store says that it changed."""

    def __init__(self, platform: Platform) -> None:
        self._store = platform.store
        self._time = platform.part(StoreTime)
        self._board = platform.part(Board)
        self._bell: Bell | None = None
        self._killed: dict[str, tuple[int, list[str]]] = {}

    # --- the kill switch -------------------------------------------------------------------------

    async def is_killed(self, tenant: str, address: str) -> bool:
        return any(same_agent(address, killed) for killed in await self._killed_in(tenant))

    async def killed(self, tenant: str) -> list[str]:
        """The addresses that are stopped, as the store has them now."""
        self._killed.pop(tenant, None)
        return await self._killed_in(tenant)

    async def check(self, tenant: str, *addresses: str | None) -> None:
        """Forbidden if one of these agents is stopped."""
        killed = await self._killed_in(tenant)
        for address in addresses:
            if killed and address and any(same_agent(address, each) for each in killed):
                raise Forbidden(
                    f"the agent {address} is stopped by its kill switch: nothing goes to it or comes from it. "
                    "Resume it to let it work again.",
                    code="agent_killed",
                )

    async def _killed_in(self, tenant: str) -> list[str]:
        if self._bell is None:
            self._bell = self._board.bell(f"record:{KILLED}", self._killed.clear)
        now = self._time.now()
        known = self._killed.get(tenant)
        if known is not None and 0 <= now - known[0] < _REFRESH_US:
            return known[1]
        found = await self._all(tenant, KILLED)
        killed = [record.record_id for record in found]
        self._killed[tenant] = (now, killed)
        return killed

    async def kill(self, tenant: str, address: str, actor: str) -> None:
        await self._switch(tenant, address, actor, killed=True)

    async def resume(self, tenant: str, address: str, actor: str) -> None:
        await self._switch(tenant, address, actor, killed=False)

    async def _switch(self, tenant: str, address: str, actor: str, *, killed: bool) -> None:
        """The switch and the line that tells of it; nothing where it stands so already."""
        if await self._is_listed(tenant, address) is killed:
            return
        name = bare(address)
        event = "agent.killed" if killed else "agent.resumed"
        if killed:
            body = msgspec.json.encode({"address": address, "by": actor, "at": self._time.now()})
            ops: list[Op[Any]] = [PutRecord(kind=KILLED, record_id=name, body=body, write_id=new_id(), expected=0)]
        else:
            listed = [each for each in await self._all(tenant, KILLED) if same_agent(each.record_id, address)]
            ops = [DeleteRecord(kind=KILLED, record_id=each.record_id) for each in listed]
        ops.append(self._event(event, address, actor))
        try:
            await self._store.execute(ops, tenant=tenant)
        except Conflict:  # another did it at the same moment
            pass
        self._killed.pop(tenant, None)
        await self._trim(tenant)

    async def _is_listed(self, tenant: str, address: str) -> bool:
        return any(same_agent(each.record_id, address) for each in await self._all(tenant, KILLED))

    # --- signs of life ---------------------------------------------------------------------------

    async def beat(self, tenant: str, address: str, metrics: dict[str, float]) -> Beat:
        """Add to what is known of an agent. ``metrics`` are what it counted since its last beat."""
        name = bare(address)
        while True:
            record = await self._store.one(GetRecord(kind=BEAT, record_id=name), tenant=tenant)
            now = self._time.now()
            old = None if record is None else msgspec.json.decode(record.body, type=Beat)
            beat = Beat(
                address=address,
                first_at=now if old is None else old.first_at,
                last_at=now if old is None else max(now, old.last_at),
                metrics=_added({} if old is None else old.metrics, metrics),
            )
            put = PutRecord(
                kind=BEAT,
                record_id=name,
                body=msgspec.json.encode(beat),
                write_id=new_id(),
                expected=0 if record is None else record.version,
            )
            ops: list[Op[Any]] = [put]
            if old is None or now - old.last_at > HEALTHY_SECONDS * 1_000_000:
                ops.append(self._event("agent.joined" if old is None else "agent.recovered", address, address))
            try:
                await self._store.execute(ops, tenant=tenant)
            except Conflict:
                continue
            if len(ops) > 1:
                await self._trim(tenant)
            return beat

    async def beats(self, tenant: str) -> dict[str, Beat]:
        found = await self._all(tenant, BEAT)
        return {record.record_id: msgspec.json.decode(record.body, type=Beat) for record in found}

    def health(self, beat: Beat | None, killed: bool) -> str:
        if killed:
            return "killed"
        if beat is None:
            return "unknown"
        age = (self._time.now() - beat.last_at) / 1_000_000
        if age < HEALTHY_SECONDS:
            return "healthy"
        return "degraded" if age <= DEGRADED_SECONDS else "unreachable"

    # --- events ----------------------------------------------------------------------------------

    def _event(self, event_type: str, address: str, actor: str) -> PutRecord:
        now = self._time.now()
        body = {"event_id": new_id(), "event_type": event_type, "address": address, "actor": actor, "at": now}
        name = f"{_LATEST_FIRST - now:020d}:{body['event_id']}"  # records come in the order of their ids
        return PutRecord(kind=EVENT, record_id=name, body=msgspec.json.encode(body), write_id=new_id(), expected=0)

    async def _trim(self, tenant: str) -> None:
        """Old events go: an agent that comes and goes for years must not fill the store."""
        kept = await self._store.one(ListRecords(kind=EVENT, limit=_MOST_EVENTS), tenant=tenant)
        if len(kept) < _MOST_EVENTS:
            return
        rest = await self._store.one(ListRecords(kind=EVENT, after=kept[-1].record_id, limit=100), tenant=tenant)
        if rest:
            gone: list[Op[Any]] = [DeleteRecord(kind=EVENT, record_id=each.record_id) for each in rest]
            await self._store.execute(gone, tenant=tenant)

    async def events(self, tenant: str, limit: int, event_type: str | None) -> list[dict[str, Any]]:
        """The newest first."""
        found: list[dict[str, Any]] = []
        after = ""
        while len(found) < limit:
            page = await self._store.one(ListRecords(kind=EVENT, after=after, limit=_PAGE), tenant=tenant)
            shown: list[dict[str, Any]] = [msgspec.json.decode(record.body) for record in page]
            found += [event for event in shown if event_type in (None, event["event_type"])]
            if len(page) < _PAGE:
                break
            after = page[-1].record_id
        return found[:limit]

    async def _all(self, tenant: str, kind: str) -> list[Record]:
        found: list[Record] = []
        while True:
            after = found[-1].record_id if found else ""
            page = await self._store.one(ListRecords(kind=kind, after=after, limit=_PAGE), tenant=tenant)
            found += page
            if len(page) < _PAGE:
                return found


def address_id(address: str) -> str:
    """A name for an address that fits into a path."""
    return "addr_" + sha256(bare(address).encode()).hexdigest()[:20]


def _added(old: dict[str, float], new: dict[str, float]) -> dict[str, float]:
    """Counters add up; the latency is the mean over all that was counted."""
    total, more = old.get("intents_total", 0), new.get("intents_total", 0)
    summed = {name: old.get(name, 0) + new.get(name, 0) for name in _SUMS if name in old or name in new}
    if "avg_latency_ms" in new or "avg_latency_ms" in old:
        weights = [(old.get("avg_latency_ms", 0), total), (new.get("avg_latency_ms", 0), more)]
        count = total + more
        summed["avg_latency_ms"] = (
            sum(value * weight for value, weight in weights) / count if count else new.get("avg_latency_ms", 0)
        )
    return summed

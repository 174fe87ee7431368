"""Deliveries: intents to competing listeners, each intent to one of them.

A listener is an open agent stream. It has at most one intent at a time, under a lease that lives as long as the
connection: one task renews the leases of all streams, and when a connection breaks the intent is handed on at once.

How a delivery ends:

* the intent is settled (answered, ended, moved): the listener is free for the next one;
* the connection breaks: a lost delivery, handed on at once;
* the listener asks for the next one, naming the seq of this one, which is open: its handler returned without an
  answer, a lost delivery that is tried again after a back-off;
* the stream ends by the server's will (a shutdown): nothing is lost. The lease stays, prolonged by `HANDOVER_SECONDS`,
  because the agent is still at work and its answer, given to whichever server is there then, counts;
* its key is revoked: handed back without loss, as the agent could not answer any more;
* its server dies: another server sees leases that nobody renews and hands them back without loss.

Idle listeners cost no look at the store: one pump per tenant asks which addresses have work, when the store says that
something changed and about once a second, and claims for those who listen there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from stepfast.addresses import same_agent
from stepfast.bindings import of_error, of_result
from stepfast.clock import new_id
from stepfast.errors import AlreadyFinished, Fenced, NotFound, StepfastError, StoreError
from stepfast.intents import Intent, Status
from stepfast.ops import (
    Claim,
    Filter,
    FinishIntent,
    GetIntent,
    Lease,
    ListAddresses,
    ListIntents,
    Op,
    ReleaseIntent,
    RenewLease,
)
from stepfast.server.caller import Caller
from stepfast.server.listeners import Delivery, Listener, Room, key_of
from stepfast.server.mesh import Mesh
from stepfast.server.state import Platform
from stepfast.server.store_time import StoreTime
from stepfast.server.wakes import Board

log = logging.getLogger("stepfast.server")

HANDOVER_SECONDS = 120.0
# While a handler is busy its stream stays open. After this long without a sign the lease is left to run out.
HOLD_SECONDS = 3600.0
# After the tail of a stream was sent, a reader that lives comes back at once; one that does not has died.
RETURN_SECONDS = 0.25
POLL_SECONDS = 1.0
_MOST_AT_ONCE = 64
_REMEMBERED = 100_000
_LONGEST_BACKOFF = 60.0
_PAGE = 1000
_RETRIES = 6
_CLOSING_SECONDS = 2.0
_SCAN_SECONDS = 1.0
# The leases that streams hold are known by this word, and by nothing else that claims.
_OWNER = "stream"


class Hub:
    """All deliveries of a server."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._store = platform.store
        self.lease_seconds = platform.settings.lease_seconds
        self.hold_seconds = HOLD_SECONDS
        self._board = platform.part(Board)
        self._mesh = platform.part(Mesh)
        self._time = platform.part(StoreTime)
        self._rooms: dict[str, Room] = {}
        self._by_seq: dict[tuple[str, int], Delivery] = {}
        self._by_intent: dict[tuple[str, str], Delivery] = {}
        # Seqs whose deliveries are known to be settled: their listeners come back with them each few seconds.
        self._settled: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._suspects: set[Delivery] = set()
        self._last_seq = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._scans: dict[str, tuple[float, asyncio.Future[list[Intent]]]] = {}

    # --- listeners -------------------------------------------------------------------------------

    async def join(self, caller: Caller, address: str, since: int, signal: asyncio.Event) -> Listener:
        """A stream that begins. ``since`` names the last delivery its reader has seen."""
        if since > 0:
            await self._quietly(self._came_back(caller, address, since))
        listener = Listener(caller, address, since, signal)
        room = self._rooms.setdefault(caller.tenant, Room(caller.tenant))
        room.listeners += 1
        self._keep("tend", self._tend)
        return listener

    def offer(self, listener: Listener) -> None:
        """The listener is free for an intent."""
        room = self._rooms[listener.tenant]
        room.idle.setdefault(listener.name, {})[listener] = None
        if listener.name not in room.bells:
            room.bells[listener.name] = self._board.bell(f"agent:{listener.name}", room.news.set)
        room.news.set()
        if room.pump is None or room.pump.done():
            room.pump = self._spawn(self._pump(room))

    def _withdraw(self, listener: Listener) -> None:
        room = self._rooms[listener.tenant]
        free = room.idle.get(listener.name)
        if free is None:
            return
        free.pop(listener, None)
        if not free:
            del room.idle[listener.name]

    async def leave(self, listener: Listener, how: str) -> None:
        """A stream that is over: "gone" (the connection broke), "timeout", "held", "closing" or "revoked"."""
        listener.left = True
        self._withdraw(listener)
        room = self._rooms[listener.tenant]
        room.listeners -= 1
        if listener.name in room.bells and listener.name not in room.idle:
            room.bells.pop(listener.name).close()
        if room.listeners == 0:
            del self._rooms[listener.tenant]
        delivery = listener.delivery
        if delivery is None:
            return
        delivery.listener = None
        if listener.frame is not None:  # it was never on its way
            await self._hand_back(delivery, "its listener left before it was sent")
        elif how == "revoked":
            await self._hand_back(delivery, "the key of its listener was revoked")
        elif how == "closing":
            await self._quietly(self._renew(delivery, HANDOVER_SECONDS))
        elif how == "gone" and listener.told:
            loop = asyncio.get_running_loop()
            delivery.timer = loop.call_later(RETURN_SECONDS, self._lose, delivery, "its listener did not come back")
        elif how == "gone":
            self._lose(delivery, "the connection of its listener broke")

    # --- claiming --------------------------------------------------------------------------------

    async def _pump(self, room: Room) -> None:
        while room.idle:
            room.news.clear()
            try:
                await self._pass(room)
            except StepfastError as error:
                log.warning("deliveries wait for the store: %s", error.code)
                await asyncio.sleep(POLL_SECONDS)
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await room.news.wait()
            except TimeoutError:
                pass

    async def _pass(self, room: Room) -> None:
        """Give out what there is. Doubling: a lone intent costs one claim, however many listen."""
        after = ""
        while True:
            page = await self._store.one(ListAddresses(after=after, limit=_PAGE), tenant=room.tenant)
            wanted = [address for address in page if room.matching(address, 1)]
            wanted = [address for address in wanted if not await self._mesh.is_killed(room.tenant, address)]
            share = 1
            while wanted:
                wanted = await self._claim(room, wanted, share)
                share = min(2 * share, _MOST_AT_ONCE)
            if len(page) < _PAGE:
                return
            after = page[-1]

    async def _claim(self, room: Room, addresses: list[str], share: int) -> list[str]:
        """One transaction; gives the addresses where every claim found something."""
        claims: list[tuple[str, Listener, int]] = []
        ops: list[Op[Any]] = []
        for address in addresses:
            for listener in room.matching(address, share):
                self._withdraw(listener)
                listener.claiming = True
                seq = self._next_seq(listener)
                claims.append((address, listener, seq))
                owner = f"{_OWNER}:{listener.key}:{seq}"
                ops.append(Claim(to_agent=address, token=new_id(), owner=owner, lease_seconds=self.lease_seconds))
        if not ops:
            return []
        found: list[list[Intent]] = [[] for _ in ops]
        try:
            found = await self._store.execute(ops, tenant=room.tenant)
        finally:
            empty = {address for (address, _, _), intents in zip(claims, found, strict=True) if not intents}
            for (_, listener, seq), intents in zip(claims, found, strict=True):
                listener.claiming = False
                if intents:
                    self._deliver(Delivery(room.tenant, intents[0], seq, listener))
                elif not listener.left:
                    self._again(room, listener)
        return [address for address in dict.fromkeys(a for a, _, _ in claims) if address not in empty]

    def _again(self, room: Room, listener: Listener) -> None:
        """Back to its place in front: others came after it."""
        free = room.idle.get(listener.name, {})
        room.idle[listener.name] = {listener: None, **free}

    def _next_seq(self, listener: Listener) -> int:
        """It always grows, for everybody: a listener skips what is not beyond the last that it saw."""
        self._last_seq = max(self._last_seq + 1, self._time.now())
        seq = max(self._last_seq, listener.since + 1)
        while (listener.tenant, seq) in self._by_seq:
            seq += 1
        return seq

    def _deliver(self, delivery: Delivery) -> None:
        listener = delivery.listener
        assert listener is not None  # noqa: S101
        self._by_seq[delivery.tenant, delivery.seq] = delivery
        self._by_intent[delivery.tenant, delivery.intent.intent_id] = delivery
        if listener.left:
            delivery.listener = None
            self._spawn(self._hand_back(delivery, "its listener left before it was sent"))
            return
        delivery.bell = self._board.bell(f"intent:{delivery.intent.intent_id}", lambda: self._suspect(delivery))
        listener.delivery = delivery
        listener.since = max(listener.since, delivery.seq)
        listener.frame = delivery.frame()
        listener.signal.set()
        self._keep("renew", self._renew_all)

    # --- how a delivery ends -----------------------------------------------------------------------

    def over(self, tenant: str, intent: Intent) -> None:
        """A short cut for who has just changed an intent: its stream need not wait for the store's word."""
        delivery = self._by_intent.get((tenant, intent.intent_id))
        if delivery is not None and not _holds(intent, delivery.lease):
            self._settle(delivery)

    def _settle(self, delivery: Delivery) -> None:
        if self._by_seq.pop((delivery.tenant, delivery.seq), None) is None:
            return
        if self._by_intent.get((delivery.tenant, delivery.intent.intent_id)) is delivery:
            del self._by_intent[delivery.tenant, delivery.intent.intent_id]
        self._suspects.discard(delivery)
        self._remember(delivery.tenant, delivery.seq)
        if delivery.bell is not None:
            delivery.bell.close()
        if delivery.timer is not None:
            delivery.timer.cancel()
        listener = delivery.listener
        if listener is not None:
            listener.delivery = None
            listener.signal.set()

    def _remember(self, tenant: str, seq: int) -> None:
        self._settled[tenant, seq] = None
        if len(self._settled) > _REMEMBERED:
            self._settled.popitem(last=False)

    def _lose(self, delivery: Delivery, reason: str, delay: float = 0.0) -> None:
        self._settle(delivery)
        self._spawn(self._release(delivery, reason, lost=True, delay=delay))

    async def _hand_back(self, delivery: Delivery, reason: str) -> None:
        self._settle(delivery)
        await self._release(delivery, reason, lost=False)

    async def _release(self, delivery: Delivery, reason: str, *, lost: bool, delay: float = 0.0) -> None:
        op = ReleaseIntent(lease=delivery.lease, reason=reason, lost=lost, delay_seconds=delay)
        for attempt in range(_RETRIES):
            try:
                await self._store.one(op, tenant=delivery.tenant)
                return
            except StoreError as error:
                log.warning("intent %s cannot be handed on yet: %s", delivery.intent.intent_id, error.code)
                await asyncio.sleep(0.1 * 2**attempt)
            except StepfastError:  # it has ended, or somebody else has it: there is nothing to hand on
                return

    async def _came_back(self, caller: Caller, address: str, since: int) -> None:
        """Its reader asks for the next one. If the last one is open, the handler returned without an answer."""
        delivery = self._by_seq.get((caller.tenant, since))
        if delivery is not None:
            if delivery.key == key_of(caller):
                self._lose(delivery, "the handler returned without an answer", _backoff(delivery.intent))
        elif (caller.tenant, since) not in self._settled:
            self._remember(caller.tenant, since)
            for intent in await self._held_elsewhere(caller, address):
                if (intent.owner or "").endswith(f":{since}"):  # delivered by a server that has ended since
                    lease = Lease(intent.intent_id, intent.attempt, intent.lease_token or "")
                    reason = "the handler returned without an answer"
                    op = ReleaseIntent(lease=lease, reason=reason, lost=True, delay_seconds=_backoff(intent))
                    await self._quietly(self._store.one(op, tenant=caller.tenant))

    # --- leases ------------------------------------------------------------------------------------

    async def _renew_all(self) -> bool:
        await asyncio.sleep(self.lease_seconds / 3)
        held = [delivery for delivery in self._by_seq.values() if delivery.listener is not None]
        for start in range(0, len(held), 256):
            await asyncio.gather(*(self._renew(d, self.lease_seconds) for d in held[start : start + 256]))
        return bool(self._by_seq)

    async def _renew(self, delivery: Delivery, seconds: float) -> None:
        try:
            await self._store.one(RenewLease(lease=delivery.lease, lease_seconds=seconds), tenant=delivery.tenant)
        except StoreError as error:
            log.warning("the lease of intent %s is not renewed: %s", delivery.intent.intent_id, error.code)
        except StepfastError:  # ended, fenced or gone
            self._settle(delivery)

    async def heartbeat(self, caller: Caller) -> None:
        """A sign of life of an agent prolongs what it still holds without a stream."""
        if caller.agent is not None:
            for intent in await self._held_elsewhere(caller, caller.agent):
                await self.touch(caller, intent)

    async def touch(self, caller: Caller, intent: Intent) -> None:
        """A call of its holder on an intent prolongs a lease that no stream keeps."""
        owner = intent.owner or ""
        if not (intent.leased and owner.startswith(f"{_OWNER}:{key_of(caller)}:")):
            return
        delivery = self._by_intent.get((caller.tenant, intent.intent_id))
        if delivery is not None and delivery.listener is not None:
            return
        age = self._time.now() - _seq_of(owner)
        if age > 2 * self.hold_seconds * 1_000_000:  # for ever is too long: others of that key may be the ones alive
            return
        lease = Lease(intent.intent_id, intent.attempt, intent.lease_token or "")
        op = RenewLease(lease=lease, lease_seconds=max(self.lease_seconds, HANDOVER_SECONDS))
        await self._quietly(self._store.one(op, tenant=caller.tenant))

    async def _held_elsewhere(self, caller: Caller, address: str) -> list[Intent]:
        """What the caller's key holds for that address by streams of servers that are no more, or that ended."""
        prefix = f"{_OWNER}:{key_of(caller)}:"
        found = await self._held_by_streams(caller.tenant)
        return [i for i in found if (i.owner or "").startswith(prefix) and same_agent(i.to_agent, address)]

    async def _held_by_streams(self, tenant: str) -> list[Intent]:
        """All that streams hold, of this server and of others. Many may ask at once, so it is read once a second."""
        loop = asyncio.get_running_loop()
        known = self._scans.get(tenant)
        if known is not None and loop.time() - known[0] < _SCAN_SECONDS:
            return await asyncio.shield(known[1])
        scan = asyncio.ensure_future(self._scan(tenant))
        self._scans[tenant] = (loop.time(), scan)
        try:
            return await asyncio.shield(scan)
        except StepfastError:
            self._scans.pop(tenant, None)
            raise

    async def _scan(self, tenant: str) -> list[Intent]:
        before: str | None = None
        found: list[Intent] = []
        while True:
            where = Filter(statuses=[Status.IN_PROGRESS], before=before, limit=_PAGE)
            page = await self._store.one(ListIntents(where=where), tenant=tenant)
            found += [intent for intent in page if intent.leased and (intent.owner or "").startswith(f"{_OWNER}:")]
            if len(page) < _PAGE:
                return found
            before = page[-1].intent_id

    async def _tend(self) -> bool:
        """Hand back, without loss, what streams of dead servers hold: nobody renews it any more.

        A living server renews at a third of the lease, so a lease with a fifth left has no server.
        """
        await asyncio.sleep(self.lease_seconds / 10)
        for tenant in list(self._rooms):
            try:
                await self._adopt(tenant)
            except StepfastError as error:
                log.warning("leases of other servers cannot be looked at: %s", error.code)
        return bool(self._rooms)

    async def _adopt(self, tenant: str) -> None:
        found = await self._held_by_streams(tenant)
        foreign = [intent for intent in found if (tenant, intent.intent_id) not in self._by_intent]
        if not foreign:
            return
        await self._time.refresh()
        now = self._time.now()  # by the store's clock, which may not be ours
        for intent in foreign:
            left = ((intent.claimable_at or 0) - now) / 1_000_000
            if left < self.lease_seconds / 5:
                lease = Lease(intent.intent_id, intent.attempt, intent.lease_token or "")
                op = ReleaseIntent(lease=lease, reason="the server of its listener is gone", lost=False)
                await self._quietly(self._store.one(op, tenant=tenant))

    # --- looking whether it is settled ---------------------------------------------------------------

    def _suspect(self, delivery: Delivery) -> None:
        """Its intent changed somehow."""
        self._suspects.add(delivery)
        self._keep("look", self._look)

    async def _look(self) -> bool:
        suspects, self._suspects = self._suspects, set()
        for tenant in {delivery.tenant for delivery in suspects}:
            mine = [delivery for delivery in suspects if delivery.tenant == tenant]
            for start in range(0, len(mine), 100):
                await asyncio.gather(*(self._look_at(delivery) for delivery in mine[start : start + 100]))
        return bool(self._suspects)

    async def _look_at(self, delivery: Delivery) -> None:
        try:
            intent = await self._store.one(GetIntent(intent_id=delivery.intent.intent_id), tenant=delivery.tenant)
        except NotFound:
            self._settle(delivery)
        except StepfastError as error:
            log.warning("intent %s cannot be looked at: %s", delivery.intent.intent_id, error.code)
        else:
            if not _holds(intent, delivery.lease):
                self._settle(delivery)

    # --- tasks -----------------------------------------------------------------------------------------

    async def close(self) -> None:
        """What is being handed on gets a moment; the rest is left to the leases."""
        for keeper in (*self._keepers.values(), *(room.pump for room in self._rooms.values())):
            if keeper is not None:
                keeper.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSING_SECONDS)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("deliveries: a task failed", exc_info=task.exception())

    def _keep(self, name: str, work: Callable[[], Awaitable[bool]]) -> None:
        """Do this again and again for as long as it says that there is more to do."""

        async def run() -> None:
            while await work():
                pass

        task = self._keepers.get(name)
        if task is None or task.done():
            self._keepers[name] = self._spawn(run())

    async def _quietly(self, work: Awaitable[Any]) -> None:
        """Where the store is away or somebody else was first, the lease runs out by itself."""
        try:
            await work
        except StepfastError as error:
            if not isinstance(error, AlreadyFinished | Fenced | NotFound):
                log.warning("deliveries: %s", error.code)


def _seq_of(owner: str) -> int:
    number = owner.rpartition(":")[2]
    return int(number) if number.isdecimal() else 0


def _holds(intent: Intent, lease: Lease) -> bool:
    return (
        intent.leased and not intent.finished and (intent.attempt, intent.lease_token) == (lease.attempt, lease.token)
    )


def _backoff(intent: Intent) -> float:
    return min(_LONGEST_BACKOFF, 2.0**intent.lost)


async def finish(
    platform: Platform,
    caller: Caller,
    intent: Intent,
    status: Status,
    result: Any = None,
    error: Any = None,
    *,
    reason: str | None = None,
    actor: str = "",
    lease: Lease | None = None,
    also: Sequence[Op[Any]] = (),
) -> Intent:
    """The one ending that the API gives an intent. ``also`` is written with it or not at all.

    With a lease it is the attempt's own, and Fenced if another one has the intent by now. AlreadyFinished if it had
    ended before, or if its time was over.
    """
    codec, tenant, completed = platform.codec, caller.tenant, status is Status.COMPLETED
    op = FinishIntent(
        intent_id=intent.intent_id,
        status=status,
        lease=lease,
        result=codec.encode(result, bind=of_result(tenant, intent.journal_id)) if completed else None,
        error=None if error is None else codec.encode(error, bind=of_error(tenant, intent.journal_id)),
        reason=reason,
        actor=actor or caller.actor,
    )
    ended: Intent = (await platform.store.execute([op, *also], tenant=tenant))[0]
    platform.part(Hub).over(tenant, ended)
    if ended.status is not status:
        raise AlreadyFinished(
            f"intent {ended.intent_id} is {ended.status}: {ended.reason or 'it has ended'}.",
            intent_id=ended.intent_id,
            status=str(ended.status),
        )
    return ended

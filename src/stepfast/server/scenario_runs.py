"""Scenarios on the store: reads what happened, asks the engine, and writes its answer in one transaction.

Whichever server is first moves a scenario on: the write names the version of the record it was worked out from. The
others find the record changed, and look again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from stepfast.bindings import of_error, of_payload, of_result
from stepfast.clock import new_id
from stepfast.errors import Conflict, InvalidInput, NotFound
from stepfast.intents import Intent, Status, WaitingReason
from stepfast.ops import (
    AppendEvent,
    CreateIntent,
    DeleteRecord,
    Filter,
    FinishIntent,
    GetIntent,
    GetRecord,
    ListIntents,
    MoveIntent,
    NewIntent,
    Op,
    PutRecord,
    Record,
)
from stepfast.server.bundles import Plan
from stepfast.server.caller import Caller
from stepfast.server.controls import EXTRA, Extra, put_extra, read_extra
from stepfast.server.human_tasks import content_hash
from stepfast.server.mesh import Mesh
from stepfast.server.scenarios import (
    Again,
    Answered,
    Begin,
    Cancel,
    ChildEnded,
    Dispatch,
    Effect,
    Finish,
    Happening,
    Note,
    ParentEnded,
    State,
    Tick,
    Wait,
    advance,
)
from stepfast.server.state import Platform
from stepfast.server.store_time import StoreTime
from stepfast.server.views import error_of, result_of
from stepfast.server.wakes import Bell, Board

log = logging.getLogger("stepfast.server")

KIND = "scenario"
ENDED = "scenario_ended"  # how far one was that ended: it may be revived
CORE = "agent_core"  # the name of who handles parents: the server
ACTOR = "scenario"
_TRIES = 20
_STATE = msgspec.json.Decoder(State)  # made before threads meet


class Seen(msgspec.Struct, frozen=True):
    """What was read at one moment."""

    state: State
    version: int
    extra: Extra
    extra_record: Record | None
    parent: Intent


class Runs:
    """All scenarios that this server moves on."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._store = platform.store
        self._time = platform.part(StoreTime)
        self._mesh = platform.part(Mesh)
        self._board = platform.part(Board)
        self._bells: dict[tuple[str, str], tuple[str, list[Bell]]] = {}
        self._news: set[tuple[str, str]] = set()
        self._rung = asyncio.Event()
        self.revivals = False  # whether something came for the server itself
        self._door = self._board.bell(f"agent:{CORE}", self._came)

    # --- beginning -------------------------------------------------------------------------------

    async def begin(self, caller: Caller, new: NewIntent, plan: Plan, others: list[Op[Any]]) -> Intent:
        """Create the parent and take the first step, together with ``others``, or nothing at all."""
        state = State(parent_id=new.intent_id, plan=plan)
        state, effects = advance(state, Begin(), self._time.now())
        parent = _as_created(new)
        state, effects = await self._past_killed(caller.tenant, state, effects)
        extra = _linked(plan)
        ops: list[Op[Any]] = [*others, CreateIntent(new=new)]
        ops += self._ops(caller.tenant, Seen(state, 0, extra, None, parent), state, effects)
        at = len(others)
        created = (await self._store.execute(ops, tenant=caller.tenant))[at]
        self._follow(caller.tenant, state)
        return await self._store.one(GetIntent(intent_id=created.intent.intent_id), tenant=caller.tenant)

    async def revive(self, tenant: str) -> None:
        """Scenarios whose intent was revived: the new one goes on at the step in which the old one ended."""
        where = Filter(statuses=[Status.DELIVERED], to_agent=core_of(tenant), limit=1000)
        for intent in await self._store.one(ListIntents(where=where), tenant=tenant):
            if intent.revived_from is None:
                continue
            ended, told = await self._store.execute(
                [
                    GetRecord(kind=ENDED, record_id=intent.revived_from),
                    GetRecord(kind=EXTRA, record_id=intent.intent_id),
                ],
                tenant=tenant,
            )
            if ended is None:
                continue
            state, effects = advance(_STATE.decode(ended.body), Again(intent.intent_id), self._time.now())
            state, effects = await self._past_killed(tenant, state, effects)
            seen = Seen(state, 0, _linked(state.plan, read_extra(told)), told, intent)
            try:
                await self._store.execute(self._ops(tenant, seen, state, effects), tenant=tenant)
            except Conflict:  # another server was first
                continue
            self._follow(tenant, state)

    # --- moving on -------------------------------------------------------------------------------

    async def read(self, tenant: str, parent_id: str) -> Seen | None:
        """None where that intent is no running scenario."""
        record, extra, parent = await self._store.execute(
            [
                GetRecord(kind=KIND, record_id=parent_id),
                GetRecord(kind=EXTRA, record_id=parent_id),
                GetIntent(intent_id=parent_id),
            ],
            tenant=tenant,
        )
        if record is None:
            return None
        return Seen(_STATE.decode(record.body), record.version, read_extra(extra), extra, parent)

    async def look(self, tenant: str, parent_id: str) -> bool:
        """Move a scenario on by whatever has happened to it; whether anything had."""
        moved = False
        for _ in range(_TRIES):
            try:
                seen = await self.read(tenant, parent_id)
            except NotFound:
                seen = None
            if seen is None:
                self._forget(tenant, parent_id)
                return moved
            happening = await self._happened(tenant, seen)
            if not await self._take(tenant, seen, happening):
                self._follow(tenant, seen.state)
                return moved
            moved = True
        return moved

    async def answer(self, tenant: str, seen: Seen, answer: Answered) -> bool:
        """Whether the answer counted; if not, somebody was first and it must be judged anew."""
        return await self._take(tenant, seen, answer)

    async def _happened(self, tenant: str, seen: Seen) -> Happening:
        child = await self._child(tenant, seen.state)
        if seen.parent.finished:
            return ParentEnded(child_open=child is not None and not child.finished)
        if seen.state.phase in ("human", "gate") and seen.parent.status is Status.IN_PROGRESS:
            # Somebody released the wait without a word of what they decided: that approves it.
            return Answered(positive=True, task_result={"outcome": "approved"}, taken=seen.state.taken)
        if seen.state.phase != "agent" or seen.state.child_id is None:
            return Tick()
        if child is None:
            return ChildEnded(child_id=seen.state.child_id, status=Status.FAILED, reason="its intent is gone")
        if not child.finished:
            return Tick()
        codec = self._platform.codec
        return ChildEnded(
            child_id=child.intent_id,
            status=child.status,
            result=result_of(codec, tenant, child),
            error=error_of(codec, tenant, child) if child.error is not None else None,
            reason=child.reason,
        )

    async def _child(self, tenant: str, state: State) -> Intent | None:
        if state.child_id is None:
            return None
        try:
            return await self._store.one(GetIntent(intent_id=state.child_id), tenant=tenant)
        except NotFound:
            return None

    async def _take(self, tenant: str, seen: Seen, happening: Happening) -> bool:
        """True where the scenario moved, by us or by somebody else meanwhile (then it is to be read again)."""
        state, effects = advance(seen.state, happening, self._time.now())
        if state is seen.state:
            return False
        state, effects = await self._past_killed(tenant, state, effects)
        try:
            await self._store.execute(self._ops(tenant, seen, state, effects), tenant=tenant)
        except Conflict:
            return not isinstance(happening, Answered)
        self._follow(tenant, state)
        return True

    async def _past_killed(self, tenant: str, state: State, effects: list[Effect]) -> tuple[State, list[Effect]]:
        """A killed agent is given nothing: its step has failed."""
        kept: list[Effect] = []
        left = list(effects)
        while left:
            effect = left.pop(0)
            if not isinstance(effect, Dispatch) or not await self._mesh.is_killed(tenant, effect.address):
                kept.append(effect)
                continue
            reason = f"the agent {effect.address} is stopped by its kill switch"
            ended = ChildEnded(child_id=effect.child_id, status=Status.FAILED, reason=reason)
            # What was left is the wait for a child that there will not be.
            state, left = advance(state, ended, state.now)
        return state, kept

    # --- what is written -------------------------------------------------------------------------

    def _ops(self, tenant: str, seen: Seen, state: State, effects: list[Effect]) -> list[Op[Any]]:
        parent, extra = seen.parent, seen.extra
        record = PutRecord(
            kind=KIND,
            record_id=state.parent_id,
            body=msgspec.json.encode(state),
            write_id=new_id(),
            expected=seen.version,
            belongs_to=state.parent_id,
            due_at=state.due_at,
        )
        ops: list[Op[Any]] = [record]
        if state.phase == "done":
            ops += [
                DeleteRecord(kind=KIND, record_id=state.parent_id),
                msgspec.structs.replace(record, kind=ENDED, write_id=new_id(), expected=None),
            ]
            extra.pending_with = extra.human_task = None
        changed = state.phase == "done"
        for effect in effects:
            match effect:
                case Dispatch():
                    ops += self._dispatch(tenant, seen, state, effect)
                case Cancel():
                    ops.append(
                        FinishIntent(
                            intent_id=effect.child_id, status=Status.CANCELED, reason=effect.reason, actor=ACTOR
                        )
                    )
                case Note():
                    changed |= _amend(extra, effect)
                    ops.append(_note(parent.intent_id, effect.event_type, effect.note_id, effect.details))
                case Wait():
                    changed = True
                    ops += self._wait(state, extra, effect)
                case Finish():
                    ops.append(self._finish(tenant, parent, effect))
        if changed:
            old = seen.extra_record
            ops.append(put_extra(parent.intent_id, extra, expected=0 if old is None else old.version))
        return ops

    def _dispatch(self, tenant: str, seen: Seen, state: State, effect: Dispatch) -> list[Op[Any]]:
        parent, plan = seen.parent, state.plan
        payload = {
            "parent_payload": plan.payload,
            "parent_intent_id": parent.intent_id,
            "scenario_id": plan.scenario_id,
            "step_id": effect.step_id,
            "input": effect.input,
            "previous_results": effect.results,
        }
        new = NewIntent(
            intent_id=effect.child_id,
            intent_type=plan.intent_type,
            to_agent=effect.address,
            from_agent=parent.from_agent,
            correlation_id=parent.correlation_id,
            payload=self._platform.codec.encode(payload, bind=of_payload(tenant, effect.child_id)),
            labels={"scenario": parent.intent_id, "step": effect.step_id},
            ttl_seconds=effect.deadline,
            max_delivery_attempts=plan.max_delivery_attempts,
        )
        link = {"scenario_id": plan.scenario_id, "parent_intent_id": parent.intent_id, "step_id": effect.step_id}
        extra = put_extra(effect.child_id, Extra(more={"scenario": link}), expected=None)
        return [CreateIntent(new=new), extra]

    def _wait(self, state: State, extra: Extra, effect: Wait) -> list[Op[Any]]:
        parent_id = state.parent_id
        extra.pending_with = effect.pending_with
        extra.human_task = effect.task
        extra.remind_count = 0
        asked = None
        if effect.task is not None:
            # What the person is shown besides is settled by this: an answer that names it counts for nothing else.
            asked = {"at": state.now, "due_at": state.until, "taken": state.taken, "seen": content_hash(state.results)}
        extra.more = {**extra.more, "step_id": effect.step_id, "escalated_to": None, "asked": asked}
        details = {"step_id": effect.step_id, "pending_with": effect.pending_with}
        ops: list[Op[Any]] = []
        if effect.task is not None:
            told = {**details, "human_task": effect.task}
            ops.append(_note(parent_id, "intent.human_task_assigned", f"{effect.note_id}:assigned", told))
        move = MoveIntent(
            intent_id=parent_id,
            status=Status.WAITING,
            note_id=effect.note_id,
            waiting_reason=str(effect.reason),
            details=details,
            actor=ACTOR,
        )
        return [*ops, move]

    def _finish(self, tenant: str, parent: Intent, effect: Finish) -> FinishIntent:
        codec = self._platform.codec
        result = error = None
        if effect.status is Status.COMPLETED:
            result = codec.encode(effect.result, bind=of_result(tenant, parent.journal_id))
        else:
            error = codec.encode(effect.error, bind=of_error(tenant, parent.journal_id))
        # Only an intent's own deadline makes it TIMED_OUT; a step's, with no way on, is a failure that says so.
        status = Status.FAILED if effect.status is Status.TIMED_OUT else effect.status
        return FinishIntent(
            intent_id=parent.intent_id, status=status, result=result, error=error, reason=effect.reason, actor=ACTOR
        )

    # --- hearing of it ---------------------------------------------------------------------------

    def _follow(self, tenant: str, state: State) -> None:
        """Be told when the parent or the child changes."""
        key = (tenant, state.parent_id)
        if state.phase == "done":
            self._forget(*key)
            return
        child = state.child_id or ""
        known = self._bells.get(key)
        if known is not None and known[0] == child:
            return
        self._forget(*key)
        ids = [state.parent_id, *([child] if child else [])]

        def ring() -> None:
            self._news.add(key)
            self._rung.set()

        self._bells[key] = (child, [self._board.bell(f"intent:{each}", ring) for each in ids])
        ring()  # it may have changed before there was anybody to hear of it

    def _forget(self, tenant: str, parent_id: str) -> None:
        for bell in self._bells.pop((tenant, parent_id), ("", []))[1]:
            bell.close()

    def _came(self) -> None:
        self.revivals = True
        self._rung.set()

    async def news(self, seconds: float) -> set[tuple[str, str]]:
        """Which scenarios may have moved, waiting for the first for so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        except TimeoutError:
            pass
        self._rung.clear()
        news, self._news = self._news, set()
        return news

    def close(self) -> None:
        self._door.close()
        for key in list(self._bells):
            self._forget(*key)


def _as_created(new: NewIntent) -> Intent:
    """As much of the parent as its first effects need."""
    return Intent(
        intent_id=new.intent_id,
        journal_id=new.intent_id,
        from_agent=new.from_agent,
        correlation_id=new.correlation_id,
    )


def _linked(plan: Plan, extra: Extra | None = None) -> Extra:
    extra = extra or Extra()
    extra.more = {**extra.more, "scenario": {"scenario_id": plan.scenario_id, "steps": len(plan.steps)}}
    return extra


def core_of(tenant: str) -> str:
    """The address of the server itself in a workspace: scenarios' own intents go there."""
    return f"agent://{tenant if '/' in tenant else f'{tenant}/{tenant}'}/{CORE}"


def _note(intent_id: str, event_type: str, note_id: str, details: dict[str, Any]) -> AppendEvent:
    return AppendEvent(
        intent_id=intent_id, lease=None, note_id=note_id, event_type=event_type, details=details, actor=ACTOR
    )


def _amend(extra: Extra, note: Note) -> bool:
    """What the parent shows of a reminder or an escalation."""
    if note.event_type == "intent.reminder" and "remind_count" in note.details:
        extra.remind_count = note.details["remind_count"]
        return True
    escalated = note.details.get("escalated_to")
    if note.event_type == "intent.escalated" and escalated:
        extra.more = {**extra.more, "escalated_to": escalated}
        extra.pending_with = {"type": "human", "ref": escalated, "name": escalated}
        return True
    return False


def waits_for_person(intent: Intent) -> bool:
    """One that a worker may take again has its answer."""
    waiting = intent.status is Status.WAITING and intent.claimable_at is None
    return waiting and intent.waiting_reason == WaitingReason.WAITING_FOR_HUMAN


def deadline_of(plan: Plan, deadline_at: int | None, now: int) -> int | None:
    """When the parent times out: as the intent says, and at the only step's deadline if there is just one."""
    ends = [deadline_at] if deadline_at is not None else []
    if plan.ttl_seconds is not None:
        ends.append(now + int(plan.ttl_seconds * 1_000_000))
    only = plan.steps[0]
    alone = len(plan.steps) == 1 and not only.on_failure and not only.retries and not only.gated
    if alone and only.deadline is not None and only.kind in ("agent", "human"):
        ends.append(now + int(only.deadline * 1_000_000))
    if deadline_at is not None and deadline_at <= now:
        raise InvalidInput("intent.deadline_at: lies in the past.")
    return min(ends) if ends else None

"""What time does by itself: deadlines, leases that ran out, reminders, and the steps of scenarios.

Every server runs this; which of them is first does the work, and the store's compare-and-set keeps the others out. All
times lie in the store, so that what fell due while no server ran is done when one is back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from stepfast.clock import new_id
from stepfast.errors import Conflict, NotFound, StoreError
from stepfast.ops import (
    AppendEvent,
    DeleteRecord,
    DueRecords,
    GetIntent,
    GetRecord,
    ListRecords,
    NextDue,
    Op,
    PutRecord,
    Record,
    Sweep,
)
from stepfast.server.controls import EXTRA, put_extra, read_extra
from stepfast.server.human_tasks import next_reminder, reminder_rule
from stepfast.server.ops_api import SESSION
from stepfast.server.scenario_runs import KIND, Runs, waits_for_person
from stepfast.server.state import Platform
from stepfast.server.store_time import StoreTime

log = logging.getLogger("stepfast.server")

LOOK_SECONDS = 1.0  # new deadlines are not announced: they are looked for this often
SWEEP_SECONDS = 5.0  # leases that ran out, which no clock announces
CHECK_SECONDS = 5.0  # every running scenario is looked at this often, should a wake-up have been lost
_DEFER_SECONDS = 60.0
_GATHER_SECONDS = 0.05  # many changes in a moment are one reason to look
_TENANTS_PER_SECOND = 500
_AT_ONCE = 16
_PAGE = 500


async def background(platform: Platform) -> None:
    runs = platform.part(Runs)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_tend(platform, runs))
            group.create_task(_follow(platform, runs))
    finally:
        runs.close()


# --- what falls due ---------------------------------------------------------------------------------


async def _tend(platform: Platform, runs: Runs) -> None:
    clock = platform.part(StoreTime)
    swept: dict[str, float] = {}
    with platform.store.watch(f"record:{KIND}", f"record:{EXTRA}") as watch:
        while not platform.closing.is_set():
            tenants = platform.tenants()
            pause = max(LOOK_SECONDS, len(tenants) / _TENANTS_PER_SECOND)
            try:
                await clock.refresh()
                for tenant in tenants:
                    pause = min(pause, await _tend_tenant(platform, runs, tenant, swept))
            except StoreError as error:
                log.warning("timers cannot be looked at: %s", error.message)
            except Exception:  # whatever it is, the timers of others go on
                log.exception("timers failed")
            if await watch.wait_async(max(pause, 0.002)):
                await asyncio.sleep(max(0.0, min(pause, _GATHER_SECONDS)))


async def _tend_tenant(platform: Platform, runs: Runs, tenant: str, swept: dict[str, float]) -> float:
    """Do what is due; gives the seconds after which to look again."""
    clock = platform.part(StoreTime)
    due = await platform.store.one(NextDue(), tenant=tenant)
    wait = LOOK_SECONDS if due is None else (due - clock.now()) / 1_000_000
    moment = time.monotonic()
    if wait > 0 and moment - swept.get(tenant, 0.0) < SWEEP_SECONDS:
        return wait
    swept[tenant] = moment
    settled = await platform.store.one(Sweep(), tenant=tenant)
    if wait > 0:
        return wait
    done = 0
    for record in await platform.store.one(DueRecords(), tenant=tenant):
        done += await _due(platform, runs, tenant, record)
    # Nothing to do although something is due: by the store's clock it is not quite time, or another server is at it.
    return 0.0 if settled or done else 0.05


async def _due(platform: Platform, runs: Runs, tenant: str, record: Record) -> bool:
    try:
        if record.kind == KIND:
            return await runs.look(tenant, record.record_id)
        if record.kind == EXTRA:
            return await _remind(platform, tenant, record)
        if record.kind == SESSION:  # left by a process and a server that both died
            await platform.store.one(DeleteRecord(kind=SESSION, record_id=record.record_id), tenant=tenant)
            return True
        await _defer(platform, tenant, record)  # of a kind that a newer server knows
    except StoreError:
        raise
    except Exception:
        # One that cannot be handled must not be in the way of all others.
        log.exception("the timer of %s %s failed; it is tried again in a minute", record.kind, record.record_id)
        await _defer(platform, tenant, record)
    return False


async def _defer(platform: Platform, tenant: str, record: Record) -> None:
    later = platform.part(StoreTime).now() + int(_DEFER_SECONDS * 1_000_000)
    put = PutRecord(
        kind=record.kind,
        record_id=record.record_id,
        body=record.body,
        write_id=new_id(),
        expected=record.version,
        belongs_to=record.belongs_to,
        due_at=later,
    )
    try:
        await platform.store.one(put, tenant=tenant)
    except Conflict:
        pass


async def _remind(platform: Platform, tenant: str, due: Record) -> bool:
    """A plain intent that waits for a person: remind, or escalate after the last time."""
    intent_id = due.record_id
    try:
        intent, record = await platform.store.execute(
            [GetIntent(intent_id=intent_id), GetRecord(kind=EXTRA, record_id=intent_id)], tenant=tenant
        )
    except NotFound:
        return False
    if record is None or record.version != due.version:
        return True
    extra = read_extra(record)
    reminder = None
    if waits_for_person(intent):
        now = platform.part(StoreTime).now()
        shown = {**extra.shown(), "escalated_to": extra.more.get("escalated_to")}
        reminder = next_reminder(reminder_rule(shown), due.due_at or now, now)
    if reminder is None:
        ops: list[Op[Any]] = [put_extra(intent_id, extra, expected=record.version)]
    else:
        extra.remind_count = reminder.count
        if reminder.escalated:
            extra.more = {**extra.more, "escalated_to": extra.escalate_to}
            extra.pending_with = {"type": "human", "ref": extra.escalate_to, "name": extra.escalate_to}
        note = AppendEvent(
            intent_id=intent_id,
            lease=None,
            note_id=f"reminder:{record.version}",
            event_type=reminder.event_type,
            details=reminder.details,
            actor="timer",
        )
        ops = [note, put_extra(intent_id, extra, expected=record.version, due_at=reminder.due_at)]
    try:
        await platform.store.execute(ops, tenant=tenant)
    except Conflict:  # another server was first, or the intent was answered
        pass
    return True


# --- scenarios whose steps ended --------------------------------------------------------------------


async def _follow(platform: Platform, runs: Runs) -> None:
    check_at = 0.0
    while not platform.closing.is_set():
        news = await runs.news(max(0.0, check_at - time.monotonic()))
        try:
            for start in range(0, len(news), _AT_ONCE):
                some = list(news)[start : start + _AT_ONCE]
                await asyncio.gather(*(_look(runs, *key) for key in some))
            if runs.revivals:
                runs.revivals = False
                for tenant in platform.tenants():
                    await runs.revive(tenant)
            if time.monotonic() >= check_at:
                began = time.monotonic()
                await _check_all(platform, runs)
                # With very many scenarios a look at all of them takes a while: it is then done less often.
                check_at = time.monotonic() + max(CHECK_SECONDS, 10 * (time.monotonic() - began))
        except StoreError as error:
            log.warning("scenarios cannot be looked at: %s", error.message)
            check_at = time.monotonic() + LOOK_SECONDS
        except Exception:
            log.exception("scenarios failed")
            check_at = time.monotonic() + CHECK_SECONDS


async def _check_all(platform: Platform, runs: Runs) -> None:
    for tenant in platform.tenants():
        after = ""
        while True:
            page = await platform.store.one(ListRecords(kind=KIND, after=after, limit=_PAGE), tenant=tenant)
            for record in page:
                await _look(runs, tenant, record.record_id)
            if len(page) < _PAGE:
                break
            after = page[-1].record_id
        await runs.revive(tenant)


async def _look(runs: Runs, tenant: str, parent_id: str) -> None:
    try:
        await runs.look(tenant, parent_id)
    except StoreError:
        raise
    except Exception:
        log.exception("scenario %s cannot be moved on", parent_id)

"""Every operation by name, so that the laws are tested for all of them and none is forgotten."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from stepfast import ops
from stepfast.clock import new_id
from stepfast.intents import Status
from stepfast.journal import StepStatus
from stepfast.ops import Lease, Op
from stepfast.ops.threads import Span
from stepfast.testing.contract_kit import (
    AGENT,
    Driver,
    World,
    checkpoint,
    create,
    finish,
    make_world,
    new_intent,
    open_new,
    step,
    thread_put,
)

# Every write that a lease allows, for a world and a lease that may or may not be good.
LEASED: dict[str, Callable[[World, Lease], Op[Any]]] = {
    "renew": lambda w, lease: ops.RenewLease(lease=lease, lease_seconds=60),
    "release": lambda w, lease: ops.ReleaseIntent(lease=lease, reason="tired"),
    "release_as_lost": lambda w, lease: ops.ReleaseIntent(lease=lease, reason="crashed", lost=True),
    "complete": lambda w, lease: ops.FinishIntent(
        intent_id=w.intent_id, lease=lease, status=Status.COMPLETED, result=b"mine"
    ),
    "fail": lambda w, lease: ops.FinishIntent(intent_id=w.intent_id, lease=lease, status=Status.FAILED, error=b"mine"),
    "record": lambda w, lease: ops.RecordStep(
        lease=lease, journal_id=w.journal_id, step=step("third", lease, position=3)
    ),
    "start": lambda w, lease: ops.RecordStep(
        lease=lease, journal_id=w.journal_id, step=step("fourth", lease, status=StepStatus.STARTED)
    ),
    "settle": lambda w, lease: ops.SettleStep(
        lease=lease, journal_id=w.journal_id, step=step("second", w.lease, position=2, kind="once")
    ),
    "void": lambda w, lease: ops.VoidSteps(
        lease=lease, journal_id=w.journal_id, steps=[("first", 0)], reason="bad answer"
    ),
    "ask": lambda w, lease: ops.AskDecision(
        lease=lease, journal_id=w.journal_id, key="another", kind="ask", question=b"?", outcomes=["yes"]
    ),
    "suspend": lambda w, lease: ops.SuspendIntent(lease=lease, waiting_reason="WAITING_FOR_HUMAN", keys=["approve"]),
    "checkpoint": lambda w, lease: ops.PutCheckpoint(
        lease=lease, checkpoint=checkpoint(lease, 2, journal_id=w.journal_id)
    ),
    "note": lambda w, lease: ops.AppendEvent(
        intent_id=w.intent_id, lease=lease, note_id="note-2", event_type="intent.noted"
    ),
}

# Everything else that names an intent or asks for any.
UNLEASED: dict[str, Callable[[World], Op[Any]]] = {
    "get": lambda w: ops.GetIntent(intent_id=w.intent_id),
    "list": lambda w: ops.ListIntents(),
    "list_by_label": lambda w: ops.ListIntents(where=ops.Filter(labels={"team": "red"})),
    "cancel": lambda w: ops.FinishIntent(intent_id=w.intent_id, status=Status.CANCELED),
    "revive": lambda w: ops.ReviveIntent(intent_id=w.intent_id, new_id=new_id()),
    "policy": lambda w: ops.SetTypePolicy(intent_type="demo.v1", max_delivery_attempts=9),
    "claim": lambda w: ops.Claim(to_agent=AGENT, token=w.lease.token, owner="w", lease_seconds=9),
    "open": lambda w: ops.OpenIntent(intent_id=w.intent_id, token=w.lease.token, owner="w", lease_seconds=9),
    "open_as_dead": lambda w: ops.OpenIntent(
        intent_id=w.intent_id, token=new_id(), owner="w", lease_seconds=9, dead_attempt=w.lease.attempt
    ),
    "create": lambda w: ops.CreateIntent(new=new_intent(intent_id=w.intent_id)),
    "sweep": lambda w: ops.Sweep(),
    "journal": lambda w: ops.ReadJournal(journal_id=w.journal_id, voided=True),
    "progress": lambda w: ops.GetProgress(intent_id=w.intent_id),
    "answer": lambda w: ops.AnswerDecision(journal_id=w.journal_id, key="approve", outcome="yes"),
    "decisions": lambda w: ops.ListDecisions(pending=False),
    "decisions_of": lambda w: ops.ListDecisions(journal_id=w.journal_id),
    "checkpoints": lambda w: ops.ReadCheckpoints(journal_id=w.journal_id),
    "put_piece": lambda w: ops.PutPiece(journal_id=w.journal_id, blob_id="blob-1", number=0, data=b"other"),
    "read_piece": lambda w: ops.ReadPiece(journal_id=w.journal_id, blob_id="blob-1", number=0),
    "events": lambda w: ops.ReadEvents(intent_id=w.intent_id),
    "note_from_outside": lambda w: ops.AppendEvent(
        intent_id=w.intent_id, lease=None, note_id="note-1", event_type="intent.noted"
    ),
    "prune": lambda w: ops.Prune(keep_latest=0),
    "move": lambda w: ops.MoveIntent(
        intent_id=w.intent_id, status=Status.WAITING, note_id="moved", waiting_reason="WAITING_FOR_TIME"
    ),
    "release_owner": lambda w: ops.ReleaseOwner(owner="worker-1", reason="it is dead"),
    "addresses": lambda w: ops.ListAddresses(),
    "put_record": lambda w: ops.PutRecord(kind="doc", record_id=w.intent_id, body=b"next", write_id="w-2", expected=1),
    "get_record": lambda w: ops.GetRecord(kind="doc", record_id=w.intent_id),
    "list_records": lambda w: ops.ListRecords(kind="doc"),
    "recent_records": lambda w: ops.RecentRecords(kind="doc"),
    "due_records": lambda w: ops.DueRecords(),
    "delete_record": lambda w: ops.DeleteRecord(kind="doc", record_id=w.intent_id),
    "delete_records": lambda w: ops.DeleteRecords(kind="doc", prefix=w.intent_id),
    "next_due": lambda w: ops.NextDue(),
    "measure": lambda w: ops.Measure(),
    "check": lambda w: ops.CheckWritable(),
    "put_thread": lambda w: thread_put(w.intent_id, writes=[]),
    "read_thread": lambda w: ops.ReadThread(thread_id=w.intent_id),
    "read_pieces": lambda w: ops.ReadPieces(thread_id=w.intent_id, spans=[Span("messages", 0, 1)]),
    "list_checkpoints": lambda w: ops.ListCheckpoints(),
    "list_checkpoints_of": lambda w: ops.ListCheckpoints(thread_id=w.intent_id),
    "read_path": lambda w: ops.ReadPath(thread_id=w.intent_id, checkpoint_id="c1"),
    "find_runs": lambda w: ops.FindRuns(run_ids=["run-1"]),
    "list_threads": lambda w: ops.ListThreads(),
    "list_threads_of": lambda w: ops.ListThreads(ids=[w.intent_id]),
    "count_threads": lambda w: ops.CountThreads(),
    "copy_thread": lambda w: ops.CopyThread(source=w.intent_id, target=f"copy of {w.intent_id}"),
    "delete_thread": lambda w: ops.DeleteThread(thread_id=w.intent_id),
    "drop_checkpoints": lambda w: ops.DropCheckpoints(thread_id=w.intent_id, drop=[("", "c1")]),
    "thread_ttl": lambda w: ops.SetThreadTtl(thread_id=w.intent_id, ttl_seconds=None),
    "expire_threads": lambda w: ops.ExpireThreads(),
}


def _with_its_lease(make: Callable[[World, Lease], Op[Any]], world: World) -> Op[Any]:
    return make(world, world.lease)


EVERY: dict[str, Callable[[World], Op[Any]]] = {
    **UNLEASED,
    **{name: partial(_with_its_lease, make) for name, make in LEASED.items()},
}


def named(table: dict[str, Any]) -> dict[str, str]:
    return {name: name for name in table}


def _in_world(name: str) -> Callable[[Driver], Awaitable[Op[Any]]]:
    async def prepare(driver: Driver) -> Op[Any]:
        return EVERY[name](await make_world(driver))

    return prepare


def _just(make: Callable[[], Op[Any]]) -> Callable[[Driver], Awaitable[Op[Any]]]:
    async def prepare(_driver: Driver) -> Op[Any]:
        return make()

    return prepare


async def _last_loss(driver: Driver) -> Op[Any]:
    lease = await open_new(driver, max_delivery_attempts=1)
    return ops.ReleaseIntent(lease=lease, reason="crashed", lost=True)


async def _release_too_late(driver: Driver) -> Op[Any]:
    lease = await open_new(driver, ttl_seconds=60, lease_seconds=600)
    driver.advance(61)
    return ops.ReleaseIntent(lease=lease, reason="tired")


async def _finish_too_late(driver: Driver) -> Op[Any]:
    lease = await open_new(driver, ttl_seconds=60, lease_seconds=600)
    driver.advance(61)
    return finish(lease, result=b"late")


async def _cancel_too_late(driver: Driver) -> Op[Any]:
    intent = await create(driver, ttl_seconds=60)
    driver.advance(61)
    return ops.FinishIntent(intent_id=intent.intent_id, status=Status.CANCELED)


async def _revival(driver: Driver) -> Op[Any]:
    world = await make_world(driver)
    await driver.do(finish(world.lease, Status.FAILED))
    return ops.ReviveIntent(intent_id=world.intent_id, new_id=new_id(), actor="anna")


async def _claim_of_some(driver: Driver) -> Op[Any]:
    for _ in range(5):
        await create(driver)
    return ops.Claim(to_agent=AGENT, token=new_id(), owner="w", lease_seconds=60, limit=3)


async def _open_as_dead(driver: Driver) -> Op[Any]:
    lease = await open_new(driver)
    return ops.OpenIntent(intent_id=lease.intent_id, token=new_id(), owner="w", lease_seconds=60, dead_attempt=1)


async def _suspension_after_the_answer(driver: Driver) -> Op[Any]:
    world = await make_world(driver)
    await driver.do(EVERY["answer"](world))
    return EVERY["suspend"](world)


async def _sweep_of_everything(driver: Driver) -> Op[Any]:
    await create(driver, ttl_seconds=60)
    await open_new(driver, max_delivery_attempts=1)
    lease = await open_new(driver)
    await driver.do(
        ops.AskDecision(
            lease=lease,
            journal_id=lease.intent_id,
            key="q",
            kind="ask",
            question=b"?",
            outcomes=["yes"],
            expires_in=60.0,
        )
    )
    driver.advance(61)
    return ops.Sweep()


async def _prune_of_some(driver: Driver) -> Op[Any]:
    for _ in range(3):
        intent = await create(driver)
        await driver.do(ops.FinishIntent(intent_id=intent.intent_id, status=Status.COMPLETED))
    return ops.Prune(keep_latest=1)


async def _move_of_one(driver: Driver) -> Op[Any]:
    intent = await create(driver)
    return ops.MoveIntent(
        intent_id=intent.intent_id, status=Status.WAITING, note_id="moved", waiting_reason="WAITING_FOR_TIME"
    )


async def _expiry_of_some(driver: Driver) -> Op[Any]:
    for _ in range(3):
        await driver.do(thread_put(new_id(), ttl_seconds=60.0))
    driver.advance(61)
    return ops.ExpireThreads()


async def _no_more_expiry(driver: Driver) -> Op[Any]:
    await driver.do(thread_put("t", ttl_seconds=60.0))
    return ops.SetThreadTtl(thread_id="t", ttl_seconds=None)


# Each write with its kind and a scene in which it has something to do.
REPEATS: dict[str, tuple[type[Op[Any]], Callable[[Driver], Awaitable[Op[Any]]]]] = {
    "create": (ops.CreateIntent, _just(lambda: ops.CreateIntent(new=new_intent(labels={"a": "b"})))),
    "create_with_key": (
        ops.CreateIntent,
        _just(lambda: ops.CreateIntent(new=new_intent(idempotency_key="k", body_hash=b"h"))),
    ),
    "open_new": (
        ops.OpenIntent,
        _just(lambda: ops.OpenIntent(token=new_id(), owner="w", lease_seconds=60, new=new_intent(run_id="r"))),
    ),
    "open_as_dead": (ops.OpenIntent, _open_as_dead),
    "complete": (ops.FinishIntent, _in_world("complete")),
    "cancel": (ops.FinishIntent, _in_world("cancel")),
    "finish_too_late": (ops.FinishIntent, _finish_too_late),
    "cancel_too_late": (ops.FinishIntent, _cancel_too_late),
    "revive": (ops.ReviveIntent, _revival),
    "policy": (ops.SetTypePolicy, _in_world("policy")),
    "claim": (ops.Claim, _claim_of_some),
    "renew": (ops.RenewLease, _in_world("renew")),
    "release": (ops.ReleaseIntent, _in_world("release")),
    "release_as_lost": (ops.ReleaseIntent, _in_world("release_as_lost")),
    "release_as_the_last_lost": (ops.ReleaseIntent, _last_loss),
    "release_too_late": (ops.ReleaseIntent, _release_too_late),
    "sweep": (ops.Sweep, _sweep_of_everything),
    "record": (ops.RecordStep, _in_world("record")),
    "start": (ops.RecordStep, _in_world("start")),
    "settle": (ops.SettleStep, _in_world("settle")),
    "void": (ops.VoidSteps, _in_world("void")),
    "ask": (ops.AskDecision, _in_world("ask")),
    "suspend": (ops.SuspendIntent, _in_world("suspend")),
    "suspend_after_the_answer": (ops.SuspendIntent, _suspension_after_the_answer),
    "answer": (ops.AnswerDecision, _in_world("answer")),
    "checkpoint": (ops.PutCheckpoint, _in_world("checkpoint")),
    "piece": (
        ops.PutPiece,
        _just(lambda: ops.PutPiece(journal_id="j", blob_id="b", number=0, data=b"data")),
    ),
    "note": (ops.AppendEvent, _in_world("note")),
    "prune": (ops.Prune, _prune_of_some),
    "move": (ops.MoveIntent, _move_of_one),
    "release_owner": (ops.ReleaseOwner, _in_world("release_owner")),
    "put_record": (ops.PutRecord, _in_world("put_record")),
    "delete_record": (ops.DeleteRecord, _in_world("delete_record")),
    "delete_records": (ops.DeleteRecords, _in_world("delete_records")),
    "check": (ops.CheckWritable, _just(ops.CheckWritable)),
    "put_thread": (ops.PutThread, _just(lambda: thread_put("t"))),
    "put_thread_again": (ops.PutThread, _in_world("put_thread")),
    "put_thread_to_expire": (ops.PutThread, _just(lambda: thread_put("t", ttl_seconds=60.0))),
    "copy_thread": (ops.CopyThread, _in_world("copy_thread")),
    "delete_thread": (ops.DeleteThread, _in_world("delete_thread")),
    "drop_checkpoints": (ops.DropCheckpoints, _in_world("drop_checkpoints")),
    "thread_ttl": (ops.SetThreadTtl, _no_more_expiry),
    "expire_threads": (ops.ExpireThreads, _expiry_of_some),
}

# Their answer tells what was done or what time it is, so a repeat answers differently.
COUNTING = (
    ops.Sweep,
    ops.Prune,
    ops.ReleaseOwner,
    ops.RenewLease,
    ops.CheckWritable,
    ops.DeleteRecords,
    ops.DeleteThread,
    ops.DropCheckpoints,
    ops.ExpireThreads,
)

"""The contract, part six: the laws that hold for every operation.

Fencing, safe repetition, tenants apart and atomic batches are not written for one operation but for
all of them: `contract_tables` names each, and a test proves that none is missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, get_args

import msgspec

from stepfast import ops
from stepfast.clock import new_id
from stepfast.errors import (
    AlreadyAnswered,
    AlreadyFinished,
    Conflict,
    Fenced,
    InvalidInput,
    NotFound,
    StepfastError,
)
from stepfast.intents import Intent, Status
from stepfast.ops import Lease, Op
from stepfast.testing.contract_kit import (
    Driver,
    World,
    cases,
    claim,
    create,
    dump,
    events_of,
    expect,
    finish,
    get,
    make_world,
    new_intent,
    open_new,
    step,
)
from stepfast.testing.contract_tables import COUNTING, EVERY, LEASED, REPEATS, named


class TableRules:
    def test_the_tables_name_every_operation(self) -> None:
        lease = Lease("i", 1, "t")
        world = World(lease, step("first", lease), step("second", lease))
        told = {type(make(world)) for make in EVERY.values()}
        assert told == set(get_args(ops.AnyOp))
        leased = {op for op in get_args(ops.AnyOp) if "lease" in op.__struct_fields__}
        assert {type(make(world, lease)) for make in LEASED.values()} == leased
        repeated = {op for op in get_args(ops.AnyOp) if not op.reads}
        assert {kind for kind, _ in REPEATS.values()} == repeated


# --- fencing -------------------------------------------------------------------------------------


async def _overtaken(driver: Driver, world: World) -> None:
    driver.advance(61)
    [newer] = await claim(driver)
    assert newer.attempt == world.lease.attempt + 1


async def _released(driver: Driver, world: World) -> None:
    await driver.do(ops.ReleaseIntent(lease=world.lease, reason="tired", delay_seconds=3600))


async def _given_back_as_lost(driver: Driver, world: World) -> None:
    await driver.do(ops.ReleaseIntent(lease=world.lease, reason="crashed", lost=True, delay_seconds=3600))


async def _waiting(driver: Driver, world: World) -> None:
    await driver.do(ops.SuspendIntent(lease=world.lease, waiting_reason="WAITING_FOR_HUMAN", keys=["approve"]))


async def _ended(driver: Driver, world: World) -> None:
    await driver.do(ops.FinishIntent(intent_id=world.intent_id, status=Status.CANCELED))


async def _completed(driver: Driver, world: World) -> None:
    await driver.do(finish(world.lease, result=b"first"))


async def _revived(driver: Driver, world: World) -> None:
    await driver.do(finish(world.lease, Status.FAILED))
    await driver.do(ops.ReviveIntent(intent_id=world.intent_id, new_id=new_id()))
    assert len(await claim(driver)) == 1


LOSSES: dict[str, Callable[[Driver, World], Awaitable[None]]] = {
    "a newer attempt has it": _overtaken,
    "it was released": _released,
    "it was given back as lost": _given_back_as_lost,
    "it waits for a person": _waiting,
    "somebody ended it": _ended,
    "it was completed": _completed,
    "it was revived under another id": _revived,
}

# Handing back what one no longer holds is not refused but answered: there is nothing left to do.
HANDING_BACK = frozenset({"release", "release_as_lost", "suspend"})


async def _clear(driver: Driver) -> None:
    """Leave nothing that the next scene could claim."""
    for left in await driver.do(ops.ListIntents()):
        if not left.finished:
            await driver.do(ops.FinishIntent(intent_id=left.intent_id, status=Status.CANCELED))
    await driver.do(ops.Prune(keep_latest=0))


class FenceRules:
    @cases(**named(LEASED))
    async def test_an_attempt_that_lost_its_intent_changes_nothing(self, driver: Driver, case: str) -> None:
        for what, lose in LOSSES.items():
            world = await make_world(driver)
            await lose(driver, world)
            held = await dump(driver)
            late = driver.do(LEASED[case](world, world.lease))
            if case in HANDING_BACK:
                try:
                    assert await late == await get(driver, world.intent_id), what
                except (Fenced, AlreadyFinished):
                    pass
            else:
                await expect((Fenced, AlreadyFinished), late, what)
            assert await dump(driver) == held, what
            await _clear(driver)

    @cases(**named(LEASED))
    async def test_an_attempt_is_proved_by_its_number_and_its_token(self, driver: Driver, case: str) -> None:
        world = await make_world(driver)
        mine = world.lease
        held = await dump(driver)
        for forged in (
            Lease(mine.intent_id, mine.attempt, new_id()),
            Lease(mine.intent_id, mine.attempt, ""),
            Lease(mine.intent_id, mine.attempt + 1, mine.token),
            Lease(mine.intent_id, mine.attempt - 1, mine.token),
            Lease(mine.intent_id, mine.attempt + 1, new_id()),
        ):
            await expect(Fenced, driver.do(LEASED[case](world, forged)), str(forged))
        nobody = Lease(new_id(), mine.attempt, mine.token)
        await expect((Fenced, NotFound), driver.do(LEASED[case](world, nobody)))
        assert await dump(driver) == held

    @cases(**named({k: v for k, v in LEASED.items() if k not in {"renew", "release", "release_as_lost", "suspend"}}))
    async def test_the_lease_of_one_intent_is_no_good_for_another(self, driver: Driver, case: str) -> None:
        [mine, other] = [await make_world(driver) for _ in range(2)]
        held = await dump(driver)
        await expect((Fenced, Conflict), driver.do(LEASED[case](other, mine.lease)))
        assert await dump(driver) == held

    @cases(**named(LEASED))
    async def test_a_good_lease_is_good_for_each_of_them(self, driver: Driver, case: str) -> None:
        world = await make_world(driver)
        held = await dump(driver)
        await driver.do(LEASED[case](world, world.lease))
        assert await dump(driver) != held

    async def test_of_many_attempts_only_the_latest_writes(self, driver: Driver) -> None:
        leases = [await open_new(driver, max_delivery_attempts=99)]
        for _ in range(7):
            driver.advance(31)
            leases += await claim(driver)
        journal_id = leases[0].intent_id
        answers = await driver.together(
            [ops.RecordStep(lease=lease, journal_id=journal_id, step=step(f"by {lease.attempt}", lease, position=n))]
            for n, lease in enumerate(leases)
        )
        assert [type(answer) for answer in answers] == [Fenced] * 7 + [list]
        assert [s.key for s in await driver.do(ops.ReadJournal(journal_id=journal_id))] == ["by 8"]


# --- repetition ----------------------------------------------------------------------------------


def _answer_of(result: Any) -> Any:
    """An answer without what a repeat may say differently: that it was there, and in which order."""
    if isinstance(result, list):
        return sorted(result, key=lambda intent: str(intent.intent_id))
    return msgspec.structs.replace(result, existed=True) if hasattr(result, "existed") else result


def _without_lease_ends(held: dict[str, Any]) -> dict[str, Any]:
    return {
        name: msgspec.structs.replace(what, claimable_at=None) if isinstance(what, Intent) else what
        for name, what in held.items()
    }


class RepeatRules:
    @cases(**named(REPEATS))
    async def test_a_write_done_again_changes_nothing_and_answers_the_same(self, driver: Driver, case: str) -> None:
        kind, prepare = REPEATS[case]
        op = await prepare(driver)
        assert type(op) is kind
        first = await driver.do(op)
        held = await dump(driver)
        driver.advance(0.5)
        again = await driver.do(op)
        if kind is ops.RenewLease:
            assert again > first
            assert _without_lease_ends(await dump(driver)) == _without_lease_ends(held)
            return
        assert await dump(driver) == held
        if kind in COUNTING:
            assert case == "check" or (first > 0 and again == 0)
        else:
            assert _answer_of(again) == _answer_of(first)

    @cases(**named({k: v for k, v in REPEATS.items() if k not in {"renew", "check"}}))
    async def test_a_write_repeated_within_one_batch_is_done_once(self, driver: Driver, case: str) -> None:
        op = await REPEATS[case][1](driver)
        first, again = await driver.execute(op, op)
        assert REPEATS[case][0] in COUNTING or _answer_of(again) == _answer_of(first)
        held = await dump(driver)
        await driver.do(op)
        assert await dump(driver) == held

    @cases(**named(LEASED))
    async def test_a_write_done_again_after_its_attempt_lost_the_intent_changes_nothing(
        self, driver: Driver, case: str
    ) -> None:
        for lose in (_overtaken, _ended, _revived):
            world = await make_world(driver)
            op = LEASED[case](world, world.lease)
            await driver.do(op)
            if (await get(driver, world.intent_id)).leased:
                await lose(driver, world)
            elif case in HANDING_BACK:
                await driver.do(EVERY["answer"](world))
                assert len(await claim(driver)) == 1, "and the run went on since"
            held = await dump(driver)
            try:
                await driver.do(op)
            except (Fenced, AlreadyFinished):
                pass
            assert await dump(driver) == held, lose.__name__
            await _clear(driver)

    async def test_eight_senders_of_one_write_do_it_once(self, driver: Driver) -> None:
        world = await make_world(driver)
        for name in ("record", "settle", "void", "ask", "note", "checkpoint", "answer", "suspend"):
            op = EVERY[name](world)
            answers = await driver.together([op] for _ in range(8))
            assert {type(answer) for answer in answers} == {list}, (name, answers)
            assert all(answer == answers[0] for answer in answers), name
        types = [e.event_type for e in await events_of(driver, world.intent_id)]
        assert types[-5:] == [
            "intent.rewound",
            "intent.human_task_assigned",
            "intent.noted",
            "intent.answered",
            "intent.waiting",
        ]


# --- tenants -------------------------------------------------------------------------------------

ASKING_FOR_ANY = frozenset(
    {
        "addresses",
        "claim",
        "decisions",
        "due_records",
        "list",
        "list_by_label",
        "list_records",
        "prune",
        "release_owner",
        "sweep",
    }
)


class TenantRules:
    @cases(**named(EVERY))
    async def test_another_tenants_things_are_as_if_they_did_not_exist(self, driver: Driver, case: str) -> None:
        world = await make_world(driver)
        await create(driver, ttl_seconds=60)
        await driver.do(finish(await open_new(driver)))
        await open_new(driver, max_delivery_attempts=1, lease_seconds=30)
        waiting = await make_world(driver, lease_seconds=600)
        asked = ops.AskDecision(
            lease=waiting.lease,
            journal_id=waiting.journal_id,
            key="soon",
            kind="ask",
            question=b"?",
            outcomes=["yes"],
            expires_in=60.0,
        )
        await driver.do(asked)
        driver.advance(61)  # so that there is something to claim, to sweep, to prune and to answer
        await create(driver)
        nowhere = Lease(new_id(), world.lease.attempt, new_id())
        ghost = World(nowhere, world.recorded, world.started)
        held = await dump(driver)

        async def outcome(there: World) -> tuple[Any, ...]:
            stranger = new_id()
            try:
                result = await driver.do(EVERY[case](there), tenant=stranger)
            except StepfastError as error:
                names = {there.intent_id: "ID", there.lease.token: "TOKEN"}
                text = error.message
                for name, plain in names.items():
                    text = text.replace(name, plain)
                return type(error), text
            if isinstance(result, ops.Measures):
                return type(result), result.open_by_status, result.claimable
            return type(result), getattr(result, "existed", None), result if isinstance(result, list) else None

        seen = await outcome(world)
        assert seen == await outcome(ghost)
        if case in ASKING_FOR_ANY:
            assert seen[0] in (list, int), "there is nothing for a stranger, and that is no error"
        assert await dump(driver) == held

    async def test_the_same_names_live_side_by_side_in_two_tenants(self, driver: Driver) -> None:
        stranger = new_id()
        new = new_intent(run_id="r", idempotency_key="k", body_hash=b"one")
        mine = await driver.do(ops.CreateIntent(new=new))
        op = ops.CreateIntent(new=msgspec.structs.replace(new, body_hash=b"two", payload=b"theirs"))
        theirs = await driver.do(op, tenant=stranger)
        assert (mine.existed, theirs.existed) == (False, False)
        assert (await driver.do(ops.GetIntent(run_id="r"))).payload is None
        assert (await driver.do(ops.GetIntent(run_id="r"), tenant=stranger)).payload == b"theirs"
        await driver.do(ops.FinishIntent(intent_id=new.intent_id, status=Status.CANCELED), tenant=stranger)
        assert await get(driver, new.intent_id) == mine.intent
        assert await driver.do(ops.Prune(keep_latest=0), tenant=stranger) == 1
        assert await get(driver, new.intent_id) == mine.intent


# --- batches -------------------------------------------------------------------------------------


async def _fenced(driver: Driver, world: World) -> tuple[Op[Any], type[StepfastError]]:
    return LEASED["record"](world, Lease(world.intent_id, 7, "t")), Fenced


async def _not_found(driver: Driver, world: World) -> tuple[Op[Any], type[StepfastError]]:
    return ops.GetIntent(intent_id=new_id()), NotFound


async def _conflict(driver: Driver, world: World) -> tuple[Op[Any], type[StepfastError]]:
    changed = step("first", world.lease, result=b"another")
    return ops.RecordStep(lease=world.lease, journal_id=world.journal_id, step=changed), Conflict


async def _invalid(driver: Driver, world: World) -> tuple[Op[Any], type[StepfastError]]:
    return ops.Prune(), InvalidInput


async def _unstorable(driver: Driver, world: World) -> tuple[Op[Any], type[StepfastError]]:
    return ops.CreateIntent(new=new_intent(correlation_id="half a pair: \ud83e")), InvalidInput


async def _answered(driver: Driver, world: World) -> tuple[Op[Any], type[StepfastError]]:
    await driver.do(EVERY["answer"](world))
    return ops.AnswerDecision(journal_id=world.journal_id, key="approve", outcome="no"), AlreadyAnswered


async def _finished(driver: Driver, world: World) -> tuple[Op[Any], type[StepfastError]]:
    lease = await open_new(driver)
    await driver.do(finish(lease))
    return finish(lease, Status.FAILED), AlreadyFinished


REFUSALS = {
    "fenced": _fenced,
    "not_found": _not_found,
    "conflict": _conflict,
    "invalid": _invalid,
    "unstorable": _unstorable,
    "answered": _answered,
    "finished": _finished,
}


class BatchRules:
    async def test_an_empty_batch_gives_nothing(self, driver: Driver) -> None:
        assert await driver.execute() == []

    async def test_a_batch_is_done_in_order_and_sees_itself(self, driver: Driver) -> None:
        new = new_intent()
        lease = Lease(new.intent_id, 1, "token")
        made, opened, _, journal, ended, read = await driver.execute(
            ops.CreateIntent(new=new),
            ops.OpenIntent(intent_id=new.intent_id, token="token", owner="w", lease_seconds=60),  # noqa: S106
            ops.RecordStep(lease=lease, journal_id=new.intent_id, step=step("a", lease)),
            ops.ReadJournal(journal_id=new.intent_id),
            finish(lease, result=b"42"),
            ops.GetIntent(intent_id=new.intent_id),
        )
        assert (made.existed, opened.lease) == (False, lease)
        assert [s.key for s in journal] == ["a"]
        assert read == ended
        assert read.status is Status.COMPLETED

    async def test_a_batch_of_reads_is_answered_in_order(self, driver: Driver) -> None:
        world = await make_world(driver)
        intent, steps, events = await driver.execute(
            ops.GetIntent(intent_id=world.intent_id),
            ops.ReadJournal(journal_id=world.journal_id),
            ops.ReadEvents(intent_id=world.intent_id),
        )
        assert (intent.intent_id, len(steps), len(events)) == (world.intent_id, 2, intent.seq)

    @cases(**named(REFUSALS))
    async def test_one_refused_operation_leaves_nothing_of_its_batch(self, driver: Driver, case: str) -> None:
        world = await make_world(driver)
        bad, kind = await REFUSALS[case](driver, world)
        held = await dump(driver)
        before: list[Op[Any]] = [
            ops.CreateIntent(new=new_intent(labels={"a": "b"})),
            LEASED["record"](world, world.lease),
            LEASED["settle"](world, world.lease),
            LEASED["checkpoint"](world, world.lease),
            ops.PutPiece(journal_id=world.journal_id, blob_id="blob-9", number=0, data=b"x"),
            LEASED["note"](world, world.lease),
        ]
        after = [LEASED["complete"](world, world.lease)]
        await expect(kind, driver.execute(*before, bad, *after))
        gone = await dump(driver)
        assert gone.pop(f"piece {world.journal_id} blob-9 0") is None
        assert gone == held
        await driver.execute(*before, *after)

    @cases(**named(REFUSALS))
    async def test_a_refused_batch_does_not_hurt_those_sent_at_the_same_time(self, driver: Driver, case: str) -> None:
        world = await make_world(driver)
        bad, kind = await REFUSALS[case](driver, world)
        good: list[list[Op[Any]]] = [
            [ops.AppendEvent(intent_id=world.intent_id, lease=None, note_id=f"m{n}", event_type="intent.noted")]
            for n in range(12)
        ]
        answers = await driver.together([*good[:6], [bad], *good[6:], [bad]])
        assert [type(answer) for answer in answers] == [list] * 6 + [kind] + [list] * 6 + [kind]

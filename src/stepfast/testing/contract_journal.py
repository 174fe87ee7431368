"""The contract, part three: steps, large values and checkpoints."""

from __future__ import annotations

from typing import Any

import msgspec

from stepfast.clock import new_id
from stepfast.errors import Conflict, Damaged, Fenced, InvalidInput, NotFound
from stepfast.journal import StepStatus
from stepfast.ops import (
    AppendEvent,
    GetProgress,
    Lease,
    Progress,
    PutCheckpoint,
    PutPiece,
    ReadCheckpoints,
    ReadJournal,
    ReadPiece,
    RecordStep,
    SettleStep,
    VoidSteps,
)
from stepfast.testing.contract_kit import (
    Driver,
    cases,
    checkpoint,
    claim,
    dump,
    events_of,
    expect,
    get,
    make_world,
    open_new,
    step,
)


def _record(lease: Lease, made: Any) -> RecordStep:
    return RecordStep(lease=lease, journal_id=lease.intent_id, step=made)


def _settle(lease: Lease, made: Any) -> SettleStep:
    return SettleStep(lease=lease, journal_id=lease.intent_id, step=made)


class StepRules:
    @cases(finished=StepStatus.FINISHED, failed=StepStatus.FAILED, started=StepStatus.STARTED)
    async def test_a_recorded_step_is_read_back_exactly(self, driver: Driver, case: StepStatus) -> None:
        lease = await open_new(driver)
        made = step(
            "task:2/fetch#1",
            lease,
            kind="tool",
            name="fetch",
            scope="task:2",
            status=case,
            error=b"boom" if case is StepStatus.FAILED else None,
            blob_id="blob",
            tally=5,
        )
        await driver.do(_record(lease, made))
        assert await driver.do(ReadJournal(journal_id=lease.intent_id)) == [made]

    async def test_the_journal_is_in_the_order_the_run_reached_its_steps(self, driver: Driver) -> None:
        lease = await open_new(driver)
        for position in (5, 2, 9, 1, 7):
            await driver.do(_record(lease, step(f"k{position}", lease, position=position)))
        found = await driver.do(ReadJournal(journal_id=lease.intent_id))
        assert [s.position for s in found] == [1, 2, 5, 7, 9]

    async def test_an_unknown_journal_is_empty(self, driver: Driver) -> None:
        assert await driver.do(ReadJournal(journal_id=new_id())) == []

    @cases(
        result={"result": b"another"},
        input_={"input_hash": b"another"},
        status={"status": StepStatus.FAILED, "error": b"boom"},
        position={"position": 8},
    )
    async def test_a_record_never_changes(self, driver: Driver, case: dict[str, Any]) -> None:
        lease = await open_new(driver)
        await driver.do(_record(lease, step("a", lease)))
        held = await dump(driver)
        await expect(Conflict, driver.do(_record(lease, step("a", lease, **case))))
        await expect(Conflict, driver.do(_settle(lease, step("a", lease, **case))))
        assert await dump(driver) == held

    async def test_a_later_attempt_finds_the_steps_of_the_earlier_ones(self, driver: Driver) -> None:
        first = await open_new(driver)
        done = step("a", first)
        await driver.do(_record(first, done))
        driver.advance(31)
        [second] = await claim(driver)
        assert await driver.do(ReadJournal(journal_id=first.intent_id)) == [done]
        await expect(Conflict, driver.do(_record(second, step("a", second))))
        await driver.do(_record(second, step("b", second, position=2)))
        assert [s.attempt for s in await driver.do(ReadJournal(journal_id=first.intent_id))] == [1, 2]

    async def test_of_sixteen_writers_of_one_step_one_is_recorded(self, driver: Driver) -> None:
        lease = await open_new(driver)
        answers = await driver.together([_record(lease, step("a", lease, result=b"%d" % n))] for n in range(16))
        won = [n for n, answer in enumerate(answers) if isinstance(answer, list)]
        assert len(won) == 1
        assert {type(a) for n, a in enumerate(answers) if n not in won} == {Conflict}
        [kept] = await driver.do(ReadJournal(journal_id=lease.intent_id))
        assert kept.result == b"%d" % won[0]

    async def test_a_step_goes_into_its_own_intents_journal_only(self, driver: Driver) -> None:
        lease, other = await open_new(driver), await open_new(driver)
        stray = RecordStep(lease=lease, journal_id=other.intent_id, step=step("a", lease))
        await expect(Conflict, driver.do(stray))
        assert await driver.do(ReadJournal(journal_id=other.intent_id)) == []

    async def test_after_the_deadline_no_step_is_recorded(self, driver: Driver) -> None:
        lease = await open_new(driver, ttl_seconds=60, lease_seconds=600)
        driver.advance(61)
        held = await dump(driver)
        await expect(Fenced, driver.do(_record(lease, step("a", lease))))
        assert await dump(driver) == held


class OneShotRules:
    @cases(finished=StepStatus.FINISHED, failed=StepStatus.FAILED)
    async def test_a_started_step_is_settled_once(self, driver: Driver, case: StepStatus) -> None:
        lease = await open_new(driver)
        started = step("mail", lease, kind="once", status=StepStatus.STARTED)
        ended = step("mail", lease, kind="once", status=case, preview=b"sent", blob_id="b")
        await driver.do(_record(lease, started))
        await driver.do(_settle(lease, ended))
        assert await driver.do(ReadJournal(journal_id=lease.intent_id)) == [ended]
        other = step("mail", lease, kind="once", status=case, result=b"another")
        await expect(Conflict, driver.do(_settle(lease, other)))
        await expect(Conflict, driver.do(_record(lease, other)))
        assert await driver.do(ReadJournal(journal_id=lease.intent_id)) == [ended]

    async def test_a_step_that_was_never_started_cannot_be_settled(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await expect(Conflict, driver.do(_settle(lease, step("mail", lease))))
        assert await driver.do(ReadJournal(journal_id=lease.intent_id)) == []

    async def test_a_step_left_in_doubt_stays_so_until_a_later_attempt_settles_it(self, driver: Driver) -> None:
        first = await open_new(driver)
        started = step("mail", first, kind="once", status=StepStatus.STARTED)
        await driver.do(_record(first, started))
        driver.advance(31)
        [second] = await claim(driver)
        assert await driver.do(ReadJournal(journal_id=first.intent_id)) == [started]
        again = step("mail", second, kind="once", status=StepStatus.STARTED)
        await expect(Conflict, driver.do(_record(second, again)), "a one-shot step starts once")
        done = step("mail", second, kind="once", result=b"a person said: done")
        await driver.do(_settle(second, done))
        assert await driver.do(ReadJournal(journal_id=first.intent_id)) == [done]
        driver.advance(31)
        await claim(driver)
        assert (await get(driver, first.intent_id)).lost == 0, "what an attempt settles is progress of that attempt"

    async def test_only_one_of_sixteen_starts_a_step(self, driver: Driver) -> None:
        lease = await open_new(driver)
        answers = await driver.together(
            [_record(lease, step("mail", lease, started_at=n, status=StepStatus.STARTED))] for n in range(16)
        )
        assert len([answer for answer in answers if isinstance(answer, list)]) == 1


class VoidRules:
    async def test_a_voided_step_is_set_aside_and_may_be_recorded_anew(self, driver: Driver) -> None:
        lease = await open_new(driver)
        old, kept = step("a", lease), step("b", lease, position=2)
        await driver.execute(_record(lease, old), _record(lease, kept))
        count = await driver.do(
            VoidSteps(lease=lease, journal_id=lease.intent_id, steps=[("a", 0)], reason="bad answer")
        )
        assert count == 1
        assert await driver.do(ReadJournal(journal_id=lease.intent_id)) == [kept]
        last = (await events_of(driver, lease.intent_id))[-1]
        assert (last.event_type, last.details) == ("intent.rewound", {"steps": 1, "reason": "bad answer"})
        anew = step("a", lease, generation=1, position=3, result=b"better")
        await driver.do(_record(lease, anew))
        assert await driver.do(ReadJournal(journal_id=lease.intent_id)) == [kept, anew]
        everything = await driver.do(ReadJournal(journal_id=lease.intent_id, voided=True))
        assert everything == [msgspec.structs.replace(old, voided=True), kept, anew]

    async def test_a_voided_step_is_not_settled(self, driver: Driver) -> None:
        world = await make_world(driver)
        lease = world.lease
        await driver.do(VoidSteps(lease=lease, journal_id=lease.intent_id, steps=[("second", 0)], reason="x"))
        held = await dump(driver)
        await expect(Conflict, driver.do(_settle(lease, step("second", lease, position=2, kind="once"))))
        assert await dump(driver) == held

    async def test_voiding_an_unknown_step_changes_nothing(self, driver: Driver) -> None:
        world = await make_world(driver)
        held = await dump(driver)
        op = VoidSteps(lease=world.lease, journal_id=world.journal_id, steps=[("first", 7), ("zzz", 0)], reason="x")
        assert await driver.do(op) == 0
        assert await dump(driver) == held


class ProgressRules:
    async def test_progress_counts_finished_top_level_steps_and_all_records(self, driver: Driver) -> None:
        lease = await open_new(driver, total_steps=50)
        asked = GetProgress(intent_id=lease.intent_id)
        assert await driver.do(asked) == Progress(0, 0, 50, None)
        await driver.execute(
            _record(lease, step("one", lease, position=1)),
            _record(lease, step("two", lease, position=2, status=StepStatus.FAILED, error=b"x")),
            _record(lease, step("in/side", lease, position=3, scope="in", tally=4)),
            _record(lease, step("open", lease, position=4, status=StepStatus.STARTED)),
        )
        assert await driver.do(asked) == Progress(2, 6, 50, "two")
        await driver.do(VoidSteps(lease=lease, journal_id=lease.intent_id, steps=[("two", 0)], reason="x"))
        assert await driver.do(asked) == Progress(1, 5, 50, "one")

    async def test_progress_is_what_the_run_last_said_of_itself_if_it_said_anything(self, driver: Driver) -> None:
        lease = await open_new(driver, total_steps=50)
        asked = GetProgress(intent_id=lease.intent_id)
        await driver.do(_record(lease, step("one", lease, position=1)))
        reports: list[dict[str, Any]] = [{"doing": "plan"}, {"doing": "act", "step": 7}]
        for n, details in enumerate(reports):
            said = AppendEvent(
                intent_id=lease.intent_id,
                lease=lease,
                note_id=f"n{n}",
                event_type="intent.progress",
                details=details,
            )
            await driver.do(said)
            assert await driver.do(asked) == Progress(details.get("step", 1), 1, 50, details["doing"])

    async def test_the_progress_of_an_unknown_intent_is_not_found(self, driver: Driver) -> None:
        await expect(NotFound, driver.do(GetProgress(intent_id=new_id())))


class PieceRules:
    async def test_pieces_are_read_back_exactly(self, driver: Driver) -> None:
        journal_id, blob_id = (await open_new(driver)).intent_id, new_id()
        parts = [b"", b"\x00\xff" * 10, bytes(range(256)) * 4096]
        await driver.execute(
            *(PutPiece(journal_id=journal_id, blob_id=blob_id, number=n, data=part) for n, part in enumerate(parts))
        )
        found = await driver.execute(*(ReadPiece(journal_id=journal_id, blob_id=blob_id, number=n) for n in range(3)))
        assert found == parts

    async def test_a_missing_piece_is_damage_not_emptiness(self, driver: Driver) -> None:
        await expect(Damaged, driver.do(ReadPiece(journal_id=new_id(), blob_id="b", number=0)))

    async def test_a_piece_is_never_overwritten(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await driver.do(PutPiece(journal_id=lease.intent_id, blob_id="b", number=0, data=b"one"))
        other = PutPiece(journal_id=lease.intent_id, blob_id="b", number=0, data=b"two")
        await expect(Conflict, driver.do(other))
        assert await driver.do(ReadPiece(journal_id=lease.intent_id, blob_id="b", number=0)) == b"one"


class CheckpointRules:
    async def test_checkpoints_are_read_newest_first_and_exactly(self, driver: Driver) -> None:
        lease = await open_new(driver)
        made = [checkpoint(lease, n, meta=b"meta %d" % n) for n in (1, 2, 3)]
        for row in made:
            assert await driver.do(PutCheckpoint(lease=lease, checkpoint=row)) == row.version
        journal_id = lease.intent_id
        assert await driver.do(ReadCheckpoints(journal_id=journal_id)) == made[::-1]
        assert await driver.do(ReadCheckpoints(journal_id=journal_id, limit=1)) == [made[2]]
        assert await driver.do(ReadCheckpoints(journal_id=journal_id, version=2)) == [made[1]]
        assert await driver.do(ReadCheckpoints(journal_id=journal_id, version=9)) == []
        assert await driver.do(ReadCheckpoints(journal_id=new_id())) == []

    async def test_a_checkpoint_is_never_overwritten(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await driver.do(PutCheckpoint(lease=lease, checkpoint=checkpoint(lease, 1)))
        held = await dump(driver)
        other = checkpoint(lease, 1, state=b"another state")
        await expect(Conflict, driver.do(PutCheckpoint(lease=lease, checkpoint=other)))
        assert await dump(driver) == held

    async def test_the_newest_stay_and_the_rest_go_with_their_pieces(self, driver: Driver) -> None:
        lease = await open_new(driver)
        journal_id = lease.intent_id
        for n in range(1, 7):
            row = checkpoint(lease, n, blob_id=f"blob-{n}")
            await driver.execute(
                PutPiece(journal_id=journal_id, blob_id=f"blob-{n}", number=0, data=b"%d" % n),
                PutPiece(journal_id=journal_id, blob_id=f"blob-{n}", number=1, data=b"%d" % n),
                PutCheckpoint(lease=lease, checkpoint=row, keep=3),
            )
        assert [c.version for c in await driver.do(ReadCheckpoints(journal_id=journal_id))] == [6, 5, 4]
        for n in range(1, 7):
            for number in (0, 1):
                read = driver.do(ReadPiece(journal_id=journal_id, blob_id=f"blob-{n}", number=number))
                if n <= 3:
                    await expect(Damaged, read)
                else:
                    assert await read == b"%d" % n

    async def test_a_pinned_checkpoint_stays_with_its_pieces_until_the_pin_moves(self, driver: Driver) -> None:
        lease = await open_new(driver)
        journal_id = lease.intent_id

        async def put(version: int, pin: str | None = None) -> None:
            await driver.execute(
                PutPiece(journal_id=journal_id, blob_id=f"blob-{version}", number=0, data=b"x"),
                PutCheckpoint(
                    lease=lease, checkpoint=checkpoint(lease, version, pin=pin, blob_id=f"blob-{version}"), keep=2
                ),
            )

        async def versions() -> list[int]:
            return [c.version for c in await driver.do(ReadCheckpoints(journal_id=journal_id))]

        await put(1, "release")
        await put(2, "other")
        for version in (3, 4, 5):
            await put(version)
        assert await versions() == [5, 4, 2, 1]
        assert await driver.do(ReadPiece(journal_id=journal_id, blob_id="blob-1", number=0)) == b"x"
        [pinned] = await driver.do(ReadCheckpoints(journal_id=journal_id, pin="release"))
        assert pinned.version == 1
        await put(6, "release")
        [pinned] = await driver.do(ReadCheckpoints(journal_id=journal_id, pin="release"))
        assert pinned.version == 6
        assert await versions() == [6, 5, 2]
        await expect(Damaged, driver.do(ReadPiece(journal_id=journal_id, blob_id="blob-1", number=0)))

    async def test_one_checkpoint_to_fall_back_to_is_always_kept(self, driver: Driver) -> None:
        lease = await open_new(driver)
        op = PutCheckpoint(lease=lease, checkpoint=checkpoint(lease, 1), keep=1)
        await expect(InvalidInput, driver.do(op))
        assert await driver.do(ReadCheckpoints(journal_id=lease.intent_id)) == []

    async def test_a_limit_below_one_is_refused(self, driver: Driver) -> None:
        for limit in (0, -1):
            await expect(InvalidInput, driver.do(ReadCheckpoints(journal_id="j", limit=limit)))

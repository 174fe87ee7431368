"""The contract, part two: who may work on an intent, for how long, and how often it is delivered."""

from __future__ import annotations

from typing import Any

from stepfast.clock import new_id
from stepfast.errors import AlreadyFinished, Fenced, InvalidInput, NotFound
from stepfast.intents import Intent, Status
from stepfast.journal import StepStatus
from stepfast.ops import (
    Claim,
    FinishIntent,
    Lease,
    Opened,
    OpenIntent,
    ReadJournal,
    RecordStep,
    ReleaseIntent,
    ReleaseOwner,
    RenewLease,
    ReviveIntent,
    SuspendIntent,
    Sweep,
    VoidSteps,
)
from stepfast.testing.contract_kit import (
    AGENT,
    Driver,
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


async def _open(driver: Driver, intent_id: str | None = None, **fields: Any) -> Opened:
    values = {"token": new_id(), "owner": "worker-3", "lease_seconds": 30.0, "intent_id": intent_id, **fields}
    return await driver.do(OpenIntent(**values))


class ClaimRules:
    async def test_a_claim_delivers_the_oldest_due_intent_and_raises_its_attempt(self, driver: Driver) -> None:
        first = await create(driver)
        driver.advance(1)
        second = await create(driver)
        token = new_id()
        op = Claim(to_agent=AGENT, token=token, owner="worker-7", lease_seconds=30)
        [taken] = await driver.do(op)
        assert (taken.intent_id, taken.status, taken.attempt) == (first.intent_id, Status.IN_PROGRESS, 1)
        assert (taken.leased, taken.owner, taken.lease_token) == (True, "worker-7", token)
        assert taken.claimable_at == taken.updated_at + 30_000_000, "the lease ends by the store's clock"
        assert await get(driver, first.intent_id) == taken
        last = (await events_of(driver, first.intent_id))[-1]
        assert (last.event_type, last.attempt, last.details) == ("intent.in_progress", 1, {"owner": "worker-7"})
        assert [lease.intent_id for lease in await claim(driver)] == [second.intent_id]
        assert await claim(driver) == []

    async def test_a_claim_takes_up_to_its_limit_in_order(self, driver: Driver) -> None:
        made = []
        for _ in range(5):
            made.append((await create(driver)).intent_id)
            driver.advance(1)
        assert [lease.intent_id for lease in await claim(driver, limit=3)] == made[:3]
        assert [lease.intent_id for lease in await claim(driver, limit=10)] == made[3:]

    async def test_a_claim_sees_its_own_address_only(self, driver: Driver) -> None:
        await create(driver, to_agent="agent://other")
        assert await claim(driver) == []
        assert len(await claim(driver, to_agent="agent://other")) == 1

    @cases(moment="not_before", delay="delay_seconds")
    async def test_nothing_is_delivered_before_its_time(self, driver: Driver, case: str) -> None:
        value = 60.0 if case == "delay_seconds" else await driver.now() + 60_000_000
        intent = await create(driver, **{case: value})
        assert await claim(driver) == []
        driver.advance(61)
        assert [lease.intent_id for lease in await claim(driver)] == [intent.intent_id]
        assert (await get(driver, intent.intent_id)).lost == 0

    async def test_a_claim_sent_again_after_its_leases_ran_out_is_a_new_claim(self, driver: Driver) -> None:
        await create(driver)
        [first] = await claim(driver, token="same")  # noqa: S106
        assert await claim(driver, token="same") == [first]  # noqa: S106
        driver.advance(31)
        [second] = await claim(driver, token="same")  # noqa: S106
        assert (second.attempt, (await get(driver, first.intent_id)).lost) == (2, 1)
        await expect_stopped(driver, first)

    async def test_many_workers_at_once_get_each_intent_exactly_once(self, driver: Driver) -> None:
        made = {(await create(driver)).intent_id for _ in range(24)}
        answers = await driver.together(
            [Claim(to_agent=AGENT, token=f"t{n}", owner=f"w{n}", lease_seconds=60, limit=2)] for n in range(16)
        )
        taken: list[Intent] = [intent for answer in answers for intent in answer[0]]
        taken += [
            intent
            for n in range(16, 24)
            for intent in await driver.do(
                Claim(to_agent=AGENT, token=f"t{n}", owner=f"w{n}", lease_seconds=60, limit=24)
            )
        ]
        assert sorted(intent.intent_id for intent in taken) == sorted(made)
        assert {intent.attempt for intent in taken} == {1}
        assert await claim(driver) == []

    @cases(
        no_limit={"limit": 0},
        huge_limit={"limit": 1001},
        no_lease={"lease_seconds": 0.0},
        past_lease={"lease_seconds": -5.0},
        unclear_lease={"lease_seconds": float("nan")},
    )
    async def test_a_wrong_claim_is_refused_whether_or_not_there_is_work(
        self, driver: Driver, case: dict[str, Any]
    ) -> None:
        op = Claim(**{"to_agent": AGENT, "token": "t", "owner": "w", "lease_seconds": 9.0, **case})
        await expect(InvalidInput, driver.do(op))
        intent = await create(driver)
        await expect(InvalidInput, driver.do(op))
        assert await get(driver, intent.intent_id) == intent


class LeaseRules:
    async def test_a_lease_that_is_renewed_does_not_run_out(self, driver: Driver) -> None:
        lease = await open_new(driver, lease_seconds=30)
        for _ in range(5):
            driver.advance(20)
            end = await driver.do(RenewLease(lease=lease, lease_seconds=30))
            assert end == (await get(driver, lease.intent_id)).claimable_at
            assert end > await driver.now() + 25_000_000
            assert await claim(driver) == []
        intent = await get(driver, lease.intent_id)
        assert (intent.attempt, intent.lost) == (1, 0)

    async def test_a_late_renewal_counts_while_nobody_else_has_taken_the_intent(self, driver: Driver) -> None:
        lease = await open_new(driver, lease_seconds=30)
        driver.advance(31)
        await driver.do(RenewLease(lease=lease, lease_seconds=30))
        assert await claim(driver) == []

    @cases(zero=0.0, negative=-1.0, unclear=float("nan"))
    async def test_a_renewal_for_no_time_is_refused(self, driver: Driver, case: float) -> None:
        lease = await open_new(driver)
        held = await dump(driver)
        await expect(InvalidInput, driver.do(RenewLease(lease=lease, lease_seconds=case)))
        assert await dump(driver) == held

    async def test_an_expired_lease_is_a_lost_delivery_and_the_intent_is_delivered_again(self, driver: Driver) -> None:
        first = await open_new(driver, lease_seconds=30)
        driver.advance(31)
        [second] = await claim(driver)
        assert (second.intent_id, second.attempt) == (first.intent_id, 2)
        assert second.token != first.token
        intent = await get(driver, first.intent_id)
        assert (intent.lost, intent.status) == (1, Status.IN_PROGRESS)
        lost, taken = (await events_of(driver, first.intent_id))[-2:]
        assert (lost.event_type, lost.attempt) == ("intent.delivery_lost", 1)
        assert (lost.details["delivery_attempt"], lost.details["lost"]) == (1, 1)
        assert lost.details["reason"]
        assert (taken.event_type, taken.attempt) == ("intent.in_progress", 2)

    @cases(three_by_default={}, one={"max_delivery_attempts": 1}, five={"max_delivery_attempts": 5})
    async def test_after_the_last_lost_delivery_the_intent_is_failed_with_its_reason(
        self, driver: Driver, case: dict[str, int]
    ) -> None:
        most = case.get("max_delivery_attempts", 3)
        intent = await create(driver, **case)
        for attempt in range(1, most + 1):
            [lease] = await claim(driver)
            assert lease.attempt == attempt
            driver.advance(31)
        assert await claim(driver) == []
        ended = await get(driver, intent.intent_id)
        assert (ended.status, ended.lost, ended.attempt) == (Status.FAILED, most, most)
        assert ended.reason is not None
        assert str(most) in ended.reason
        assert [e.event_type for e in (await events_of(driver, intent.intent_id))[-2:]] == [
            "intent.delivery_failed",
            "intent.failed",
        ]

    @cases(
        finished={},
        failed={"status": StepStatus.FAILED, "error": b"boom"},
        map_chunk={"kind": "map", "tally": 100},
        checkpoint={"kind": "checkpoint"},
        inner={"scope": "task:2"},
    )
    async def test_a_delivery_with_a_newly_finished_step_begins_the_count_anew(
        self, driver: Driver, case: dict[str, Any]
    ) -> None:
        lease = await open_new(driver, max_delivery_attempts=2)
        for number in range(1, 6):
            lost = (await get(driver, lease.intent_id)).lost
            assert lost == (number - 1) % 2, "every second delivery finishes a step"
            if number % 2 == 0:
                made = step(f"k{number}", lease, position=number, **case)
                await driver.do(RecordStep(lease=lease, journal_id=lease.intent_id, step=made))
            driver.advance(31)
            assert await driver.do(Sweep()) == 0, "none of these was its last delivery"
            [lease] = await claim(driver)
        assert (await get(driver, lease.intent_id)).lost == 1
        told = [e.details["lost"] for e in await events_of(driver, lease.intent_id) if "lost" in e.details]
        assert told == [1, 0, 1, 0, 1]
        driver.advance(31)
        assert await driver.do(Sweep()) == 1
        ended = await get(driver, lease.intent_id)
        assert (ended.status, ended.lost, ended.attempt) == (Status.FAILED, 2, 6)
        assert ended.reason == (
            "2 of 2 deliveries were lost in a row without a newly finished step; the last one: its lease ran out"
        )

    @cases(claim="claim", open="open", release="release", owner="owner")
    async def test_progress_counts_however_the_delivery_is_lost(self, driver: Driver, case: str) -> None:
        lease = await open_new(driver, max_delivery_attempts=1, lease_seconds=30)
        for number in range(1, 4):
            made = step(f"k{number}", lease, position=number)
            await driver.do(RecordStep(lease=lease, journal_id=lease.intent_id, step=made))
            lease = await _lose(driver, lease, case)
            assert (lease.attempt, (await get(driver, lease.intent_id)).lost) == (number + 1, 0)
        held = await driver.do(ReadJournal(journal_id=lease.intent_id))
        await _lose(driver, lease, case)
        assert (await get(driver, lease.intent_id)).status is Status.FAILED
        assert await driver.do(ReadJournal(journal_id=lease.intent_id)) == held

    @cases(
        started=("once", False),
        voided=("step", True),
        of_an_earlier_attempt=None,
    )
    async def test_what_is_not_a_newly_finished_step_does_not_save_a_delivery(
        self, driver: Driver, case: tuple[str, bool] | None
    ) -> None:
        first = await open_new(driver, max_delivery_attempts=1)
        journal = first.intent_id
        await driver.do(RecordStep(lease=first, journal_id=journal, step=step("early", first)))
        driver.advance(31)
        [second] = await claim(driver)
        if case is not None:
            kind, voided = case
            status = StepStatus.STARTED if kind == "once" else StepStatus.FINISHED
            made = step("late", second, position=2, kind=kind, status=status)
            await driver.do(RecordStep(lease=second, journal_id=journal, step=made))
            if voided:
                await driver.do(VoidSteps(lease=second, journal_id=journal, steps=[("late", 0)], reason="bad"))
        driver.advance(31)
        assert await driver.do(Sweep()) == 1
        assert (await get(driver, journal)).status is Status.FAILED

    async def test_a_revived_intent_does_not_live_on_what_the_old_one_finished(self, driver: Driver) -> None:
        lease = await open_new(driver, max_delivery_attempts=1)
        journal = lease.intent_id
        for number in (1, 2):
            made = step(f"k{number}", lease, position=number)
            await driver.do(RecordStep(lease=lease, journal_id=journal, step=made))
            driver.advance(31)
            [lease] = await claim(driver)
        await driver.do(finish(lease, Status.FAILED))
        await driver.do(ReviveIntent(intent_id=journal, new_id=new_id(), actor="anna"))
        [again] = await claim(driver)
        driver.advance(31)
        assert await claim(driver) == []
        assert (await get(driver, again.intent_id)).status is Status.FAILED

    async def test_a_claim_of_many_judges_each_by_its_own_journal(self, driver: Driver) -> None:
        leases = [await open_new(driver, max_delivery_attempts=1) for _ in range(6)]
        await create(driver)
        for lease in leases[::2]:
            await driver.do(RecordStep(lease=lease, journal_id=lease.intent_id, step=step("a", lease)))
        driver.advance(31)
        assert len(await claim(driver, limit=10)) == 4
        ended = [(await get(driver, lease.intent_id)).status for lease in leases]
        assert ended == [Status.IN_PROGRESS, Status.FAILED] * 3

    async def test_a_sweep_fails_what_has_no_delivery_left_without_any_worker(self, driver: Driver) -> None:
        lease = await open_new(driver, max_delivery_attempts=2)
        driver.advance(31)
        assert await driver.do(Sweep()) == 0, "one delivery is left, and that is for a worker to take"
        [second] = await claim(driver)
        assert await driver.do(Sweep()) == 0
        driver.advance(31)
        assert await driver.do(Sweep()) == 1
        assert (await get(driver, lease.intent_id)).status is Status.FAILED
        await expect_stopped(driver, second)

    async def test_having_no_worker_costs_no_delivery(self, driver: Driver) -> None:
        intent = await create(driver)
        driver.advance(10**8)
        assert await driver.do(Sweep()) == 0
        assert len(await claim(driver)) == 1
        assert (await get(driver, intent.intent_id)).lost == 0

    async def test_a_clock_that_goes_back_gives_nobody_anything(self, driver: Driver) -> None:
        first = await open_new(driver, lease_seconds=30)
        driver.advance(-3600)
        assert await claim(driver) == []
        await driver.do(RecordStep(lease=first, journal_id=first.intent_id, step=step("a", first)))
        end = await driver.do(RenewLease(lease=first, lease_seconds=30))
        assert end <= await driver.now() + 30_000_000
        driver.advance(31)
        [second] = await claim(driver)
        await expect_stopped(driver, first)
        driver.advance(-3600)
        await expect_stopped(driver, first)
        await driver.do(finish(second))


async def _lose(driver: Driver, lease: Lease, way: str) -> Lease:
    """Lose the delivery of a lease, and give that of the next one, or the same where there is none."""
    if way == "open":
        opened = await _open(driver, lease.intent_id, dead_attempt=lease.attempt)
        return opened.lease or lease
    if way == "release":
        await driver.do(ReleaseIntent(lease=lease, reason="it crashed", lost=True))
    elif way == "owner":
        owner = (await get(driver, lease.intent_id)).owner
        await driver.do(ReleaseOwner(owner=owner or "", reason="it is dead"))
    else:
        driver.advance(31)
    return next(iter(await claim(driver)), lease)


async def expect_stopped(driver: Driver, lease: Lease) -> None:
    """An attempt that lost its intent cannot write."""
    late = RecordStep(lease=lease, journal_id=lease.intent_id, step=step("late", lease, position=99))
    await expect((Fenced, AlreadyFinished), driver.do(late))


class ReleaseRules:
    async def test_a_released_intent_is_delivered_again_and_the_delivery_is_not_counted(self, driver: Driver) -> None:
        lease = await open_new(driver)
        for attempt in range(2, 8):
            freed = await driver.do(ReleaseIntent(lease=lease, reason="shutting down", data=b"why"))
            assert (freed.leased, freed.lost, freed.lease_token) == (False, 0, None)
            last = (await events_of(driver, lease.intent_id))[-1]
            assert (last.event_type, last.details, last.data) == (
                "intent.released",
                {"reason": "shutting down"},
                b"why",
            )
            [lease] = await claim(driver)
            assert lease.attempt == attempt
        assert (await get(driver, lease.intent_id)).lost == 0

    async def test_a_release_may_ask_for_a_pause(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await driver.do(ReleaseIntent(lease=lease, reason="rate limit", delay_seconds=60))
        assert await claim(driver) == []
        driver.advance(61)
        [again] = await claim(driver)
        assert (again.attempt, (await get(driver, lease.intent_id)).lost) == (2, 0)

    async def test_a_delivery_given_back_as_lost_is_counted(self, driver: Driver) -> None:
        lease = await open_new(driver)
        for lost in (1, 2):
            freed = await driver.do(
                ReleaseIntent(lease=lease, reason="it crashed", lost=True, delay_seconds=5, data=b"trace")
            )
            assert (freed.lost, freed.leased) == (lost, False)
            assert await claim(driver) == []
            driver.advance(6)
            [lease] = await claim(driver)
        ended = await driver.do(ReleaseIntent(lease=lease, reason="it crashed", lost=True, data=b"trace"))
        assert (ended.status, ended.lost) == (Status.FAILED, 3)
        assert (ended.reason, ended.error) == ("it crashed", b"trace"), "an error is reported as that error"
        failed = (await events_of(driver, lease.intent_id))[-2]
        assert (failed.event_type, failed.data) == ("intent.delivery_failed", b"trace")
        assert failed.details["reason"] == "it crashed"

    async def test_a_last_delivery_that_was_lost_without_an_error_says_how_many_were(self, driver: Driver) -> None:
        lease = await open_new(driver, max_delivery_attempts=2)
        await driver.do(ReleaseIntent(lease=lease, reason="KeyError: 'a'", lost=True, data=b"trace"))
        [lease] = await claim(driver)
        ended = await driver.do(ReleaseIntent(lease=lease, reason="the connection broke", lost=True))
        assert (ended.status, ended.error) == (Status.FAILED, None)
        assert ended.reason == (
            "2 of 2 deliveries were lost in a row without a newly finished step; the last one: the connection broke"
        )

    async def test_waiting_for_a_person_costs_no_delivery(self, driver: Driver) -> None:
        world = await make_world(driver)
        await driver.do(SuspendIntent(lease=world.lease, waiting_reason="WAITING_FOR_HUMAN", keys=["approve"]))
        driver.advance(10**7)
        assert await driver.do(Sweep()) == 0
        assert await claim(driver) == []
        intent = await get(driver, world.intent_id)
        assert (intent.status, intent.lost, intent.attempt) == (Status.WAITING, 0, 1)


class OpenRules:
    async def test_opening_creates_the_run_and_takes_it_in_one_go(self, driver: Driver) -> None:
        new = new_intent(run_id="r")
        opened = await driver.do(OpenIntent(token="t", owner="w", lease_seconds=30, new=new))  # noqa: S106
        assert not opened.existed
        assert opened.lease == Lease(new.intent_id, 1, "t")
        assert opened.intent.status is Status.IN_PROGRESS
        assert await get(driver, new.intent_id) == opened.intent
        types = [e.event_type for e in await events_of(driver, new.intent_id)]
        assert types == ["intent.created", "intent.submitted", "intent.delivered", "intent.in_progress"]

    async def test_opening_what_another_holds_gives_no_lease_and_changes_nothing(self, driver: Driver) -> None:
        lease = await open_new(driver, run_id="r")
        held = await dump(driver)
        by_id = await _open(driver, lease.intent_id)
        by_run = await _open(driver, new=new_intent(run_id="r"))
        wrong_corpse = await _open(driver, lease.intent_id, dead_attempt=7)
        for opened in (by_id, by_run, wrong_corpse):
            assert (opened.lease, opened.existed) == (None, True)
            assert opened.intent.intent_id == lease.intent_id
        assert await dump(driver) == held

    async def test_opening_takes_over_at_once_from_an_owner_seen_dead(self, driver: Driver) -> None:
        lease = await open_new(driver, lease_seconds=3600)
        opened = await _open(driver, lease.intent_id, dead_attempt=lease.attempt)
        assert opened.lease is not None
        assert (opened.lease.attempt, opened.intent.lost) == (2, 1)
        await expect_stopped(driver, lease)

    async def test_opening_takes_over_when_the_lease_has_run_out(self, driver: Driver) -> None:
        lease = await open_new(driver, lease_seconds=30)
        driver.advance(31)
        opened = await _open(driver, lease.intent_id)
        assert opened.lease is not None
        assert (opened.lease.attempt, opened.intent.lost) == (2, 1)

    async def test_opening_after_the_last_lost_delivery_finds_the_run_failed(self, driver: Driver) -> None:
        lease = await open_new(driver, max_delivery_attempts=1)
        opened = await _open(driver, lease.intent_id, dead_attempt=1)
        assert (opened.lease, opened.intent.status) == (None, Status.FAILED)

    async def test_opening_does_not_wait_out_a_pause(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await driver.do(ReleaseIntent(lease=lease, reason="tired", delay_seconds=3600))
        opened = await _open(driver, lease.intent_id)
        assert opened.lease is not None
        assert (opened.lease.attempt, opened.intent.lost) == (2, 0)

    async def test_opening_what_waits_for_a_person_gives_no_lease(self, driver: Driver) -> None:
        world = await make_world(driver)
        await driver.do(SuspendIntent(lease=world.lease, waiting_reason="WAITING_FOR_HUMAN", keys=["approve"]))
        held = await dump(driver)
        opened = await _open(driver, world.intent_id)
        assert (opened.lease, opened.intent.status) == (None, Status.WAITING)
        assert await dump(driver) == held

    async def test_opening_what_is_finished_gives_its_ending(self, driver: Driver) -> None:
        lease = await open_new(driver, run_id="r")
        ended = await driver.do(finish(lease, result=b"42"))
        opened = await _open(driver, new=new_intent(run_id="r"))
        assert (opened.lease, opened.intent, opened.existed) == (None, ended, True)

    async def test_opening_needs_a_name_and_an_unknown_one_is_not_found(self, driver: Driver) -> None:
        await expect(NotFound, _open(driver, new_id()))
        await expect(InvalidInput, driver.do(OpenIntent(token="t", owner="w", lease_seconds=9)))  # noqa: S106
        await expect(InvalidInput, _open(driver, new=new_intent(), lease_seconds=0))

    async def test_sixteen_who_see_the_owner_dead_give_one_new_owner(self, driver: Driver) -> None:
        lease = await open_new(driver, lease_seconds=3600)
        answers = await driver.together(
            [OpenIntent(token=f"t{n}", owner=f"w{n}", lease_seconds=30, intent_id=lease.intent_id, dead_attempt=1)]
            for n in range(16)
        )
        assert len([answer for answer in answers if answer[0].lease is not None]) == 1
        intent = await get(driver, lease.intent_id)
        assert (intent.attempt, intent.lost) == (2, 1)

    async def test_a_canceled_run_frees_its_worker_only_by_refusing_it(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await driver.do(FinishIntent(intent_id=lease.intent_id, status=Status.CANCELED))
        await expect_stopped(driver, lease)

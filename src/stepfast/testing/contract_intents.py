"""The contract, part one: creating, finding, finishing and reviving intents."""

from __future__ import annotations

from typing import Any

import msgspec

from stepfast.clock import new_id
from stepfast.errors import AlreadyFinished, Conflict, InvalidInput, NotFound
from stepfast.intents import Status
from stepfast.ops import (
    AnswerDecision,
    AskDecision,
    Claim,
    CreateIntent,
    Filter,
    FinishIntent,
    GetIntent,
    ListIntents,
    OpenIntent,
    ReadJournal,
    RecordStep,
    ReviveIntent,
    SetTypePolicy,
    SuspendIntent,
    Sweep,
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


class CreationRules:
    async def test_a_new_intent_is_created_submitted_and_delivered(self, driver: Driver) -> None:
        before = await driver.now()
        made = await driver.do(CreateIntent(new=new_intent()))
        intent = made.intent
        assert not made.existed
        assert (intent.status, intent.attempt, intent.lost, intent.leased) == (Status.DELIVERED, 0, 0, False)
        assert before <= intent.created_at <= await driver.now()
        events = await events_of(driver, intent.intent_id)
        assert [(e.seq, e.event_type) for e in events] == [
            (1, "intent.created"),
            (2, "intent.submitted"),
            (3, "intent.delivered"),
        ]
        assert [e.status for e in events] == [Status.CREATED, Status.SUBMITTED, Status.DELIVERED]

    async def test_an_intent_is_read_back_exactly_as_it_was_answered(self, driver: Driver) -> None:
        new = new_intent(
            run_id="nightly report",
            from_agent="agent://boss",
            correlation_id="c-1",
            payload=b"\x00payload\xff",
            meta=b"",
            labels={"team": "red", "env": "test"},
            idempotency_key="key-1",
            body_hash=b"hash",
            deadline_at=await driver.now() + 10**12,
            not_before=await driver.now() + 10**9,
            max_delivery_attempts=7,
            total_steps=50,
        )
        made = (await driver.do(CreateIntent(new=new))).intent
        assert await get(driver, new.intent_id) == made
        assert await driver.do(GetIntent(run_id="nightly report")) == made
        for field in msgspec.structs.fields(type(new)):
            if hasattr(made, field.name):
                assert getattr(made, field.name) == getattr(new, field.name), field.name
        assert made.claimable_at == new.not_before
        assert made.journal_id == made.intent_id

    async def test_an_unknown_intent_or_run_is_not_found(self, driver: Driver) -> None:
        await expect(NotFound, driver.do(GetIntent(intent_id=new_id())))
        await expect(NotFound, driver.do(GetIntent(run_id="never")))
        await expect(InvalidInput, driver.do(GetIntent()))

    @cases(key="idempotency_key", run="run_id")
    async def test_the_same_key_and_body_give_the_same_intent(self, driver: Driver, case: str) -> None:
        first = await driver.do(CreateIntent(new=new_intent(**{case: "k"}, body_hash=b"one")))
        held = await dump(driver)
        again = await driver.do(CreateIntent(new=new_intent(**{case: "k"}, body_hash=b"one")))
        assert (again.existed, again.intent) == (True, first.intent)
        assert await dump(driver) == held

    @cases(key="idempotency_key", run="run_id")
    async def test_the_same_key_with_another_body_is_a_conflict(self, driver: Driver, case: str) -> None:
        await driver.do(CreateIntent(new=new_intent(**{case: "k"}, body_hash=b"one")))
        held = await dump(driver)
        other = new_intent(**{case: "k"}, body_hash=b"two")
        await expect(Conflict, driver.do(CreateIntent(new=other)))
        opening = OpenIntent(token="t", owner="w", lease_seconds=9, new=other)  # noqa: S106
        await expect(Conflict, driver.do(opening))
        assert await dump(driver) == held

    async def test_a_key_still_finds_its_intent_after_the_end(self, driver: Driver) -> None:
        lease = await open_new(driver, idempotency_key="k", body_hash=b"one")
        ended = await driver.do(finish(lease, result=b"42"))
        again = await driver.do(CreateIntent(new=new_intent(idempotency_key="k", body_hash=b"one")))
        assert (again.existed, again.intent) == (True, ended)

    async def test_intents_without_a_key_are_all_different(self, driver: Driver) -> None:
        made = [await create(driver, body_hash=b"same") for _ in range(3)]
        assert len({intent.intent_id for intent in made}) == 3

    @cases(key="idempotency_key", run="run_id")
    async def test_sixteen_callers_with_one_key_create_one_intent(self, driver: Driver, case: str) -> None:
        answers = await driver.together(
            [CreateIntent(new=new_intent(**{case: "k"}, body_hash=b"one"))] for _ in range(16)
        )
        assert {answer[0].intent.intent_id for answer in answers} == {answers[0][0].intent.intent_id}
        assert sorted(answer[0].existed for answer in answers) == [False] + [True] * 15
        found: list[Any] = await driver.do(ListIntents())
        assert len(found) == 1

    async def test_sixteen_callers_open_one_run_and_one_of_them_holds_it(self, driver: Driver) -> None:
        answers = await driver.together(
            [OpenIntent(token=f"t{n}", owner=f"w{n}", lease_seconds=30, new=new_intent(run_id="r"))] for n in range(16)
        )
        assert len([answer for answer in answers if answer[0].lease is not None]) == 1
        assert {answer[0].intent.intent_id for answer in answers} == {answers[0][0].intent.intent_id}
        intent = await driver.do(GetIntent(run_id="r"))
        assert (intent.attempt, intent.lost) == (1, 0)

    @cases(
        no_attempts={"max_delivery_attempts": 0},
        two_deadlines={"deadline_at": 10**18, "ttl_seconds": 1.0},
        no_ttl={"ttl_seconds": 0.0},
        past_ttl={"ttl_seconds": -1.0},
        endless_ttl={"ttl_seconds": float("inf")},
        unclear_delay={"delay_seconds": float("nan")},
        deadline_beyond_64_bits={"deadline_at": 2**70},
    )
    async def test_a_wrong_request_is_refused_and_nothing_is_written(
        self, driver: Driver, case: dict[str, object]
    ) -> None:
        await expect(InvalidInput, driver.do(CreateIntent(new=new_intent(**case))))
        assert await driver.do(ListIntents()) == []

    async def test_delivery_attempts_come_from_the_intent_else_its_type_else_are_three(self, driver: Driver) -> None:
        await driver.do(SetTypePolicy(intent_type="patient", max_delivery_attempts=9))
        assert (await create(driver)).max_delivery_attempts == 3
        assert (await create(driver, intent_type="patient")).max_delivery_attempts == 9
        assert (await create(driver, intent_type="patient", max_delivery_attempts=1)).max_delivery_attempts == 1
        await driver.do(SetTypePolicy(intent_type="patient", max_delivery_attempts=2))
        assert (await create(driver, intent_type="patient")).max_delivery_attempts == 2
        wrong = SetTypePolicy(intent_type="patient", max_delivery_attempts=0)
        await expect(InvalidInput, driver.do(wrong))


class ListingRules:
    async def test_the_list_is_newest_first_and_paged_without_gaps(self, driver: Driver) -> None:
        made = [(await create(driver)).intent_id for _ in range(7)]
        seen: list[str] = []
        before = None
        while page := await driver.do(ListIntents(where=Filter(before=before, limit=3))):
            seen += [intent.intent_id for intent in page]
            before = seen[-1]
        assert seen == sorted(made, reverse=True)

    async def test_every_filter_must_hold(self, driver: Driver) -> None:
        red = await create(driver, labels={"team": "red", "env": "test"}, to_agent="agent://a")
        blue = await create(driver, labels={"team": "blue", "env": "test"}, intent_type="other")
        plain = await create(driver)
        await driver.do(FinishIntent(intent_id=plain.intent_id, status=Status.CANCELED))

        async def found(**where: object) -> set[str]:
            return {i.intent_id for i in await driver.do(ListIntents(where=Filter(**where)))}  # type: ignore[arg-type]

        assert await found() == {red.intent_id, blue.intent_id, plain.intent_id}
        assert await found(labels={"team": "red"}) == {red.intent_id}
        assert await found(labels={"env": "test"}) == {red.intent_id, blue.intent_id}
        assert await found(labels={"env": "test", "team": "blue"}) == {blue.intent_id}
        assert await found(labels={"team": "green"}) == set()
        assert await found(labels={"red": "team"}) == set()
        assert await found(to_agent="agent://a") == {red.intent_id}
        assert await found(intent_type="other") == {blue.intent_id}
        assert await found(statuses=[Status.CANCELED]) == {plain.intent_id}
        assert await found(statuses=[Status.CANCELED, Status.DELIVERED]) == await found()
        assert await found(statuses=[Status.DELIVERED], labels={"env": "test"}, to_agent="agent://a") == {red.intent_id}

    async def test_a_page_is_full_even_where_a_second_label_sorts_out_most(self, driver: Driver) -> None:
        wanted = []
        for n in range(9):
            intent = await create(driver, labels={"env": "test", "third": str(n % 3)})
            wanted += [intent.intent_id] if n % 3 == 0 else []
        page = await driver.do(ListIntents(where=Filter(labels={"env": "test", "third": "0"}, limit=2)))
        assert [intent.intent_id for intent in page] == sorted(wanted, reverse=True)[:2]

    @cases(zero=0, negative=-1, endless=10_001)
    async def test_a_page_size_out_of_range_is_refused(self, driver: Driver, case: int) -> None:
        await expect(InvalidInput, driver.do(ListIntents(where=Filter(limit=case))))


class EndingRules:
    @cases(completed=Status.COMPLETED, failed=Status.FAILED, canceled=Status.CANCELED)
    async def test_the_worker_finishes_its_intent(self, driver: Driver, case: Status) -> None:
        lease = await open_new(driver)
        ended = await driver.do(finish(lease, case, result=b"r", error=b"e", reason="because"))
        assert (ended.status, ended.result, ended.error, ended.reason) == (case, b"r", b"e", "because")
        assert ended.finished_at is not None
        assert not ended.leased
        assert await get(driver, lease.intent_id) == ended
        last = (await events_of(driver, lease.intent_id))[-1]
        assert (last.event_type, last.status) == (f"intent.{case.lower()}", case)
        assert await claim(driver) == []

    async def test_an_intent_nobody_has_taken_can_be_canceled_from_outside(self, driver: Driver) -> None:
        intent = await create(driver)
        op = FinishIntent(intent_id=intent.intent_id, status=Status.CANCELED, reason="no longer", actor="anna")
        ended = await driver.do(op)
        assert (ended.status, ended.reason) == (Status.CANCELED, "no longer")
        last = (await events_of(driver, intent.intent_id))[-1]
        assert (last.actor, last.details) == ("anna", {"reason": "no longer"})
        assert await claim(driver) == []

    async def test_a_running_and_a_waiting_intent_can_be_canceled_from_outside(self, driver: Driver) -> None:
        running, waiting = await make_world(driver), await make_world(driver)
        await driver.do(SuspendIntent(lease=waiting.lease, waiting_reason="WAITING_FOR_HUMAN", keys=["approve"]))
        for world in (running, waiting):
            op = FinishIntent(intent_id=world.intent_id, status=Status.CANCELED)
            assert (await driver.do(op)).status is Status.CANCELED

    @cases(completed=Status.COMPLETED, failed=Status.FAILED, canceled=Status.CANCELED)
    async def test_an_ending_never_changes(self, driver: Driver, case: Status) -> None:
        lease = await open_new(driver)
        await driver.do(finish(lease, case, result=b"first"))
        held = await dump(driver)
        for status in (Status.COMPLETED, Status.FAILED, Status.CANCELED):
            outside = FinishIntent(intent_id=lease.intent_id, status=status, result=b"second")
            await expect(AlreadyFinished, driver.do(outside))
            await expect(AlreadyFinished, driver.do(finish(lease, status, result=b"second")))
        driver.advance(10**7)
        assert await driver.do(Sweep()) == 0
        assert await dump(driver) == held

    async def test_of_sixteen_endings_at_once_one_counts(self, driver: Driver) -> None:
        intent = await create(driver)
        answers = await driver.together(
            [FinishIntent(intent_id=intent.intent_id, status=Status.COMPLETED, result=b"%d" % n)] for n in range(16)
        )
        won = [answer[0] for answer in answers if isinstance(answer, list)]
        assert len(won) == 1
        assert {type(answer) for answer in answers if not isinstance(answer, list)} == {AlreadyFinished}
        assert await get(driver, intent.intent_id) == won[0]

    @cases(time_is_not_asked=Status.TIMED_OUT, waiting=Status.WAITING, delivered=Status.DELIVERED)
    async def test_only_an_ending_finishes(self, driver: Driver, case: Status) -> None:
        intent = await create(driver)
        await expect(InvalidInput, driver.do(FinishIntent(intent_id=intent.intent_id, status=case)))
        assert await get(driver, intent.intent_id) == intent

    async def test_finishing_an_unknown_intent_is_not_found(self, driver: Driver) -> None:
        await expect(NotFound, driver.do(FinishIntent(intent_id=new_id(), status=Status.CANCELED)))


class DeadlineRules:
    @cases(ttl="ttl_seconds", moment="deadline_at")
    async def test_past_its_deadline_an_intent_times_out_by_the_stores_clock(self, driver: Driver, case: str) -> None:
        value = 60.0 if case == "ttl_seconds" else await driver.now() + 60_000_000
        intent = await create(driver, **{case: value})
        assert intent.deadline_at is not None
        assert await driver.do(Sweep()) == 0
        driver.advance(61)
        assert await driver.do(Sweep()) == 1
        ended = await get(driver, intent.intent_id)
        assert (ended.status, ended.claimable_at) == (Status.TIMED_OUT, None)
        assert ended.reason
        assert (await events_of(driver, intent.intent_id))[-1].event_type == "intent.timed_out"
        assert await driver.do(Sweep()) == 0

    async def test_a_claim_never_delivers_what_is_past_its_deadline(self, driver: Driver) -> None:
        late = await create(driver, ttl_seconds=60)
        driver.advance(61)
        good = await create(driver)
        assert [lease.intent_id for lease in await claim(driver)] == [good.intent_id]
        assert (await get(driver, late.intent_id)).status is Status.TIMED_OUT

    async def test_opening_what_is_past_its_deadline_gives_no_lease(self, driver: Driver) -> None:
        late = await create(driver, run_id="r", ttl_seconds=60)
        driver.advance(61)
        op = OpenIntent(token=new_id(), owner="w", lease_seconds=9, intent_id=late.intent_id)
        opened = await driver.do(op)
        assert (opened.lease, opened.intent.status) == (None, Status.TIMED_OUT)

    async def test_an_intent_created_after_its_deadline_has_timed_out_wholly(self, driver: Driver) -> None:
        new = new_intent(deadline_at=1)
        opened = await driver.do(OpenIntent(token=new_id(), owner="w", lease_seconds=9, new=new))
        assert (opened.lease, opened.intent.status) == (None, Status.TIMED_OUT)
        assert await get(driver, new.intent_id) == opened.intent
        assert await driver.do(Sweep()) == 0

    async def test_after_the_deadline_the_worker_is_told_that_time_was_up(self, driver: Driver) -> None:
        lease = await open_new(driver, ttl_seconds=60, lease_seconds=600)
        driver.advance(61)
        ended = await driver.do(finish(lease, result=b"too late"))
        assert (ended.status, ended.result) == (Status.TIMED_OUT, None)
        assert await get(driver, lease.intent_id) == ended

    async def test_a_waiting_intent_times_out_too(self, driver: Driver) -> None:
        world = await make_world(driver, ttl_seconds=60)
        await driver.do(SuspendIntent(lease=world.lease, waiting_reason="WAITING_FOR_HUMAN", keys=["approve"]))
        driver.advance(61)
        await driver.do(Sweep())
        assert (await get(driver, world.intent_id)).status is Status.TIMED_OUT

    async def test_a_sweep_settles_no_more_than_its_limit(self, driver: Driver) -> None:
        for _ in range(5):
            await create(driver, ttl_seconds=60)
        driver.advance(61)
        assert [await driver.do(Sweep(limit=2)) for _ in range(4)] == [2, 2, 1, 0]


class RevivalRules:
    @cases(failed=Status.FAILED, canceled=Status.CANCELED)
    async def test_a_revived_intent_takes_over_journal_payload_and_run(self, driver: Driver, case: Status) -> None:
        world = await make_world(driver, payload=b"p", meta=b"m", max_delivery_attempts=5)
        old = await driver.do(finish(world.lease, case, error=b"e", reason="broke"))
        steps = await driver.do(ReadJournal(journal_id=world.journal_id))
        driver.advance(5)
        made = await driver.do(ReviveIntent(intent_id=old.intent_id, new_id=new_id(), actor="anna"))
        new = made.intent
        assert not made.existed
        assert (new.status, new.attempt, new.lost, new.result, new.error) == (
            Status.DELIVERED,
            old.attempt,
            0,
            None,
            None,
        ), "its deliveries are counted anew, and each attempt of the journal has a number of its own"
        assert (new.run_id, new.payload, new.meta, new.labels) == (old.run_id, b"p", b"m", {"team": "red"})
        assert (new.journal_id, new.revived_from) == (old.journal_id, old.intent_id)
        assert new.max_delivery_attempts == 5
        assert new.updated_at >= new.created_at > old.created_at
        assert await get(driver, new.intent_id) == new
        assert await driver.do(GetIntent(run_id=old.run_id)) == new
        assert await driver.do(ReadJournal(journal_id=world.journal_id)) == steps
        assert new in await driver.do(ListIntents(where=Filter(labels={"team": "red"})))

        [lease] = await claim(driver)
        await driver.do(RecordStep(lease=lease, journal_id=world.journal_id, step=step("third", lease, position=3)))
        found: list[Any] = await driver.do(ReadJournal(journal_id=world.journal_id))
        assert len(found) == len(steps) + 1
        await driver.do(finish(lease, result=b"at last"))

    async def test_the_old_intent_keeps_its_ending_and_its_events(self, driver: Driver) -> None:
        lease = await open_new(driver, run_id="r", idempotency_key="k", body_hash=b"b")
        old = await driver.do(finish(lease, Status.FAILED, error=b"e", reason="broke"))
        events = await events_of(driver, old.intent_id)
        new = (await driver.do(ReviveIntent(intent_id=old.intent_id, new_id=new_id()))).intent
        now = await get(driver, old.intent_id)
        ending = (old.status, old.error, old.reason, old.result, old.finished_at, old.attempt)
        assert (now.status, now.error, now.reason, now.result, now.finished_at, now.attempt) == ending
        assert now.superseded_by == new.intent_id
        later = await events_of(driver, old.intent_id)
        assert later[: len(events)] == events
        assert [e.event_type for e in later[len(events) :]] == ["intent.revived"]
        await driver.do(FinishIntent(intent_id=new.intent_id, status=Status.COMPLETED, result=b"42"))
        assert await get(driver, old.intent_id) == now
        again = await driver.do(CreateIntent(new=new_intent(idempotency_key="k", body_hash=b"b")))
        assert again.intent == now, "the key stays with the intent it made"

    async def test_an_intent_is_revived_once_and_only_after_it_ended_without_completing(self, driver: Driver) -> None:
        running, done = await open_new(driver), await open_new(driver)
        await driver.do(finish(done))
        for lease in (running, done):
            await expect(Conflict, driver.do(ReviveIntent(intent_id=lease.intent_id, new_id=new_id())))
        await driver.do(finish(running, Status.FAILED))
        second = await driver.do(ReviveIntent(intent_id=running.intent_id, new_id=new_id()))
        await expect(Conflict, driver.do(ReviveIntent(intent_id=running.intent_id, new_id=new_id())))
        await driver.do(FinishIntent(intent_id=second.intent.intent_id, status=Status.CANCELED))
        third = await driver.do(ReviveIntent(intent_id=second.intent.intent_id, new_id=new_id()))
        assert third.intent.journal_id == running.intent_id
        await expect(NotFound, driver.do(ReviveIntent(intent_id=new_id(), new_id=new_id())))

    async def test_an_id_in_use_cannot_be_revived_into(self, driver: Driver) -> None:
        lease, other = await open_new(driver, run_id="r"), await create(driver)
        await driver.do(finish(lease, Status.FAILED))
        held = await dump(driver)
        for taken in (other.intent_id, lease.intent_id):
            await expect(Conflict, driver.do(ReviveIntent(intent_id=lease.intent_id, new_id=taken)))
        assert await dump(driver) == held

    async def test_a_revived_intent_may_have_a_deadline_of_its_own(self, driver: Driver) -> None:
        late = await create(driver, ttl_seconds=60)
        driver.advance(61)
        await driver.do(Sweep())
        plain = (await driver.do(ReviveIntent(intent_id=late.intent_id, new_id=new_id()))).intent
        assert plain.deadline_at is None
        assert len(await claim(driver)) == 1
        await driver.do(FinishIntent(intent_id=plain.intent_id, status=Status.FAILED))
        moment = await driver.now() + 5_000_000
        revival = ReviveIntent(intent_id=plain.intent_id, new_id=new_id(), deadline_at=moment)
        assert (await driver.do(revival)).intent.deadline_at == moment
        driver.advance(6)
        assert await claim(driver) == []

    async def test_an_answer_given_after_a_revival_reaches_the_one_that_carries_on(self, driver: Driver) -> None:
        lease = await open_new(driver, run_id="r")
        journal_id = lease.intent_id
        asking = AskDecision(lease=lease, journal_id=journal_id, key="q", kind="ask", question=b"?", outcomes=["yes"])
        await driver.execute(asking, finish(lease, Status.FAILED))
        new = (await driver.do(ReviveIntent(intent_id=journal_id, new_id=new_id()))).intent
        op = Claim(to_agent=AGENT, token=new_id(), owner="w", lease_seconds=30)
        [taken] = await driver.do(op)
        assert taken.intent_id == new.intent_id
        [second] = await claim(driver, token=op.token)
        await driver.do(SuspendIntent(lease=second, waiting_reason="WAITING_FOR_HUMAN", keys=["q"]))
        await driver.do(AnswerDecision(journal_id=journal_id, key="q", outcome="yes"))
        assert [lease.intent_id for lease in await claim(driver)] == [new.intent_id]

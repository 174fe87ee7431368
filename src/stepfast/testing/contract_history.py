"""The contract, part five: events, notes, retention and wake-ups."""

from __future__ import annotations

from typing import Any

from stepfast.clock import new_id
from stepfast.errors import AlreadyFinished, Damaged, InvalidInput, NotFound
from stepfast.intents import Intent, Status
from stepfast.ops import (
    AnswerDecision,
    AppendEvent,
    CheckWritable,
    CreateIntent,
    Filter,
    FinishIntent,
    GetIntent,
    ListDecisions,
    ListIntents,
    Prune,
    ReadCheckpoints,
    ReadEvents,
    ReadJournal,
    ReadPiece,
    ReviveIntent,
    SuspendIntent,
    Sweep,
)
from stepfast.testing.contract_kit import (
    Driver,
    cases,
    check_history,
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
)


def _note(intent_id: str, note_id: str, **fields: object) -> AppendEvent:
    values = {"lease": None, "event_type": "intent.noted", **fields}
    return AppendEvent(intent_id=intent_id, note_id=note_id, **values)  # type: ignore[arg-type]


class EventRules:
    async def test_events_are_read_from_any_place_without_a_gap(self, driver: Driver) -> None:
        world = await make_world(driver)
        events = await events_of(driver, world.intent_id)
        assert [e.seq for e in events] == list(range(1, len(events) + 1))
        for since in range(len(events) + 1):
            found = await driver.do(ReadEvents(intent_id=world.intent_id, since=since))
            assert found == events[since:]
        seen: list[object] = []
        while page := await driver.do(ReadEvents(intent_id=world.intent_id, since=len(seen), limit=2)):
            seen += page
        assert seen == events
        for limit in (0, -1):
            await expect(InvalidInput, driver.do(ReadEvents(intent_id=world.intent_id, limit=limit)))

    async def test_an_unknown_intent_has_no_events(self, driver: Driver) -> None:
        assert await events_of(driver, new_id()) == []

    async def test_a_note_is_kept_exactly_and_changes_no_status(self, driver: Driver) -> None:
        intent = await create(driver)
        details = {"text": "naïve 🦀", "n": 1, "f": 1.5, "nothing": None, "list": [1, {"deep": True}], "": "empty"}
        seq = await driver.do(_note(intent.intent_id, "n1", details=details, data=b"\x00", actor="anna"))
        last = (await events_of(driver, intent.intent_id))[-1]
        assert (seq, last.seq, last.status) == (4, 4, Status.DELIVERED)
        assert (last.event_type, last.details, last.data, last.actor) == ("intent.noted", details, b"\x00", "anna")
        now = await get(driver, intent.intent_id)
        assert (now.status, now.seq, now.head) == (Status.DELIVERED, 4, last.digest)

    async def test_a_note_can_still_be_made_after_the_end_but_not_by_the_worker(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await driver.do(finish(lease))
        await expect(AlreadyFinished, driver.do(_note(lease.intent_id, "n1", lease=lease)))
        await driver.do(_note(lease.intent_id, "n2"))
        assert (await get(driver, lease.intent_id)).status is Status.COMPLETED

    @cases(
        foreign_name="task.done",
        created="intent.created",
        in_progress="intent.in_progress",
        completed="intent.completed",
        failed="intent.failed",
        canceled="intent.canceled",
        timed_out="intent.timed_out",
    )
    async def test_a_note_cannot_pose_as_a_change_of_status(self, driver: Driver, case: str) -> None:
        intent = await create(driver)
        await expect(InvalidInput, driver.do(_note(intent.intent_id, "n1", event_type=case)))
        assert await get(driver, intent.intent_id) == intent

    async def test_a_note_on_an_unknown_intent_is_not_found(self, driver: Driver) -> None:
        await expect(NotFound, driver.do(_note(new_id(), "n1")))

    async def test_many_writers_at_once_leave_a_gapless_chain(self, driver: Driver) -> None:
        intent = await create(driver)
        answers = await driver.together([_note(intent.intent_id, f"n{n}")] for n in range(16))
        assert sorted(answer[0] for answer in answers) == list(range(4, 20))
        check_history(await get(driver, intent.intent_id), await events_of(driver, intent.intent_id))

    async def test_the_check_is_a_write_that_gives_the_stores_time(self, driver: Driver) -> None:
        before = await driver.do(CheckWritable())
        driver.advance(3600)
        assert 3_600_000_000 <= await driver.do(CheckWritable()) - before < 3_700_000_000


class PruneRules:
    async def _ended(self, driver: Driver, status: Status = Status.COMPLETED, **fields: object) -> Intent:
        intent = await create(driver, **fields)
        driver.advance(10)
        return await driver.do(FinishIntent(intent_id=intent.intent_id, status=status))

    async def _left(self, driver: Driver) -> set[str]:
        return {intent.intent_id for intent in await driver.do(ListIntents(where=Filter(limit=1000)))}

    async def test_old_endings_go_and_the_rest_stays(self, driver: Driver) -> None:
        old = [await self._ended(driver) for _ in range(3)]
        running = await create(driver)
        young = await self._ended(driver)
        assert young.finished_at is not None
        assert await driver.do(Prune(finished_before=young.finished_at)) == 3
        assert await self._left(driver) == {running.intent_id, young.intent_id}
        for intent in old:
            await expect(NotFound, get(driver, intent.intent_id))
            assert await events_of(driver, intent.intent_id) == []

    async def test_the_latest_are_kept(self, driver: Driver) -> None:
        ended = [await self._ended(driver) for _ in range(6)]
        running = await create(driver)
        assert await driver.do(Prune(keep_latest=6)) == 0
        assert await driver.do(Prune(keep_latest=2)) == 4
        assert await self._left(driver) == {ended[4].intent_id, ended[5].intent_id, running.intent_id}
        assert await driver.do(Prune(keep_latest=0)) == 2
        assert await self._left(driver) == {running.intent_id}

    async def test_age_and_number_must_both_allow_it(self, driver: Driver) -> None:
        ended = [await self._ended(driver) for _ in range(6)]
        assert await driver.do(Prune(keep_latest=2, finished_before=ended[2].finished_at)) == 2
        assert await driver.do(Prune(keep_latest=2, finished_before=await driver.now() + 1)) == 2
        assert await self._left(driver) == {ended[4].intent_id, ended[5].intent_id}

    async def test_it_goes_batch_by_batch_oldest_first(self, driver: Driver) -> None:
        ended = [await self._ended(driver) for _ in range(5)]
        later = await driver.now() + 1
        assert await driver.do(Prune(finished_before=later, limit=2)) == 2
        assert await self._left(driver) == {intent.intent_id for intent in ended[2:]}
        assert [await driver.do(Prune(finished_before=later, limit=2)) for _ in range(3)] == [2, 1, 0]

    async def test_a_label_or_a_status_narrows_it(self, driver: Driver) -> None:
        red = await self._ended(driver, labels={"team": "red"})
        blue = await self._ended(driver, labels={"team": "blue"})
        failed = await self._ended(driver, Status.FAILED, labels={"team": "red"})
        later = await driver.now() + 1
        assert await driver.do(Prune(finished_before=later, labels={"team": "green"})) == 0
        assert await driver.do(Prune(finished_before=later, labels={"team": "blue"})) == 1
        assert await self._left(driver) == {red.intent_id, failed.intent_id}
        assert await driver.do(Prune(finished_before=later, statuses=[Status.CANCELED])) == 0
        assert await driver.do(Prune(keep_latest=0, labels={"team": "red"}, statuses=[Status.FAILED])) == 1
        assert await self._left(driver) == {red.intent_id}
        assert blue.intent_id not in {i.intent_id for i in await driver.do(ListIntents())}
        assert await driver.do(ListIntents(where=Filter(labels={"team": "blue"}))) == []

    async def test_everything_of_a_pruned_intent_goes_with_it(self, driver: Driver) -> None:
        world, other = await make_world(driver), await make_world(driver)
        await driver.do(finish(world.lease))
        assert await driver.do(Prune(keep_latest=0)) == 1
        journal_id = world.journal_id
        assert await driver.do(ReadJournal(journal_id=journal_id, voided=True)) == []
        assert await driver.do(ReadCheckpoints(journal_id=journal_id)) == []
        assert await driver.do(ListDecisions(journal_id=journal_id, pending=False)) == []
        await expect(Damaged, driver.do(ReadPiece(journal_id=journal_id, blob_id="blob-1", number=0)))
        found: list[Any] = await driver.do(ReadJournal(journal_id=other.journal_id))
        assert len(found) == 2
        await create(driver, intent_id=world.intent_id)
        found = await driver.do(ListIntents(where=Filter(labels={"team": "red"})))
        assert [intent.intent_id for intent in found] == [other.intent_id], "its labels went too"

    async def test_a_pruned_key_and_run_are_free_again(self, driver: Driver) -> None:
        await self._ended(driver, run_id="r", idempotency_key="k", body_hash=b"one")
        await driver.do(Prune(keep_latest=0))
        made = await driver.do(CreateIntent(new=new_intent(run_id="r", idempotency_key="k", body_hash=b"two")))
        assert not made.existed

    async def test_a_journal_stays_while_a_revived_intent_uses_it(self, driver: Driver) -> None:
        world = await make_world(driver)
        await driver.do(finish(world.lease, Status.FAILED))
        revived = (await driver.do(ReviveIntent(intent_id=world.intent_id, new_id=new_id()))).intent
        assert await driver.do(Prune(keep_latest=0)) == 1
        assert await self._left(driver) == {revived.intent_id}
        found: list[Any] = await driver.do(ReadJournal(journal_id=world.journal_id))
        assert len(found) == 2
        kept: list[Any] = await driver.do(ReadCheckpoints(journal_id=world.journal_id))
        assert len(kept) == 1
        await driver.do(AnswerDecision(journal_id=world.journal_id, key="approve", outcome="yes"))
        [lease] = await claim(driver)
        await driver.do(finish(lease))
        assert await driver.do(Prune(keep_latest=0)) == 1
        assert await driver.do(ReadJournal(journal_id=world.journal_id)) == []

    async def test_a_journal_stays_while_the_intent_that_began_it_is_kept(self, driver: Driver) -> None:
        world = await make_world(driver)
        await driver.do(finish(world.lease, Status.FAILED))
        revived = (await driver.do(ReviveIntent(intent_id=world.intent_id, new_id=new_id()))).intent
        await driver.do(FinishIntent(intent_id=revived.intent_id, status=Status.COMPLETED))
        assert await driver.do(Prune(keep_latest=0, statuses=[Status.COMPLETED])) == 1
        found: list[Any] = await driver.do(ReadJournal(journal_id=world.journal_id))
        assert len(found) == 2
        assert await driver.do(Prune(keep_latest=0)) == 1
        assert await driver.do(ReadJournal(journal_id=world.journal_id)) == []

    @cases(
        no_rule=Prune(),
        unfinished=Prune(keep_latest=0, statuses=[Status.WAITING]),
        two_labels=Prune(keep_latest=0, labels={"a": "1", "b": "2"}),
        no_limit=Prune(keep_latest=0, limit=0),
        endless_limit=Prune(keep_latest=0, limit=-1),
        negative=Prune(keep_latest=-1),
    )
    async def test_a_wrong_prune_is_refused_and_nothing_goes(self, driver: Driver, case: Prune) -> None:
        await self._ended(driver)
        held = await dump(driver)
        await expect(InvalidInput, driver.do(case))
        assert await dump(driver) == held

    @cases(zero=0, negative=-1)
    async def test_a_sweep_for_nothing_is_refused(self, driver: Driver, case: int) -> None:
        await expect(InvalidInput, driver.do(Sweep(limit=case)))


class WatchRules:
    async def test_a_watch_wakes_on_a_new_intent_for_its_address(self, driver: Driver) -> None:
        with driver.watch("agent:demo") as watch:
            await create(driver)
            assert await driver.woken(watch)

    async def test_a_watch_wakes_when_its_intent_finishes(self, driver: Driver) -> None:
        lease = await open_new(driver)
        with driver.watch(f"intent:{lease.intent_id}") as watch:
            await driver.do(finish(lease))
            assert await driver.woken(watch)
            assert (await driver.do(GetIntent(intent_id=lease.intent_id))).finished

    @cases(run="intent", worker="agent")
    async def test_a_watch_wakes_on_an_answer(self, driver: Driver, case: str) -> None:
        world = await make_world(driver)
        await driver.do(SuspendIntent(lease=world.lease, waiting_reason="WAITING_FOR_HUMAN", keys=["approve"]))
        topic = f"intent:{world.intent_id}" if case == "intent" else "agent:demo"
        with driver.watch(topic) as watch:
            await driver.do(AnswerDecision(journal_id=world.journal_id, key="approve", outcome="yes"))
            assert await driver.woken(watch)

    async def test_a_watch_begun_before_the_change_is_woken_though_nobody_waited_yet(self, driver: Driver) -> None:
        intent = await create(driver)
        with driver.watch(f"intent:{intent.intent_id}", "agent://nobody") as watch:
            for n in range(3):
                await driver.do(_note(intent.intent_id, f"n{n}"))
            assert await driver.woken(watch)

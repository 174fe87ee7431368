"""The contract, part seven: documents, timers, and what a server asks for those who cannot ask themselves."""

from __future__ import annotations

from typing import Any

from stepfast.clock import new_id
from stepfast.errors import AlreadyFinished, Conflict, InvalidInput, NotFound
from stepfast.intents import Status
from stepfast.ops import (
    AskDecision,
    CreateIntent,
    DeleteRecord,
    DeleteRecords,
    DueRecords,
    FinishIntent,
    GetRecord,
    ListAddresses,
    ListRecords,
    Measure,
    MoveIntent,
    NextDue,
    Prune,
    PutRecord,
    RecentRecords,
    Record,
    ReleaseIntent,
    ReleaseOwner,
)
from stepfast.testing.contract_kit import (
    AGENT,
    Driver,
    claim,
    create,
    events_of,
    expect,
    finish,
    get,
    new_intent,
    open_new,
)


async def put(driver: Driver, record_id: str, body: bytes = b"body", **fields: Any) -> Record:
    return await driver.do(PutRecord(kind="doc", record_id=record_id, body=body, write_id=new_id(), **fields))


class RecordRules:
    async def test_a_record_is_read_as_it_was_written(self, driver: Driver) -> None:
        before = await driver.now()
        made = await put(driver, "a", b"\x00\xff", belongs_to="somebody", due_at=77)
        found = await driver.do(GetRecord(kind="doc", record_id="a"))
        assert found == made
        assert (made.version, made.body, made.belongs_to, made.due_at) == (1, b"\x00\xff", "somebody", 77)
        assert made.created_at == made.updated_at >= before
        assert await driver.do(GetRecord(kind="doc", record_id="b")) is None
        assert await driver.do(GetRecord(kind="other", record_id="a")) is None

    async def test_each_write_raises_the_version_and_keeps_the_time_of_creation(self, driver: Driver) -> None:
        first = await put(driver, "a")
        driver.advance(5)
        second = await put(driver, "a", b"two", expected=1)
        assert (second.version, second.body) == (2, b"two")
        assert second.created_at == first.created_at < second.updated_at

    async def test_a_write_that_expects_another_version_is_refused(self, driver: Driver) -> None:
        await expect(Conflict, put(driver, "a", expected=1))
        await put(driver, "a", b"one", expected=0)
        await expect(Conflict, put(driver, "a", b"two", expected=0))
        await expect(Conflict, put(driver, "a", b"two", expected=2))
        assert (await put(driver, "a", b"three")).version == 2, "no expectation overwrites whatever there is"

    async def test_of_many_writers_that_expect_the_same_version_one_wins(self, driver: Driver) -> None:
        await put(driver, "a")
        racing = [
            [PutRecord(kind="doc", record_id="a", body=b"%d" % n, write_id=new_id(), expected=1)] for n in range(6)
        ]
        answers = await driver.together(racing)
        assert sorted(type(a).__name__ for a in answers) == ["Conflict"] * 5 + ["list"]

    async def test_of_many_first_writers_one_wins(self, driver: Driver) -> None:
        racing = [
            [PutRecord(kind="doc", record_id="new", body=b"%d" % n, write_id=new_id(), expected=0)] for n in range(6)
        ]
        answers = await driver.together(racing)
        assert sorted(type(a).__name__ for a in answers) == ["Conflict"] * 5 + ["list"]

    async def test_a_refused_record_takes_its_whole_batch_with_it(self, driver: Driver) -> None:
        new = new_intent()
        stale = PutRecord(kind="doc", record_id="a", body=b"x", write_id=new_id(), expected=3)
        await expect(Conflict, driver.execute(CreateIntent(new=new), stale))
        await expect(NotFound, get(driver, new.intent_id))

    async def test_records_are_listed_by_id_and_in_pages(self, driver: Driver) -> None:
        for name in ("c", "a", "b"):
            await put(driver, name)
        await driver.do(PutRecord(kind="other", record_id="z", body=b"", write_id=new_id()))
        assert [r.record_id for r in await driver.do(ListRecords(kind="doc"))] == ["a", "b", "c"]
        assert [r.record_id for r in await driver.do(ListRecords(kind="doc", limit=2))] == ["a", "b"]
        assert [r.record_id for r in await driver.do(ListRecords(kind="doc", after="b"))] == ["c"]
        await expect(InvalidInput, driver.do(ListRecords(kind="doc", limit=0)))

    async def test_records_are_listed_by_their_last_write_and_in_pages(self, driver: Driver) -> None:
        for name in ("a/1", "a/2", "b/1", "a/3"):
            await put(driver, name)
            driver.advance(1)
        await put(driver, "a/1", b"again")
        await driver.do(PutRecord(kind="other", record_id="a/9", body=b"", write_id=new_id()))
        assert [r.record_id for r in await driver.do(RecentRecords(kind="doc"))] == ["a/1", "a/3", "b/1", "a/2"]
        first = await driver.do(RecentRecords(kind="doc", prefix="a/", limit=2))
        assert [r.record_id for r in first] == ["a/1", "a/3"]
        last = first[-1]
        rest = RecentRecords(kind="doc", prefix="a/", after_at=last.updated_at, after=last.record_id, limit=2)
        assert [r.record_id for r in await driver.do(rest)] == ["a/2"]
        await expect(InvalidInput, driver.do(RecentRecords(kind="doc", limit=0)))

    async def test_recent_records_of_one_moment_come_by_id_without_gap_or_repeat(self, driver: Driver) -> None:
        ids = [f"{n}" for n in range(5)]
        await driver.execute(
            *[PutRecord(kind="doc", record_id=name, body=b"", write_id=new_id(), expected=0) for name in ids]
        )
        found: list[Record] = []
        for _ in ids:
            last = found[-1] if found else None
            at, after = (None, "") if last is None else (last.updated_at, last.record_id)
            [one] = await driver.do(RecentRecords(kind="doc", after_at=at, after=after, limit=1))
            found.append(one)
        assert sorted(r.record_id for r in found) == ids

    async def test_records_under_a_prefix_are_listed_and_deleted_together(self, driver: Driver) -> None:
        names = ["a", "a/", "a/1", "a/2", "a/\U0010ffff/1", "a0", "b/1"]
        for name in names:
            await put(driver, name)
        await driver.do(PutRecord(kind="other", record_id="a/1", body=b"", write_id=new_id()))

        async def under(prefix: str, **fields: Any) -> list[str]:
            return [r.record_id for r in await driver.do(ListRecords(kind="doc", prefix=prefix, **fields))]

        assert await under("a/") == names[1:5]
        assert await under("a/", after="a/1", limit=1) == ["a/2"]
        assert await under("a/\U0010ffff") == ["a/\U0010ffff/1"]
        await put(driver, "a/of it", belongs_to="it")
        assert await under("a/", belongs_to="it") == ["a/of it"]
        assert await under("b", belongs_to="it") == []
        assert [await driver.do(DeleteRecords(kind="doc", prefix="a/", limit=3)) for _ in range(3)] == [3, 2, 0]
        assert await under("") == ["a", "a0", "b/1"]
        others = await driver.do(ListRecords(kind="other"))
        assert len(others) == 1
        await expect(InvalidInput, driver.do(DeleteRecords(kind="doc", prefix="")))
        await expect(InvalidInput, driver.do(DeleteRecords(kind="doc", prefix="a", limit=0)))

    async def test_the_records_of_an_intent_are_listed_and_pruned_with_it(self, driver: Driver) -> None:
        one, other = await create(driver), await create(driver)
        await put(driver, "x", belongs_to=one.intent_id)
        await put(driver, "y", belongs_to=other.intent_id)
        await put(driver, "z")
        mine = await driver.do(ListRecords(kind="doc", belongs_to=one.intent_id))
        assert [r.record_id for r in mine] == ["x"]
        await driver.do(FinishIntent(intent_id=one.intent_id, status=Status.COMPLETED))
        assert await driver.do(Prune(keep_latest=0)) == 1
        assert [r.record_id for r in await driver.do(ListRecords(kind="doc"))] == ["y", "z"]

    async def test_a_deleted_record_is_gone_and_may_be_written_anew(self, driver: Driver) -> None:
        await put(driver, "a")
        await driver.do(DeleteRecord(kind="doc", record_id="a"))
        assert await driver.do(GetRecord(kind="doc", record_id="a")) is None
        assert (await put(driver, "a", expected=0)).version == 1

    async def test_a_record_needs_a_kind_and_an_id(self, driver: Driver) -> None:
        for kind, name in (("", "a"), ("doc", "")):
            op = PutRecord(kind=kind, record_id=name, body=b"", write_id=new_id())
            await expect(InvalidInput, driver.do(op))

    async def test_a_write_wakes_whoever_waits_on_its_kind(self, driver: Driver) -> None:
        with driver.watch("record:doc") as watch:
            await put(driver, "a")
            assert await driver.woken(watch)


class TimerRules:
    async def test_records_fall_due_by_the_stores_clock_the_most_overdue_first(self, driver: Driver) -> None:
        now = await driver.now()
        await put(driver, "late", due_at=now + 10_000_000)
        await put(driver, "later", due_at=now + 20_000_000)
        await put(driver, "never")
        assert await driver.do(DueRecords()) == []
        driver.advance(21)
        assert [r.record_id for r in await driver.do(DueRecords())] == ["late", "later"]
        assert [r.record_id for r in await driver.do(DueRecords(limit=1))] == ["late"]
        await put(driver, "late", due_at=None)
        assert [r.record_id for r in await driver.do(DueRecords())] == ["later"]

    async def test_the_next_time_is_the_earliest_of_all_that_is_timed(self, driver: Driver) -> None:
        assert await driver.do(NextDue()) is None
        now = await driver.now()
        await put(driver, "a", due_at=now + 30_000_000)
        assert await driver.do(NextDue()) == now + 30_000_000
        timed = await create(driver, ttl_seconds=20)
        assert await driver.do(NextDue()) == timed.deadline_at
        lease = await open_new(driver)
        asked = await driver.do(
            AskDecision(
                lease=lease,
                journal_id=lease.intent_id,
                key="q",
                kind="ask",
                question=b"?",
                outcomes=["yes"],
                expires_in=10.0,
            )
        )
        assert await driver.do(NextDue()) == asked.expires_at
        await driver.do(finish(lease))
        await driver.do(FinishIntent(intent_id=timed.intent_id, status=Status.CANCELED))
        driver.advance(11)

    async def test_an_ended_intent_has_no_deadline_any_more(self, driver: Driver) -> None:
        timed = await create(driver, ttl_seconds=20)
        await driver.do(FinishIntent(intent_id=timed.intent_id, status=Status.CANCELED))
        assert await driver.do(NextDue()) is None


def waiting(intent_id: str, **fields: Any) -> MoveIntent:
    values = {"status": Status.WAITING, "note_id": new_id(), "waiting_reason": "WAITING_FOR_HUMAN", **fields}
    return MoveIntent(intent_id=intent_id, **values)


class MoveRules:
    async def test_an_intent_that_waits_is_kept_from_workers(self, driver: Driver) -> None:
        intent = await create(driver)
        moved = await driver.do(waiting(intent.intent_id, details={"task": 1}, actor="anna"))
        assert (moved.status, moved.waiting_reason) == (Status.WAITING, "WAITING_FOR_HUMAN")
        assert await claim(driver) == []
        last = (await events_of(driver, intent.intent_id))[-1]
        assert (last.event_type, last.actor) == ("intent.waiting", "anna")
        assert last.details == {"task": 1, "waiting_reason": "WAITING_FOR_HUMAN"}

    async def test_an_intent_goes_on_with_a_worker_or_without(self, driver: Driver) -> None:
        intent = await create(driver)
        await driver.do(waiting(intent.intent_id))
        alone = await driver.do(MoveIntent(intent_id=intent.intent_id, status=Status.IN_PROGRESS, note_id="a"))
        assert (alone.status, alone.waiting_reason, alone.claimable_at) == (Status.IN_PROGRESS, None, None)
        assert await claim(driver) == []
        await driver.do(MoveIntent(intent_id=intent.intent_id, status=Status.IN_PROGRESS, note_id="b", claimable=True))
        assert len(await claim(driver)) == 1

    async def test_what_an_attempt_holds_only_its_worker_moves(self, driver: Driver) -> None:
        lease = await open_new(driver)
        await expect(Conflict, driver.do(waiting(lease.intent_id)))
        assert (await get(driver, lease.intent_id)).leased

    async def test_what_has_ended_is_not_moved(self, driver: Driver) -> None:
        intent = await create(driver)
        await driver.do(FinishIntent(intent_id=intent.intent_id, status=Status.CANCELED))
        await expect(AlreadyFinished, driver.do(waiting(intent.intent_id)))

    async def test_a_move_after_the_deadline_times_out(self, driver: Driver) -> None:
        intent = await create(driver, ttl_seconds=60)
        driver.advance(61)
        assert (await driver.do(waiting(intent.intent_id))).status is Status.TIMED_OUT

    async def test_a_move_goes_to_waiting_or_in_progress_only(self, driver: Driver) -> None:
        intent = await create(driver)
        for status in (Status.COMPLETED, Status.DELIVERED):
            await expect(InvalidInput, driver.do(waiting(intent.intent_id, status=status)))
        await expect(InvalidInput, driver.do(waiting(intent.intent_id, waiting_reason=None)))


class OwnerRules:
    async def test_all_that_a_dead_owner_held_is_handed_on_at_once(self, driver: Driver) -> None:
        leases = [await open_new(driver) for _ in range(3)]
        await create(driver)
        [other] = await claim(driver)
        assert await driver.do(ReleaseOwner(owner="worker-1", reason="it is dead")) == 3
        for lease in leases:
            intent = await get(driver, lease.intent_id)
            assert (intent.leased, intent.lost) == (False, 1)
        assert (await get(driver, other.intent_id)).leased, "another owner keeps what it has"
        assert {i.intent_id for i in await claim(driver, limit=10)} == {lease.intent_id for lease in leases}

    async def test_the_last_delivery_that_dies_with_its_owner_ends_the_intent(self, driver: Driver) -> None:
        lease = await open_new(driver, max_delivery_attempts=1)
        await driver.do(ReleaseOwner(owner="worker-1", reason="it is dead"))
        intent = await get(driver, lease.intent_id)
        assert intent.status is Status.FAILED
        assert "it is dead" in (intent.reason or "")

    async def test_addresses_are_told_while_they_have_work_to_claim(self, driver: Driver) -> None:
        for address in ("agent://b", "agent://a", "agent://b", "agent://c"):
            await create(driver, to_agent=address)
        await create(driver, to_agent="agent://later", delay_seconds=60)
        assert await driver.do(ListAddresses()) == ["agent://a", "agent://b", "agent://c"]
        assert await driver.do(ListAddresses(after="agent://a", limit=1)) == ["agent://b"]
        [lease] = await claim(driver, to_agent="agent://a")
        assert await driver.do(ListAddresses()) == ["agent://b", "agent://c"]
        await driver.do(ReleaseIntent(lease=lease, reason="tired"))
        assert "agent://a" in await driver.do(ListAddresses())
        driver.advance(61)
        assert "agent://later" in await driver.do(ListAddresses())

    async def test_a_store_can_be_measured(self, driver: Driver) -> None:
        await create(driver)
        await open_new(driver)
        await driver.do(finish(await open_new(driver)))
        found = await driver.do(Measure())
        assert found.open_by_status == {"DELIVERED": 1, "IN_PROGRESS": 1}
        assert found.claimable == 1
        assert found.size_bytes > 0
        assert [i.to_agent for i in [await get(driver, (await claim(driver))[0].intent_id)]] == [AGENT]

"""Opening, closing, losing and sharing a store."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from stepfast.clock import new_id
from stepfast.errors import OutcomeUnknown, StoreUnavailable
from stepfast.ops import AnswerDecision, Claim, CreateIntent, GetIntent, ListIntents, Op, RecordStep
from stepfast.stores.base import AsyncStore, Store
from stepfast.testing.contract import AsyncDriver, BlockingDriver, Driver
from stepfast.testing.contract_kit import AGENT, dump, make_world, new_intent, open_new, step
from tests.contract.http_places import Http
from tests.contract.places import KINDS, File, Place, Postgres

LASTING = pytest.mark.parametrize("place", [kind for kind in KINDS if kind != "sqlite-memory"], indirect=True)


async def use(driver: Driver) -> None:
    """Everything that may start a thread or open a connection."""
    world = await make_world(driver)
    with driver.watch(f"intent:{world.intent_id}") as watch:
        await driver.do(AnswerDecision(journal_id=world.journal_id, key="approve", outcome="yes"))
        assert await driver.woken(watch)
    await driver.together([CreateIntent(new=new_intent())] for _ in range(8))
    await driver.together([ListIntents()] for _ in range(8))
    await dump(driver)


@pytest.mark.parametrize("mode", [BlockingDriver, AsyncDriver])
async def test_a_closed_store_leaves_no_thread_no_file_and_no_connection(place: Place, mode: type[Driver]) -> None:
    for _ in range(3):
        with place.open() as store:
            await use(mode(store))
        place.check_nothing_is_left()


async def test_a_closed_store_refuses_and_may_be_closed_again(place: Place) -> None:
    store = place.open()
    await use(BlockingDriver(store))
    store.close()
    store.close()
    for batch in ([CreateIntent(new=new_intent())], [ListIntents()]):
        with pytest.raises(StoreUnavailable, match="closed"):
            store.execute(batch)
        with pytest.raises(StoreUnavailable, match="closed"):
            await AsyncStore(store).execute(batch)


def test_closing_from_two_threads_is_safe(place: Place) -> None:
    store = place.open()
    threads = [threading.Thread(target=store.close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@LASTING
async def test_what_was_acknowledged_is_there_after_reopening(place: Place) -> None:
    with place.open() as store:
        driver = BlockingDriver(store)
        await make_world(driver)
        held = await dump(driver)
    with place.open() as store:
        driver.store = store
        assert await dump(driver) == held
        await driver.check_histories()


@LASTING
async def test_what_was_acknowledged_is_there_after_a_crash(place: Place) -> None:
    store = place.open()
    driver = BlockingDriver(store)
    for _ in range(5):
        await make_world(driver)
        held = await dump(driver)
        driver.store = store = place.crash(store)
        assert await patiently(driver) == held
    store.close()


async def patiently(driver: Driver) -> dict[str, Any]:
    """Reads may meet the end of their connection, and are then asked again."""
    for _ in range(20):
        try:
            return await dump(driver)
        except (StoreUnavailable, OutcomeUnknown):
            await asyncio.sleep(0.01)
    raise AssertionError("the store did not come back")


@LASTING
async def test_two_stores_on_the_same_data_are_one(place: Place) -> None:
    with place.open() as first, place.open() as second:
        one, two = BlockingDriver(first), BlockingDriver(second)
        two.tenant = one.tenant
        lease = await open_new(one)
        assert (await two.do(GetIntent(intent_id=lease.intent_id))).attempt == 1
        row = step("a", lease)
        await two.do(RecordStep(lease=lease, journal_id=lease.intent_id, step=row))
        two.pieces = one.pieces
        assert await dump(one) == await dump(two)


@LASTING
async def test_workers_on_two_stores_get_each_intent_once(place: Place) -> None:
    with place.open() as first, place.open() as second:
        tenant = new_id()
        made = {new.intent_id: new for new in (new_intent() for _ in range(30))}
        first.execute([CreateIntent(new=new) for new in made.values()], tenant=tenant)
        taken: list[str] = []

        def work(store: Store) -> None:
            while True:
                op = Claim(to_agent=AGENT, token=new_id(), owner="w", lease_seconds=60, limit=2)
                [got] = store.execute([op], tenant=tenant)
                if not got:
                    return
                taken.extend(intent.intent_id for intent in got)

        threads = [threading.Thread(target=work, args=(store,)) for store in (first, second) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(taken) == sorted(made)


@LASTING
@pytest.mark.parametrize("mode", [BlockingDriver, AsyncDriver])
async def test_a_watch_wakes_on_what_another_store_does(place: Place, mode: type[Driver]) -> None:
    with place.open() as here, place.open() as there:
        driver = mode(here)
        with driver.watch("agent:demo") as watch:
            # A wake-up may be spurious: look again after each, as a waiting worker does.
            there.execute([CreateIntent(new=new_intent())], tenant=driver.tenant)
            while not await driver.do(ListIntents()):
                assert await driver.woken(watch)


@contextmanager
def a_busy_writer(place: Place) -> Iterator[None]:
    """Somebody else in the middle of a long write."""
    if isinstance(place, Http):
        place = place.bottom
    if isinstance(place, File):
        with closing(sqlite3.connect(place.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("UPDATE intents SET owner = 'busy'")
            yield
            other.execute("ROLLBACK")
        return
    assert isinstance(place, Postgres)
    with psycopg.connect(place.url) as link:
        link.execute("SELECT 1 FROM contract.intents FOR UPDATE")
        link.execute("UPDATE contract.intents SET owner = 'busy'")
        yield
        link.rollback()


@LASTING
@pytest.mark.parametrize("mode", [BlockingDriver, AsyncDriver])
async def test_reads_do_not_wait_for_a_writer(place: Place, mode: type[Driver]) -> None:
    with place.open() as store:
        driver = mode(store)
        await make_world(driver)
        held = await dump(driver)
        with a_busy_writer(place):
            assert await asyncio.wait_for(dump(driver), 10) == held


@LASTING
async def test_a_cancelled_caller_does_not_stop_the_batch_or_the_store(place: Place) -> None:
    with place.open() as store:
        driver = AsyncDriver(store)
        new = new_intent()
        batch: list[Op[Any]] = [CreateIntent(new=new)]
        task = asyncio.create_task(driver.execute(*batch))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await driver.do(CreateIntent(new=new))).existed
        await use(driver)

"""What the database itself refuses, whoever asks: the history is append-only and has one ending."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from stepfast.intents import Status
from stepfast.ops import FinishIntent, GetIntent, Prune, ReadEvents
from stepfast.stores.base import Store
from stepfast.stores.sqlite import SqliteStore
from stepfast.testing.contract import BlockingDriver
from stepfast.testing.contract_kit import check_history, create

Run = Callable[[str], int]
REFUSED = (sqlite3.Error, psycopg.Error)


class Base:
    """A store, and SQL straight into its tables past everything it does."""

    def __init__(self, store: Store, run: Run) -> None:
        self.store = store
        self.run = run
        self.driver = BlockingDriver(store)

    async def finished(self) -> str:
        """The id of an intent with a whole life."""
        intent = await create(self.driver)
        await self.driver.do(FinishIntent(intent_id=intent.intent_id, status=Status.COMPLETED, result=b"42"))
        return intent.intent_id

    async def check(self, intent_id: str) -> None:
        intent, events = await self.driver.execute(GetIntent(intent_id=intent_id), ReadEvents(intent_id=intent_id))
        check_history(intent, events)


@pytest.fixture(params=["sqlite", "postgres"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Base]:
    if request.param == "sqlite":
        path = tmp_path / "store.db"
        with SqliteStore(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as raw:
            yield Base(store, lambda text: raw.execute(text).rowcount)
        return
    store = request.getfixturevalue("shared_postgres")
    store.clock.offset_us = 0
    with psycopg.connect(request.getfixturevalue("shared_postgres_url"), autocommit=True) as link:
        link.execute("SET search_path TO contract")
        yield Base(store, lambda text: link.execute(text.encode()).rowcount)


@pytest.mark.parametrize(
    "change",
    [
        "seq = seq + 100",
        "event_type = 'intent.forged'",
        "status = 'FAILED'",
        "at = at + 1",
        "attempt = 9",
        "actor = 'mallory'",
        "details = '{}'",
        "digest = digest",
        "tenant = 'other'",
        "note_id = 'x'",
    ],
)
async def test_an_event_cannot_be_changed(base: Base, change: str) -> None:
    intent_id = await base.finished()
    with pytest.raises(REFUSED, match="append-only"):
        base.run(f"UPDATE events SET {change} WHERE intent_id = '{intent_id}' AND seq = 2")
    await base.check(intent_id)


@pytest.mark.parametrize("which", ["seq = 1", "seq = 4", "seq > 0"])
async def test_an_event_cannot_be_deleted(base: Base, which: str) -> None:
    intent_id = await base.finished()
    with pytest.raises(REFUSED, match="append-only"):
        base.run(f"DELETE FROM events WHERE intent_id = '{intent_id}' AND {which}")
    await base.check(intent_id)


async def test_history_is_deleted_only_with_its_intent(base: Base) -> None:
    intent_id = await base.finished()
    assert await base.driver.do(Prune(keep_latest=0)) == 1
    assert base.run(f"DELETE FROM events WHERE intent_id = '{intent_id}'") == 0, "prune had taken them all"


@pytest.mark.parametrize("second", ["completed", "failed", "canceled", "timed_out"])
async def test_a_second_ending_cannot_be_written(base: Base, second: str) -> None:
    intent_id = await base.finished()
    columns = "tenant, intent_id, seq, event_type, status, at, attempt, actor, details, data, digest, note_id"
    with pytest.raises(REFUSED, match=r"(?i)unique"):
        base.run(
            f"INSERT INTO events ({columns}) SELECT tenant, intent_id, 5, 'intent.{second}', '{second.upper()}', at, "
            f"attempt, actor, details, data, digest, NULL FROM events WHERE intent_id = '{intent_id}' AND seq = 4"
        )
    await base.check(intent_id)


async def test_two_events_cannot_have_one_number(base: Base) -> None:
    intent_id = await base.finished()
    columns = "tenant, intent_id, seq, event_type, status, at, attempt, actor, details, data, digest, note_id"
    with pytest.raises(REFUSED, match=r"(?i)unique"):
        base.run(
            f"INSERT INTO events ({columns}) SELECT tenant, intent_id, seq, 'intent.forged', status, at, attempt, "
            f"actor, details, data, digest, NULL FROM events WHERE intent_id = '{intent_id}' AND seq = 2"
        )
    await base.check(intent_id)

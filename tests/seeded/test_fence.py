"""Two who write at once: what is looked at and what is written must be one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from stepfast.clock import new_id
from stepfast.errors import Fenced
from stepfast.intents import fold
from stepfast.journal import Step, StepStatus
from stepfast.ops import AppendEvent, CreateIntent, NewIntent, OpenIntent, ReadEvents, ReadJournal, RecordStep
from stepfast.stores.postgres import PostgresStore
from stepfast.stores.sqlite import SqliteStore
from stepfast.testing import on_failpoint


def test_a_lease_lost_on_the_way_is_still_refused(tmp_path: Path) -> None:
    """Another process takes the run over after the call was made and before it reaches the file."""
    path = tmp_path / "store.db"
    new = NewIntent(intent_id=new_id(), intent_type="run", to_agent="agent://a", run_id="r")
    with SqliteStore(path) as store, SqliteStore(path) as other:
        opened = store.one(OpenIntent(token="one", owner="first", lease_seconds=30, new=new))
        lease = opened.lease
        assert lease is not None
        step = Step("f#1", 0, 1, "step", "f", "", StepStatus.FINISHED, b"", b"", b"r", None, None, 1, 1, 2, b"s")

        def take_over() -> None:
            other.one(
                OpenIntent(
                    token="two", owner="second", lease_seconds=30, intent_id=new.intent_id, dead_attempt=lease.attempt
                )
            )

        with on_failpoint("sqlite.before_begin", take_over), pytest.raises(Fenced):
            store.one(RecordStep(lease=lease, journal_id=opened.intent.journal_id, step=step))
        assert other.one(ReadJournal(journal_id=opened.intent.journal_id)) == []


def test_two_stores_that_write_one_history_leave_no_gap(postgres_url: str) -> None:
    """Each of them counts on from the number it has seen, so it must hold the row from then on."""
    schema = f"t_{uuid4().hex[:12]}"
    new = NewIntent(intent_id=new_id(), intent_type="run", to_agent="agent://a")

    def write(store: PostgresStore) -> None:
        for _ in range(60):
            store.one(AppendEvent(intent_id=new.intent_id, lease=None, note_id=new_id(), event_type="intent.note"))

    with PostgresStore(postgres_url, schema=schema) as one, PostgresStore(postgres_url, schema=schema) as two:
        one.one(CreateIntent(new=new))
        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(write, store) for store in (one, two)]:
                done.result()
        events = one.one(ReadEvents(intent_id=new.intent_id))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
    assert fold(events)[1] == len(events) == 3 + 120

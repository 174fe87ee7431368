"""Behind a pooler in transaction mode, where every transaction may meet another connection."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from stepfast.ops import CheckWritable, GetIntent, ReadJournal
from tests.stores.conftest import Opener
from tests.stores.faults import over, socket_of
from tests.stores.kit import create, finish, open_run, record, step
from tests.stores.pooler import Pooler


@pytest.fixture
def pooler(pg_url: str) -> Iterator[Pooler]:
    made = Pooler(socket_of(pg_url), str(conninfo_to_dict(pg_url)["dbname"]))
    yield made
    made.close()


@pytest.fixture
def pooled_url(pg_url: str, pooler: Pooler) -> str:
    return over(pg_url, pooler.port)


def test_this_pooler_loses_session_state(pooled_url: str) -> None:
    with psycopg.connect(pooled_url, autocommit=True, prepare_threshold=None) as connection:
        connection.execute("SET work_mem = '12345kB'")
        seen = {connection.execute("SHOW work_mem").fetchone() for _ in range(6)}
    assert len(seen) == 2


def test_a_store_works_behind_a_pooler_and_gives_up_prepared_statements(
    open_store: Opener, pooled_url: str, pooler: Pooler
) -> None:
    store = open_store(pooled_url)

    opened = open_run(store)
    for number in range(20):
        record(store, opened, step(number))
    finish(store, opened)

    assert len(store.one(ReadJournal(journal_id=opened.intent.journal_id))) == 20
    assert store.one(GetIntent(intent_id=opened.intent.intent_id)).finished
    assert not store._dialer.prepare
    assert pooler.transactions > 20


def test_prepared_statements_can_be_switched_off_by_the_url(open_store: Opener, pooled_url: str) -> None:
    store = open_store(pooled_url + "?prepare=off")

    store.one(CheckWritable())

    assert not store._dialer.prepare


def test_many_callers_share_the_pooler_and_every_step_is_there_once(open_store: Opener, pooled_url: str) -> None:
    stores = [open_store(pooled_url) for _ in range(2)]
    runs = [(store, open_run(store)) for store in stores for _ in range(4)]

    def work(number: int) -> None:
        store, opened = runs[number]
        for count in range(25):
            record(store, opened, step(count))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for store, opened in runs:
        assert len(store.one(ReadJournal(journal_id=opened.intent.journal_id))) == 25


def test_whoever_watches_is_woken_though_no_notification_comes_through(
    open_store: Opener, pooled_url: str, pg_url: str
) -> None:
    watching = open_store(pooled_url)
    other = open_store(pg_url)

    with watching.watch("agent:mailer") as watch:
        assert watch.wait(10)  # the listener has come up
        create(other, to_agent="mailer")
        assert watch.wait(10)


def test_a_listen_url_leads_past_the_pooler(open_store: Opener, pooled_url: str, pg_url: str) -> None:
    watching = open_store(pooled_url, listen_url=pg_url)
    other = open_store(pg_url)

    with watching.watch("agent:mailer") as watch:
        assert watch.wait(10)
        create(other, to_agent="mailer")
        assert watch.wait(10)

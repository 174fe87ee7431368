"""Opening, sharing and leaving a PostgreSQL store."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from stepfast.errors import Fenced, InvalidInput, SchemaTooNew, StoreUnavailable
from stepfast.intents import Status
from stepfast.ops import (
    AppendEvent,
    CheckWritable,
    CreateIntent,
    FinishIntent,
    GetIntent,
    Lease,
    Op,
    ReadJournal,
    RecordStep,
    SetTypePolicy,
)
from stepfast.stores.base import AsyncStore, Store
from stepfast.stores.postgres import PostgresStore
from stepfast.stores.sql import load_migrations
from stepfast.stores.sqlite import SqliteStore
from tests.stores.conftest import Opener, connections, our_threads, wait_until
from tests.stores.kit import claim, create, finish, history, keys, new_intent, open_run, record, record_op, step


def run_sql(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


# --- opening -----------------------------------------------------------------------------------------


def _open_and_check(url: str, schema: str, barrier: Any) -> None:
    barrier.wait(30)
    with PostgresStore(url, schema=schema) as store:
        store.check()


def test_many_processes_may_open_a_new_store_at_once(pg_url: str, schema: str) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(4)
    processes = [context.Process(target=_open_and_check, args=(pg_url, schema, barrier)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)

    assert [process.exitcode for process in processes] == [0] * 4
    assert run_sql(pg_url, f"SELECT number FROM {schema}.migrations ORDER BY number") == [
        (migration.number,) for migration in load_migrations("postgres")
    ]


def test_a_schema_from_a_newer_version_is_left_alone(store: PostgresStore, open_store: Opener, pg_url: str) -> None:
    run_sql(pg_url, f"INSERT INTO {store.schema}.migrations (number, name) VALUES (99, 'future')")

    with pytest.raises(SchemaTooNew, match=r"version 99.*upgrade stepfast"):
        open_store()


def test_a_user_without_rights_on_the_schema_can_use_a_store_that_is_up_to_date(
    store: PostgresStore, pg_url: str
) -> None:
    schema, user = store.schema, f"u_{store.schema}"
    run_sql(pg_url, f"CREATE ROLE {user} LOGIN")
    run_sql(pg_url, f"GRANT USAGE ON SCHEMA {schema} TO {user}")
    run_sql(pg_url, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}")
    try:
        with PostgresStore(pg_url.replace("postgres:@", f"{user}@"), schema=schema) as other:
            finish(other, open_run(other))
            other.check()
        with pytest.raises(StoreUnavailable, match="may not do that"):
            PostgresStore(pg_url.replace("postgres:@", f"{user}@"), schema=f"{schema}_2")
    finally:
        run_sql(pg_url, f"DROP OWNED BY {user}")
        run_sql(pg_url, f"DROP ROLE {user}")


def test_two_schemas_of_a_database_know_nothing_of_each_other(open_store: Opener, pg_url: str, schema: str) -> None:
    one, two = open_store(), open_store(schema=f"{schema}_two")
    try:
        opened = open_run(one, run_id="same")
        assert not open_run(two, run_id="same").existed
        assert one.one(GetIntent(run_id="same")).intent_id == opened.intent.intent_id
    finally:
        two.close()
        run_sql(pg_url, f"DROP SCHEMA {schema}_two CASCADE")


@pytest.mark.parametrize("name", ["Stepfast", "a-b", 'x"; DROP SCHEMA public; --', "1st", "a" * 49])
def test_a_schema_is_a_plain_name(name: str, pg_url: str) -> None:
    with pytest.raises(InvalidInput, match=r"schema: .* is no plain name"):
        PostgresStore(pg_url, schema=name)


def test_the_url_may_name_the_schema(open_store: Opener, pg_url: str, schema: str) -> None:
    store = open_store(f"{pg_url}&schema={schema}", schema=None)

    assert store.schema == schema
    assert f"schema={schema}" in store.url


def test_of_several_hosts_the_one_that_takes_writes_is_used(pg_url: str) -> None:
    from stepfast.stores.postgres_url import read_url

    several = read_url("postgresql://a:1,b:2/db", schema=None, prepare=None, connect_timeout=3)
    one = read_url(pg_url, schema=None, prepare=None, connect_timeout=3)

    assert "target_session_attrs=read-write" in several.conninfo
    assert "target_session_attrs" not in one.conninfo


def test_the_password_is_never_shown(pg_url: str, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown = []
    for url in (
        "postgresql://ann:geheim@127.0.0.1:1/db",
        "postgresql://ann:geheim@127.0.0.1:geheim/db",
        "postgresql://ann:gehe%zzim@127.0.0.1:1/db",
        "postgresql://ann:1/geheim@127.0.0.1:1/db",
        "postgresql://ann:x?geheim@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?password=geheim&nonsense=1",
    ):
        with pytest.raises((StoreUnavailable, InvalidInput)) as caught:
            PostgresStore(url, schema=schema, connect_timeout=0.2)
        shown.append("".join(traceback.format_exception(caught.value)).replace(url, ""))
    with PostgresStore(pg_url.replace("postgres:@", "postgres:geheim@"), schema=schema) as store:
        shown += [store.url, repr(store)]

    for text in (*shown, caplog.text):
        assert "geheim" not in text
        assert "zzim" not in text


def test_without_psycopg_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['psycopg'] = None\nimport stepfast.stores.postgres"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)

    assert "StoreUnavailable" in answer.stderr
    assert 'pip install "stepfast[postgres]"' in answer.stderr


# --- sharing -----------------------------------------------------------------------------------------


def test_many_threads_of_two_stores_claim_each_intent_exactly_once(open_store: Opener) -> None:
    stores = [open_store(), open_store()]
    todo = [CreateIntent(new=new_intent(to_agent="mill")) for _ in range(500)]
    stores[0].execute(todo)
    got: list[str] = []

    def work(number: int) -> None:
        for count in range(1000):
            mine = claim(stores[number % 2], f"{number}-{count}", limit=3, to_agent="mill")
            if not mine:
                return
            got.extend(intent.intent_id for intent in mine)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert Counter(got) == Counter(op.new.intent_id for op in todo)


def test_a_mixed_group_keeps_every_callers_order(store: PostgresStore) -> None:
    """Runs of many threads share transactions; each sees its own operations in order and nobody else's."""
    errors: list[BaseException] = []
    done = []

    def work() -> None:
        try:
            for _ in range(10):
                opened = open_run(store)
                for number in range(5):
                    record(store, opened, step(number))
                finish(store, opened)
                with pytest.raises(Exception, match="COMPLETED"):
                    record(store, opened, step(9))
                done.append(opened)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert len(done) == 120
    for opened in done:
        assert keys(store, opened) == [f"f#{n}" for n in range(5)]
        assert history(store, opened.intent.intent_id)[-2:] == ["intent.in_progress", "intent.completed"]


def test_what_one_caller_finishes_another_of_its_group_cannot_write_to(store: PostgresStore) -> None:
    for _ in range(20):
        opened = open_run(store)
        barrier = threading.Barrier(2)
        outcomes: dict[str, Any] = {}

        def attempt(name: str, op: Op[Any]) -> None:
            barrier.wait(10)  # noqa: B023
            try:
                store.one(op)
                outcomes[name] = "done"  # noqa: B023
            except Exception as error:
                outcomes[name] = type(error).__name__  # noqa: B023

        ending = FinishIntent(intent_id=opened.intent.intent_id, status=Status.COMPLETED, lease=opened.lease)
        threads = [
            threading.Thread(target=attempt, args=("finish", ending)),
            threading.Thread(target=attempt, args=("step", record_op(opened, step(1)))),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert outcomes["finish"] == "done"
        assert (outcomes["step"] == "done") == (keys(store, opened) == ["f#1"])


async def test_an_event_loop_reads_while_another_caller_writes(store: PostgresStore, pg_url: str) -> None:
    opened = open_run(store)
    with psycopg.connect(pg_url) as blocking:
        blocking.execute(f"SELECT 1 FROM {store.schema}.intents FOR UPDATE")
        there = AsyncStore(store)
        writing = asyncio.ensure_future(there.one(record_op(opened, step(1))))
        await asyncio.sleep(0.05)

        assert await there.one(ReadJournal(journal_id=opened.intent.journal_id)) == []
        assert not writing.done()
        blocking.rollback()
        await writing
    assert keys(store, opened) == ["f#1"]


def test_a_batch_of_reads_sees_one_moment(store: PostgresStore) -> None:
    opened = open_run(store)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            record(store, opened, step(number))
            number += 1

    writing = threading.Thread(target=write)
    writing.start()
    try:
        reading = ReadJournal(journal_id=opened.intent.journal_id)
        for _ in range(50):
            first, second = store.execute([reading, reading])
            assert first == second
    finally:
        stop.set()
        writing.join()


def test_a_watch_is_woken_by_another_store_without_polling(open_store: Opener) -> None:
    watching, other = open_store(), open_store()
    with watching.watch("agent:mailer") as watch:
        # The listener is up and has heard its own probe: from now on it wakes only for a reason.
        wait_until(lambda: bool(watching._listener.proven), "no probe came back")
        while watch.wait(0.2):
            pass
        assert not watch.wait(1.3)
        create(other, to_agent="mailer")
        assert watch.wait(10)


def test_a_listener_comes_back_after_its_connection_was_lost(open_store: Opener, pg_url: str, schema: str) -> None:
    watching, other = open_store(), open_store()
    with watching.watch("agent:mailer") as watch:
        wait_until(lambda: bool(watching._listener.proven), "no probe came back")
        run_sql(
            pg_url,
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE application_name = '{schema}' AND query LIKE 'LISTEN%'",
        )
        wait_until(lambda: not watching._listener.proven, "it did not notice")
        wait_until(lambda: bool(watching._listener.proven), "it did not come back")
        while watch.wait(0.2):
            pass
        create(other, to_agent="mailer")
        assert watch.wait(10)


def test_a_very_long_address_wakes_everybody(open_store: Opener) -> None:
    watching, other = open_store(), open_store()
    name = "x" * 2500
    with watching.watch(f"agent:{name}") as watch:
        wait_until(lambda: bool(watching._listener.proven), "no probe came back")
        while watch.wait(0.2):
            pass
        create(other, to_agent=name)
        assert watch.wait(10)


# --- leaving -----------------------------------------------------------------------------------------


def test_a_closed_store_leaves_no_thread_and_no_connection(open_store: Opener, schema: str, pg_url: str) -> None:
    before = our_threads()
    store = open_store()
    opened = open_run(store)

    async def use() -> None:
        there = AsyncStore(store)
        await asyncio.gather(*(there.one(record_op(opened, step(n))) for n in range(20)))
        await asyncio.gather(*(there.one(ReadJournal(journal_id=opened.intent.journal_id)) for _ in range(20)))

    with store.watch("intent:x"):
        asyncio.run(use())
        wait_until(lambda: connections(pg_url, schema) >= 3, "reader, writer and listener are connected")
    store.close()
    store.close()

    assert our_threads() - before == set()
    wait_until(lambda: connections(pg_url, schema) == 0, "a connection was left open")
    with pytest.raises(StoreUnavailable, match="is closed"):
        store.check()


def test_a_store_that_nobody_refers_to_gives_its_connections_back(pg_url: str, schema: str) -> None:
    store = PostgresStore(f"{pg_url}&application_name={schema}", schema=schema)
    keys(store, open_run(store))
    assert connections(pg_url, schema) == 2
    del store
    gc.collect()

    wait_until(lambda: connections(pg_url, schema) == 0, "a connection was left open")


def test_a_forked_child_opens_connections_of_its_own(store: PostgresStore) -> None:
    opened = open_run(store)
    record(store, opened, step(0))
    child = os.fork()
    if child == 0:
        try:
            record(store, opened, step(1))
            os._exit(len(keys(store, opened)))
        except BaseException:
            traceback.print_exc()
            os._exit(99)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 2
    record(store, opened, step(2))
    assert keys(store, opened) == ["f#0", "f#1", "f#2"]


# --- what cannot be stored ---------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres"])
def any_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "postgres":
        yield request.getfixturevalue("store")
    else:
        with SqliteStore(":memory:") as memory:
            yield memory


@pytest.mark.parametrize("bad", ["\0", "\ud800"])
@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("new.run_id", lambda bad: CreateIntent(new=new_intent(run_id=f"a{bad}"))),
        ("new.to_agent", lambda bad: CreateIntent(new=new_intent(to_agent=bad))),
        (r"new.labels\['a'\]", lambda bad: CreateIntent(new=new_intent(labels={"a": bad}))),
        ("new.labels", lambda bad: CreateIntent(new=new_intent(labels={bad: "b"}))),
        ("intent_type", lambda bad: SetTypePolicy(intent_type=bad, max_delivery_attempts=1)),
        ("run_id", lambda bad: GetIntent(run_id=bad)),
        (
            "step.key",
            lambda bad: RecordStep(
                lease=Lease("i", 1, "t"), journal_id="i", step=step(1).__class__(f"k{bad}", *_rest(step(1)))
            ),
        ),
        (
            "note_id",
            lambda bad: AppendEvent(intent_id="i", lease=None, note_id=bad, event_type="intent.note"),
        ),
    ],
)
def test_text_that_a_database_cannot_hold_is_refused_by_name(any_store: Store, field: str, make: Any, bad: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^{field}: text with"):
        any_store.one(make(bad))


def _rest(what: Any) -> list[Any]:
    return [getattr(what, name) for name in what.__struct_fields__[1:]]


def test_an_errors_text_never_keeps_a_run_from_ending(any_store: Store) -> None:
    opened = open_run(any_store)
    assert opened.lease is not None
    op = FinishIntent(
        intent_id=opened.intent.intent_id, status=Status.FAILED, lease=opened.lease, reason="bad \0 and \ud800"
    )

    first = any_store.one(op)

    assert first.reason == "bad \ufffd and ?"
    assert any_store.one(op) == first


def test_a_number_or_a_key_too_large_is_the_callers_mistake(store: PostgresStore) -> None:
    opened = open_run(store)

    with pytest.raises(InvalidInput):
        store.one(SetTypePolicy(intent_type="x", max_delivery_attempts=2**70))
    noise = step(1).__class__(os.urandom(8000).hex(), *_rest(step(1)))
    with pytest.raises(InvalidInput):
        record(store, opened, noise)

    record(store, opened, step(1))


def test_a_store_clock_may_be_moved(open_store: Opener) -> None:
    store = open_store()
    opened = open_run(store, lease_seconds=30)
    assert opened.lease is not None
    before = store.one(CheckWritable())
    store.clock.advance(60)

    assert store.one(CheckWritable()) >= before + 60_000_000
    taken = claim(store, "other")
    assert [intent.attempt for intent in taken] == [2]
    with pytest.raises(Fenced):
        record(store, opened, step(1))

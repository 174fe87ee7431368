"""The server drops connections, restarts, waits for a standby that is not there, or cannot write."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from stepfast.errors import OutcomeUnknown, StoreError, StoreFull, StoreUnavailable
from stepfast.intents import Status, fold
from stepfast.ops import CheckWritable, Opened, ReadEvents
from stepfast.stores.postgres import PostgresStore
from tests.stores.conftest import Opener, wait_until
from tests.stores.faults import OwnServer
from tests.stores.kit import finish, keys, open_run, record, step

# One test process has the server to mistreat, instead of each starting one.
pytestmark = pytest.mark.xdist_group("own_server")


class Load:
    """Runs that record steps until told to stop; an error that is allowed to happen makes them try again."""

    def __init__(self, store: PostgresStore, workers: int = 6) -> None:
        self.store = store
        self.enough = threading.Event()
        self.errors: list[BaseException] = []
        self.refused: list[StoreError] = []
        self.done: list[tuple[Opened, int]] = []
        self.steps = 0
        self.threads = [threading.Thread(target=self._work) for _ in range(workers)]
        for thread in self.threads:
            thread.start()

    def _work(self) -> None:
        try:
            while not self.enough.is_set():
                opened = self._insist(lambda: open_run(self.store))
                for number in range(5):
                    self._insist(lambda: record(self.store, opened, step(number)))  # noqa: B023
                    self.steps += 1
                self._insist(lambda: finish(self.store, opened))  # noqa: B023
                self.done.append((opened, 5))
        except BaseException as error:
            self.errors.append(error)

    def _insist(self, call: Any) -> Any:
        """Unlike the store, a worker has time: it asks again until it is told."""
        until = time.monotonic() + 60
        while True:
            try:
                return call()
            except (OutcomeUnknown, StoreUnavailable) as error:
                self.refused.append(error)
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)

    def stop(self) -> None:
        self.enough.set()
        for thread in self.threads:
            thread.join()

    def check(self, store: PostgresStore) -> None:
        assert self.errors == []
        for opened, count in self.done:
            assert keys(store, opened) == [f"f#{n}" for n in range(count)]
            events = store.one(ReadEvents(intent_id=opened.intent.intent_id))
            assert fold(events)[0] is Status.COMPLETED
            assert [e.event_type for e in events].count("intent.in_progress") == 1


def test_connections_terminated_under_load_lose_nothing_and_double_nothing(
    open_store: Opener, schema: str, pg_url: str
) -> None:
    store = open_store()
    load = Load(store)
    killed = 0
    with psycopg.connect(pg_url, autocommit=True) as admin:
        for _ in range(15):
            before = load.steps
            wait_until(lambda: bool(load.errors) or load.steps > before + 10, "no progress")  # noqa: B023
            killed += admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", [schema]
            ).rowcount
    load.stop()

    assert killed >= 15
    load.check(store)


@pytest.fixture
def own_store(own_server: OwnServer) -> Iterator[PostgresStore]:
    own_server.admin("DROP SCHEMA IF EXISTS own CASCADE")
    with PostgresStore(own_server.url, schema="own", commit_timeout=20.0, connect_timeout=20.0) as store:
        yield store


def test_a_server_that_crashes_and_comes_back_is_a_pause(own_server: OwnServer, own_store: PostgresStore) -> None:
    load = Load(own_store)
    for _ in range(2):
        before = load.steps
        wait_until(lambda: bool(load.errors) or load.steps > before + 20, "no progress")  # noqa: B023
        own_server.crash()
        own_server.restart()
    before = load.steps
    wait_until(lambda: bool(load.errors) or load.steps > before + 20, "no progress after the restart")
    load.stop()

    load.check(own_store)


def test_while_the_server_is_away_callers_are_told_and_afterwards_the_same_store_works(
    own_server: OwnServer,
) -> None:
    own_server.admin("DROP SCHEMA IF EXISTS own CASCADE")
    with PostgresStore(own_server.url, schema="own", connect_timeout=0.2) as store:
        opened = open_run(store)
        own_server.crash()
        try:
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="cannot be reached"):
                    record(store, opened, step(1))
                with pytest.raises(StoreUnavailable, match="cannot be reached"):
                    keys(store, opened)
        finally:
            own_server.restart()

        record(store, opened, step(1))
        assert keys(store, opened) == ["f#1"]


class TestASynchronousStandbyThatIsNotThere:
    """A commit waits for it without end; whoever cancels the wait gets success with a WARNING."""

    @pytest.fixture(autouse=True)
    def standby(self, own_server: OwnServer, own_store: PostgresStore) -> Iterator[None]:
        self.opened = open_run(own_store)
        record(own_store, self.opened, step(0))
        own_server.configure(synchronous_standby_names="nobody")
        wait_until(lambda: own_server.admin("SHOW synchronous_standby_names") == [("nobody",)], "not configured")
        yield
        own_server.configure(synchronous_standby_names="")

    def waiting(self, own_server: OwnServer) -> list[int]:
        rows = own_server.admin("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        return [row[0] for row in rows]

    def test_a_commit_confirmed_with_a_warning_is_not_taken_for_durable(
        self, own_server: OwnServer, own_store: PostgresStore
    ) -> None:
        errors: list[BaseException] = []

        def work() -> None:
            try:
                record(own_store, self.opened, step(1))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(3):
            wait_until(lambda: bool(self.waiting(own_server)), "nothing waits for the standby")
            for pid in self.waiting(own_server):
                own_server.admin(f"SELECT pg_cancel_backend({pid})")
        assert thread.is_alive(), "a write that no standby has was acknowledged"
        own_server.configure(synchronous_standby_names="")
        thread.join(20)

        assert not thread.is_alive()
        assert errors == []
        assert keys(own_store, self.opened) == ["f#0", "f#1"]

    def test_without_a_standby_the_outcome_is_unknown_and_later_the_same_call_settles_it(
        self, own_server: OwnServer
    ) -> None:
        with PostgresStore(own_server.url, schema="own", commit_timeout=0.4) as store:
            started = time.monotonic()
            with pytest.raises(OutcomeUnknown):
                record(store, self.opened, step(1))
            assert time.monotonic() - started < 10

            own_server.configure(synchronous_standby_names="")
            wait_until(lambda: not self.waiting(own_server), "still waiting")
            record(store, self.opened, step(1))
            assert keys(store, self.opened) == ["f#0", "f#1"]


def trigger(pg_url: str, schema: str, action: str, *, times: int, deferred: bool = False) -> None:
    """Have the server do something at the next writes of a step, so many times."""
    when = "CONSTRAINT TRIGGER misbehave AFTER INSERT" if deferred else "TRIGGER misbehave BEFORE INSERT"
    how = "DEFERRABLE INITIALLY DEFERRED" if deferred else ""
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema}")
        connection.execute("CREATE SEQUENCE misbehaved")
        connection.execute(
            f"CREATE FUNCTION misbehave() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF nextval('{schema}.misbehaved') <= {times} THEN {action}; END IF; RETURN NEW; END $$"
        )
        connection.execute(f"CREATE {when} ON steps {how} FOR EACH ROW EXECUTE FUNCTION misbehave()")


def test_a_warning_at_the_commit_is_looked_up(
    store: PostgresStore, schema: str, pg_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    opened = open_run(store)
    trigger(pg_url, schema, "RAISE WARNING 'the standby did not answer'", times=1, deferred=True)

    record(store, opened, step(1))

    assert keys(store, opened) == ["f#1"]
    assert "not confirmed (the server warned: the standby did not answer)" in caplog.text


def test_an_error_at_the_commit_is_a_refusal_though_the_row_was_counted(
    store: PostgresStore, schema: str, pg_url: str
) -> None:
    opened = open_run(store)
    trigger(pg_url, schema, "RAISE EXCEPTION 'no'", times=2, deferred=True)

    with pytest.raises(StoreUnavailable, match="nothing was written"):
        record(store, opened, step(1))

    assert keys(store, opened) == []


@pytest.mark.parametrize("state", ["40001", "40P01", "55P03"])
def test_a_passing_refusal_is_tried_again(store: PostgresStore, schema: str, pg_url: str, state: str) -> None:
    opened = open_run(store)
    trigger(pg_url, schema, f"RAISE EXCEPTION 'busy' USING ERRCODE = '{state}'", times=3)

    record(store, opened, step(1))

    assert keys(store, opened) == ["f#1"]


def test_a_full_disk_says_so_and_nothing_is_written(store: PostgresStore, schema: str, pg_url: str) -> None:
    opened = open_run(store)
    trigger(pg_url, schema, "RAISE EXCEPTION 'no space' USING ERRCODE = '53100'", times=2)

    with pytest.raises(StoreFull):
        record(store, opened, step(1))

    assert keys(store, opened) == []
    record(store, opened, step(1))


def test_a_server_that_only_reads_is_readable_and_refuses_writes(open_store: Opener, pg_url: str) -> None:
    opened = open_run(open_store())
    reading = open_store(pg_url + "&options=-c%20default_transaction_read_only%3Don")

    assert keys(reading, opened) == []
    with pytest.raises(StoreUnavailable, match="read-only"):
        reading.one(CheckWritable())

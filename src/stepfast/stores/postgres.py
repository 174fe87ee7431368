"""The PostgreSQL store: one schema in any database, many threads, processes and machines.

One connection writes, led by whoever has something to commit (group.py); a few read; one listens,
once somebody watches. No session state is used, so a pooler in transaction mode may stand between.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from stepfast import inputs as check
from stepfast.clock import Clock
from stepfast.errors import StepfastError, StoreUnavailable
from stepfast.ops import Op
from stepfast.stores.base import LOCAL_TENANT, Store, Watch, only_reads
from stepfast.stores.group import Done, GroupCommitter, Request
from stepfast.stores.plans.checks import check_text
from stepfast.stores.postgres_courses import Course, transact
from stepfast.stores.postgres_errors import PASSING, STALE, explain
from stepfast.stores.postgres_link import BEGIN_READING, Link, Lost, Refused, Statement
from stepfast.stores.postgres_listener import Listener
from stepfast.stores.postgres_pool import Dialer, Pool
from stepfast.stores.postgres_schema import prepare_schema
from stepfast.stores.postgres_url import read_url
from stepfast.stores.postgres_writer import Writer, blame, notify_params
from stepfast.stores.sql import Query, load_queries

_TRIES = 3


class PostgresStore(Store):
    """``url`` is a libpq URL; ``?schema=`` and ``?prepare=off`` in it are ours.

    ``commit_timeout`` bounds the wait for a commit, and again the time to find out what became of one that
    was not confirmed. ``connect_timeout`` bounds the wait for a server that is away. ``prepare`` None means
    prepared statements until a pooler proves not to keep them. ``listen_url`` leads past such a pooler.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str | None = None,
        pool_size: int = 8,
        clock: Clock | None = None,
        commit_timeout: float = 30.0,
        connect_timeout: float = 10.0,
        listen_url: str | None = None,
        prepare: bool | None = None,
    ) -> None:
        check.whole("pool_size", pool_size, least=1)
        check.seconds("commit_timeout", commit_timeout, positive=True, optional=False)
        check.seconds("connect_timeout", connect_timeout, positive=True, optional=False)
        check.text("schema", schema, empty=False)
        check.text("listen_url", listen_url, empty=False)
        if prepare is not None:
            check.flag("prepare", prepare)
        address = read_url(url, schema=schema, prepare=prepare, connect_timeout=connect_timeout)
        listening = read_url(listen_url or url, schema=schema, prepare=prepare, connect_timeout=connect_timeout)
        super().__init__(address.shown, clock)
        self.schema = address.schema
        self._conninfo = address.conninfo
        self._listen_conninfo = listening.conninfo
        self._prepare = address.prepare is not False
        self._pool_size = pool_size
        self._commit_timeout = commit_timeout
        self._connect_timeout = connect_timeout
        self._channel = f"stepfast_{self.schema}"
        self._statements = _statements(self.schema)
        self._open_links()
        try:
            self._writer.link = self._dialer.dial()
            prepare_schema(self._writer.link, self._statements, self.schema, self.url)
        except BaseException:
            self.close()
            raise

    # --- connections -----------------------------------------------------------------------------

    def _open_links(self) -> None:
        """Nothing below refers to the store, so that one nobody refers to any more can give all of it back."""
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._committer = GroupCommitter(self._commit_group)
        self._dialer = Dialer(self._conninfo, shown=self.url, timeout=self._commit_timeout, prepare=self._prepare)
        self._writer = Writer(
            self._dialer,
            self._statements,
            channel=self._channel,
            clock=self.clock,
            connect_timeout=self._connect_timeout,
        )
        self._pool = pool = Pool(self._dialer, self._pool_size)
        notify, channel = self._statements["notify"], self._channel

        def send(payload: str) -> None:
            with pool.link() as link:
                link.one(notify, notify_params(channel, [payload]))

        ears = Dialer(self._listen_conninfo, shown=self.url, timeout=self._commit_timeout, prepare=False)
        self._listener = Listener(ears, Statement(f'LISTEN "{channel}"', kept=False), send, self.signals)
        self._finalizer = weakref.finalize(self, _close_links, self._writer, self._pool, self._listener, self._pid)

    def _reopen_after_fork(self) -> None:
        """A child must not touch its parent's connections: it leaves them alone and opens its own."""
        _LEFT_TO_PARENT.append((self._writer, self._pool, self._listener, self._committer, self._threads))
        self._finalizer.detach()
        self._prepare = self._dialer.prepare
        self._open_links()

    # --- the port --------------------------------------------------------------------------------

    def execute(self, ops: Sequence[Op[Any]], *, tenant: str = LOCAL_TENANT) -> list[Any]:
        self._enter()
        check_text(ops, tenant)
        if only_reads(ops):
            return self._read(ops, tenant)
        return self._committer.execute(ops, tenant)

    def submit(self, ops: Sequence[Op[Any]], done: Done, *, tenant: str = LOCAL_TENANT) -> None:
        try:
            self._enter()
            check_text(ops, tenant)
        except StepfastError as error:
            done(error)
            return
        if only_reads(ops):
            self._reader_threads().submit(self._read_for, ops, tenant, done)
        else:
            self._committer.submit(ops, tenant, done)

    def watch(self, *topics: str, tenant: str = LOCAL_TENANT) -> Watch:
        self._enter()
        watch = super().watch(*topics, tenant=tenant)
        self._listener.start()
        return watch

    def close(self) -> None:
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self._committer.close()
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()
        self._finalizer()

    def _enter(self) -> None:
        if self._pid != os.getpid():
            self._reopen_after_fork()
        if self._closed:
            raise StoreUnavailable(f"{self.url} is closed.")

    # --- writing ---------------------------------------------------------------------------------

    def _commit_group(self, group: list[Request]) -> None:
        for topic in self._writer.commit(group):
            self.signals.wake(topic)

    # --- reading ---------------------------------------------------------------------------------

    def _read(self, ops: Sequence[Op[Any]], tenant: str) -> list[Any]:
        """A read has no effect, so one that was lost or met a passing refusal is simply made again."""
        until = time.monotonic() + self._connect_timeout
        pause, tries = 0.02, 0
        while True:
            try:
                with self._pool.link() as link:
                    return self._read_over(link, ops, tenant)
            except Lost as error:
                why: StepfastError = StoreUnavailable(f"{self.url}: {error}. Try again.")
            except Refused as error:
                if error.state in STALE:
                    self._dialer.prepare = False
                why = explain(error, self.url)
                tries += 1
                if error.state not in PASSING or tries > _TRIES:
                    raise why from error
            except StepfastError as error:
                if not isinstance(error, StoreUnavailable) or self._dialer.down:
                    raise
                why = error
            except (ValueError, OverflowError) as error:
                raise blame(error) from error
            if self._closed or time.monotonic() + pause > until:
                self._dialer.down = True
                raise why
            time.sleep(pause)
            pause = min(1.0, pause * 2)

    def _read_over(self, link: Link, ops: Sequence[Op[Any]], tenant: str) -> list[Any]:
        common = {"tenant": tenant, "clock_offset": self.clock.offset_us}
        statements = self._statements
        courses = [Course([op], common) for op in ops]
        if len(ops) != 1 or ops[0].at_once:
            transact(link, statements, courses, begin=BEGIN_READING)
            return [course.results[0] for course in courses]
        [course] = courses
        while course.queries is not None:
            asked = [query for query in course.queries if isinstance(query, Query)]  # a read inserts no rows
            course.take([link.one(statements[query.name], {**query.params, **common}) for query in asked])
        return course.results

    def _read_for(self, ops: Sequence[Op[Any]], tenant: str, done: Done) -> None:
        try:
            outcome: list[Any] | BaseException = self._read(ops, tenant)
        except BaseException as error:
            outcome = error
        done(outcome)

    def _reader_threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._pool_size, thread_name_prefix="stepfast-reader")
            return self._threads


_LEFT_TO_PARENT: list[Any] = []


def _close_links(writer: Writer, pool: Pool, listener: Listener, pid: int) -> None:
    if pid == os.getpid():
        listener.close()
        pool.close()
        writer.close()


# Filters that may be absent: one plan for all of their forms would be good for none.
_FORMS = frozenset({"list_intents", "list_decisions", "read_checkpoints", "prunable", "newest_to_keep"})


@cache
def _statements(schema: str) -> dict[str, Statement]:
    queries = load_queries("postgres", schema)
    return {name: Statement(text, kept=name not in _FORMS) for name, text in queries.items()}

"""The embedded store: one SQLite file in WAL mode, many threads and processes.

All commits and checkpoints of a file happen under one lock (files.WriterLock), taken by the
connection that writes; readers have their own connections and wait for nobody.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stepfast import inputs as check
from stepfast._failpoints import declare, failpoint
from stepfast.clock import Clock
from stepfast.errors import (
    Damaged,
    InvalidInput,
    OutcomeUnknown,
    SchemaTooNew,
    StepfastError,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from stepfast.ops import Op, RecordStep, SettleStep
from stepfast.stores.base import LOCAL_TENANT, Store, only_reads
from stepfast.stores.files import WriterLock, prepare
from stepfast.stores.group import Done, GroupCommitter, Request
from stepfast.stores.plans import plan_for
from stepfast.stores.plans.checks import check_text
from stepfast.stores.plans.journal import RECORD_ORDER, record_params, record_values
from stepfast.stores.sql import Query, Rows, by_position, drive, load_migrations, load_queries, of_many_rows

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Durability = Literal["power", "process"]

declare("sqlite.before_begin", "sqlite.before_commit", "sqlite.after_commit")

_BUSY_SECONDS = 30.0
_READER_THREADS = 2
_MINIMUM = (3, 35, 0)  # RETURNING


class SqliteStore(Store):
    """``durability="power"`` (the default) flushes every commit to the disk; ``"process"`` survives any
    crash of the process, and may lose the last instants to a power cut."""

    def __init__(
        self, path: str | os.PathLike[str], *, durability: Durability = "power", clock: Clock | None = None
    ) -> None:
        if sqlite3.sqlite_version_info < _MINIMUM:
            raise StoreUnavailable(
                f"SQLite {sqlite3.sqlite_version} is too old: 3.35 or newer is needed. Use a newer Python build."
            )
        check.choice("durability", durability, ("power", "process"))
        self.in_memory = os.fspath(path) == ":memory:"
        self.path = None if self.in_memory else Path(path).absolute()
        super().__init__("sqlite:///:memory:" if self.path is None else f"sqlite:///{self.path}", clock)
        self.durability = durability
        self._queries = load_queries("sqlite")
        self._record, order = by_position(self._queries["record_step"])
        if order != RECORD_ORDER:
            raise StoreError("record_step and its parameters have parted; reinstall stepfast.")
        self._open_files()
        self.signals.on_first = self._start_poller
        self._poller: threading.Thread | None = None
        self._closing = threading.Event()

    # --- connections -----------------------------------------------------------------------------

    def _open_files(self) -> None:
        self._pid = os.getpid()
        self._closed = False
        self._broken = False
        self._committer = GroupCommitter(self._commit_group)
        self._readers: deque[sqlite3.Connection] = deque()
        self._reading: ThreadPoolExecutor | None = None
        self._memory_lock = threading.RLock()
        self._lock: WriterLock | None = None
        if self.path is not None:
            prepare(self.path)
            self._lock = WriterLock(self.path.with_name(self.path.name + ".lock"))
        self._hold()
        try:
            self._writer = self._connect()
            self._migrate()
        except BaseException:
            self._let_go()
            if self._lock is not None:
                self._lock.close()
            raise
        self._let_go()
        self._finalizer = weakref.finalize(self, _abandon, self._writer, self._readers, self._lock, self._pid)

    def _connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                ":memory:" if self.path is None else self.path,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
        except sqlite3.Error as error:
            raise _explain(error, self.url) from error
        try:
            if self.path is not None:
                mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
                if mode != "wal":
                    raise StoreUnavailable(f"{self.path} lies where SQLite has no WAL mode; put it on a local disk.")
                wanted = 2 if self.durability == "power" else 1
                connection.execute(f"PRAGMA synchronous={wanted}")
                if connection.execute("PRAGMA synchronous").fetchone()[0] != wanted:
                    raise StoreUnavailable("this SQLite does not take the durability setting; use another build.")
            connection.execute("PRAGMA mmap_size=0")
            connection.execute("PRAGMA temp_store=MEMORY")
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error | UnicodeDecodeError):
                raise _explain(error, self.url) from error
            raise
        return connection

    def _migrate(self) -> None:
        run = self._writer.execute
        migrations = load_migrations("sqlite")
        try:
            run("BEGIN IMMEDIATE")
            version = run("PRAGMA user_version").fetchone()[0]
            tables = [row[0] for row in run("SELECT name FROM sqlite_master WHERE type = 'table'")]
            if "intents" not in tables and (tables or version):
                raise StoreUnavailable(
                    f"{self.url} is another program's database (it has {', '.join(tables) or 'no tables'}). "
                    "Nothing was changed in it: name another file."
                )
            if version > len(migrations):
                raise SchemaTooNew(
                    f"{self.url} has schema version {version}, and this stepfast knows versions up to "
                    f"{len(migrations)}. It will not touch the store: upgrade stepfast on this machine."
                )
            for migration in migrations[version:]:
                for statement in migration.statements:
                    run(statement)
            run(f"PRAGMA user_version={len(migrations)}")
            run("COMMIT")
        except BaseException as error:
            if self._writer.in_transaction:
                run("ROLLBACK")
            self._writer.close()
            if isinstance(error, sqlite3.Error | UnicodeDecodeError):
                raise _explain(error, self.url) from error
            raise

    def _hold(self) -> None:
        if self._lock is not None:
            self._lock.acquire()

    def _let_go(self) -> None:
        if self._lock is not None:
            self._lock.release()

    # --- the port --------------------------------------------------------------------------------

    def execute(self, ops: Sequence[Op[Any]], *, tenant: str = LOCAL_TENANT) -> list[Any]:
        if self._pid != os.getpid():
            self._reopen_after_fork()
        if self._closed:
            raise StoreUnavailable(f"{self.url} is closed.")
        check_text(ops, tenant)
        if only_reads(ops):
            return self._read(ops, tenant)
        return self._committer.execute(ops, tenant)

    def submit(self, ops: Sequence[Op[Any]], done: Done, *, tenant: str = LOCAL_TENANT) -> None:
        if self._pid != os.getpid():
            self._reopen_after_fork()
        if self._closed:
            done(StoreUnavailable(f"{self.url} is closed."))
            return
        try:
            check_text(ops, tenant)
        except InvalidInput as error:
            done(error)
            return
        if self.path is not None and only_reads(ops):
            self._read_elsewhere(ops, tenant, done)
        else:
            self._committer.submit(ops, tenant, done)

    def _read_elsewhere(self, ops: Sequence[Op[Any]], tenant: str, done: Done) -> None:
        from concurrent.futures import ThreadPoolExecutor

        def read() -> None:
            try:
                done(self._read(ops, tenant))
            except Exception as error:
                done(error)

        if self._reading is None:
            self._reading = ThreadPoolExecutor(_READER_THREADS, "stepfast-reader")
        self._reading.submit(read)

    def close(self) -> None:
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self._closing.set()
        self._committer.close()
        if self._reading is not None:
            self._reading.shutdown()
        if self._poller is not None:
            self._poller.join()
        self._finalizer.detach()
        if self._lock is not None:
            self._lock.acquire()
        _close_files(self._writer, self._readers, self._lock)
        _close_abandoned()

    def _reopen_after_fork(self) -> None:
        """A child must not touch its parent's connections: it leaves them alone and opens its own."""
        _LEFT_TO_PARENT.append((self._writer, self._readers, self._lock))
        self._finalizer.detach()
        self._poller = None
        self._open_files()

    # --- reading ---------------------------------------------------------------------------------

    def _read(self, ops: Sequence[Op[Any]], tenant: str) -> list[Any]:
        if self.path is None:
            with self._memory_lock:
                try:
                    return self._run_ops(self._writer, ops, tenant, [])
                except (ValueError, OverflowError) as error:
                    raise _blame(error) from error
        try:
            connection = self._readers.pop()
        except IndexError:
            connection = self._connect()
        try:
            if len(ops) > 1 or any(op.at_once for op in ops):
                connection.execute("BEGIN")
            return self._run_ops(connection, ops, tenant, [])
        except sqlite3.Error as error:
            if _is_garbled(error) and connection.text_factory is str:
                # Hand the rows out as they are: their seals tell which are damaged, and the rest is still good.
                connection.text_factory = _decode_loosely
                return self._read_garbled(connection, ops, tenant)
            raise _explain(error, self.url) from error
        except (ValueError, OverflowError) as error:
            raise _blame(error) from error
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._readers.append(connection)

    def _read_garbled(self, connection: sqlite3.Connection, ops: Sequence[Op[Any]], tenant: str) -> list[Any]:
        try:
            return self._run_ops(connection, ops, tenant, [])
        except sqlite3.Error as error:
            raise _explain(error, self.url) from error
        finally:
            connection.text_factory = str

    def _run_ops(
        self, connection: sqlite3.Connection, ops: Sequence[Op[Any]], tenant: str, topics: list[str]
    ) -> list[Any]:
        now = self.clock.now_us()
        common = {"tenant": tenant, "now": now}
        queries = self._queries

        def run(query: Query | Rows) -> Any:
            if isinstance(query, Rows):
                values = [value for row in query.rows for value in (tenant, *row)]
                return connection.execute(of_many_rows(queries[query.name], len(query.rows)), values).rowcount
            cursor = connection.execute(queries[query.name], {**query.params, **common})
            return cursor.fetchall() if cursor.description else cursor.rowcount

        results: list[Any] = []
        for op in ops:
            if isinstance(op, (RecordStep, SettleStep)) and self._write_quickly(connection, op, tenant, now):
                results.append(None)
            else:
                results.append(drive(plan_for(op), run, topics.append))
        return results

    def _write_quickly(
        self, connection: sqlite3.Connection, op: RecordStep | SettleStep, tenant: str, now: int
    ) -> bool:
        """The hot path: one statement; False, with nothing written, where the plan has to say why not."""
        if isinstance(op, RecordStep):
            cursor = connection.execute(self._record, record_values(op, tenant, now))
        else:
            cursor = connection.execute(self._queries["settle_step"], {"tenant": tenant, **record_params(op)})
        return cursor.rowcount == 1

    # --- writing ---------------------------------------------------------------------------------

    def _commit_group(self, group: list[Request]) -> None:
        topics: list[str] = []
        try:
            with self._memory_lock:
                failpoint("sqlite.before_begin")
                self._hold()
                try:
                    if self._broken:
                        self._mend()
                    if len(group) == 1 and self._record_alone(group[0]):
                        pass
                    elif not self._try_together(group, topics):
                        for request in group:
                            self._try_together([request], topics)
                finally:
                    self._let_go()
        except StepfastError as error:
            for request in group:
                request.outcome = request.outcome or error
        for topic in topics:
            self.signals.wake(topic)

    def _try_together(self, group: list[Request], topics: list[str]) -> bool:
        """All in one transaction; False, with nothing written, if any request cannot be served so."""
        writer = self._writer
        woken: list[str] = []
        outcomes = []
        try:
            writer.execute("BEGIN IMMEDIATE")
            for request in group:
                outcomes.append(self._run_ops(writer, request.ops, request.tenant, woken))  # noqa: PERF401
        except Exception as error:
            # Alone, each request meets its own error and nobody another's.
            self._roll_back()
            if len(group) == 1:
                group[0].outcome = self._refusal(error)
                return True
            return False
        except BaseException:
            self._roll_back()
            raise
        failpoint("sqlite.before_commit")
        try:
            writer.execute("COMMIT")
        except sqlite3.Error as error:
            refusal = self._refusal(error, at_commit=True)
            self._roll_back()
            for request in group:
                request.outcome = refusal
            return True
        failpoint("sqlite.after_commit")
        for request, outcome in zip(group, outcomes, strict=True):
            request.outcome = outcome
        topics += woken
        return True

    def _record_alone(self, request: Request) -> bool:
        """A lone step, or its ending, is a transaction of one statement, which commits by itself."""
        op = request.ops[0] if len(request.ops) == 1 else None
        if not isinstance(op, (RecordStep, SettleStep)):
            return False
        failpoint("sqlite.before_commit")
        try:
            if not self._write_quickly(self._writer, op, request.tenant, self.clock.now_us()):
                return False
        except sqlite3.Error as error:
            request.outcome = self._refusal(error, at_commit=True)
            return True
        except (ValueError, OverflowError, TypeError):
            return False
        failpoint("sqlite.after_commit")
        request.outcome = [None]
        return True

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")

    def _refusal(self, error: Exception, *, at_commit: bool = False) -> BaseException:
        if isinstance(error, sqlite3.Error):
            explained = _explain(error, self.url, at_commit=at_commit)
            self._broken = self._broken or (_primary(error) == sqlite3.SQLITE_IOERR)
            explained.__cause__ = error
            return explained
        return _blame(error)

    def _mend(self) -> None:
        """After an I/O error: start from fresh connections, and let nothing count that is not on the disk.

        A failed flush may have left pages that can be read but were never written. A checkpoint
        writes and flushes all of them again, so what is found afterwards is durable.
        """
        self._finalizer.detach()
        while self._readers:
            self._readers.pop().close()
        with suppress(sqlite3.Error):
            self._writer.close()
        self._writer = self._connect()
        self._finalizer = weakref.finalize(self, _abandon, self._writer, self._readers, self._lock, self._pid)
        try:
            busy = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self.url} cannot be written: {error}. Nothing was written.") from error
        if busy:
            raise StoreUnavailable(f"{self.url} had an I/O error and is still in use by a reader; try again.")
        self._broken = False

    # --- wake-ups from other processes -----------------------------------------------------------

    def _start_poller(self) -> None:
        if self.path is not None and (self._poller is None or not self._poller.is_alive()) and not self._closed:
            self._poller = threading.Thread(target=self._poll, name="stepfast-poller", daemon=True)
            self._poller.start()

    def _poll(self) -> None:
        """While somebody waits, look whether another process has committed."""
        connection = self._connect()
        try:
            seen = None
            idle = 0
            while not self._closing.wait(0.02) and idle < 50:
                version = connection.execute("PRAGMA data_version").fetchone()[0]
                if version != seen:
                    seen = version
                    self.signals.wake_all()
                idle = 0 if self.signals.watched else idle + 1
        except sqlite3.Error:
            self.signals.wake_all()
        finally:
            self._readers.append(connection)


_LEFT_TO_PARENT: list[Any] = []


# Files of stores that were collected without having been closed, while the lock on them was held.
_ABANDONED: deque[tuple[sqlite3.Connection, deque[sqlite3.Connection], WriterLock | None, int]] = deque()


def _abandon(writer: sqlite3.Connection, readers: deque[sqlite3.Connection], lock: WriterLock | None, pid: int) -> None:
    """Close the files of a collected store, or leave them to the next store of this process that is closed.

    A collection may run in the middle of another store's transaction, in the thread that holds the lock: to wait for
    the lock there would be to wait for ever.
    """
    _ABANDONED.append((writer, readers, lock, pid))
    _close_abandoned()


def _close_abandoned() -> None:
    for _ in range(len(_ABANDONED)):
        try:
            writer, readers, lock, pid = left = _ABANDONED.popleft()
        except IndexError:  # another thread took it
            return
        if pid != os.getpid():
            _LEFT_TO_PARENT.append(left)
        elif lock is None or lock.try_acquire():
            _close_files(writer, readers, lock)
        else:
            _ABANDONED.append(left)


def _close_files(writer: sqlite3.Connection, readers: deque[sqlite3.Connection], lock: WriterLock | None) -> None:
    """Close connections and release the lock. The last one to close checkpoints, which must happen under the lock."""
    try:
        while readers:
            readers.pop().close()
        writer.close()
    except sqlite3.Error:
        pass
    finally:
        if lock is not None:
            lock.release()
            lock.close()


def _blame(error: Exception) -> Exception:
    """A value that SQLite cannot take (half a surrogate pair, a number beyond 64 bits) is the caller's."""
    if isinstance(error, UnicodeDecodeError):  # SQLite's own words hold a damaged name
        return Damaged(f"the store is damaged: {error}. Restore it from a backup; do not delete it.")
    if isinstance(error, (ValueError, OverflowError)):
        refused = InvalidInput(f"a value cannot be stored: {error}. Nothing was written.")
        refused.__cause__ = error
        return refused
    return error


def _is_garbled(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """A text that is no text: a flipped bit in it, or in the mark that says what kind of value follows."""
    return isinstance(error, UnicodeDecodeError) or "decode to UTF-8" in str(error)


def _decode_loosely(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _primary(error: sqlite3.Error | UnicodeDecodeError) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def _explain(error: sqlite3.Error | UnicodeDecodeError, url: str, *, at_commit: bool = False) -> StoreError | Damaged:
    code = _primary(error)
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(f"{url} has no space left; nothing was written. Free some space, then go on.")
    if code == sqlite3.SQLITE_IOERR and at_commit:
        return OutcomeUnknown(
            f"{url}: the commit met an I/O error ({error}) and may or may not be on the disk. "
            "The same call, made again, finds out and does not do it twice."
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or _is_garbled(error):
        return Damaged(f"{url} is damaged or no SQLite file ({error}). Restore it from a backup; do not delete it.")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreUnavailable(f"{url} is locked by another program ({error}); nothing was written. Try again.")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreUnavailable(f"{url} cannot be written ({error}); check the rights and the mount.")
    return StoreUnavailable(f"{url}: {error}; nothing was written.")

"""One connection to PostgreSQL, spoken to in batches: what was asked, what came back, and how sure that is.

Everything here goes through libpq's own calls (psycopg.pq): a batch is one journey whatever its
length, every wait has an end, and a failure says which of three things it means:

* `Refused`: the server said no; nothing of the batch's transaction is applied.
* `Lost`: the connection is gone, and no commit was under way; nothing is applied.
* `Unconfirmed`: a commit was under way and was not confirmed; it may be applied.

A commit counts as confirmed only without a WARNING: PostgreSQL reports success with a warning when
somebody cancels its wait for a synchronous standby, and a fail-over would then lose the write.
"""

from __future__ import annotations

import re
import select
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, NamedTuple

from stepfast.errors import StoreUnavailable
from stepfast.stores.sql import Row

try:
    import psycopg
    from psycopg import pq
    from psycopg.adapt import Transformer
except ImportError as missing:
    raise StoreUnavailable(
        f'the PostgreSQL store needs psycopg ({missing}). Install it: pip install "stepfast[postgres]"'
    ) from None

if pq.version() < 140000:
    raise StoreUnavailable(
        f"libpq {pq.version() // 10000} is too old: 14 or newer is needed. "
        'Take the one that comes with it: pip install "psycopg[binary]"'
    )

OK = pq.ConnStatus.OK
TUPLES_OK = pq.ExecStatus.TUPLES_OK
COMMAND_OK = pq.ExecStatus.COMMAND_OK
PIPELINE_SYNC = pq.ExecStatus.PIPELINE_SYNC
PIPELINE_ABORTED = pq.ExecStatus.PIPELINE_ABORTED
EMPTY_QUERY = pq.ExecStatus.EMPTY_QUERY
_DONE = (TUPLES_OK, COMMAND_OK)
_FATAL = ("FATAL", "PANIC")
# The server, or what stands before it, says that it does not know whether the transaction was committed.
_UNKNOWN_STATES = frozenset({"08007", "40003"})

Answer = list[Row] | int

if sys.platform == "win32":

    def watcher(socket: int, *, writing: bool = False) -> Callable[[float], bool]:
        """Waits until the socket can be read (or written), or the seconds are over."""

        def wait(seconds: float) -> bool:
            return any(select.select([socket], [socket] if writing else [], [], seconds))

        return wait
else:

    def watcher(socket: int, *, writing: bool = False) -> Callable[[float], bool]:
        """Waits until the socket can be read (or written), or the seconds are over."""
        poll = select.poll()
        poll.register(socket, select.POLLIN | select.POLLOUT if writing else select.POLLIN)

        def wait(seconds: float) -> bool:
            return bool(poll.poll(seconds * 1000))

        return wait


class Refused(Exception):
    """The server said no: certainly not applied."""

    def __init__(self, state: str, message: str) -> None:
        super().__init__(f"{message} (SQLSTATE {state})")
        self.state = state


class Lost(Exception):
    """The connection is gone, and no commit was under way: certainly not applied."""


class Unconfirmed(Exception):
    """A commit was under way and was not confirmed: it may be applied."""


class Packed(NamedTuple):
    """A parameter as it goes over the wire; format 1 is binary."""

    data: bytes
    format: int


class Statement:
    """A query as the server takes it. Its name follows from its text, so that behind a pooler, where
    connections are shared, a name never means another query. One that is not ``kept`` is planned anew
    for its values each time, instead of being prepared once for all."""

    __slots__ = ("kept", "name", "names", "text")

    def __init__(self, text: str, *, kept: bool = True) -> None:
        self.kept = kept
        places: dict[str, str] = {}

        def number(match: re.Match[str]) -> str:
            return places.setdefault(match[1], f"${len(places) + 1}")

        self.text = re.sub(r"%\((\w+)\)s", number, text).encode()
        self.names = tuple(places)
        self.name = b"sf_" + blake2b(self.text, digest_size=12).hexdigest().encode()

    def bind(self, params: Mapping[str, Any]) -> tuple[list[bytes | None], list[int]]:
        values: list[bytes | None] = []
        formats: list[int] = []
        for name in self.names:
            value = params[name]
            kind = type(value)
            if kind is str:
                # Binary, with its length: as text it would end at the first NUL.
                values.append(value.encode())
                formats.append(1)
            elif kind is int:
                values.append(b"%d" % value)
                formats.append(0)
            elif kind is bytes:
                values.append(value)
                formats.append(1)
            elif value is None:
                values.append(None)
                formats.append(0)
            elif kind is Packed:
                values.append(value.data)
                formats.append(value.format)
            elif isinstance(value, str):
                values.append(value.encode())
                formats.append(1)
            elif isinstance(value, int):
                values.append(b"%d" % value)
                formats.append(0)
            else:
                raise TypeError(f"{name}: a query cannot take a {kind.__name__}")
        return values, formats


_TEXT, _BYTEA = 25, 17
_HEAD = struct.Struct("!5i").pack
_LENGTH = struct.Struct("!i").pack
_NULL = b"\xff\xff\xff\xff"


def pack_texts(values: Sequence[str | None]) -> Packed:
    first, count = values[0], len(values)
    if values.count(first) == count:
        return _repeat(None if first is None else first.encode(), count, _TEXT)
    return _pack([None if v is None else v.encode() for v in values], _TEXT)


def pack_bytes(values: Sequence[bytes | None]) -> Packed:
    first, count = values[0], len(values)
    return _repeat(first, count, _BYTEA) if values.count(first) == count else _pack(values, _BYTEA)


def pack_ints(values: Sequence[int | None]) -> Packed:
    first, count = values[0], len(values)
    if values.count(first) == count:
        texts = ["NULL" if first is None else str(first)] * count
    else:
        texts = ["NULL" if value is None else str(value) for value in values]
    return Packed(f"{{{','.join(texts)}}}".encode(), 0)


def _pack(values: Sequence[bytes | None], oid: int) -> Packed:
    """An array in its binary form: dimensions, whether any is null, type, length, first index; then the items."""
    parts = [_HEAD(1, int(None in values), oid, len(values), 1)]
    for value in values:
        parts += (_NULL,) if value is None else (_LENGTH(len(value)), value)
    return Packed(b"".join(parts), 1)


def _repeat(value: bytes | None, count: int, oid: int) -> Packed:
    """The same many times, as many columns of a group are; far quicker than one by one."""
    item = _NULL if value is None else _LENGTH(len(value)) + value
    return Packed(_HEAD(1, int(value is None), oid, count, 1) + item * count, 1)


BEGIN = Statement("BEGIN", kept=False)
COMMIT = Statement("COMMIT", kept=False)
ROLLBACK = Statement("ROLLBACK", kept=False)
BEGIN_READING = Statement("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", kept=False)
_FORGET_PLANS = Statement("DISCARD PLANS", kept=False)
_PLANS_SECONDS = 2.0

Batch = list[tuple[Statement, Mapping[str, Any]]]


class Link:
    """A connection in autocommit mode. One thread at a time.

    ``timeout`` bounds every wait for the server: PostgreSQL's own statement_timeout does not bound
    the wait of a commit for a synchronous standby. Raises `Lost` if it cannot be made.
    """

    def __init__(self, conninfo: str, *, timeout: float, prepare: bool) -> None:
        self.timeout = timeout
        self.prepare = prepare
        self.committing = False
        self._warning: str | None = None
        self._prepared: set[bytes] = set()
        self._plans_until = time.monotonic() + _PLANS_SECONDS
        try:
            self._connection = psycopg.Connection.connect(conninfo, autocommit=True)
        except psycopg.Error as error:
            raise Lost(_first_line(error)) from None
        self._connection.add_notice_handler(self._noticed)
        self._pg = self._connection.pgconn
        self._reader = Transformer(self._connection)
        self._readable = watcher(self._pg.socket)
        self._movable = watcher(self._pg.socket, writing=True)

    @property
    def server_version(self) -> int:
        return self._pg.server_version

    @property
    def socket(self) -> int:
        return self._pg.socket

    def alive(self) -> bool:
        """Whether the server has not hung up while the connection lay idle."""
        if self._pg.status != OK:
            return False
        if not self._readable(0):
            return True
        try:
            self._pg.consume_input()
        except psycopg.Error:
            return False
        return self._pg.status == OK and not self._readable(0)

    def fit(self) -> bool:
        """Alive, and with plans that fit its tables. PostgreSQL keeps the plan of a prepared statement until
        the table is analysed; one made for a few rows reads all of what has become many."""
        if not self.alive():
            return False
        if self._prepared and time.monotonic() > self._plans_until:
            try:
                self.one(_FORGET_PLANS, {})
            except (Refused, Lost):
                return False
            self._plans_until = time.monotonic() + _PLANS_SECONDS
        return True

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()

    def notifications(self) -> list[str]:
        """Payloads that have come in since the last call; raises `Lost` where the connection is gone."""
        try:
            self._pg.consume_input()
        except psycopg.Error as error:
            raise Lost(_first_line(error)) from None
        found = []
        while note := self._pg.notifies():
            found.append(note.extra.decode("utf-8", "replace"))
        return found

    # --- asking ----------------------------------------------------------------------------------

    def one(self, statement: Statement, params: Mapping[str, Any], *, commits: bool = False) -> Answer:
        """One statement in a transaction of its own."""
        values, formats = statement.bind(params)
        pg = self._pg
        self._warning = None
        self.committing = False
        try:
            name = statement.name
            if self.prepare and statement.kept:
                if name not in self._prepared:
                    pg.send_prepare(name, statement.text)
                    self._flush()
                    self._drain()
                    self._prepared.add(name)
                self.committing = commits
                pg.send_query_prepared(name, values, formats, 1)
            else:
                self.committing = commits
                pg.send_query_params(statement.text, values, None, formats, 1)
            self._flush()
            answer = self._drain()
        except psycopg.Error as error:
            raise self._broken(_first_line(error)) from None
        except Refused:
            raise
        except BaseException:
            self.close()
            raise
        self._confirm()
        return answer

    def many(self, batch: Batch, *, commits: bool = False) -> list[Answer]:
        """Statements in order, in one journey; after the first that is refused, none is run."""
        bound = [(statement, *statement.bind(params)) for statement, params in batch]
        pg = self._pg
        self._warning = None
        self.committing = commits
        fresh: list[bytes] = []
        try:
            pg.enter_pipeline_mode()
            expected = []
            for statement, values, formats in bound:
                name = statement.name
                if not (self.prepare and statement.kept):
                    pg.send_query_params(statement.text, values, None, formats, 1)
                else:
                    if name not in self._prepared and name not in fresh:
                        pg.send_prepare(name, statement.text)
                        fresh.append(name)
                        expected.append(False)
                    pg.send_query_prepared(name, values, formats, 1)
                expected.append(True)
            pg.pipeline_sync()
            self._flush()
            answers = self._collect(expected)
            pg.exit_pipeline_mode()
        except psycopg.Error as error:
            raise self._broken(_first_line(error)) from None
        except Refused:
            pg.exit_pipeline_mode()
            raise
        except BaseException:
            self.close()
            raise
        self._prepared.update(fresh)
        self._confirm()
        return answers

    def rollback(self) -> None:
        """Leave the transaction; a link that cannot do even that is closed."""
        if self._pg.status == OK and self._pg.transaction_status != pq.TransactionStatus.IDLE:
            try:
                self.one(ROLLBACK, {})
            except (Refused, Lost):
                self.close()

    # --- waiting ---------------------------------------------------------------------------------

    def _flush(self) -> None:
        pg = self._pg
        while pg.flush():
            if not self._movable(self.timeout):
                raise self._broken(f"the server took nothing in {self.timeout:g} s")
            # What it says meanwhile must be taken, or both sides wait for ever.
            if self._readable(0):
                pg.consume_input()

    def _next(self) -> pq.abc.PGresult | None:
        pg = self._pg
        while pg.is_busy():
            if not self._readable(self.timeout):
                raise self._broken(f"no answer came in {self.timeout:g} s")
            pg.consume_input()
        return pg.get_result()

    def _drain(self) -> Answer:
        """The answer to a single statement: complete only once the server is ready for the next,
        since without an explicit transaction it commits after it has said how many rows it wrote."""
        answer: Answer = 0
        refusal: Refused | None = None
        while (result := self._next()) is not None:
            if result.status in _DONE:
                answer = self._read(result)
            elif result.status != EMPTY_QUERY:
                refusal = refusal or self._refusal(result)
        if refusal is not None:
            raise refusal
        return answer

    def _collect(self, expected: list[bool]) -> list[Answer]:
        answers: list[Answer] = []
        refusal: Refused | None = None
        for wanted in expected:
            while (result := self._next()) is not None:
                status = result.status
                if status in _DONE:
                    if wanted and refusal is None:
                        answers.append(self._read(result))
                elif status != PIPELINE_ABORTED:
                    refusal = refusal or self._refusal(result)
        while (result := self._next()) is None or result.status != PIPELINE_SYNC:
            if result is not None:
                refusal = refusal or self._refusal(result)
            elif self._pg.status != OK:
                raise self._broken("the connection broke")
        if refusal is not None:
            raise refusal
        return answers

    def _read(self, result: pq.abc.PGresult) -> Answer:
        if result.status != TUPLES_OK:
            return result.command_tuples or 0
        self._reader.set_pgresult(result)
        return self._reader.load_rows(0, result.ntuples, tuple)

    def _refusal(self, result: pq.abc.PGresult) -> Refused:
        """What an error answer means; raises where the connection went with it."""
        state = _field(result, pq.DiagnosticField.SQLSTATE)
        severity = _field(result, pq.DiagnosticField.SEVERITY_NONLOCALIZED)
        message = _field(result, pq.DiagnosticField.MESSAGE_PRIMARY) or _first_line(result.get_error_message())
        if severity in _FATAL or not state or self._pg.status != OK:
            raise self._broken(message)
        if state in _UNKNOWN_STATES and self.committing:
            raise self._broken(message)
        return Refused(state, message)

    def _broken(self, why: str) -> Lost | Unconfirmed:
        """The link is of no more use. It is closed and not cancelled: a cancelled wait for a standby would
        show everybody a write that a fail-over may still lose."""
        self.close()
        return Unconfirmed(why) if self.committing else Lost(why)

    def _confirm(self) -> None:
        if self.committing:
            self.committing = False
            if self._warning is not None:
                raise Unconfirmed(f"the server warned: {self._warning}")

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warning = notice.message_primary or "(no text)"


def _field(result: pq.abc.PGresult, field: pq.DiagnosticField) -> str:
    return (result.error_field(field) or b"").decode("utf-8", "replace")


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or ["no reason was given"])[0]

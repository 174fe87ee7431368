"""The stock savers' databases as ends of a transfer: their own classes read and write the checkpoints.

Only what those classes do not tell is asked of the tables: which threads there are, and the path and place of a write.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from stepfast import InvalidInput, StoreUnavailable, Unencodable, UnknownType
from stepfast.stored_names import GRAPH_DELTA_KEY

TRANSFER = 'pip install "stepfast-langgraph[transfer]"'
Access = Literal["read", "write"]


class Header(NamedTuple):
    """A checkpoint's name, and its parent's id."""

    ns: str
    checkpoint_id: str
    parent_id: str | None


class TaskWrites(NamedTuple):
    """What one task wrote beside a checkpoint: (place in its call, channel, value). Special channels are below 0."""

    task_id: str
    task_path: str
    writes: list[tuple[int, str, Any]]


class End(ABC):
    """One side of a transfer."""

    name: str

    @abstractmethod
    def threads(self) -> Iterator[str]: ...

    @abstractmethod
    def headers(self, thread_id: str) -> list[Header]:
        """Every checkpoint of a thread, the first to be written first."""

    @abstractmethod
    def read(self, thread_id: str, header: Header) -> CheckpointTuple: ...

    @abstractmethod
    def writes(self, thread_id: str, header: Header) -> list[TaskWrites]: ...

    @abstractmethod
    def put(self, thread_id: str, header: Header, found: CheckpointTuple, changed: dict[str, Any]) -> None: ...

    @abstractmethod
    def put_writes(self, thread_id: str, header: Header, group: TaskWrites) -> None: ...


def config_of(thread_id: str, ns: str, checkpoint_id: str | None) -> RunnableConfig:
    named = {"checkpoint_id": checkpoint_id} if checkpoint_id is not None else {}
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, **named}}


def as_called(writes: Sequence[tuple[int, str, Any]]) -> list[tuple[str, Any]]:
    """The writes as one call of ``put_writes`` that gives each the place it has: special ones fill the gaps."""
    regular = sorted((each for each in writes if each[0] >= 0), key=lambda each: each[0])
    special = sorted((each for each in writes if each[0] < 0), key=lambda each: -each[0])
    called: list[tuple[str, Any]] = []
    for idx, channel, value in regular:
        while len(called) < idx and special:
            called.append(special.pop(0)[1:])
        called.append((channel, value))
    return [*called, *(each[1:] for each in special)]


class Stock(End):
    """A stock saver over its connection."""

    def __init__(self, name: str, saver: BaseCheckpointSaver[str], refused: list[str]) -> None:
        self.name = name
        self._saver = saver
        self._refused = refused

    @abstractmethod
    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]: ...

    _THREADS = "SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id"
    _HEADERS = (
        "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = ? "
        "ORDER BY checkpoint_id"
    )
    _WRITES: str

    def threads(self) -> Iterator[str]:
        for (thread_id,) in self.rows(self._THREADS):
            yield thread_id

    def headers(self, thread_id: str) -> list[Header]:
        return [
            Header(ns, checkpoint_id, parent or None)
            for ns, checkpoint_id, parent in self.rows(self._HEADERS, thread_id)
        ]

    def read(self, thread_id: str, header: Header) -> CheckpointTuple:
        found = self._saver.get_tuple(config_of(thread_id, header.ns, header.checkpoint_id))
        self._check()
        if found is None:
            raise StoreUnavailable(f"checkpoint {header.checkpoint_id} was deleted while it was read. Begin again.")
        return found

    def writes(self, thread_id: str, header: Header) -> list[TaskWrites]:
        groups: dict[str, TaskWrites] = {}
        for task_id, task_path, idx, channel, kind, value in self.rows(
            self._WRITES, thread_id, header.ns, header.checkpoint_id
        ):
            group = groups.setdefault(task_id, TaskWrites(task_id, task_path, []))
            group.writes.append((idx, channel, self._saver.serde.loads_typed((kind, value))))
        self._check()
        return list(groups.values())

    def put(self, thread_id: str, header: Header, found: CheckpointTuple, changed: dict[str, Any]) -> None:
        if GRAPH_DELTA_KEY in found.checkpoint:
            raise Unencodable(
                f"thread {thread_id!r} was pruned, and its DeltaChannels begin in a form that StepfastSaver knows: "
                "it cannot be exported."
            )
        config = config_of(thread_id, header.ns, header.parent_id)
        self._saver.put(config, found.checkpoint, found.metadata, changed)

    def put_writes(self, thread_id: str, header: Header, group: TaskWrites) -> None:
        config = config_of(thread_id, header.ns, header.checkpoint_id)
        self._saver.put_writes(config, as_called(group.writes), group.task_id, group.task_path)

    def _check(self) -> None:
        """What the stock serializer did not build it replaces, and only says so: here that is an error."""
        if self._refused:
            names = ", ".join(sorted(set(self._refused)))
            self._refused.clear()
            raise UnknownType(
                f"it holds {names}, which is not read without your word, since reading calls it. If it is yours: "
                + " ".join(f"--allow {name}" for name in names.split(", "))
            )


class SqliteStock(Stock):
    """The file of a SqliteSaver."""

    def __init__(self, name: str, saver: Any, refused: list[str]) -> None:
        super().__init__(name, saver, refused)
        self._connection: sqlite3.Connection = saver.conn
        columns = {row[1] for row in self.rows("PRAGMA table_info(writes)")}
        path = "task_path" if "task_path" in columns else "''"  # files of older versions have none
        self._WRITES = (
            f"SELECT task_id, {path}, idx, channel, type, value FROM writes "  # noqa: S608 - one of two words of ours
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? ORDER BY 2, task_id, idx"
        )

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, values).fetchall()


class PostgresStock(Stock):
    """The tables of a PostgresSaver."""

    _WRITES = (
        "SELECT task_id, task_path, idx, channel, type, blob FROM checkpoint_writes "
        "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? ORDER BY task_path, task_id, idx"
    )

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        from psycopg.rows import tuple_row

        connection: Any = self._saver.conn  # type: ignore[attr-defined]
        with connection.cursor(row_factory=tuple_row) as cursor:
            return list(cursor.execute(query.replace("?", "%s"), values).fetchall())


def open_stock(where: str, access: Access, allowed: Iterable[tuple[str, str]] = ()) -> AbstractContextManager[Stock]:
    """The database of a stock saver: a URL of PostgreSQL, or the path of a file."""
    if where.startswith(("postgresql://", "postgres://")):
        return _open_postgres(where, access, allowed)
    if "://" in where and not where.startswith("sqlite:///"):
        raise InvalidInput(f"{where.partition('://')[0]}: a stock saver has a SQLite file or postgresql://….")
    return _open_sqlite(Path(where.removeprefix("sqlite:///")), access, allowed)


@contextmanager
def _open_sqlite(path: Path, access: Access, allowed: Iterable[tuple[str, str]]) -> Iterator[Stock]:
    saver_class = _stock_class("langgraph.checkpoint.sqlite", "SqliteSaver")
    if access == "read" and not path.is_file():
        raise InvalidInput(f"{path}: there is no such file.")
    how = "ro" if access == "read" else "rwc"
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode={how}", uri=True, check_same_thread=False)
    ) as connection:
        if access == "read":
            _check_layout(path, connection)
        with _strict(allowed) as (serde, refused):
            saver = saver_class(connection, serde=serde)
            saver.setup()
            yield SqliteStock(str(path), saver, refused)


def _check_layout(path: Path, connection: sqlite3.Connection) -> None:
    try:
        columns = {row[1] for row in connection.execute("PRAGMA table_info(checkpoints)")}
    except sqlite3.DatabaseError as error:
        raise InvalidInput(f"{path}: is no SQLite file: {error}.") from None
    if not {"thread_id", "checkpoint_ns", "parent_checkpoint_id", "checkpoint"} <= columns:
        raise InvalidInput(f"{path}: has no checkpoints of a SqliteSaver.")


@contextmanager
def _open_postgres(url: str, access: Access, allowed: Iterable[tuple[str, str]]) -> Iterator[Stock]:
    saver_class = _stock_class("langgraph.checkpoint.postgres", "PostgresSaver")
    import psycopg
    from psycopg.rows import dict_row

    shown = url.rpartition("@")[2]
    try:
        connection = psycopg.connect(url, autocommit=True, prepare_threshold=0, row_factory=dict_row)
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"{shown}: {' '.join(str(error).split())}.") from None
    with closing(connection), _strict(allowed) as (serde, refused):
        saver = saver_class(connection, serde=serde)
        if access == "write":
            saver.setup()
        else:
            found = connection.execute("SELECT to_regclass('checkpoint_writes') AS there").fetchone()
            if found is None or found["there"] is None:
                raise InvalidInput(f"{shown}: has no checkpoints of a PostgresSaver in its search path.")
        yield PostgresStock(shown, saver, refused)


def _stock_class(module: str, name: str) -> Any:
    from importlib import import_module

    try:
        return getattr(import_module(module), name)
    except ImportError:
        raise InvalidInput(f"{name} is not installed, and reads and writes its own layout. Do: {TRANSFER}") from None


@contextmanager
def _strict(allowed: Iterable[tuple[str, str]]) -> Iterator[tuple[Any, list[str]]]:
    """A serializer that builds nothing but plain types and those that are allowed, and the names of what it did not."""
    import logging

    from langgraph.checkpoint.serde.event_hooks import register_serde_event_listener
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    refused: list[str] = []

    class Unbuilt(logging.Handler):
        """Objects that could not be built again are told to the log alone."""

        def emit(self, record: logging.LogRecord) -> None:
            if record.msg.startswith(("Could not reconstruct", "Failed to revive", "Object ")):
                refused.append(".".join(str(each) for each in list(record.args or ())[:2]))

    def listen(event: Any) -> None:
        if event["kind"] != "msgpack_unregistered_allowed":
            refused.append(f"{event['module']}.{event['name']}")

    log = logging.getLogger("langgraph.checkpoint.serde.jsonplus")
    handler = Unbuilt(logging.WARNING)
    unregister = register_serde_event_listener(listen)
    passed_on, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield JsonPlusSerializer(allowed_msgpack_modules=list(allowed) or None), refused
    finally:
        unregister()
        log.removeHandler(handler)
        log.propagate = passed_on

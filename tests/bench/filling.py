"""A store with very many finished intents, made by copying one that really ran, with plain SQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable

from stepfast import Stepfast

TYPE = "bench.claimed.v1"
ADDRESS = "agent://bench/claimed"

_BATCH = 100_000
# Ids sort by time: the copies are older than all that comes after, as finished intents are.
_OLD_ID = "'00000000-0000-7000-8000-' || "
_TABLES = {"intents": "true", "events": "t.event_type = 'intent.completed'"}


def fill(client: Stepfast, url: str, count: int) -> None:
    """Let one intent run, then add ``count`` - 1 copies of its row and of its last event."""
    intent_id = client.send_intent({"intent_type": TYPE, "to_agent": ADDRESS, "payload": "first"})
    run = client.claim(ADDRESS)
    if run is None or run.intent_id != intent_id:
        raise AssertionError("the first intent could not be claimed")
    with run:
        pass
    if url.startswith("sqlite:///"):
        _fill_sqlite(url.removeprefix("sqlite:///"), intent_id, count - 1)
    else:
        _fill_postgres(url, intent_id, count - 1)


def _copy(table: str, model: str, columns: Iterable[str], number: str, series: str) -> str:
    new = {"intent_id": _OLD_ID + number, "journal_id": _OLD_ID + number}
    names = list(columns)
    values = ", ".join(new.get(name, f"t.{name}") for name in names)
    return f"INSERT INTO {table} ({', '.join(names)}) SELECT {values} FROM {model} t, {series}"


def _model(table: str, model: str, condition: str, intent_id: str) -> str:
    """The one row to be copied, apart: in the growing table it would be looked for again and again."""
    return f"CREATE TEMP TABLE {model} AS SELECT * FROM {table} t WHERE t.intent_id = '{intent_id}' AND {condition}"


def _in_batches(count: int, insert: Callable[[int, int], None]) -> None:
    for start in range(1, count + 1, _BATCH):
        insert(start, min(start + _BATCH - 1, count))


def _fill_sqlite(path: str, intent_id: str, count: int) -> None:
    connection = sqlite3.connect(path)
    for table, condition in _TABLES.items():
        connection.execute(_model(table, f"model_{table}", condition, intent_id))

    def insert(first: int, last: int) -> None:
        series = (
            f"(WITH RECURSIVE s(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM s WHERE n < {last}) "
            "SELECT n FROM s) AS s"
        )
        for table in _TABLES:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            connection.execute(_copy(table, f"model_{table}", columns, "printf('%012d', s.n)", series))
        connection.commit()

    _in_batches(count, insert)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def _fill_postgres(url: str, intent_id: str, count: int) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute("SELECT table_schema FROM information_schema.tables WHERE table_name = 'intents'")
        schema = str((found.fetchone() or ["stepfast"])[0])

        def columns_of(table: str) -> list[str]:
            rows = connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s",
                (schema, table),
            )
            return [str(row[0]) for row in rows]

        for table, condition in _TABLES.items():
            connection.execute(_model(f'"{schema}".{table}', f"model_{table}", condition, intent_id).encode())

        def insert(first: int, last: int) -> None:
            series = f"generate_series({first}, {last}) AS s(n)"
            number = "lpad(s.n::text, 12, '0')"
            for table in _TABLES:
                copy = _copy(f'"{schema}".{table}', f"model_{table}", columns_of(table), number, series)
                connection.execute(copy.encode())

        _in_batches(count, insert)
        for table in _TABLES:
            connection.execute(f'VACUUM (ANALYZE) "{schema}".{table}'.encode())

"""The SQL, written once: named queries from files, and the three words a plan speaks.

A plan is a generator that holds all the logic of one operation (fencing, idempotency,
transitions). It yields named queries and receives rows; it does no I/O itself. A runner drives
it on SQLite or PostgreSQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Literal, NamedTuple, TypeVar

from stepfast.errors import StepfastError

Dialect = Literal["sqlite", "postgres"]
Row = tuple[Any, ...]
Params = Mapping[str, Any]
T = TypeVar("T")


class Query(NamedTuple):
    """Run a named query; the answer is its rows, or for a plain write how many rows it touched."""

    name: str
    params: Params


class Rows(NamedTuple):
    """Insert rows by a named query, all by one statement; each holds the query's values after the tenant, in order."""

    name: str
    rows: list[Row]


class Together(NamedTuple):
    """Run queries in order, none of which needs another's answer; the answer is the list of theirs.

    ``last``: the plan asks nothing more, and no answer to these makes it refuse. So a runner for
    which every question is a journey may send the commit along.
    """

    queries: Sequence[Query | Rows]
    last: bool = False


class Notify(NamedTuple):
    """Wake whoever waits on a topic, once this transaction is durable. A hint: nobody relies on it."""

    topic: str


Plan = Generator[Query | Together | Notify, Any, T]


def fetch(name: str, /, **params: Any) -> Plan[list[Row]]:
    rows: list[Row] = yield Query(name, params)
    return rows


def fetch_one(name: str, /, **params: Any) -> Plan[Row | None]:
    rows: list[Row] = yield Query(name, params)
    return rows[0] if rows else None


def change(name: str, /, **params: Any) -> Plan[int]:
    count: int = yield Query(name, params)
    return count


def query(name: str, /, **params: Any) -> Query:
    return Query(name, params)


def together(*queries: Query | Rows, last: bool = False) -> Plan[list[Any]]:
    answers: list[Any] = yield Together(queries, last)
    return answers


class Block(NamedTuple):
    """One named statement of a file."""

    name: str
    text: str
    only: Dialect | None


_HEADER = re.compile(r"^-- (name|define): *(\w+) *$", re.MULTILINE)
_ONLY = re.compile(r"^-- only: *(\w+) *$", re.MULTILINE)
_COMMENT = re.compile(r"^--.*$\n?", re.MULTILINE)
_MACRO = re.compile(r"\{\{(\w+)\}\}")
_PARAM = re.compile(r"(?<![:\w]):([a-z]\w*)")
_TABLE = re.compile(r"\bsf\.")

_MACROS: dict[Dialect, dict[str, str]] = {
    "sqlite": {
        "text": "TEXT",
        "now": ":now",
        "moment": ":now",
        "for_update": "",
        "for_share": "",
        "for_update_skip_locked": "",
        "clustered": "WITHOUT ROWID",
        "rowid": "INTEGER PRIMARY KEY",
        "serial": "INTEGER PRIMARY KEY",
    },
    "postgres": {
        # Bytes compare alike everywhere; a locale would be slower, and an upgrade of it breaks indexes.
        "text": 'TEXT COLLATE "C"',
        "now": "((extract(epoch FROM clock_timestamp()) * 1000000)::bigint + %(clock_offset)s::bigint)",
        # Taken once, so that an index can look for it; `now` is read anew for each row.
        "moment": "(SELECT {{now}})",
        "for_update": "FOR UPDATE",
        "for_share": "FOR SHARE",
        "for_update_skip_locked": "FOR UPDATE SKIP LOCKED",
        "clustered": "",
        "rowid": "BIGINT PRIMARY KEY",
        "serial": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    },
}


def read_blocks(text: str) -> tuple[list[Block], dict[str, str]]:
    """The named statements of a file in order, and its macros."""
    blocks: list[Block] = []
    macros: dict[str, str] = {}
    marks = list(_HEADER.finditer(text))
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        body = text[mark.end() : following.start() if following else len(text)]
        only = _ONLY.search(body)
        statement = _COMMENT.sub("", body).strip()
        if mark[1] == "define":
            macros[mark[2]] = statement
        else:
            blocks.append(Block(mark[2], statement, only[1] if only else None))  # type: ignore[arg-type]
    return blocks, macros


def render(text: str, dialect: Dialect, *, schema: str = "", macros: Mapping[str, str] | None = None) -> str:
    """A statement as the database takes it."""
    known = {**_MACROS[dialect], "schema": f'"{schema}"', **(macros or {})}
    expanded = text
    while _MACRO.search(expanded):
        expanded = _MACRO.sub(lambda m: known[m[1]], expanded)
    if dialect == "sqlite":
        return _TABLE.sub("", expanded)
    return _TABLE.sub(f'"{schema}".', _PARAM.sub(r"%(\1)s", expanded))


def by_position(text: str) -> tuple[str, tuple[str, ...]]:
    """A SQLite statement with plain placeholders, and the names they stood for: quicker to bind."""
    names = tuple(_PARAM.findall(text))
    return _PARAM.sub("?", text), names


@cache
def of_many_rows(text: str, rows: int) -> str:
    """An INSERT of one row of values as one of many, with plain placeholders."""
    head, word, values = by_position(text)[0].partition("VALUES")
    return f"{head}{word}{', '.join([values] * rows)}"


@cache
def load_queries(dialect: Dialect, schema: str = "") -> dict[str, str]:
    """Every named query of this dialect."""
    blocks: list[Block] = []
    macros: dict[str, str] = {}
    for entry in sorted(resources.files("stepfast.stores").joinpath("queries").iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".sql"):
            found, defined = read_blocks(entry.read_text("utf-8"))
            blocks += found
            macros |= defined
    return {
        block.name: render(block.text, dialect, schema=schema, macros=macros)
        for block in blocks
        if block.only in (None, dialect)
    }


class Migration(NamedTuple):
    number: int
    name: str
    statements: list[str]


@cache
def load_migrations(dialect: Dialect, schema: str = "") -> list[Migration]:
    """The numbered files of the schema folder, in order."""
    found = []
    for entry in resources.files("stepfast.stores").joinpath("schema").iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if match:
            blocks, macros = read_blocks(entry.read_text("utf-8"))
            statements = [
                render(b.text, dialect, schema=schema, macros=macros) for b in blocks if b.only in (None, dialect)
            ]
            found.append(Migration(int(match[1]), match[2], statements))
    found.sort()
    if [m.number for m in found] != list(range(1, len(found) + 1)):
        raise StepfastError("the schema folder of this installation has gaps; reinstall stepfast.")
    return found


def drive(plan: Plan[T], run: Callable[[Query | Rows], Any], notify: Callable[[str], None]) -> T:
    """Run a plan to its end, blocking."""
    answer: Any = None
    try:
        while True:
            asked = plan.send(answer)
            if isinstance(asked, Query):
                answer = run(asked)
            elif isinstance(asked, Together):
                answer = [run(one) for one in asked.queries]
            else:
                answer = None
                notify(asked.topic)
    except StopIteration as stop:
        result: T = stop.value
        return result


def at_most(numbers: Sequence[Any], size: int) -> dict[str, Any]:
    """Bind a short list to the fixed parameters s1 … sN, since neither driver expands lists the same way."""
    return {f"s{n + 1}": numbers[n] if n < len(numbers) else None for n in range(size)}

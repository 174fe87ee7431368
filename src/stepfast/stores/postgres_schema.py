"""The schema of a store in PostgreSQL: found, made or brought up to date when a store opens."""

from __future__ import annotations

from typing import Any

from stepfast.errors import SchemaTooNew, StoreUnavailable
from stepfast.stored_names import SCHEMA_LOCK_PREFIX
from stepfast.stores.postgres_errors import explain
from stepfast.stores.postgres_link import BEGIN, COMMIT, Link, Lost, Refused, Statement
from stepfast.stores.sql import load_migrations

_MISSING = frozenset({"42P01", "3F000"})  # no such table, no such schema
_OLDEST_SERVER = 120000


def prepare_schema(link: Link, statements: dict[str, Statement], schema: str, shown: str) -> None:
    """One question if all is up to date; otherwise the missing migrations, in one transaction under a lock."""
    if link.server_version < _OLDEST_SERVER:
        raise StoreUnavailable(f"{shown} is PostgreSQL {link.server_version // 10000}; 12 or newer is needed.")
    known = len(load_migrations("postgres", schema))
    prepare, link.prepare = link.prepare, False  # nothing here is asked twice
    try:
        version = _version(link, statements)
        if version < known:
            _migrate(link, statements, schema, shown)
        elif version > known:
            raise _too_new(shown, version, known)
    except Refused as error:
        raise explain(error, shown) from error
    except Lost as error:
        raise StoreUnavailable(f"{shown}: the connection was lost while the store opened ({error}).") from None
    finally:
        link.prepare = prepare


def _version(link: Link, statements: dict[str, Statement]) -> int:
    try:
        return _number(link.one(statements["schema_version"], {}))
    except Refused as error:
        if error.state in _MISSING:
            return 0
        raise


def _migrate(link: Link, statements: dict[str, Statement], schema: str, shown: str) -> None:
    """Many processes may come here at once: the first does the work while the others wait for its lock.

    What is there is not created again even with IF NOT EXISTS, which asks for rights that the user may lack.
    """
    try:
        link.one(BEGIN, {})
        link.one(statements["schema_lock"], {"name": f"{SCHEMA_LOCK_PREFIX}{schema}"})
        if not _number(link.one(statements["schema_exists"], {"schema": schema})):
            link.one(statements["create_schema"], {})
        if not _number(link.one(statements["migrations_exist"], {"schema": schema})):
            link.one(statements["create_migrations"], {})
        version = _version(link, statements)
        migrations = load_migrations("postgres", schema)
        if version > len(migrations):
            raise _too_new(shown, version, len(migrations))
        for migration in migrations[version:]:
            for text in migration.statements:
                link.one(Statement(text, kept=False), {})
            link.one(statements["add_migration"], {"number": migration.number, "name": migration.name})
        link.one(COMMIT, {})
    except BaseException:
        link.rollback()
        raise


def _too_new(shown: str, version: int, known: int) -> SchemaTooNew:
    return SchemaTooNew(
        f"{shown} has schema version {version}, and this stepfast knows versions up to {known}. "
        "It will not touch the store: upgrade stepfast on this machine."
    )


def _number(answer: Any) -> int:
    return int(answer[0][0])

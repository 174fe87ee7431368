"""Stores: the port, the two databases behind it, and the server that stands before one."""

from __future__ import annotations

import inspect
import os
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from stepfast import inputs as check
from stepfast.clock import Clock
from stepfast.errors import InvalidInput
from stepfast.stores.base import AsyncStore, Store
from stepfast.stores.files import default_store_path

__all__ = ["AsyncStore", "Store", "open_store"]


def open_store(
    url: str | os.PathLike[str] | None = None,
    *,
    api_key: str | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> Store:
    """The store behind a URL: ``sqlite:///file.db``, ``sqlite:///:memory:``, ``postgresql://…``, ``http(s)://…``.

    None means ``STEPFAST_URL``, and without that an embedded store in the user's data folder. Only a server takes
    a key; without one given it is ``STEPFAST_API_KEY``.
    """
    if url is not None and not isinstance(url, str | os.PathLike):
        raise InvalidInput(f"url: must be a URL or a path, not {url!r}.")
    if clock is not None and not isinstance(clock, Clock):
        raise InvalidInput(f"clock: must be a Clock, not {clock!r}.")
    check.text("api_key", api_key)
    name = os.fspath(url) if url is not None else os.environ.get("STEPFAST_URL") or ""
    scheme = urlsplit(name).scheme if "://" in name else ""
    if scheme in ("http", "https"):
        from stepfast.stores.remote import RemoteStore

        key = api_key or os.environ.get("STEPFAST_API_KEY")
        return RemoteStore(name, api_key=key, clock=clock, **_known(RemoteStore, options))
    if api_key is not None:
        raise InvalidInput("api_key: only a server (http:// or https://) takes one. Leave it out.")
    if scheme in ("postgresql", "postgres"):
        from stepfast.stores.postgres import PostgresStore

        return PostgresStore(name, clock=clock, **_known(PostgresStore, options))
    from stepfast.stores.sqlite import SqliteStore

    if scheme == "sqlite":
        path, _, query = name[len("sqlite://") :].partition("?")
        given = _known(SqliteStore, {**dict(parse_qsl(query)), **options})
        return SqliteStore(unquote(path.removeprefix("/")) or ":memory:", clock=clock, **given)
    if scheme:
        raise InvalidInput(
            f"url: the scheme {scheme!r} is not known. Use sqlite:///file.db, postgresql://… or http://host:8100."
        )
    return SqliteStore(name or default_store_path(), clock=clock, **_known(SqliteStore, options))


def _known(kind: type[Store], options: dict[str, Any]) -> dict[str, Any]:
    """The options of a store, if it has them all."""
    own = [p.name for p in inspect.signature(kind).parameters.values() if p.kind is p.KEYWORD_ONLY]
    known = [name for name in own if name not in ("clock", "api_key")]
    for name in options:
        if name not in known:
            raise InvalidInput(f"{name}: not an option of {kind.__name__}. Known: {', '.join(known) or 'none'}.")
    return options

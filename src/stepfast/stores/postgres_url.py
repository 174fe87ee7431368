"""What a PostgreSQL URL says, ours and libpq's; and the form of it that may be shown."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from stepfast.errors import InvalidInput

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


class Address(NamedTuple):
    """``shown`` holds no password, and nothing but where the store is."""

    conninfo: str
    shown: str
    schema: str
    prepare: bool | None


def read_url(url: str, *, schema: str | None, prepare: bool | None, connect_timeout: float) -> Address:
    """Our own options (``schema``, ``prepare``) are taken out; an argument wins over the URL."""
    base, mark, query = url.partition("?") if "://" in url else (url, "", "")
    rest = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "schema":
            schema = schema or value
        elif name == "prepare":
            if value not in _SWITCH:
                raise InvalidInput(f"prepare: must be on or off, not {value!r}.")
            prepare = _SWITCH[value] if prepare is None else prepare
        else:
            rest.append((name, value))
    try:
        # The error's text may hold any part of the URL, so it is not shown.
        given = conninfo_to_dict(base + mark + urlencode(rest, quote_via=quote) if rest else base)
    except ProgrammingError:
        raise _unreadable() from None
    # A password with a bare / or @ makes the rest of itself the port or the database, which are shown.
    if re.search(r"[^\d,]", str(given.get("port") or "")) or "@" in str(given.get("dbname") or ""):
        raise _unreadable()
    defaults: dict[str, str | int | None] = {
        "application_name": "stepfast",
        "connect_timeout": max(2, round(connect_timeout)),
    }
    if "," in str(given.get("host", "")) or "," in str(given.get("hostaddr", "")):
        # Of several hosts, the one that takes writes: a claim or a resume never trusts a replica.
        defaults["target_session_attrs"] = "read-write"
    chosen = schema or "stepfast"
    if not _SCHEMA.fullmatch(chosen):
        raise InvalidInput(f"schema: {chosen!r} is no plain name; use up to 48 of a-z, 0-9 and _, and no digit first.")
    conninfo = make_conninfo("", **{**defaults, **given, "client_encoding": "utf8"})
    return Address(conninfo, _shown(given, chosen), chosen, prepare)


def _unreadable() -> InvalidInput:
    return InvalidInput(
        "url: this is no PostgreSQL URL; write postgresql://user:password@host:5432/database, "
        "and percent-encode what is special in a name or password."
    )


def _shown(given: dict[str, str | int | None], schema: str) -> str:
    host = str(given.get("host") or given.get("hostaddr") or "")
    user = quote(str(given["user"])) + "@" if given.get("user") else ""
    port = f":{given['port']}" if given.get("port") else ""
    tail = f"/{quote(str(given.get('dbname') or ''))}"
    options = {}
    if host.startswith(("/", "@")):
        options["host"] = host
        host, port = "", ""
    if schema != "stepfast":
        options["schema"] = schema
    return f"postgresql://{user}{host}{port}{tail}" + ("?" + urlencode(options, safe="/@") if options else "")

"""How a server is set up: where it listens, on which store, and how much anybody may ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from stepfast.errors import InvalidInput

MIB = 1 << 20


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one request, one key or one connection may use; beyond it the answer is 408, 413, 422, 429 or 431."""

    body_bytes: int = MIB
    ops_bytes: int = 64 * MIB
    depth: int = 64
    nodes: int = 100_000
    header_bytes: int = 64 * 1024
    streams_per_key: int = 10_000
    requests_per_second: float = 10_000.0
    burst: int = 20_000
    # Failed logins of one peer: a guesser is slowed long before 2^256 guesses, a typo never is.
    failures_per_second: float = 10.0
    failure_burst: int = 100
    # A request must be here, headers and body, within this time; a large body has more, at `receipt_rate` bytes/s.
    receipt_seconds: float = 10.0
    receipt_rate: int = 64 * 1024
    connections: int = 20_000


def limits_from(environment: Mapping[str, str]) -> Limits:
    """The limits, as changed by ``STEPFAST_LIMIT_<NAME>``, such as STEPFAST_LIMIT_BODY_BYTES."""
    prefix = "STEPFAST_LIMIT_"
    given = {name[len(prefix) :].lower(): value for name, value in environment.items() if name.startswith(prefix)}
    unknown = sorted(set(given) - set(Limits.__struct_fields__))
    if unknown:
        raise InvalidInput(f"{prefix}{unknown[0].upper()}: there is no such limit.")
    try:
        limits = msgspec.convert(given, Limits, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{prefix}…: {error}.") from None
    for name in Limits.__struct_fields__:
        if getattr(limits, name) <= 0:
            raise InvalidInput(f"{prefix}{name.upper()}: must be more than 0.")
    return limits


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything ``stepfast serve`` can be told. Nothing here is read from the environment: the caller does that."""

    host: str = "127.0.0.1"
    port: int = 8100
    store: str | None = None
    require_keys: bool = False
    behind_proxy: bool = False
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_key_password: str | None = None
    pepper: str | None = None
    metrics_token: str | None = None
    limits: Limits = Limits()
    lease_seconds: float = 30.0
    keep_alive_seconds: float = 75.0
    shutdown_seconds: float = 10.0
    log_format: Literal["json", "text"] = "text"
    log_level: str = "info"
    access_log: bool = True

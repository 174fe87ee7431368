"""What is kept of a checkpoint's metadata, what of it a store may see, and what a filter asks of it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from math import isfinite
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, get_checkpoint_metadata

_SHOWN = ("source", "step", "run_id")  # all that a store sees where values are encrypted
_SECRETS = re.compile(
    "secret|passw|passphrase|credential|token(?!s$)|api_?key|authorization|bearer|private_?key|access_?key|"
    r"(?:^|_)(?:key|auth|pwd|pat|jwt|cookie|signature|otp|pin)s?(?:_|$)"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WHOLE = 2**53


@lru_cache(4096)
def looks_secret(name: str) -> bool:
    """Whether a name is that of a key, a token, a password or the like."""
    return _SECRETS.search(_CAMEL.sub("_", name).lower().replace("-", "_").replace(".", "_")) is not None


def kept(config: RunnableConfig, metadata: CheckpointMetadata, allowed: Collection[str]) -> dict[str, Any]:
    """The metadata that LangGraph's own savers keep, without what of the config looks like a secret."""
    found = get_checkpoint_metadata(config, metadata)
    told = {
        name: value
        for name, value in cast("Mapping[str, Any]", found).items()
        if name in metadata or name in allowed or not looks_secret(name)
    }
    told.pop("writes", None)  # what old versions of LangGraph put there is the state once more
    return told


def shown(metadata: Mapping[str, Any], encrypted: bool) -> str:
    """The part that the store sees, as JSON text."""
    names = _SHOWN if encrypted else metadata
    return json.dumps({name: metadata[name] for name in names if name in metadata and _plain(name, metadata[name])})


def _plain(name: Any, value: Any) -> bool:
    """Whether every store can hold this and compares it as Python does."""
    if not isinstance(name, str) or not _text(name):
        return False
    if type(value) is str:
        return _text(value)
    if type(value) is int:
        return -_WHOLE <= value <= _WHOLE
    return type(value) is bool or (type(value) is float and isfinite(value))


def _text(value: str) -> bool:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # a lone surrogate
            return False
    return "\0" not in value


def asked(where: Mapping[str, Any] | None, encrypted: bool) -> dict[str, Any]:
    """The part of a filter that the store can answer; `matches` does the rest."""
    return {
        name: value
        for name, value in (where or {}).items()
        if (type(value) is str or (name == "step" and type(value) is int))  # other numbers may be equal to a bool
        and _plain(name, value)
        and (not encrypted or name in _SHOWN)
    }


def matches(metadata: Mapping[str, Any], where: Mapping[str, Any] | None) -> bool:
    """Equality on every key; None also matches a key that is not there."""
    return all(metadata.get(name) == value for name, value in (where or {}).items())

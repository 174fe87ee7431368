"""Logs: one line an event, as text or JSON, from which secrets are taken out at the last moment.

The formatter redacts the finished line, traceback and all, so no message can go around it.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, Literal, TextIO

import msgspec

from stepfast.clock import from_micros

HIDDEN = "[hidden]"
_SECRETS = (
    # A token of ours: the key's id may stay, so that it can be found and revoked.
    (re.compile(r"(axme_sa_(?:sak_[0-9a-f]+_)?)[A-Za-z0-9_\-.~+/=]{6,}"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9_\-.~+/=]{6,}"), rf"\1\2{HIDDEN}"),
    (
        re.compile(
            r"(?i)((?:x-api-key|authorization|cookie|api[_-]?key|password|passwd|secret|token|pepper)"
            r"['\"]?\s*[:=,]\s*b?['\"]?)(?!bearer\b|basic\b|\[hidden)[^\s'\",;&)]{3,}"
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(?i)([a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s@/]+@"), rf"\1{HIDDEN}@"),
)
_OURS = ("request_id", "key_id", "ms", "intent_id", "agent", "tenant", "stream")


def redact(text: str) -> str:
    """A text without the secrets that have a known form."""
    for pattern, shown in _SECRETS:
        text = pattern.sub(shown, text)
    return text


class Formatter(logging.Formatter):
    """Lines for people or for machines."""

    def __init__(self, form: Literal["json", "text"]) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        moment = from_micros(int(record.created * 1_000_000))
        at = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z") if moment else ""
        message = record.getMessage()
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        extra = {name: getattr(record, name) for name in _OURS if getattr(record, name, None) is not None}
        if self._form == "text":
            tail = "".join(f" {name}={value}" for name, value in extra.items())
            line = f"{at} {record.levelname.lower():<7} {record.name}: {message}{tail}"
            return redact(f"{line}\n{trace}" if trace else line).replace("\r", "\\r")
        told: dict[str, Any] = {
            "at": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(message),
            **{name: redact(value) if isinstance(value, str) else value for name, value in extra.items()},
        }
        if trace:
            told["trace"] = redact(trace)
        return msgspec.json.encode(told, enc_hook=str).decode()


def configure_logs(form: Literal["json", "text"], level: str, stream: TextIO | None = None) -> logging.Handler:
    """Send the logs of the server and of what it runs on to standard error, in one form."""
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Formatter(form))
    for name in ("stepfast", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(number)
    # What it has to say of every start and stop is said by Stepfast already.
    logging.getLogger("uvicorn.error").setLevel(max(number, logging.WARNING))
    return handler

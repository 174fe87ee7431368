"""Errors as people and scripts meet them: one line with a remedy, or one JSON object, and an exit code."""

from __future__ import annotations

import sys
from typing import Any

from stepfast.cli.text import clean, to_json
from stepfast.errors import (
    AccessDenied,
    InvalidInput,
    InvalidTransition,
    NotFound,
    RunFailed,
    StepfastError,
    StoreError,
)

OK, FAILED, USAGE, NOT_FOUND, REFUSED, UNAVAILABLE = range(6)
INTERRUPTED = 130

# The first that fits; whatever is not here is 1.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (InvalidTransition, FAILED),
    (InvalidInput, USAGE),
    (NotFound, NOT_FOUND),
    (AccessDenied, REFUSED),
    (StoreError, UNAVAILABLE),
    (RunFailed, FAILED),
)

_REMEDIES: tuple[tuple[type[BaseException], str], ...] = (
    (AccessDenied, "Give a key that may do this with --api-key or STEPFAST_API_KEY."),
    (StoreError, "Try `stepfast doctor`."),
)


class Problem(StepfastError):
    """Something this command found wrong."""

    code = "problem"


class Usage(InvalidInput):
    """The command was called wrongly."""

    code = "usage"


class Missing(StepfastError):
    """A part of Stepfast is not installed."""

    code = "not_installed"


def exit_code(error: BaseException) -> int:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return FAILED


def describe(error: BaseException) -> str:
    """One line, and what to do about it."""
    if isinstance(error, StepfastError):
        text = error.message
    else:
        text = f"{type(error).__name__}: {error}"
    line = clean(" ".join(text.split()))
    remedy = next((words for kind, words in _REMEDIES if isinstance(error, kind)), "")
    if remedy and remedy.split("`")[0].strip() not in line:
        line = f"{line}{'' if line.endswith(('.', '?', '!')) else '.'} {remedy}"
    return line


def tell(error: BaseException, *, as_json: bool) -> int:
    """Write the error to stderr; gives the exit code."""
    code = exit_code(error)
    if as_json:
        details: dict[str, Any] = getattr(error, "details", None) or {}
        kind = getattr(error, "code", "error")
        told = {"code": kind, "message": describe(error), "exit_code": code, "details": details}
        sys.stderr.write(to_json({"error": told}) + "\n")
    else:
        sys.stderr.write(f"error: {describe(error)}\n")
    sys.stderr.flush()
    return code

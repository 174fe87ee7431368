"""Errors on the wire: one shape of body, and one table from error to status.

``{"error": {"code", "message", "details"?}, "detail": "<message>"}``: SDKs read ``error.message``, others ``detail``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stepfast import errors

STATUS: dict[type[errors.StepfastError], int] = {
    errors.InvalidInput: 422,
    errors.InvalidTransition: 409,
    errors.AccessDenied: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.Fenced: 409,
    errors.RunBusy: 409,
    errors.RunFailed: 409,
    errors.RunFinished: 409,
    errors.Diverged: 409,
    errors.StepFailed: 409,
    errors.ResumeRefused: 409,
    errors.StoreUnavailable: 503,
    errors.OutcomeUnknown: 503,
    errors.StoreFull: 507,
    errors.SchemaTooNew: 503,
    errors.StoreError: 503,
}
# Messages of these may tell of places and file names: the client gets the kind, the log the rest.
_PRIVATE = (errors.StoreError, errors.CodecError)


class HttpError(errors.StepfastError):
    """The request cannot be served."""

    status = 400
    code = "bad_request"

    def __init__(
        self, message: str | None = None, *, code: str | None = None, status: int | None = None, **details: Any
    ) -> None:
        super().__init__(message, **details)
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status
        self.headers: dict[str, str] = {}


class BadRequest(HttpError):
    """The request is malformed."""


class Unauthorized(HttpError):
    """A key is needed."""

    status = 401
    code = "missing_platform_api_key"


class Forbidden(HttpError):
    """This key may not do that."""

    status = 403
    code = "forbidden"


class MethodNotAllowed(HttpError):
    """There is something at this path, but not for this method."""

    status = 405
    code = "method_not_allowed"


class TooLarge(HttpError):
    """The body is too large."""

    status = 413
    code = "too_large"


class Unsupported(HttpError):
    """The body is in a form that is not read here."""

    status = 415
    code = "unsupported_media_type"


class RateLimited(HttpError):
    """Too many requests."""

    status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str | None = None, *, retry_after: int = 1, **options: Any) -> None:
        super().__init__(message, **options)
        self.headers["retry-after"] = str(retry_after)


class NotOffered(HttpError):
    """This part of the AXME interface is not offered here."""

    status = 501
    code = "not_implemented"


class Closing(HttpError):
    """The server is shutting down; ask again in a moment."""

    status = 503
    code = "closing"


def status_of(error: errors.StepfastError) -> int:
    if isinstance(error, HttpError):
        return error.status
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return 500


def body_of(error: errors.StepfastError) -> bytes:
    """The body of an answer; what could tell of the server's inside stays inside."""
    message = error.message
    details = error.details
    if isinstance(error, _PRIVATE):
        message, details = (type(error).__doc__ or "").strip().splitlines()[0], {}
    elif isinstance(error, errors.NotFound):
        details = {}  # whether it is not there or not the caller's: not a byte more in the one case
    return encode_error(error.code, message, details)


def encode_error(code: str, message: str, details: dict[str, Any] | None = None) -> bytes:
    told: dict[str, Any] = {"code": code, "message": message}
    if details:
        told["details"] = details
    return msgspec.json.encode({"error": told, "detail": message}, enc_hook=str)


INTERNAL = errors.StepfastError("something went wrong in the server; its log says what, by this request's id.")
INTERNAL.code = "internal_error"

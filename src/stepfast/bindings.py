"""What binds a stored value to its tenant and its row, so that one that was moved to another row is refused.

A value is encoded with these bytes and decodes with the same ones only. They are not stored, but part of the stored
format all the same: changing one makes the values of every older store `Damaged`.
"""

from __future__ import annotations

from typing import Any, Final

from stepfast.codec import Codec

_EARLIER_PAYLOAD: Final = b"payload"  # of every payload, before each was bound to its own intent


def of_value(tenant: str, journal_id: str, key: str, generation: int = 0) -> bytes:
    """Of a step's values; what else belongs to a journal has a key of its own, below."""
    return f"{tenant}|{journal_id}|{key}|{generation}".encode("utf-8", "surrogatepass")


def of_payload(tenant: str, journal_id: str) -> bytes:
    """A journal has the id of its first intent, and those that revive it keep journal and payload."""
    return of_value(tenant, journal_id, "payload")


def of_result(tenant: str, journal_id: str) -> bytes:
    return of_value(tenant, journal_id, "result")


def of_error(tenant: str, journal_id: str) -> bytes:
    """Of the error that an intent ended with, and of those in its history."""
    return of_value(tenant, journal_id, "error")


def of_question(tenant: str, journal_id: str, key: str) -> bytes:
    return of_value(tenant, journal_id, f"question:{key}")


def of_answer(tenant: str, journal_id: str, key: str) -> bytes:
    """Of the value and the comment that a decision was answered with."""
    return of_value(tenant, journal_id, f"answer:{key}")


def of_checkpoint(tenant: str, journal_id: str, version: int) -> bytes:
    return of_value(tenant, journal_id, "checkpoint", version)


def open_payload(codec: Codec, payload: bytes, tenant: str, journal_id: str) -> Any:
    """Decode the payload of an intent, also one of an older store; raises CodecError and its kinds."""
    return codec.decode(payload, bind=of_payload(tenant, journal_id), earlier=_EARLIER_PAYLOAD)


def move_payload(codec: Codec, payload: bytes, tenant: str, journal_id: str, to: str) -> bytes:
    """Return the payload of a journal as the one of the journal ``to``, without building its classes."""
    bind = of_payload(tenant, journal_id)
    return codec.rebind(payload, bind=bind, earlier=_EARLIER_PAYLOAD, to=of_payload(tenant, to))

"""What every operation is, and the right to write that most of them show."""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

import msgspec

R = TypeVar("R")


class Op(msgspec.Struct, Generic[R], frozen=True, kw_only=True, tag=True, gc=False):
    """``reads``: touches nothing, and never waits for a writer. ``at_once``: a read that looks several times, and
    must see the same moment each time."""

    reads: ClassVar[bool] = False
    at_once: ClassVar[bool] = False


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The right to write for an intent: the attempt number fences, the token proves who holds it."""

    intent_id: str
    attempt: int
    token: str

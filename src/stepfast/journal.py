"""Steps, and how a call inside a run gets the same name every time it is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from urllib.parse import quote

import msgspec

from stepfast.errors import InvalidInput

__all__ = ["Keys", "Step", "StepStatus", "join_scope", "seal_parts"]


class StepStatus(StrEnum):
    STARTED = "STARTED"
    FINISHED = "FINISHED"
    FAILED = "FAILED"


class Step(msgspec.Struct, frozen=True, gc=False):
    """One boundary inside a run, as the journal holds it.

    ``generation`` counts how often the key was voided before: a rewound step keeps its old rows.
    ``position`` is the order in which the run reached its steps, with the turn in the scope in its low bits (`order`).
    """

    key: str
    generation: int
    position: int
    kind: str
    name: str
    scope: str
    status: StepStatus
    input_hash: bytes
    preview: bytes
    result: bytes | None
    error: bytes | None
    blob_id: str | None
    attempt: int
    started_at: int
    finished_at: int | None
    seal: bytes
    voided: bool = False
    tally: int = 1


_encode = msgspec.msgpack.Encoder().encode


def seal_parts(step: Step) -> tuple[bytes, ...]:
    """What a step's seal covers: every column that a resumed run relies on."""
    columns = (
        step.key,
        step.generation,
        step.position,
        step.kind,
        step.name,
        step.scope,
        step.status,
        step.input_hash,
        step.preview,
        step.result,
        step.error,
        step.blob_id,
        step.attempt,
        step.started_at,
        step.finished_at,
        step.tally,
    )
    try:
        return (_encode(columns),)
    except UnicodeEncodeError:  # a text that no store takes, or that was damaged in one
        return (repr(columns).encode("utf-8", "backslashreplace"),)


def join_scope(parent: str, child: str) -> str:
    return f"{parent}/{child}" if parent else child


_PLAIN = " -._~:=+,()[]{}!$&'*;?"


class Keys:
    """Hands out the keys of one scope.

    A caller that works in order gets ``name#ordinal``; callers that work side by side get
    ``name@fingerprint#occurrence``, which does not depend on who came first. An explicit key is
    used as it is. The three forms cannot collide: a plain key never holds ``#``, ``@`` or ``/``.
    """

    __slots__ = ("_counts", "scope", "turn")

    def __init__(self, scope: str) -> None:
        self.scope = scope
        self.turn = 0  # calls made in order so far
        self._counts: Counter[str] = Counter()

    def explicit(self, key: str) -> str:
        if not key:
            raise InvalidInput("key: an explicit step key must not be empty; leave it out to have one derived.")
        if len(key) > 512:
            raise InvalidInput(f"key: a step key has at most 512 characters, not {len(key)}; hash the long part.")
        return join_scope(self.scope, quote(key, safe=_PLAIN, errors="surrogatepass"))

    def ordinal(self, kind: str, name: str) -> str:
        return self._next(_label(kind, name))

    def by_input(self, kind: str, name: str, fingerprint: bytes) -> str:
        return self._next(f"{_label(kind, name)}@{fingerprint[:8].hex()}")

    def restart(self, kept: Iterable[str]) -> None:
        """Count again from the derived keys that stay."""
        self._counts = Counter(key.rpartition("/")[2].rpartition("#")[0] for key in kept if "#" in key)

    def _next(self, label: str) -> str:
        counts = self._counts
        counts[label] = number = counts[label] + 1
        return f"{self.scope}/{label}#{number}" if self.scope else f"{label}#{number}"


def _label(kind: str, name: str) -> str:
    safe = name if name.isidentifier() else quote(name, safe=_PLAIN, errors="surrogatepass")
    return safe if kind == "step" else f"{kind}:{safe}"

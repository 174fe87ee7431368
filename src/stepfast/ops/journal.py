"""The journal of a run: its steps, and how far it is."""

from __future__ import annotations

import msgspec

from stepfast.journal import Step
from stepfast.ops.base import Lease, Op


class ReadJournal(Op[list[Step]], frozen=True, kw_only=True):
    """All steps of a journal in the order the run reached them; voided ones only on request."""

    reads = True
    journal_id: str
    voided: bool = False


class RecordStep(Op[None], frozen=True, kw_only=True):
    """Write a step's first row: STARTED for a one-shot, FINISHED or FAILED otherwise."""

    lease: Lease
    journal_id: str
    step: Step


class SettleStep(Op[None], frozen=True, kw_only=True):
    """Give a STARTED step its ending."""

    lease: Lease
    journal_id: str
    step: Step


class VoidSteps(Op[int], frozen=True, kw_only=True):
    """Set steps aside so that they run again; their rows stay for the history."""

    lease: Lease
    journal_id: str
    steps: list[tuple[str, int]]
    reason: str


class Progress(msgspec.Struct, frozen=True):
    """How far a run is, counted from its journal: finished top-level steps, and all records."""

    finished: int
    recorded: int
    total_steps: int | None
    last_step: str | None


class GetProgress(Op[Progress], frozen=True, kw_only=True):
    reads = True
    intent_id: str

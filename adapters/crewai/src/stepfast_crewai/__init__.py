"""Stepfast for CrewAI: crews that survive their process and go on at the last finished call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from crewai import Crew

from stepfast import InvalidInput
from stepfast.adapters import (
    OnDrift,
    OnInDoubt,
    OnWait,
    PolicyLike,
    Prices,
    StoreLike,
    composite,
    idempotent,
    once,
)

from ._runs import Options
from .crew import DurableCrew

__all__ = ["DurableCrew", "composite", "durable", "idempotent", "once"]


def durable(
    crew: Crew,
    run_id: str | None = None,
    store: StoreLike = None,
    *,
    on_in_doubt: OnInDoubt = "ask",
    policies: Mapping[str, PolicyLike] | None = None,
    on_drift: OnDrift = "raise",
    on_wait: OnWait = "suspend",
    labels: Mapping[str, str] | None = None,
    prices: Prices | None = None,
    normalise: Callable[[str], str] | None = None,
    redact: Callable[[Any], Any] | None = None,
    max_delivery_attempts: int | None = None,
    wait: float | None = None,
) -> DurableCrew:
    """Make the runs of a crew durable: each has a name, and started again it goes on where it stopped.

    ``run_id`` is the name where ``kickoff`` gets none. ``normalise`` returns a prompt without what changes by itself,
    in addition to dates and uuids, and is used for comparing only. ``redact`` is called with a tool's arguments and
    returns what the journal shows of them. The shared options are described in the documentation of adapters.
    """
    if not isinstance(crew, Crew):
        raise InvalidInput(f"crew: must be a Crew, not {type(crew).__name__}.")
    options = Options(
        run_id,
        store,
        on_in_doubt,
        policies,
        on_drift,
        on_wait,
        labels,
        prices,
        normalise,
        redact,
        max_delivery_attempts,
        wait,
    )
    return DurableCrew(crew, options)

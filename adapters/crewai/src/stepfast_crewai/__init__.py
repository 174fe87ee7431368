"""Stepfast for CrewAI: crews and flows that survive their process and go on at the last finished call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack, overload

from crewai import Crew
from crewai.flow.flow import Flow

from stepfast import DID_NOT_HAPPEN, Happened, InvalidInput, Suspended, Waiting, current_run, idempotency_key
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
from .flow import DurableFlow
from .persistence import StepfastFlowPersistence
from .worker import crew_worker

__all__ = [
    "DID_NOT_HAPPEN",
    "DurableCrew",
    "DurableFlow",
    "Happened",
    "StepfastFlowPersistence",
    "Suspended",
    "Waiting",
    "composite",
    "crew_worker",
    "current_run",
    "durable",
    "idempotency_key",
    "idempotent",
    "once",
]


class Words(TypedDict, total=False):
    """The options of `durable` beside the name of the run and the store."""

    on_in_doubt: OnInDoubt
    policies: Mapping[str, PolicyLike] | None
    on_drift: OnDrift
    on_wait: OnWait
    labels: Mapping[str, str] | None
    prices: Prices | None
    normalise: Callable[[str], str] | None
    redact: Callable[[str], str] | None
    mirror: bool
    max_delivery_attempts: int | None
    wait: float | None


@overload
def durable(
    crew: Crew, run_id: str | None = None, store: StoreLike = None, **options: Unpack[Words]
) -> DurableCrew: ...
@overload
def durable(
    crew: Flow[Any], run_id: str | None = None, store: StoreLike = None, **options: Unpack[Words]
) -> DurableFlow: ...
def durable(
    crew: Crew | Flow[Any],
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
    redact: Callable[[str], str] | None = None,
    mirror: bool = True,
    max_delivery_attempts: int | None = None,
    wait: float | None = None,
) -> DurableCrew | DurableFlow:
    """Make the runs of a crew or a flow durable: each has a name, and started again it goes on where it stopped.

    ``run_id`` is the name where ``kickoff`` gets none. ``normalise`` returns a prompt without what changes by itself,
    in addition to dates and uuids, and is used for comparing only. ``redact`` is called with every text before it is
    stored, and returns what may be; called with that, it must return the same. ``mirror``: CrewAI's events are in the
    history of the run. The shared options are described in the documentation of adapters.
    """
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
        mirror,
        max_delivery_attempts,
        wait,
    )
    if isinstance(crew, Flow):
        return DurableFlow(crew, options)
    if not isinstance(crew, Crew):
        raise InvalidInput(f"crew: must be a Crew or a Flow, not {type(crew).__name__}.")
    return DurableCrew(crew, options)

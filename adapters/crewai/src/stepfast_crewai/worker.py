"""Crews as workers: intents sent to an address are carried out by a crew or a flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from crewai import Crew
from crewai.flow.flow import Flow

from stepfast import InvalidInput, Run, Stepfast, Worker
from stepfast.adapters import input_from, serve

from ._runs import Options, summary
from .crew import DurableCrew
from .flow import DurableFlow

Made = Crew | Flow[Any]


def crew_worker(
    client: Stepfast,
    address: str,
    crew: Callable[[Any], Made],
    *,
    durable: Mapping[str, Any] | None = None,
    **options: Any,
) -> Worker:
    """Return a worker that carries out each intent of an address with a crew or a flow; the run is the intent's own.

    ``crew`` is a function that makes the crew or flow of a payload: each delivery gets a new one, since CrewAI's
    objects keep what a kickoff did to them. The payload is the inputs, or ``{"inputs": {…}}``. ``durable`` holds
    options of `durable`, ``options`` are those of ``sf.worker``. Where a person must decide, the intent is WAITING and
    the worker is free; any worker goes on after the answer.
    """
    given: Any = crew
    if isinstance(given, Crew | Flow) or not callable(given):
        raise InvalidInput(
            "crew: must be a function of the payload that makes the crew, such as lambda payload: Crew(…)."
        )
    try:
        chosen = Options(**(durable or {}))
    except TypeError as error:
        raise InvalidInput(f"durable: must hold options of durable: {error}.") from None

    def handle(run: Run, given: tuple[Any, dict[str, Any] | None]) -> Any:
        payload, inputs = given
        made = crew(payload)
        runs = DurableFlow(made, chosen) if isinstance(made, Flow) else DurableCrew(made, chosen)
        return summary(runs.kickoff(inputs, run=run))

    def unpack(payload: Any) -> tuple[Any, dict[str, Any] | None]:
        return payload, input_from(payload, (dict, type(None)), "a dictionary of inputs", "inputs")

    return serve(client, address, handle, unpack=unpack, **options)

"""Agents as workers: intents sent to an address are carried out by an agent."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from agents import Agent

from stepfast import AsyncRun, AsyncStepfast, AsyncWorker, InvalidInput
from stepfast import inputs as check
from stepfast.adapters import input_from, serve

from ._attempt import AgentSettings
from ._execution import Execution
from ._runner import install
from .runner import DurableRunner, divided, playing


def agent_worker(
    client: AsyncStepfast,
    address: str,
    agent: Any | Callable[[Any], Any],
    *,
    concurrency: int = 1,
    runner: dict[str, Any] | None = None,
    worker: dict[str, Any] | None = None,
) -> AsyncWorker:
    """Return a worker that runs an agent for each intent of an address; the run is the intent's own.

    The payload is the input, or ``{"input": …}``. ``agent`` may be a function that makes the agent of a payload.
    ``runner`` holds options of `DurableRunner.run`, the SDK's too; ``worker`` those of ``sf.worker``. An approval or a
    one-shot call in doubt makes the intent WAITING and frees the worker; any worker goes on after the answer.
    """
    if not isinstance(agent, Agent) and not callable(agent):
        raise InvalidInput(
            f"agent: must be an Agent of the SDK, or a function that makes it, not {type(agent).__name__}."
        )
    check.mapping("runner", runner)
    check.mapping("worker", worker)
    try:
        call = inspect.signature(DurableRunner.run).bind(agent, **{"on_wait": "suspend", **(runner or {})})
    except TypeError as error:
        raise InvalidInput(f"runner: must hold options of DurableRunner.run: {error}.") from None
    call.apply_defaults()
    execution, theirs = divided(call.arguments)
    return serving(client, address, agent, execution.settings, theirs, concurrency=concurrency, **(worker or {}))


def serving(
    client: AsyncStepfast, address: str, agent: Any, settings: AgentSettings, theirs: dict[str, Any], **options: Any
) -> AsyncWorker:
    """Return the worker, with ``theirs`` for the SDK and ``options`` for ``sf.worker``."""

    async def handle(run: AsyncRun, unpacked: tuple[Any, Any]) -> Any:
        payload, given = unpacked
        execution = Execution(run=run, settings=settings)
        chosen = agent(payload) if callable(agent) else agent
        result = await execution.execute(chosen, given, theirs, playing(install().inner))
        return await execution.summary(result)

    def unpack(payload: Any) -> tuple[Any, Any]:
        return payload, input_from(payload, (str, list), "a text or a list of items")

    return serve(client, address, handle, unpack=unpack, **options)

"""Agents as workers: intents sent to an address are carried out by an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepfast import AsyncRun, AsyncStepfast, AsyncWorker, GiveUp

from .runner import DurableRunner, summary

_HINT = 'send {"input": "…"} or the input itself'


def agent_worker(
    client: AsyncStepfast,
    address: str,
    agent: Any | Callable[[Any], Any],
    *,
    concurrency: int = 1,
    runner: dict[str, Any] | None = None,
    worker: dict[str, Any] | None = None,
) -> AsyncWorker:
    """A worker that runs an agent for each intent of an address; the run is the intent's own.

    The payload is the input, or ``{"input": …}``. ``agent`` may be a function that makes the agent of a payload.
    ``runner`` holds options of `DurableRunner.run`, the SDK's too; ``worker`` those of ``sf.worker``. An approval or a
    one-shot call in doubt makes the intent WAITING and frees the worker; whoever claims after the answer goes on.
    """

    async def handle(run: AsyncRun, payload: Any) -> Any:
        given = payload.get("input") if isinstance(payload, dict) else payload
        if not isinstance(given, str | list):
            raise GiveUp(f"payload: an agent needs a text or a list of items as its input; {_HINT}.")
        chosen = agent(payload) if callable(agent) else agent
        options: dict[str, Any] = {"on_wait": "suspend", **(runner or {}), "run": run}
        return summary(await DurableRunner.run(chosen, given, **options))

    made = client.worker(address, concurrency=concurrency, **(worker or {}))
    return made(handle)

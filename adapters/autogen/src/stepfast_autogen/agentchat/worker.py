"""Serving an address: intents sent to it are carried out by a team."""

from __future__ import annotations

from typing import Any

from stepfast import AsyncRun, AsyncStepfast, AsyncWorker, InvalidInput
from stepfast.adapters import input_from, open_any, serve

from ._conversation import Memory
from ._messages import pack_task
from ._runs import Handle, Runs, summary


def serving(client: AsyncStepfast, address: str, runs: Runs, **options: Any) -> AsyncWorker:
    """Return the worker, with ``options`` for ``sf.worker``."""

    async def handle(run: AsyncRun, payload: dict[str, Any]) -> Any:
        conversation = payload["conversation"] or run.intent_id
        memory = Memory(open_any(client), conversation)
        head = await memory.head()
        call = Handle(runs.settings, True)
        task = pack_task(payload["task"])
        result = await runs.carry_out(run, call, memory, conversation, head.runs + 1, head, task)
        return await summary(run, call, result)

    def unpack(payload: Any) -> dict[str, Any]:
        task = input_from(payload, (str, type(None)), "a text", "task")
        name = payload.get("conversation") if isinstance(payload, dict) else None
        if name is not None and not isinstance(name, str):
            raise InvalidInput(f"payload: conversation must be a name, not a {type(name).__name__}.")
        return {"task": task, "conversation": name}

    return serve(client, address, handle, unpack=unpack, **options)

"""Reading what a run has recorded, from outside, without opening it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, overload

from stepfast.async_client import AsyncStepfast
from stepfast.client import Stepfast
from stepfast.errors import NotFound
from stepfast.flow import Flow, do
from stepfast.journal import StepStatus
from stepfast.opening import find
from stepfast.ops import ReadJournal
from stepfast.vault import Vault

__all__ = ["value_of"]


@overload
def value_of(client: Stepfast, run_id: str, key: str) -> Any: ...
@overload
def value_of(client: AsyncStepfast, run_id: str, key: str) -> Coroutine[Any, Any, Any]: ...
def value_of(client: Stepfast | AsyncStepfast, run_id: str, key: str) -> Any:
    """Return the result of a finished step, by its full key; `NotFound` if there is none. Awaited with `AsyncStepfast`.

    The run may be finished, waiting, or under way in another process.
    """

    def flow() -> Flow[Any]:
        intent = yield from find(run_id)
        for step in (yield from do(ReadJournal(journal_id=intent.journal_id))):
            if step.key == key and step.status is StepStatus.FINISHED:
                return (yield from Vault(intent, None, client.codec, client.store.tenant).result_of(step))
        raise NotFound(f"run {run_id!r} has no finished step {key!r}.")

    return client._drive(flow())

"""CrewAI's own persistence of flows, ``@persist`` and pending feedback, in a Stepfast store."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from crewai.flow.async_feedback.types import PendingFeedbackContext
from crewai.flow.persistence.base import FlowPersistence
from pydantic import Field, PrivateAttr
from pydantic_core import to_jsonable_python

from stepfast import InvalidInput
from stepfast.adapters import LazyStore, StoreLike
from stepfast.threads import DeleteRecord, GetRecord, PutRecord

_STATE, _PENDING = "crewai-flow-state", "crewai-flow-pending"


class StepfastFlowPersistence(FlowPersistence):
    """Keeps the newest state of each flow, and the feedback that a flow waits for, in a store.

    For ``@persist(StepfastFlowPersistence(url))``, ``Flow(persistence=…)`` and ``set_flow_persistence_factory``. It
    keeps what CrewAI gives it, no more: `durable` is what lets a flow go on at the method that had not finished.
    ``store`` is a URL, a path, a client or a store; one URL is opened once in a process.
    """

    persistence_type: str = Field(default="StepfastFlowPersistence")
    _store: LazyStore = PrivateAttr()

    def __init__(self, store: StoreLike = None, /, **fields: Any) -> None:
        super().__init__(**fields)
        self._store = LazyStore(store, shared=True)

    def init_db(self) -> None:
        """Do nothing: the store is opened, and its tables are made, at the first use."""

    def save_state(self, flow_uuid: str, method_name: str, state_data: Any) -> None:
        """Keep the state of a flow after a method; the one before is replaced."""
        self._do(self._put(_STATE, flow_uuid, {"method": str(method_name), "state": _plain(state_data)}))

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """Return the newest state of a flow; None if there is none."""
        found = self._get(_STATE, flow_uuid)
        return None if found is None else found["state"]

    def save_pending_feedback(self, flow_uuid: str, context: PendingFeedbackContext, state_data: Any) -> None:
        """Keep the state of a flow and what it waits for: both, or neither."""
        state = _plain(state_data)
        self._do(
            self._put(_STATE, flow_uuid, {"method": str(context.method_name), "state": state}),
            self._put(_PENDING, flow_uuid, {"context": to_jsonable_python(context.to_dict()), "state": state}),
        )

    def load_pending_feedback(self, flow_uuid: str) -> tuple[dict[str, Any], PendingFeedbackContext] | None:
        """Return the state of a flow and what it waits for; None if it waits for nothing."""
        found = self._get(_PENDING, flow_uuid)
        return None if found is None else (found["state"], PendingFeedbackContext.from_dict(found["context"]))

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        """Forget what a flow waited for."""
        self._do(DeleteRecord(kind=_PENDING, record_id=flow_uuid))

    def _put(self, kind: str, flow_uuid: str, value: dict[str, Any]) -> PutRecord:
        body = self._store.get().codec.encode(value, bind=self._bind(kind, flow_uuid))
        return PutRecord(kind=kind, record_id=flow_uuid, body=body, write_id=uuid4().hex)

    def _get(self, kind: str, flow_uuid: str) -> Any:
        [found] = self._do(GetRecord(kind=kind, record_id=flow_uuid))
        return None if found is None else self._store.get().codec.decode(found.body, bind=self._bind(kind, flow_uuid))

    def _do(self, *ops: Any) -> list[Any]:
        opened = self._store.get()
        return list(opened.store.execute(list(ops), tenant=opened.tenant))

    def _bind(self, kind: str, flow_uuid: str) -> bytes:
        return f"{self._store.get().tenant}|{kind}|{flow_uuid}".encode()


def _plain(state: Any) -> dict[str, Any]:
    """Return a state as JSON data, as CrewAI's own persistence keeps it."""
    found = to_jsonable_python(state, fallback=str)
    if not isinstance(found, dict):
        raise InvalidInput(f"state_data: must be a dictionary or a pydantic model, not {type(state).__name__}.")
    return found

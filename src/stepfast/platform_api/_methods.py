"""Everything that can be asked of a server, written once for both clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, Unpack
from urllib.parse import quote
from uuid import uuid4

from stepfast.errors import InvalidInput

from ._flows import Ask, Emit, Flow, Following, How, Json, Lost, ask, call, follow

D = TypeVar("D")  # what a method gives: the object, or a promise of it
S = TypeVar("S")  # the same for a text
E = TypeVar("E")  # the same for a stream of objects


def address_path(address: str) -> str:
    bare = address.strip().removeprefix("agent://").strip("/")
    if not bare:
        raise InvalidInput("address: must not be empty.")
    return quote(bare, safe="/")


def _part(text: str) -> str:
    if not text:
        raise InvalidInput("an id must not be empty.")
    return quote(text, safe="")


class Methods(Generic[D, S, E]):
    """Everything that can be asked, once for both clients."""

    def __init__(self) -> None:
        self.mesh: Mesh[D] = Mesh(self._do)

    def _do(self, flow: Flow[Json]) -> D:
        raise NotImplementedError

    def _text(self, flow: Flow[str]) -> S:
        raise NotImplementedError

    def _stream(self, flow: Flow[None]) -> E:
        raise NotImplementedError

    def health(self, **how: Unpack[How]) -> D:
        return self._do(call(ask("GET", "/health", how=how)))

    def whoami(self, **how: Unpack[How]) -> D:
        return self._do(call(ask("GET", "/v1/whoami", how=how)))

    def get_capabilities(self, **how: Unpack[How]) -> D:
        return self._do(call(ask("GET", "/v1/capabilities", how=how)))

    # intents

    def create_intent(self, payload: Json, *, correlation_id: str | None = None, **how: Unpack[How]) -> D:
        return self._do(call(_creation(payload, correlation_id, how)))

    def send_intent(self, payload: Json, *, correlation_id: str | None = None, **how: Unpack[How]) -> S:
        """Gives the id of the intent."""
        return self._text(_id_of(call(_creation(payload, correlation_id, how))))

    def get_intent(self, intent_id: str, **how: Unpack[How]) -> D:
        return self._do(call(ask("GET", f"/v1/intents/{_part(intent_id)}", how=how)))

    def list_intents(
        self,
        *,
        status: str | None = None,
        limit: int | None = None,
        to_agent: str | None = None,
        intent_type: str | None = None,
        before: str | None = None,
        **how: Unpack[How],
    ) -> D:
        where = {"status": status, "limit": limit, "to_agent": to_agent, "intent_type": intent_type, "before": before}
        return self._do(call(ask("GET", "/v1/intents", params=where, how=how)))

    def list_intent_events(self, intent_id: str, *, since: int | None = None, **how: Unpack[How]) -> D:
        return self._do(call(ask("GET", f"/v1/intents/{_part(intent_id)}/events", params={"since": since}, how=how)))

    def observe(
        self,
        intent_id: str,
        *,
        since: int = 0,
        wait_seconds: int = 15,
        timeout_seconds: float | None = None,
        **how: Unpack[How],
    ) -> E:
        """The events of an intent as they come, up to its ending."""
        return self._stream(follow(_history(intent_id, since, wait_seconds, timeout_seconds, how)))

    def wait_for(
        self,
        intent_id: str,
        *,
        since: int = 0,
        wait_seconds: int = 15,
        timeout_seconds: float | None = None,
        **how: Unpack[How],
    ) -> D:
        """The event that tells of the ending, with ``result`` or ``error`` in it."""
        return self._do(_last(follow(_history(intent_id, since, wait_seconds, timeout_seconds, how))))

    def listen(
        self,
        address: str,
        *,
        since: int = 0,
        wait_seconds: int = 15,
        timeout_seconds: float | None = None,
        status: str | None = None,
        **how: Unpack[How],
    ) -> E:
        """Deliveries for an agent, one at a time: asking for the next says that this one is dealt with."""
        path = f"/v1/agents/{address_path(address)}/intents/stream"
        params = {"status": status}
        return self._stream(follow(Following(path, since, wait_seconds, timeout_seconds, params, how, False, False)))

    def resume_intent(self, intent_id: str, payload: Json, **how: Unpack[How]) -> D:
        return self._do(call(_on(intent_id, "resume", payload, how)))

    def resolve_intent(self, intent_id: str, payload: Json, **how: Unpack[How]) -> D:
        return self._do(call(_on(intent_id, "resolve", payload, how)))

    def update_intent_controls(self, intent_id: str, payload: Json, **how: Unpack[How]) -> D:
        return self._do(call(_on(intent_id, "controls", payload, how)))

    def update_intent_policy(self, intent_id: str, payload: Json, **how: Unpack[How]) -> D:
        return self._do(call(_on(intent_id, "policy", payload, how)))

    def revive_intent(self, intent_id: str, **how: Unpack[How]) -> D:
        return self._do(call(_on(intent_id, "revive", None, how)))

    def bulk_cancel_intents(self, payload: Json, **how: Unpack[How]) -> D:
        return self._do(call(ask("POST", "/v1/intents/bulk-cancel", payload, repeatable=True, how=how)))

    # scenarios

    def apply_scenario(self, bundle: Json, **how: Unpack[How]) -> D:
        request = ask("POST", "/v1/scenarios/apply", None, repeatable=True, how=how)
        body = {"idempotency_key": request.headers["idempotency-key"], **bundle}
        return self._do(call(request._replace(body=body)))

    def validate_scenario(self, bundle: Json, **how: Unpack[How]) -> D:
        return self._do(call(ask("POST", "/v1/scenarios/validate", bundle, repeatable=True, how=how)))

    # agents, accounts, keys

    def list_agents(
        self,
        *,
        org_id: str | None = None,
        workspace_id: str | None = None,
        limit: int | None = None,
        **how: Unpack[How],
    ) -> D:
        where = {"org_id": org_id, "workspace_id": workspace_id, "limit": limit}
        return self._do(call(ask("GET", "/v1/agents", params=where, how=how)))

    def get_agent(self, address: str, **how: Unpack[How]) -> D:
        return self._do(call(ask("GET", f"/v1/agents/{address_path(address)}", how=how)))

    def create_service_account(self, payload: Json, **how: Unpack[How]) -> D:
        return self._do(call(ask("POST", "/v1/service-accounts", payload, how=how)))

    def list_service_accounts(
        self, *, org_id: str | None = None, workspace_id: str | None = None, **how: Unpack[How]
    ) -> D:
        where = {"org_id": org_id, "workspace_id": workspace_id}
        return self._do(call(ask("GET", "/v1/service-accounts", params=where, how=how)))

    def get_service_account(self, service_account_id: str, **how: Unpack[How]) -> D:
        return self._do(call(ask("GET", _account(service_account_id), how=how)))

    def update_service_account(self, service_account_id: str, payload: Json, **how: Unpack[How]) -> D:
        return self._do(call(ask("PATCH", _account(service_account_id), payload, repeatable=True, how=how)))

    def delete_service_account(self, service_account_id: str, **how: Unpack[How]) -> D:
        return self._do(call(ask("DELETE", _account(service_account_id), how=how)))

    def create_service_account_key(self, service_account_id: str, payload: Json, **how: Unpack[How]) -> D:
        return self._do(call(ask("POST", f"{_account(service_account_id)}/keys", payload, how=how)))

    def revoke_service_account_key(self, service_account_id: str, key_id: str, **how: Unpack[How]) -> D:
        path = f"{_account(service_account_id)}/keys/{_part(key_id)}/revoke"
        return self._do(call(ask("POST", path, repeatable=True, how=how)))

    # people

    def list_tasks(self, *, limit: int | None = None, **how: Unpack[How]) -> D:
        return self._do(call(ask("GET", "/v1/me/tasks", params={"limit": limit}, how=how)))

    def list_waiting(self, *, limit: int | None = None, **how: Unpack[How]) -> D:
        """All that waits for a person: tasks, and the questions of runs, one-shot steps in doubt among them."""
        return self._do(call(ask("GET", "/v1/tasks", params={"limit": limit}, how=how)))

    def get_task(self, task_id: str, **how: Unpack[How]) -> D:
        return self._do(call(ask("GET", f"/v1/tasks/{_part(task_id)}", how=how)))

    def answer_task(self, task_id: str, payload: Json, **how: Unpack[How]) -> D:
        return self._do(call(ask("POST", f"/v1/tasks/{_part(task_id)}/answer", payload, how=how)))

    def list_inbox(self, **how: Unpack[How]) -> D:
        return self._do(call(ask("GET", "/v1/inbox", how=how)))

    def get_inbox_thread(self, thread_id: str, **how: Unpack[How]) -> D:
        return self._do(call(ask("GET", f"/v1/inbox/{_part(thread_id)}", how=how)))

    def list_inbox_changes(self, *, cursor: str | None = None, limit: int | None = None, **how: Unpack[How]) -> D:
        return self._do(call(ask("GET", "/v1/inbox/changes", params={"cursor": cursor, "limit": limit}, how=how)))

    def reply_inbox_thread(self, thread_id: str, *, message: str, **how: Unpack[How]) -> D:
        return self._do(call(_thread(thread_id, "reply", {"message": message}, how)))

    def delegate_inbox_thread(self, thread_id: str, payload: Json, **how: Unpack[How]) -> D:
        return self._do(call(_thread(thread_id, "delegate", payload, how)))

    def approve_inbox_thread(self, thread_id: str, payload: Json | None = None, **how: Unpack[How]) -> D:
        return self._do(call(_thread(thread_id, "approve", payload or {}, how)))

    def reject_inbox_thread(self, thread_id: str, payload: Json | None = None, **how: Unpack[How]) -> D:
        return self._do(call(_thread(thread_id, "reject", payload or {}, how)))

    def delete_inbox_messages(self, thread_id: str, payload: Json, **how: Unpack[How]) -> D:
        return self._do(call(_thread(thread_id, "messages/delete", payload, how)))

    def decide_approval(self, approval_id: str, *, decision: str, comment: str | None = None, **how: Unpack[How]) -> D:
        body = {"decision": decision} if comment is None else {"decision": decision, "comment": comment}
        return self._do(call(ask("POST", f"/v1/approvals/{_part(approval_id)}/decision", body, how=how)))


class Mesh(Generic[D]):
    """Signs of life, and the kill switch."""

    def __init__(self, do: Callable[[Flow[Json]], D]) -> None:
        self._do = do

    def heartbeat(self, *, metrics: Json | None = None, **how: Unpack[How]) -> D:
        # Metrics are added up over there: with them a beat is not the same when it is done twice.
        body = {"metrics": metrics} if metrics else None
        return self._do(call(ask("POST", "/v1/mesh/heartbeat", body, repeatable=not metrics, how=how)))

    def list_agents(self, *, limit: int = 100, health: str | None = None, **how: Unpack[How]) -> D:
        return self._do(call(ask("GET", "/v1/mesh/agents", params={"limit": limit, "health": health}, how=how)))

    def get_agent(self, address_id: str, **how: Unpack[How]) -> D:
        return self._do(call(ask("GET", f"/v1/mesh/agents/{address_path(address_id)}", how=how)))

    def kill(self, address_id: str, **how: Unpack[How]) -> D:
        return self._do(call(ask("POST", f"/v1/mesh/agents/{address_path(address_id)}/kill", repeatable=True, how=how)))

    def resume(self, address_id: str, **how: Unpack[How]) -> D:
        path = f"/v1/mesh/agents/{address_path(address_id)}/resume"
        return self._do(call(ask("POST", path, repeatable=True, how=how)))

    def list_events(self, *, limit: int = 50, event_type: str | None = None, **how: Unpack[How]) -> D:
        where = {"limit": limit, "event_type": event_type}
        return self._do(call(ask("GET", "/v1/mesh/events", params=where, how=how)))


def _creation(payload: Json, correlation_id: str | None, how: How) -> Ask:
    given = payload.get("correlation_id")
    if given is not None and correlation_id is not None and given != correlation_id:
        raise InvalidInput("correlation_id: the payload has another one.")
    body = {**payload, "correlation_id": correlation_id or given or str(uuid4())}
    return ask("POST", "/v1/intents", body, repeatable=True, how=how)


def _id_of(flow: Flow[Json]) -> Flow[str]:
    created = yield from flow
    return str(created["intent_id"])


def _on(intent_id: str, verb: str, body: Json | None, how: How) -> Ask:
    return ask("POST", f"/v1/intents/{_part(intent_id)}/{verb}", body, repeatable=True, how=how)


def _account(service_account_id: str) -> str:
    return f"/v1/service-accounts/{_part(service_account_id)}"


def _thread(thread_id: str, verb: str, body: Json, how: How) -> Ask:
    return ask("POST", f"/v1/inbox/{_part(thread_id)}/{verb}", body, how=how)


def _history(intent_id: str, since: int, wait: int, timeout: float | None, how: How) -> Following:
    return Following(f"/v1/intents/{_part(intent_id)}/events/stream", since, wait, timeout, {}, how, True, True)


def _last(flow: Flow[None]) -> Flow[Json]:
    """The last object that a stream emits."""
    event: Json = {}
    command = next(flow)
    while True:
        try:
            if isinstance(command, Emit):
                event = command.value
                command = flow.send(None)
            else:
                try:
                    answer = yield command
                except Lost as lost:
                    command = flow.throw(lost)
                else:
                    command = flow.send(answer)
        except StopIteration:
            return event

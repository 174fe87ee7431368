"""Scenarios over HTTP: check a bundle, and start one."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepfast import inputs as check
from stepfast.addresses import last_name, same_agent
from stepfast.bindings import of_payload
from stepfast.clock import new_id
from stepfast.core import iso
from stepfast.errors import Conflict, InvalidInput
from stepfast.intents import Intent
from stepfast.ops import CreateIntent, GetIntent, GetRecord, NewIntent, Op, PutRecord
from stepfast.server import keys, timers
from stepfast.server.bundles import Agent, Plan, read_bundle
from stepfast.server.caller import Caller
from stepfast.server.controls import Extra, hash_of, put_extra
from stepfast.server.guard import read_json
from stepfast.server.mesh import Mesh
from stepfast.server.scenario_runs import Runs, core_of, deadline_of
from stepfast.server.state import Platform
from stepfast.server.store_time import StoreTime
from stepfast.server.views import reply

__all__ = ["DOCS", "background", "routes"]

APPLIED = "applied"
_LATEST = 253_370_764_800_000_000  # the end of 9998: what every calendar can show

background = timers.background


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What a bundle was turned into, kept under its idempotency key."""

    body_hash: str
    intent_id: str
    scenario_id: str
    compile_id: str
    agents: list[dict[str, Any]]
    warnings: list[str]


async def validate(request: Request) -> Response:
    caller: Caller = request.state.caller
    caller.require("read")
    reading = read_bundle(await read_json(request))
    return reply({"ok": not reading.errors, "errors": reading.errors, "warnings": reading.warnings})


async def apply(request: Request) -> Response:
    platform: Platform = request.app.state.platform
    caller: Caller = request.state.caller
    caller.require("create")
    body = await read_json(request)
    reading = read_bundle(body)
    if reading.plan is None:
        raise InvalidInput("; ".join(reading.errors[:10]) + ".", errors=reading.errors[:100])
    plan, key = reading.plan, _key(request, body)
    if key is not None:
        known = await _known(platform, caller, key, body)
        if known is not None:
            return known
    new = _parent(platform, caller, plan)
    await platform.part(Mesh).check(caller.tenant, new.from_agent, plan.steps[0].address if plan.direct else None)
    applied = Applied(
        body_hash=hash_of(body).hex(),
        intent_id=new.intent_id,
        scenario_id=plan.scenario_id,
        compile_id="wfc_" + sha256(msgspec.json.encode(plan)).hexdigest()[:24],
        agents=[await _provide(platform, caller, agent) for agent in plan.agents],
        warnings=reading.warnings,
    )
    others: list[Op[Any]] = [] if key is None else [_put(_record_id(caller, key), applied)]
    try:
        if plan.direct:
            intent = await _send(platform, caller, plan, new, others)
        else:
            intent = await platform.part(Runs).begin(caller, new, plan, others)
    except Conflict:
        # Somebody sent the same at the same time, and was first.
        known = None if key is None else await _known(platform, caller, key, body)
        if known is None:
            raise
        return known
    return reply(_told(applied, intent, idempotent=False))


def _parent(platform: Platform, caller: Caller, plan: Plan) -> NewIntent:
    now = platform.part(StoreTime).now()
    try:
        deadline = check.moment("intent.deadline_at", plan.deadline_at)
    except OverflowError:
        deadline = -1
    if deadline is not None and not 0 <= deadline <= _LATEST:
        raise InvalidInput("intent.deadline_at: must be from 1970 to 9998.")
    core = core_of(caller.tenant)
    intent_id = new_id()
    return NewIntent(
        intent_id=intent_id,
        intent_type=plan.intent_type,
        to_agent=(plan.steps[0].address or core) if plan.direct else core,
        from_agent=caller.sender(),
        correlation_id=new_id(),
        payload=platform.codec.encode(plan.payload, bind=of_payload(caller.tenant, intent_id)),
        labels={"scenario_id": plan.scenario_id},
        deadline_at=deadline_of(plan, deadline, now),
        max_delivery_attempts=plan.max_delivery_attempts,
    )


async def _send(platform: Platform, caller: Caller, plan: Plan, new: NewIntent, others: list[Op[Any]]) -> Intent:
    """One agent's step: the intent itself goes to the agent."""
    step = plan.steps[0]
    extra = Extra(
        pending_with={"type": "agent", "ref": step.address, "name": step.step_id},
        more={"scenario": {"scenario_id": plan.scenario_id, "steps": 1}, "step_id": step.step_id},
    )
    ops: list[Op[Any]] = [*others, CreateIntent(new=new), put_extra(new.intent_id, extra, expected=0)]
    intent: Intent = (await platform.store.execute(ops, tenant=caller.tenant))[len(others)].intent
    return intent


async def _provide(platform: Platform, caller: Caller, agent: Agent) -> dict[str, Any]:
    """The agent's service account: found, or made where the bundle and the key allow it."""
    name = last_name(agent.address)
    own = f"agent://{caller.org}/{caller.workspace}/{name}"
    told = {"role": agent.role, "address": agent.address, "service_account_id": None, "created": False}
    if not same_agent(agent.address, own) and "/" in agent.address.removeprefix("agent://"):
        return told  # an agent elsewhere is not ours to make
    accounts = await keys.list_accounts(platform.store, caller.tenant)
    account = next((each for each in accounts if each.name == name and each.status != "revoked"), None)
    created = False
    if account is None and agent.create_if_missing and caller.has("admin"):
        try:
            account = await keys.create_account(
                platform.store,
                caller.org,
                caller.workspace,
                name,
                display_name=agent.display_name,
                created_by=caller.actor,
            )
            created = True
        except (Conflict, InvalidInput):  # made by another at the same moment, or a name no account can have
            account = None
    if account is None:
        return told
    return {**told, "address": account.address, "service_account_id": account.account_id, "created": created}


# --- the same request again -------------------------------------------------------------------------


def _key(request: Request, body: dict[str, Any]) -> str | None:
    key = request.headers.get("idempotency-key") or body.get("idempotency_key")
    if key is None:
        return None
    if not isinstance(key, str) or not (1 <= len(key) <= 255 and key.isprintable()):
        raise InvalidInput("idempotency_key: must be 1 to 255 printable characters.")
    return key


def _record_id(caller: Caller, key: str) -> str:
    return sha256(f"{caller.key_id}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()


def _put(record_id: str, applied: Applied) -> PutRecord:
    return PutRecord(
        kind=APPLIED,
        record_id=record_id,
        body=msgspec.json.encode(applied),
        write_id=new_id(),
        expected=0,
        belongs_to=applied.intent_id,
    )


async def _known(platform: Platform, caller: Caller, key: str, body: dict[str, Any]) -> Response | None:
    found = GetRecord(kind=APPLIED, record_id=_record_id(caller, key))
    record = await platform.store.one(found, tenant=caller.tenant)
    if record is None:
        return None
    applied = msgspec.json.decode(record.body, type=Applied)
    if applied.body_hash != hash_of(body).hex():
        raise Conflict("idempotency key reused with different payload", intent_id=applied.intent_id)
    intent = await platform.store.one(GetIntent(intent_id=applied.intent_id), tenant=caller.tenant)
    return reply(_told(applied, intent, idempotent=True))


def _told(applied: Applied, intent: Intent, *, idempotent: bool) -> dict[str, Any]:
    made = [each for each in applied.agents if each["service_account_id"] is not None]
    return {
        "ok": True,
        "intent_id": intent.intent_id,
        "scenario_id": applied.scenario_id,
        "status": str(intent.status),
        "pending_with": intent.waiting_reason or intent.to_agent,
        "workflow_compile_id": applied.compile_id,
        "compile_id": applied.compile_id,
        "idempotent": idempotent,
        "agents": applied.agents,
        "agents_provisioned": [
            {"address": each["address"], "service_account_id": each["service_account_id"]} for each in made
        ],
        "deadline_at": iso(intent.deadline_at),
        "created_at": iso(intent.created_at),
        "warnings": applied.warnings,
    }


routes: list[Route] = [
    Route("/v1/scenarios/apply", apply, methods=["POST"]),
    Route("/v1/scenarios/validate", validate, methods=["POST"]),
]

_NAME: dict[str, Any] = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"}
_SECONDS: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": 315_360_000}
_TASK: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 255},
        "description": {"type": "string", "maxLength": 2000},
        "task_type": {"type": "string", "maxLength": 64},
        "allowed_outcomes": {"type": "array", "minItems": 1, "maxItems": 20, "items": _NAME},
        "assignees": {"type": "array", "minItems": 1, "maxItems": 20, "items": _NAME},
        "required_comment": {"type": "boolean"},
        "evidence_required": {"type": "boolean"},
        "form_schema": {"type": "object", "description": "A JSON Schema without references and patterns"},
    },
}
_REMIND: dict[str, Any] = {
    "remind_after_seconds": _SECONDS,
    "remind_interval_seconds": _SECONDS,
    "max_reminders": {"type": "integer", "minimum": 0, "maximum": 1000},
    "escalate_to": _NAME,
    "human_task": _TASK,
}
_STEP: dict[str, Any] = {
    "type": "object",
    "required": ["step_id"],
    "properties": {
        "step_id": _NAME,
        "tool_id": {"type": "string"},
        "runtime_type": {
            "enum": ["human_approval", "delay", "timeout", "notification", "reminder", "escalation"],
        },
        "runtime_config": {"type": "object"},
        "assigned_to": {**_NAME, "description": "The role of an agent or a person"},
        "input": {},
        "on_success": {**_NAME, "description": "A step_id, or 'end'; by default the step that follows"},
        "on_failure": {**_NAME, "description": "A step_id; by default the scenario fails"},
        "step_deadline_seconds": _SECONDS,
        "requires_approval": {"type": "boolean"},
        "retry": {
            "type": "object",
            "properties": {
                "max_retries": {"type": "integer", "minimum": 0, "maximum": 1000},
                "retry_delay_seconds": _SECONDS,
            },
        },
        **_REMIND,
    },
}
# Whether roles and steps that are named exist cannot be said here: such errors are told as 422, all at once.
_BUNDLE: dict[str, Any] = {
    "type": "object",
    "description": "A scenario: who takes part, the steps, and the intent that starts it. See docs/scenarios.md.",
    "properties": {
        "scenario_id": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
        "title": {"type": "string", "pattern": "^[ -~]{0,200}[!-~]$"},
        "agents": {
            "type": "array",
            "maxItems": 200,
            "items": {
                "type": "object",
                "required": ["role", "address"],
                "properties": {
                    "role": _NAME,
                    "address": {"type": "string", "pattern": "^(agent://)?[A-Za-z0-9._-]{1,64}$"},
                    "create_if_missing": {"type": "boolean"},
                },
            },
        },
        "humans": {
            "type": "array",
            "maxItems": 200,
            "items": {"type": "object", "required": ["role"], "properties": {"role": _NAME}},
        },
        "workflow": {
            "type": "object",
            "properties": {"entry_step": _NAME, "steps": {"type": "array", "maxItems": 500, "items": _STEP}},
        },
        "intent": {
            "type": "object",
            "required": ["type"],
            "properties": {
                "type": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,200}$"},
                "payload": {"type": "object"},
                "deadline_at": {"type": "string", "format": "date-time"},
                "ttl_seconds": _SECONDS,
                "max_delivery_attempts": {"type": "integer", "minimum": 1, "maximum": 1000},
                **_REMIND,
            },
        },
        "idempotency_key": {"type": "string", "pattern": "^[!-~]{1,255}$"},
    },
}
_IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    "description": "The same key and bundle give the same intent; another bundle is a 409.",
}
_NULL_TEXT = {"type": ["string", "null"]}
_TEXTS = {"type": "array", "items": {"type": "string"}}
DOCS: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/scenarios/apply"): {
        "summary": "Start a scenario",
        "parameters": [_IDEMPOTENCY],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {**_BUNDLE, "required": ["scenario_id", "intent"]}}},
        },
        "responses": {
            "200": {
                "description": "It has begun (or had, where the key was known)",
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "object",
                            "required": ["ok", "intent_id", "scenario_id", "status", "compile_id", "idempotent"],
                            "properties": {
                                "ok": {"const": True},
                                "intent_id": {"type": "string"},
                                "scenario_id": {"type": "string"},
                                "status": {"type": "string"},
                                "pending_with": _NULL_TEXT,
                                "workflow_compile_id": {"type": "string"},
                                "compile_id": {"type": "string"},
                                "idempotent": {"type": "boolean"},
                                "agents": {"type": "array", "items": {"type": "object"}},
                                "agents_provisioned": {"type": "array", "items": {"type": "object"}},
                                "deadline_at": _NULL_TEXT,
                                "created_at": {"type": "string"},
                                "warnings": _TEXTS,
                            },
                        }
                    }
                },
            }
        },
    },
    ("POST", "/v1/scenarios/validate"): {
        "summary": "Say what is wrong with a scenario, without starting it",
        "requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}},
        "responses": {
            "200": {
                "description": "ok is true where there are no errors",
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "object",
                            "required": ["ok", "errors", "warnings"],
                            "properties": {"ok": {"type": "boolean"}, "errors": _TEXTS, "warnings": _TEXTS},
                        }
                    }
                },
            }
        },
    },
}

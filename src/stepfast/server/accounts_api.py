"""Service accounts and their keys. Organisation and workspace are the caller's own, whatever a body says."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stepfast.clock import from_micros
from stepfast.errors import Conflict
from stepfast.server import keys
from stepfast.server.caller import Caller
from stepfast.server.guard import read_as
from stepfast.server.keys import Account, Key
from stepfast.server.state import Platform

_Name = Annotated[str, Meta(min_length=2, max_length=63)]
_Short = Annotated[str, Meta(max_length=255)]
_Long = Annotated[str, Meta(max_length=2000)]
_Mode = Literal["stream", "poll", "http", "inbox", "internal"]


class NewAccount(msgspec.Struct, kw_only=True):
    name: _Name
    display_name: _Short | None = None
    description: _Long | None = None
    created_by_actor_id: _Short | None = None
    delivery_mode: _Mode | None = None
    callback_url: _Long | None = None


class AccountChange(msgspec.Struct, kw_only=True):
    display_name: _Short | UnsetType | None = UNSET
    description: _Long | UnsetType | None = UNSET
    delivery_mode: _Mode | UnsetType = UNSET
    callback_url: _Long | UnsetType | None = UNSET


class NewKey(msgspec.Struct, kw_only=True):
    created_by_actor_id: _Short | None = None
    expires_in_seconds: Annotated[int, Meta(ge=1, le=10 * 365 * 86_400)] | None = None


def _platform(request: Request) -> tuple[Platform, Caller]:
    caller: Caller = request.state.caller
    caller.require("admin")
    return request.app.state.platform, caller


async def create_account(request: Request) -> Response:
    platform, caller = _platform(request)
    body = await read_as(request, NewAccount)
    account = await keys.create_account(
        platform.store,
        caller.org,
        caller.workspace,
        body.name,
        display_name=body.display_name,
        description=body.description,
        created_by=body.created_by_actor_id or caller.actor,
        delivery_mode=body.delivery_mode or "stream",
        callback_url=body.callback_url,
    )
    return _told(service_account=account_view(account))


async def list_accounts(request: Request) -> Response:
    platform, caller = _platform(request)
    found = await keys.list_accounts(platform.store, caller.tenant)
    return _told(service_accounts=[account_view(each) for each in found if each.status != "revoked"])


async def show_account(request: Request) -> Response:
    platform, caller = _platform(request)
    account = await keys.get_account(platform.store, caller.tenant, request.path_params["account_id"])
    mine = [key for key in await keys.list_keys(platform.store, caller.tenant) if key.account_id == account.account_id]
    view = account_view(account)
    view["keys"] = [key_view(key, platform.keys.now()) for key in mine]
    return _told(service_account=view)


async def change_account(request: Request) -> Response:
    platform, caller = _platform(request)
    body = await read_as(request, AccountChange)
    changes = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not UNSET}
    account_id = request.path_params["account_id"]
    account = await keys.get_account(platform.store, caller.tenant, account_id)
    if account.status == "revoked":
        raise Conflict("this service account was deleted; create it anew.", service_account_id=account_id)
    account = await keys.change_account(platform.store, caller.tenant, account_id, **changes)
    return _told(service_account=account_view(account))


async def delete_account(request: Request) -> Response:
    platform, caller = _platform(request)
    account_id = request.path_params["account_id"]
    account, gone = await keys.delete_account(platform.store, caller.tenant, account_id)
    for key in gone:
        await platform.keys.learn(key)
    return _told(service_account=account_view(account), revoked_keys=[key.key_id for key in gone])


async def create_key(request: Request) -> Response:
    platform, caller = _platform(request)
    body = await read_as(request, NewKey)
    account = await keys.get_account(platform.store, caller.tenant, request.path_params["account_id"])
    if account.status != "active":
        raise Conflict(f"this service account is {account.status} and gets no key.")
    expires_at = None
    if body.expires_in_seconds is not None:
        expires_at = platform.keys.now() + body.expires_in_seconds * 1_000_000
    key, token = await keys.create_key(
        platform.store,
        caller.org,
        caller.workspace,
        pepper=platform.settings.pepper,
        role="agent",
        agent=account.address,
        account_id=account.account_id,
        created_by=body.created_by_actor_id or caller.actor,
        expires_at=expires_at,
    )
    await platform.keys.learn(key)
    view = {**key_view(key, platform.keys.now()), "token": token}
    # The examples' runner reads `api_key` at the top.
    return _told(key=view, api_key=token)


async def revoke_key(request: Request) -> Response:
    platform, caller = _platform(request)
    account_id, key_id = request.path_params["account_id"], request.path_params["key_id"]
    await keys.get_account(platform.store, caller.tenant, account_id)
    key = await keys.get_key(platform.store, key_id, tenant=caller.tenant)
    if key.account_id != account_id:
        raise keys.missing_key(key_id)
    revoked = await keys.revoke_key(platform.store, key_id, tenant=caller.tenant)
    await platform.keys.learn(revoked)
    return _told(key=key_view(revoked, platform.keys.now()))


# --- views ---------------------------------------------------------------------------------------


def _told(**parts: Any) -> Response:
    return JSONResponse({"ok": True, **parts})


def _at(micros: int | None) -> str | None:
    moment = from_micros(micros)
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


def account_view(account: Account) -> dict[str, Any]:
    """A service account as the wire has it; clients read the address under either name."""
    return {
        "service_account_id": account.account_id,
        "org_id": account.org,
        "workspace_id": account.workspace,
        "name": account.name,
        "display_name": account.display_name,
        "description": account.description,
        "status": account.status,
        "agent_address": account.address,
        "address": account.address,
        "delivery_mode": account.delivery_mode,
        "callback_url": account.callback_url,
        "created_by_actor_id": account.created_by,
        "created_at": _at(account.created_at),
        "updated_at": _at(account.updated_at),
    }


def key_view(key: Key, now: int) -> dict[str, Any]:
    """A key as the wire has it: without its secret, which nobody has."""
    return {
        "key_id": key.key_id,
        "service_account_id": key.account_id,
        "key_hint": key.hint,
        "status": key.status(now),
        "created_at": _at(key.created_at),
        "expires_at": _at(key.expires_at),
        "revoked_at": _at(key.revoked_at),
    }


_ACCOUNTS = "/v1/service-accounts"
_ACCOUNT = "/v1/service-accounts/{account_id}"
_KEYS = "/v1/service-accounts/{account_id}/keys"
_REVOKE = "/v1/service-accounts/{account_id}/keys/{key_id}/revoke"

routes: list[Route] = [
    Route(_ACCOUNTS, create_account, methods=["POST"]),
    Route(_ACCOUNTS, list_accounts, methods=["GET"]),
    Route(_ACCOUNT, show_account, methods=["GET"]),
    Route(_ACCOUNT, change_account, methods=["PATCH"]),
    Route(_ACCOUNT, delete_account, methods=["DELETE"]),
    Route(_KEYS, create_key, methods=["POST"]),
    Route(_REVOKE, revoke_key, methods=["POST"]),
]

# --- documentation -------------------------------------------------------------------------------

_TEXT: dict[str, Any] = {"type": "string"}
_MAYBE: dict[str, Any] = {"type": ["string", "null"]}
_MODES = {"enum": ["stream", "poll", "http", "inbox", "internal"]}
_ACCOUNT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "service_account_id": {"type": "string", "pattern": "^sa_[0-9a-f]+$"},
        "org_id": _TEXT,
        "workspace_id": _TEXT,
        "name": _TEXT,
        "display_name": _MAYBE,
        "description": _MAYBE,
        "status": {"enum": ["active", "suspended", "revoked"]},
        "agent_address": _TEXT,
        "address": _TEXT,
        "delivery_mode": _TEXT,
        "callback_url": _MAYBE,
        "created_at": _TEXT,
        "updated_at": _TEXT,
    },
    "required": ["service_account_id", "org_id", "workspace_id", "name", "status", "address", "agent_address"],
}
_KEY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "key_id": {"type": "string", "pattern": "^sak_[0-9a-f]+$"},
        "service_account_id": _MAYBE,
        "key_hint": _TEXT,
        "status": {"enum": ["active", "expired", "revoked"]},
        "created_at": _TEXT,
        "expires_at": _MAYBE,
        "revoked_at": _MAYBE,
        "token": {"type": "string", "description": "Shown this once, on creation."},
    },
    "required": ["key_id", "key_hint", "status", "created_at"],
}


def _answer(description: str, **properties: Any) -> dict[str, Any]:
    ok = {"type": "boolean", "const": True}
    schema = {"type": "object", "properties": {"ok": ok, **properties}, "required": ["ok", *properties]}
    return {"200": {"description": description, "content": {"application/json": {"schema": schema}}}}


def _body(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return {"required": bool(required), "content": {"application/json": {"schema": schema}}}


_CHANGEABLE: dict[str, Any] = {
    "display_name": {"type": ["string", "null"], "maxLength": 255},
    "description": {"type": ["string", "null"], "maxLength": 2000},
    "delivery_mode": _MODES,
    "callback_url": {"type": ["string", "null"], "maxLength": 2000},
}
_BY = {"created_by_actor_id": {"type": ["string", "null"], "maxLength": 255}}
_NAME = {"type": "string", "minLength": 2, "maxLength": 63, "pattern": "^[a-z0-9]([a-z0-9._-]{0,61})[a-z0-9]$"}

DOCS: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", _ACCOUNTS): {
        "summary": "Create a service account: an agent of this workspace",
        "description": "org_id and workspace_id are taken from the key; what the body says of them is ignored.",
        "requestBody": _body({"name": _NAME, **_CHANGEABLE, **_BY}, ["name"]),
        "responses": _answer("Created", service_account=_ACCOUNT_SCHEMA),
    },
    ("GET", _ACCOUNTS): {
        "summary": "List the service accounts of this workspace",
        "responses": _answer("All", service_accounts={"type": "array", "items": _ACCOUNT_SCHEMA}),
    },
    ("GET", _ACCOUNT): {
        "summary": "Show a service account and its keys",
        "responses": _answer("Found", service_account=_ACCOUNT_SCHEMA),
    },
    ("PATCH", _ACCOUNT): {
        "summary": "Change a service account",
        "requestBody": _body(_CHANGEABLE),
        "responses": _answer("Changed", service_account=_ACCOUNT_SCHEMA),
    },
    ("DELETE", _ACCOUNT): {
        "summary": "Delete a service account and revoke its keys",
        "responses": _answer(
            "Deleted", service_account=_ACCOUNT_SCHEMA, revoked_keys={"type": "array", "items": _TEXT}
        ),
    },
    ("POST", _KEYS): {
        "summary": "Create a key of a service account; its token is shown this once",
        "requestBody": _body(
            {**_BY, "expires_in_seconds": {"type": ["integer", "null"], "minimum": 1, "maximum": 315360000}}
        ),
        "responses": _answer("Created", key=_KEY_SCHEMA, api_key=_TEXT),
    },
    ("POST", _REVOKE): {
        "summary": "Revoke a key, at once and also for open streams",
        "responses": _answer("Revoked", key=_KEY_SCHEMA),
    },
}

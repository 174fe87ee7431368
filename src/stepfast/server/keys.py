"""Workspaces, service accounts and keys, as records. `key_table` is how a running server checks keys.

A token is ``axme_sa_<key id>_<secret>``. The store keeps HMAC-SHA-256(pepper, secret): the secrets have 256
random bits, so a slow hash would add nothing but a way to keep the server busy.

Everything that makes or changes keys is a function over a store, for the command line and the API alike:
`create_workspace`, `create_key`, `list_keys`, `revoke_key`, `create_account`, `list_accounts`, `change_account`,
`delete_account`. Whoever calls them has checked that the caller may.

Records: kinds "key" and "workspace" in the tenant "platform", which no key can name; kind "account" in the
tenant of its workspace.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable
from hashlib import sha256
from typing import Literal

import msgspec

from stepfast.clock import new_id
from stepfast.errors import Conflict, InvalidInput, NotFound
from stepfast.ops import GetRecord, ListRecords, PutRecord, Record
from stepfast.server.caller import AGENT_SCOPES, WORKSPACE_SCOPES, Caller
from stepfast.server.pepper import PLATFORM, find_pepper, pepper_id
from stepfast.stores.base import LOCAL_TENANT, AsyncStore

TOKEN_PREFIX = "axme_sa_"  # noqa: S105
LOCAL = "local"
_PAGE = 1000
_SCOPE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{1,61})[a-z0-9]")
_AGENT_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61})[a-z0-9]")


class Workspace(msgspec.Struct, frozen=True, kw_only=True):
    org: str
    workspace: str
    tenant: str


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is stored: enough to check a token, not enough to make one. Times are microseconds."""

    key_id: str
    tenant: str
    org: str
    workspace: str
    role: Literal["workspace", "agent"]
    digest: str
    pepper_id: str
    hint: str
    created_at: int
    agent: str | None = None
    account_id: str | None = None
    scopes: list[str] | None = None
    created_by: str = ""
    expires_at: int | None = None
    revoked_at: int | None = None

    def live(self, now: int) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def status(self, now: int) -> Literal["active", "expired", "revoked"]:
        if self.revoked_at is not None:
            return "revoked"
        return "active" if self.live(now) else "expired"

    def caller(self) -> Caller:
        all_scopes = AGENT_SCOPES if self.role == "agent" else WORKSPACE_SCOPES
        return Caller(
            tenant=self.tenant,
            org=self.org,
            workspace=self.workspace,
            key_id=self.key_id,
            role=self.role,
            agent=self.agent,
            scopes=all_scopes if self.scopes is None else all_scopes & frozenset(self.scopes),
        )


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A service account: an agent of a workspace, which may have keys."""

    account_id: str
    org: str
    workspace: str
    name: str
    address: str
    status: Literal["active", "suspended", "revoked"]
    created_at: int
    updated_at: int
    display_name: str | None = None
    description: str | None = None
    created_by: str = ""
    delivery_mode: str = "stream"
    callback_url: str | None = None


# Made where no two threads meet: msgspec crashes if two of them are the first to use a class.
_workspaces = msgspec.json.Decoder(Workspace)
_accounts = msgspec.json.Decoder(Account)
_keys = msgspec.json.Decoder(Key)

LOCAL_CALLER = Caller(tenant=LOCAL_TENANT, org=LOCAL, workspace=LOCAL, key_id="", role="local")


def tenant_of(org: str, workspace: str) -> str:
    """The tenant of a workspace. What was made before there were keys belongs to local/local."""
    for name, value in (("org", org), ("workspace", workspace)):
        if not _SCOPE_NAME.fullmatch(value):
            raise InvalidInput(f"{name}: {value!r} must be 3 to 63 of a-z, 0-9 and '-', with no '-' at the ends.")
    return LOCAL_TENANT if org == workspace == LOCAL else f"{org}/{workspace}"


def address_of(org: str, workspace: str, name: str) -> str:
    if not _AGENT_NAME.fullmatch(name):
        error = InvalidInput(
            f"name: {name!r} must be 2 to 63 of a-z, 0-9, '.', '_' and '-', with a letter or digit at the ends."
        )
        error.code = "invalid_agent_address"
        raise error
    return f"agent://{org}/{workspace}/{name}"


# --- workspaces and accounts ---------------------------------------------------------------------


async def create_workspace(store: AsyncStore, org: str, workspace: str) -> Workspace:
    """Make a workspace known; the same again changes nothing."""
    made = Workspace(org=org, workspace=workspace, tenant=tenant_of(org, workspace))
    body = msgspec.json.encode(made)
    put = PutRecord(kind="workspace", record_id=made.tenant, body=body, write_id=f"workspace:{made.tenant}", expected=0)
    try:
        await store.one(put, tenant=PLATFORM)
    except Conflict:
        pass
    return made


async def list_workspaces(store: AsyncStore) -> list[Workspace]:
    return [_workspaces.decode(each.body) for each in await _all(store, "workspace", PLATFORM)]


def _account_id(tenant: str, name: str) -> str:
    """Made of the name, so that a name is there once by its key alone."""
    return "sa_" + sha256(f"{tenant}\0{name}".encode()).hexdigest()[:24]


async def create_account(
    store: AsyncStore,
    org: str,
    workspace: str,
    name: str,
    *,
    display_name: str | None = None,
    description: str | None = None,
    created_by: str = "",
    delivery_mode: str = "stream",
    callback_url: str | None = None,
) -> Account:
    """A Conflict if the name is taken; one that was deleted may be made again."""
    tenant = tenant_of(org, workspace)
    now = store.store.clock.now_us()
    account = Account(
        account_id=_account_id(tenant, name),
        org=org,
        workspace=workspace,
        name=name,
        address=address_of(org, workspace, name),
        status="active",
        created_at=now,
        updated_at=now,
        display_name=display_name,
        description=description,
        created_by=created_by,
        delivery_mode=delivery_mode,
        callback_url=callback_url,
    )
    old = await store.one(GetRecord(kind="account", record_id=account.account_id), tenant=tenant)
    if old is not None and _account(old).status != "revoked":
        raise Conflict(f"there is a service account {name!r} already.", service_account_id=account.account_id)
    await _put_account(store, tenant, account, 0 if old is None else old.version)
    return account


async def list_accounts(store: AsyncStore, tenant: str) -> list[Account]:
    return [_account(each) for each in await _all(store, "account", tenant)]


async def get_account(store: AsyncStore, tenant: str, account_id: str) -> Account:
    return (await _get_account(store, tenant, account_id))[0]


async def change_account(store: AsyncStore, tenant: str, account_id: str, **changes: str | None) -> Account:
    """Change ``display_name``, ``description``, ``status``, ``delivery_mode`` or ``callback_url``."""
    while True:
        account, version = await _get_account(store, tenant, account_id)
        changed = msgspec.structs.replace(account, updated_at=store.store.clock.now_us(), **changes)
        try:
            await _put_account(store, tenant, changed, version)
        except Conflict:
            continue
        return changed


async def delete_account(store: AsyncStore, tenant: str, account_id: str) -> tuple[Account, list[Key]]:
    """Revoke an account and all its keys; the account stays listed as revoked."""
    account = await change_account(store, tenant, account_id, status="revoked")
    gone = [
        await revoke_key(store, key.key_id, tenant=tenant)
        for key in await list_keys(store, tenant)
        if key.account_id == account_id and key.revoked_at is None
    ]
    return account, gone


async def _get_account(store: AsyncStore, tenant: str, account_id: str) -> tuple[Account, int]:
    found = await store.one(GetRecord(kind="account", record_id=account_id), tenant=tenant) if account_id else None
    if found is None:
        raise NotFound(f"there is no service account {account_id}.", service_account_id=account_id)
    return _account(found), found.version


async def _put_account(store: AsyncStore, tenant: str, account: Account, version: int) -> None:
    put = PutRecord(
        kind="account",
        record_id=account.account_id,
        body=msgspec.json.encode(account),
        write_id=new_id(),
        expected=version,
    )
    await store.one(put, tenant=tenant)


def _account(record: Record) -> Account:
    return _accounts.decode(record.body)


# --- keys ----------------------------------------------------------------------------------------


async def create_key(
    store: AsyncStore,
    org: str,
    workspace: str,
    *,
    pepper: str | None = None,
    role: Literal["workspace", "agent"] = "workspace",
    agent: str | None = None,
    account_id: str | None = None,
    scopes: Iterable[str] | None = None,
    created_by: str = "",
    expires_at: int | None = None,
) -> tuple[Key, str]:
    """A new key and its token, which is nowhere kept. ``pepper`` is the operator's, or None for the store's own.

    An agent key needs ``agent``, the full address that it speaks for.
    """
    if (role == "agent") != (agent is not None):
        raise InvalidInput("agent: an agent key needs the address it is for, and a workspace key has none.")
    chosen = None if scopes is None else sorted(set(scopes))
    unknown = set(chosen or ()) - (AGENT_SCOPES if role == "agent" else WORKSPACE_SCOPES)
    if unknown:
        raise InvalidInput(f"scopes: {', '.join(sorted(unknown))} cannot be given to a key of the role {role!r}.")
    place = await create_workspace(store, org, workspace)
    found = await find_pepper(store, pepper, create=True)
    assert found is not None  # noqa: S101 - it was just made
    secret = secrets.token_hex(32)
    key = Key(
        key_id="sak_" + secrets.token_hex(8),
        tenant=place.tenant,
        org=org,
        workspace=workspace,
        role=role,
        digest=digest_of(found, secret),
        pepper_id=pepper_id(found),
        hint="…" + secret[-4:],
        created_at=store.store.clock.now_us(),
        agent=agent,
        account_id=account_id,
        scopes=chosen,
        created_by=created_by,
        expires_at=expires_at,
    )
    await store.one(_put_key(key, 0), tenant=PLATFORM)
    return key, f"{TOKEN_PREFIX}{key.key_id}_{secret}"


async def list_keys(store: AsyncStore, tenant: str | None = None) -> list[Key]:
    """All keys, or those of one tenant; the revoked too."""
    return [_key(each) for each in await _all(store, "key", PLATFORM, tenant)]


async def get_key(store: AsyncStore, key_id: str, *, tenant: str | None = None) -> Key:
    return (await _get_key(store, key_id, tenant))[0]


async def revoke_key(store: AsyncStore, key_id: str, *, tenant: str | None = None) -> Key:
    """From now on the key opens nothing. With ``tenant``, another's key is not found. Twice is fine."""
    while True:
        key, version = await _get_key(store, key_id, tenant)
        if key.revoked_at is not None:
            return key
        revoked = msgspec.structs.replace(key, revoked_at=store.store.clock.now_us())
        try:
            await store.one(_put_key(revoked, version), tenant=PLATFORM)
        except Conflict:
            continue
        return revoked


async def _get_key(store: AsyncStore, key_id: str, tenant: str | None) -> tuple[Key, int]:
    found = await store.one(GetRecord(kind="key", record_id=key_id), tenant=PLATFORM) if key_id else None
    if found is not None:
        key = _key(found)
        if tenant is None or key.tenant == tenant:
            return key, found.version
    raise missing_key(key_id)


def missing_key(key_id: str) -> NotFound:
    return NotFound(f"there is no key {key_id}.", key_id=key_id)


def _put_key(key: Key, version: int) -> PutRecord:
    return PutRecord(
        kind="key",
        record_id=key.key_id,
        body=msgspec.json.encode(key),
        write_id=new_id(),
        expected=version,
        belongs_to=key.tenant,
    )


def _key(record: Record) -> Key:
    return _keys.decode(record.body)


async def _all(store: AsyncStore, kind: str, tenant: str, belongs_to: str | None = None) -> list[Record]:
    found: list[Record] = []
    after = ""
    while True:
        page = await store.one(ListRecords(kind=kind, belongs_to=belongs_to, after=after, limit=_PAGE), tenant=tenant)
        found += page
        if len(page) < _PAGE:
            return found
        after = page[-1].record_id


def digest_of(pepper: bytes, secret: str) -> str:
    return hmac.new(pepper, secret.encode(), sha256).hexdigest()


def parse_token(token: bytes) -> tuple[str, str] | None:
    """The key's id and the secret of a token, or None if it is no token of ours."""
    if not token.startswith(TOKEN_PREFIX.encode()) or not token.isascii() or len(token) > 200:
        return None
    key_id, _, secret = token[len(TOKEN_PREFIX) :].decode("ascii").rpartition("_")
    return (key_id, secret) if key_id and secret else None

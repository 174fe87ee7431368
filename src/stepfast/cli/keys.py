"""``stepfast keys``: who may use a server.

A key of an agent is made through the API, by whoever has a key of the workspace. A key of a workspace is made by
whoever has the store itself: no key can make another of its own kind.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepfast.cli import inputs
from stepfast.cli.failures import Usage
from stepfast.cli.setup import Setup, command
from stepfast.errors import NotFound

if TYPE_CHECKING:
    from stepfast.platform_api import PlatformAPI
    from stepfast.stores import AsyncStore

group = typer.Typer(help="Keys for a server: of workspaces and of agents.", no_args_is_help=True)
Json = dict[str, Any]


@command(group, "create")
def create(
    at: Setup,
    workspace: Annotated[
        str | None, typer.Option("--workspace", help="ORG/WORKSPACE, made if it is new. Only on the store itself.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", help="A key for this agent alone (its name), which is made if it is new.")
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", help="Only this right; may be given again. Default: all.")
    ] = None,
    expires_in: Annotated[str | None, typer.Option("--expires-in", help="Such as 90d. Default: never.")] = None,
) -> None:
    """Make a key and print it, this once: it is stored nowhere.

    Without --agent it is a key of the whole workspace (local/local if none is named), and --url must name the store
    itself, not a server.
    """
    from stepfast.cli import out

    seconds = None if expires_in is None else int(inputs.span("--expires-in", expires_in).total_seconds())
    if seconds is not None and seconds < 1:
        raise Usage("--expires-in: must be at least 1s.")
    if at.remote:
        if agent is None:
            raise Usage(
                "a server makes keys for agents only (--agent NAME). Make a workspace's key where its store is: "
                "stepfast --url STORE keys create."
            )
        if workspace is not None or scope:
            raise Usage("--workspace, --scope: a server makes keys of its key's own workspace, with all rights.")
        made = _create_by_api(at, agent, seconds)
    else:
        made = _create_in_store(at, workspace, agent, scope, seconds)
    if at.as_json:
        out.show_json(made)
        return
    out.say(made["token"])
    whose = made["agent"] or f"the workspace {made['org']}/{made['workspace']}"
    out.note(f"This is {made['key_id']}, for {whose}. It is shown this once; keep it where secrets are kept.")


def _create_by_api(at: Setup, agent: str, seconds: int | None) -> Json:
    from stepfast.addresses import last_name
    from stepfast.cli.reach import open_api

    with open_api(at) as api:
        who = api.whoami()
        name = last_name(agent)
        accounts = api.list_service_accounts()["service_accounts"]
        account = next((each for each in accounts if each["name"] == name), None)
        if account is None:
            account = api.create_service_account({"name": name})["service_account"]
        body = {} if seconds is None else {"expires_in_seconds": seconds}
        key = api.create_service_account_key(account["service_account_id"], body)["key"]
    place = {"org": who["org"], "workspace": who["workspace"], "role": "agent", "agent": account["address"]}
    return {**key, **place}


def _create_in_store(
    at: Setup, workspace: str | None, agent: str | None, scopes: list[str] | None, seconds: int | None
) -> Json:
    from stepfast.addresses import last_name
    from stepfast.cli.reach import with_store

    org, slash, name = (workspace or "local/local").partition("/")
    if not slash:
        raise Usage(f"--workspace: {workspace!r} must be ORG/WORKSPACE, such as acme/prod.")

    async def make(store: AsyncStore) -> Json:
        from stepfast.server import keys

        account = None
        if agent is not None:
            short = last_name(agent)
            accounts = await keys.list_accounts(store, keys.tenant_of(org, name))
            account = next((each for each in accounts if each.name == short and each.status != "revoked"), None)
            if account is None:
                account = await keys.create_account(store, org, name, short, created_by="cli")
        expires_at = None if seconds is None else store.store.clock.now_us() + seconds * 1_000_000
        key, token = await keys.create_key(
            store,
            org,
            name,
            pepper=os.environ.get("STEPFAST_PEPPER") or None,
            role="workspace" if account is None else "agent",
            agent=None if account is None else account.address,
            account_id=None if account is None else account.account_id,
            scopes=scopes or None,
            created_by="cli",
            expires_at=expires_at,
        )
        return {**_view(key, store), "token": token}

    return with_store(at, make)


@command(group, "list")
def list_keys(
    at: Setup,
    every: Annotated[bool, typer.Option("--all", help="Also those that are revoked or expired.")] = False,
) -> None:
    """The keys, without their secrets: of a store all, of a server those of your workspace's agents."""
    from stepfast.cli import out

    found = [each for each in _all(at) if every or each["status"] == "active"]
    if at.as_json:
        out.show_json({"keys": found})
        return
    rows = [
        (
            each["key_id"],
            each["key_hint"],
            each["role"],
            each["agent"] or f"{each['org']}/{each['workspace']}",
            each["status"],
            out.age(each["created_at"]),
            each["expires_at"],
        )
        for each in found
    ]
    out.table(at, ("KEY", "ENDS", "ROLE", "FOR", "STATUS", "AGE", "EXPIRES"), rows, empty="There are no keys.")


@command(group, "revoke")
def revoke(
    at: Setup, key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="Its id (sak_…), not the key itself.")]
) -> None:
    """From now on the key opens nothing; streams that it has open are ended."""
    from stepfast.cli import out
    from stepfast.cli.reach import open_api, with_store

    if key_id.startswith("axme_sa_"):
        raise Usage("give the key's id (sak_…), which `stepfast keys list` shows, not the key itself.")
    if at.remote:
        with open_api(at) as api:
            account_id = next((each["service_account_id"] for each in _by_api(api) if each["key_id"] == key_id), None)
            if account_id is None:
                raise NotFound(f"there is no key {key_id} among those of your workspace's agents.", key_id=key_id)
            revoked = api.revoke_service_account_key(account_id, key_id)["key"]
    else:

        async def end(store: AsyncStore) -> Json:
            from stepfast.server import keys

            return _view(await keys.revoke_key(store, key_id), store)

        revoked = with_store(at, end)
    if at.as_json:
        out.show_json(revoked)
    else:
        out.say(f"{key_id} is {revoked['status']}.")


def _all(at: Setup) -> list[Json]:
    from stepfast.cli.reach import open_api, with_store

    if at.remote:
        with open_api(at) as api:
            return _by_api(api)

    async def read(store: AsyncStore) -> list[Json]:
        from stepfast.server import keys

        return [_view(key, store) for key in await keys.list_keys(store)]

    return with_store(at, read)


def _by_api(api: PlatformAPI) -> list[Json]:
    found: list[Json] = []
    for account in api.list_service_accounts()["service_accounts"]:
        shown = api.get_service_account(account["service_account_id"])["service_account"]
        place = {"org": shown["org_id"], "workspace": shown["workspace_id"], "agent": shown["address"]}
        found += [{**key, **place, "role": "agent"} for key in shown["keys"]]
    return found


def _view(key: Any, store: AsyncStore) -> Json:
    from stepfast.server.accounts_api import key_view

    shown = key_view(key, store.store.clock.now_us())
    return {**shown, "org": key.org, "workspace": key.workspace, "role": key.role, "agent": key.agent}

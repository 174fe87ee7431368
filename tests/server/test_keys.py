"""Keys: what opens, what does not, what each may do, and that a revoked one is dead at once."""

from __future__ import annotations

import asyncio
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from stepfast import wire
from stepfast.errors import Conflict, InvalidInput, NotFound
from stepfast.intents import Intent, Status
from stepfast.server import keys
from stepfast.server.errors import Forbidden
from stepfast.server.pepper import find_pepper
from stepfast.server.settings import Limits, Settings
from stepfast.stores import AsyncStore, Store, open_store
from tests.server.conftest import Running, Starter
from tests.server.test_guard import is_error

ACCOUNTS = "/v1/service-accounts"


def with_key(token: str) -> dict[str, str]:
    return {"x-api-key": token}


async def until(true: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.01)


@pytest.fixture
def shop(store: Store) -> AsyncStore:
    return AsyncStore(store)


async def agent_key(store: AsyncStore, name: str = "pipeline", org: str = "acme", workspace: str = "prod") -> str:
    address = keys.address_of(org, workspace, name)
    return (await keys.create_key(store, org, workspace, role="agent", agent=address))[1]


# --- what opens ----------------------------------------------------------------------------------


async def test_a_key_opens_its_own_workspace_by_either_header(running: Running, shop: AsyncStore) -> None:
    _, token = await keys.create_key(shop, "acme", "prod")
    _, client = await running()
    for headers in (with_key(token), {"authorization": f"Bearer {token}"}, {"authorization": f"bearer  {token}"}):
        me = (await client.get("/v1/whoami", headers=headers)).json()
        assert (me["tenant"], me["org"], me["workspace"], me["role"]) == ("acme/prod", "acme", "prod", "workspace")


async def test_nothing_else_opens_once_there_is_a_key(running: Running, shop: AsyncStore) -> None:
    key, token = await keys.create_key(shop, "acme", "prod")
    _, client = await running()
    is_error(await client.get("/v1/whoami"), 401, "missing_platform_api_key")
    wrong = [
        "anything",
        "axme_sa_",
        "axme_sa__",
        f"axme_sa_{key.key_id}_",
        f"axme_sa_{key.key_id}_{'0' * 64}",
        token[:-1],
        token + "0",
        token.upper(),
        f"axme_sa_sak_0000000000000000_{'0' * 64}",
        "x" * 10_000,
        token + "\xff",
    ]
    for bad in wrong:
        is_error(
            await client.get("/v1/whoami", headers=[(b"x-api-key", bad.encode("latin-1"))]),
            401,
            "invalid_platform_api_key",
        )
    for path in ("/v1/ops", "/v1/ops/session"):
        assert (await client.post(path)).status_code == 401
    assert (await client.get("/health")).status_code == 200


async def test_an_api_key_wins_over_a_bearer_which_may_be_a_persons_token(running: Running, shop: AsyncStore) -> None:
    _, token = await keys.create_key(shop, "acme", "prod")
    _, client = await running()
    headers = {**with_key(token), "authorization": "Bearer some.jwt.of.a.person"}
    assert (await client.get("/v1/whoami", headers=headers)).status_code == 200


async def test_an_expired_key_is_dead(running: Running, shop: AsyncStore, store: Store) -> None:
    _, token = await keys.create_key(shop, "acme", "prod", expires_at=store.clock.now_us() + 60_000_000)
    _, client = await running()
    assert (await client.get("/v1/whoami", headers=with_key(token))).status_code == 200
    store.clock.advance(61)
    is_error(await client.get("/v1/whoami", headers=with_key(token)), 401)


async def test_require_keys_lets_nobody_in_without_one(running: Running) -> None:
    _, client = await running(Settings(require_keys=True))
    is_error(await client.get("/v1/whoami", headers=with_key("anything")), 401)


async def test_revoking_the_last_key_opens_nothing(running: Running, shop: AsyncStore) -> None:
    key, token = await keys.create_key(shop, "acme", "prod")
    await keys.revoke_key(shop, key.key_id)
    _, client = await running()
    for headers in ({}, with_key(token), with_key("anything")):
        is_error(await client.get("/v1/whoami", headers=headers), 401)


async def test_the_first_workspace_key_ends_the_time_without_keys(running: Running, shop: AsyncStore) -> None:
    app, client = await running()
    assert (await client.get("/v1/whoami")).json()["role"] == "local"
    await keys.create_key(shop, "local", "local")
    await until(lambda: app.platform.keys.required, "the server did not notice the key")
    is_error(await client.get("/v1/whoami"), 401)


async def test_agent_keys_made_in_a_local_workspace_leave_it_open_and_are_what_they_are(running: Running) -> None:
    _, client = await running()
    made = (await client.post(ACCOUNTS, json={"name": "pipeline"})).json()["service_account"]
    token = (await client.post(f"{ACCOUNTS}/{made['service_account_id']}/keys", json={})).json()["api_key"]
    assert (await client.get("/v1/whoami", headers=with_key("dev"))).json()["role"] == "local"
    me = (await client.get("/v1/whoami", headers=with_key(token))).json()
    assert (me["role"], me["agent"], me["tenant"]) == ("agent", "agent://local/local/pipeline", "local")
    is_error(await client.get("/v1/whoami", headers=with_key(token[:-1] + "x")), 401)


# --- what is stored ------------------------------------------------------------------------------


async def test_the_store_holds_no_secret_and_the_pepper_lies_beside_it_for_its_owner_alone(
    shop: AsyncStore, tmp_path: Path
) -> None:
    _, token = await keys.create_key(shop, "acme", "prod")
    secret = token.rpartition("_")[2].encode()
    shop.store.close()
    held = {file.name: file.read_bytes() for file in tmp_path.iterdir()}  # noqa: ASYNC240
    pepper = held.pop("store.db.pepper")
    assert "store.db" in held
    for content in held.values():
        assert secret not in content
        assert pepper not in content
    if sys.platform != "win32":
        assert stat.S_IMODE((tmp_path / "store.db.pepper").stat().st_mode) == 0o600


async def test_a_stolen_table_opens_nothing_without_its_pepper(
    running: Running, shop: AsyncStore, tmp_path: Path
) -> None:
    _, token = await keys.create_key(shop, "acme", "prod")
    (tmp_path / "store.db.pepper").unlink()
    _, client = await running()
    is_error(await client.get("/v1/whoami", headers=with_key(token)), 401)


async def test_a_pepper_open_to_others_is_refused(shop: AsyncStore, tmp_path: Path) -> None:
    await keys.create_key(shop, "acme", "prod")
    (tmp_path / "store.db.pepper").chmod(0o644)
    with pytest.raises(InvalidInput, match="open to others"):
        await find_pepper(shop, None, create=False)


async def test_the_operators_pepper_is_used_and_must_be_long(
    running: Running, shop: AsyncStore, tmp_path: Path
) -> None:
    mine = "correct horse battery staple and more"
    _, token = await keys.create_key(shop, "acme", "prod", pepper=mine)
    assert not (tmp_path / "store.db.pepper").exists()
    _, client = await running(Settings(pepper=mine))
    assert (await client.get("/v1/whoami", headers=with_key(token))).status_code == 200
    with pytest.raises(InvalidInput, match="at least 32"):
        await keys.create_key(shop, "acme", "prod", pepper="short")


async def test_servers_on_one_postgresql_share_the_pepper(pg_store_url: str) -> None:
    with open_store(pg_store_url) as one, open_store(pg_store_url) as other:
        made = await asyncio.gather(*(find_pepper(AsyncStore(each), None, create=True) for each in (one, other) * 4))
        assert len(set(made)) == 1
        assert made[0] is not None


# --- revocation ----------------------------------------------------------------------------------


async def test_a_revoked_key_is_dead_with_the_answer(running: Running, shop: AsyncStore) -> None:
    _, admin = await keys.create_key(shop, "acme", "prod")
    _, client = await running()
    made = (await client.post(ACCOUNTS, json={"name": "pipeline"}, headers=with_key(admin))).json()
    path = f"{ACCOUNTS}/{made['service_account']['service_account_id']}/keys"
    key = (await client.post(path, json={}, headers=with_key(admin))).json()["key"]
    assert (await client.get("/v1/whoami", headers=with_key(key["token"]))).status_code == 200
    revoked = (await client.post(f"{path}/{key['key_id']}/revoke", headers=with_key(admin))).json()["key"]
    assert revoked["status"] == "revoked"
    assert revoked["revoked_at"]
    is_error(await client.get("/v1/whoami", headers=with_key(key["token"])), 401)
    again = (await client.post(f"{path}/{key['key_id']}/revoke", headers=with_key(admin))).json()["key"]
    assert again == revoked


async def test_a_key_revoked_elsewhere_is_dead_within_a_moment(
    running: Running, shop: AsyncStore, store_url: str
) -> None:
    key, token = await keys.create_key(shop, "acme", "prod")
    app, client = await running()
    assert (await client.get("/v1/whoami", headers=with_key(token))).status_code == 200
    with open_store(store_url) as elsewhere:
        await keys.revoke_key(AsyncStore(elsewhere), key.key_id)
    await until(lambda: app.platform.keys.check(token.encode()) is None, "the key still opens", 5)


async def test_a_reading_of_the_table_that_was_overtaken_brings_no_key_back(
    running: Running, shop: AsyncStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, token = await keys.create_key(shop, "acme", "prod")
    app, _ = await running()
    table = app.platform.keys
    stale = await keys.list_keys(shop)
    revoked = await keys.revoke_key(shop, key.key_id)
    readings = iter([stale, [revoked]])

    async def slow(_store: AsyncStore) -> list[keys.Key]:
        found = next(readings, [revoked])  # the table is also read every few seconds
        if found is stale:
            await table.learn(revoked)  # through the API, while the old rows were on their way
        return found

    monkeypatch.setattr("stepfast.server.key_table.list_keys", slow)
    await table.load()
    assert table.check(token.encode()) is None


async def test_a_key_made_elsewhere_opens_at_once(
    running: Running, shop: AsyncStore, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keys.create_key(shop, "acme", "prod")
    app, client = await running()
    monkeypatch.setattr(type(app.platform.keys), "load", lambda _self: asyncio.sleep(0))
    with open_store(store_url) as elsewhere:
        _, token = await keys.create_key(AsyncStore(elsewhere), "acme", "prod")
    assert (await client.get("/v1/whoami", headers=with_key(token))).status_code == 200


def test_revocation_ends_open_streams_of_that_key_and_no_other(live: Starter, store_url: str) -> None:
    async def make() -> Any:
        with open_store(store_url) as opened:
            shop = AsyncStore(opened)
            return [await keys.create_key(shop, "acme", "prod") for _ in range(2)]

    (doomed, doomed_token), (_, other_token) = asyncio.run(make())
    server = live()
    hello = wire.encode_session(wire.Session("s1", "", []))
    other = wire.encode_session(wire.Session("s2", "", []))
    with (
        httpx.Client(base_url=server.url, timeout=30) as client,
        client.stream("POST", "/v1/ops/session", content=hello, headers=with_key(doomed_token)) as ending,
        client.stream("POST", "/v1/ops/session", content=other, headers=with_key(other_token)) as staying,
    ):
        lines = ending.iter_lines()
        next(lines)
        kept = staying.iter_lines()
        next(kept)
        began = time.monotonic()

        async def revoke() -> None:
            with open_store(store_url) as opened:
                await keys.revoke_key(AsyncStore(opened), doomed.key_id)

        asyncio.run(revoke())
        assert [line for line in lines if line != "[]"] == []
        assert time.monotonic() - began < 10
        assert client.get("/v1/whoami", headers=with_key(doomed_token)).status_code == 401
        assert client.get("/v1/whoami", headers=with_key(other_token)).status_code == 200
        assert not staying.is_closed


async def test_a_stream_that_ignores_its_end_is_cancelled(
    running: Running, shop: AsyncStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfast.server.state.REVOKED_GRACE_SECONDS", 0.05)
    app, _ = await running()
    key, _ = await keys.create_key(shop, "acme", "prod")
    scope = {"state": {"caller": key.caller()}}

    async def stubborn() -> None:
        app.platform.open_stream(scope)
        await asyncio.sleep(60)

    task = asyncio.create_task(stubborn())
    await until(lambda: app.platform.open_streams() == 1, "no stream")
    app.platform.on_revoked(key.key_id)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_streams_of_an_expired_key_end(running: Running, shop: AsyncStore, store: Store) -> None:
    key, token = await keys.create_key(shop, "acme", "prod", expires_at=store.clock.now_us() + 60_000_000)
    app, _ = await running()
    assert app.platform.keys.check(token.encode()) is not None
    stream = app.platform.open_stream({"state": {"caller": key.caller()}})
    store.clock.advance(61)
    assert await stream.wait(10)
    assert stream.reason == "revoked"


# --- what a key may do ---------------------------------------------------------------------------


def an_intent(to_agent: str, from_agent: str | None = None) -> Intent:
    return Intent(
        intent_id="i",
        journal_id="i",
        intent_type="t.v1",
        to_agent=to_agent,
        from_agent=from_agent,
        status=Status.DELIVERED,
        created_at=0,
        updated_at=0,
    )


async def test_an_agent_key_is_for_its_own_address_alone(shop: AsyncStore) -> None:
    token = await agent_key(shop)
    key = (await keys.list_keys(shop))[0]
    me = key.caller()
    assert token
    assert me.can_receive("agent://acme/prod/pipeline")
    assert me.can_receive("pipeline")
    assert not me.can_receive("agent://acme/prod/other")
    assert me.can_touch(an_intent("agent://acme/prod/pipeline"))
    assert me.can_touch(an_intent("agent://acme/prod/other", "agent://acme/prod/pipeline"))
    assert not me.can_touch(an_intent("agent://acme/prod/other", "agent://acme/prod/third"))
    assert not me.can_resume(an_intent("agent://acme/prod/other", "agent://acme/prod/pipeline"))
    assert me.sender("agent://acme/prod/forged") == "agent://acme/prod/pipeline"
    with pytest.raises(Forbidden):
        me.require("admin")
    with pytest.raises(NotFound, match="there is no intent i"):
        me.check_touch(an_intent("agent://acme/prod/other"))


async def test_an_agent_key_makes_no_accounts_and_no_keys(running: Running, shop: AsyncStore) -> None:
    await keys.create_key(shop, "acme", "prod")
    account = await keys.create_account(shop, "acme", "prod", "pipeline")
    token = await agent_key(shop)
    _, client = await running()
    path = f"{ACCOUNTS}/{account.account_id}"
    calls = [
        ("POST", ACCOUNTS),
        ("GET", ACCOUNTS),
        ("GET", path),
        ("PATCH", path),
        ("DELETE", path),
        ("POST", f"{path}/keys"),
        ("POST", f"{path}/keys/sak_00/revoke"),
    ]
    for method, url in calls:
        is_error(await client.request(method, url, headers=with_key(token)), 403, "forbidden")


async def test_a_key_may_have_fewer_rights_than_its_role(running: Running, shop: AsyncStore) -> None:
    _, token = await keys.create_key(shop, "acme", "prod", scopes=["read"])
    _, client = await running()
    assert (await client.get("/v1/whoami", headers=with_key(token))).json()["scopes"] == ["read"]
    is_error(await client.get(ACCOUNTS, headers=with_key(token)), 403)
    with pytest.raises(InvalidInput, match="cannot be given"):
        await keys.create_key(shop, "acme", "prod", role="agent", agent="agent://acme/prod/a1", scopes=["admin"])


@pytest.mark.parametrize("name", ["", "ab", "-abc", "abc-", "Abc", "a b", "a/b", "a" * 64, "ä" * 5, "..."])
def test_names_of_orgs_and_workspaces_are_plain(name: str) -> None:
    with pytest.raises(InvalidInput, match="org"):
        keys.tenant_of(name, "prod")
    with pytest.raises(InvalidInput, match="workspace"):
        keys.tenant_of("acme", name)


# --- the API of accounts -------------------------------------------------------------------------


async def test_the_life_of_a_service_account(running: Running, shop: AsyncStore) -> None:
    _, admin = await keys.create_key(shop, "acme", "prod")
    _, client = await running()
    client.headers.update(with_key(admin))
    body = {"name": "pipeline", "org_id": "evil", "workspace_id": "other", "display_name": "The pipeline"}
    made = (await client.post(ACCOUNTS, json=body)).json()["service_account"]
    assert made["service_account_id"].startswith("sa_")
    assert made["address"] == made["agent_address"] == "agent://acme/prod/pipeline"
    assert (made["org_id"], made["workspace_id"], made["status"]) == ("acme", "prod", "active")
    is_error(await client.post(ACCOUNTS, json=body), 409, "conflict")
    is_error(await client.post(ACCOUNTS, json={"name": "No Good"}), 422, "invalid_agent_address")
    assert [each["name"] for each in (await client.get(ACCOUNTS)).json()["service_accounts"]] == ["pipeline"]

    path = f"{ACCOUNTS}/{made['service_account_id']}"
    changed = (await client.patch(path, json={"delivery_mode": "http", "callback_url": "https://x.example"})).json()
    assert changed["service_account"]["delivery_mode"] == "http"
    assert changed["service_account"]["display_name"] == "The pipeline"

    given = (await client.post(f"{path}/keys", json={"expires_in_seconds": 60})).json()
    assert given["key"]["token"] == given["api_key"]
    assert given["key"]["key_id"].startswith("sak_")
    assert given["key"]["expires_at"]
    shown = (await client.get(path)).json()["service_account"]
    assert [each["key_id"] for each in shown["keys"]] == [given["key"]["key_id"]]
    assert "token" not in shown["keys"][0]

    gone = (await client.delete(path)).json()
    assert gone["service_account"]["status"] == "revoked"
    assert gone["revoked_keys"] == [given["key"]["key_id"]]
    is_error(await client.get("/v1/whoami", headers=with_key(given["api_key"])), 401)
    is_error(await client.post(f"{path}/keys", json={}), 409)
    is_error(await client.patch(path, json={}), 409)
    assert (await client.get(ACCOUNTS)).json()["service_accounts"] == []
    assert (await client.post(ACCOUNTS, json={"name": "pipeline"})).json()["service_account"]["status"] == "active"


async def test_of_two_that_create_one_name_one_is_told_that_it_exists(shop: AsyncStore) -> None:
    made = await asyncio.gather(
        *(keys.create_account(shop, "acme", "prod", "pipeline") for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(each, keys.Account) for each in made) == 1
    assert sum(isinstance(each, Conflict) for each in made) == 4


async def test_failed_keys_are_counted_by_peer_and_known_keys_go_on(running: Running, shop: AsyncStore) -> None:
    _, token = await keys.create_key(shop, "acme", "prod")
    _, client = await running(Settings(limits=Limits(failures_per_second=0.001, failure_burst=3)))
    assert (await client.get("/v1/whoami", headers=with_key(token))).status_code == 200
    for _ in range(3):
        is_error(await client.get("/v1/whoami", headers=with_key("axme_sa_sak_1_00")), 401)
    answer = await client.get("/v1/whoami", headers=with_key("axme_sa_sak_1_00"))
    is_error(answer, 429, "rate_limit_exceeded")
    assert int(answer.headers["retry-after"]) >= 1
    assert (await client.get("/v1/whoami", headers=with_key(token))).status_code == 200

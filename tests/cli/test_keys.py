"""``stepfast keys``: made once, shown once, gone at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.kit import Cli
from tests.server.live import Live


def test_a_key_is_shown_once_and_stored_nowhere(embedded: Cli, tmp_path: Path) -> None:
    made = embedded("keys", "create", "--workspace", "acme/prod", "--expires-in", "90d")
    token = made.stdout.strip()
    assert token.startswith("axme_sa_sak_")
    secret = token.rpartition("_")[2]
    listed = embedded("keys", "list")
    assert "acme/prod" in listed.stdout
    assert secret not in listed.stdout + listed.stderr + made.stderr
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes()
    [key] = embedded.json("keys", "list")["keys"]
    assert (key["role"], key["workspace"], key["status"]) == ("workspace", "prod", "active")
    assert key["expires_at"] is not None


def test_a_key_of_an_agent_makes_its_account(embedded: Cli) -> None:
    first = embedded.json("keys", "create", "--agent", "agent://acme/prod/writer", "--workspace", "acme/prod")
    second = embedded.json("keys", "create", "--agent", "writer", "--workspace", "acme/prod")
    assert first["agent"] == second["agent"] == "agent://acme/prod/writer"
    assert first["service_account_id"] == second["service_account_id"]
    assert embedded("keys", "revoke", first["key_id"]).stdout == f"{first['key_id']} is revoked.\n"
    assert [each["key_id"] for each in embedded.json("keys", "list")["keys"]] == [second["key_id"]]
    assert len(embedded.json("keys", "list", "--all")["keys"]) == 2


def test_wrong_names_and_scopes_are_refused(embedded: Cli) -> None:
    assert "ORG/WORKSPACE" in embedded.error("keys", "create", "--workspace", "acme", code=2)["message"]
    embedded.error("keys", "create", "--workspace", "A/B", code=2)
    embedded.error("keys", "create", "--scope", "everything", code=2)
    embedded.error("keys", "create", "--expires-in", "0s", code=2)
    assert embedded.error("keys", "revoke", "sak_none", code=3)["code"] == "not_found"
    made = embedded.json("keys", "create", "--scope", "read")
    told = embedded("keys", "revoke", made["token"], code=2)
    assert made["token"] not in told.stdout + told.stderr


def test_keys_open_a_server_and_revoking_shuts_it(serve: Callable[..., Live], embedded: Cli) -> None:
    live = serve(store=embedded.url, require_keys=True)
    first = next(line for line in live.lines if "axme_sa_" in line).rpartition(" ")[2]
    outside = Cli(live.url, embedded.home)
    told = outside.error("intents", "list", code=4)
    assert "STEPFAST_API_KEY" in told["message"]
    outside.error("agents", "list", code=4)
    assert outside("intents", "list", STEPFAST_API_KEY=first).exit_code == 0
    assert outside("intents", "list", "--api-key", first).exit_code == 0
    assert outside("intents", "list", AXME_API_KEY=first).exit_code == 0

    agent = outside.json("keys", "create", "--agent", "writer", STEPFAST_API_KEY=first)
    assert agent["agent"] == "agent://local/local/writer"
    outside.error("keys", "list", code=4, STEPFAST_API_KEY=agent["token"])
    assert [each["key_id"] for each in outside.json("keys", "list", STEPFAST_API_KEY=first)["keys"]] == [
        agent["key_id"]
    ]
    outside.error("keys", "create", code=2, STEPFAST_API_KEY=first)
    outside.error("keys", "revoke", "sak_none", code=3, STEPFAST_API_KEY=first)
    outside("keys", "revoke", agent["key_id"], STEPFAST_API_KEY=first)
    outside.error("agents", "list", code=4, STEPFAST_API_KEY=agent["token"])

    # Whoever has the store itself needs no key, and can shut out the first one.
    assert embedded("agents", "list").exit_code == 0
    embedded("keys", "revoke", first.removeprefix("axme_sa_").rpartition("_")[0])

    def shut() -> bool:
        refused = outside("agents", "list", code=None, STEPFAST_API_KEY=first)
        assert first.rpartition("_")[2] not in refused.stdout + refused.stderr
        return bool(refused.exit_code == 4)

    from tests.cli.kit import wait_until

    wait_until(shut, 10)


def test_json_holds_the_key_once(embedded: Cli) -> None:
    made = json.loads(embedded("keys", "create", "--json").stdout)
    assert made["token"].startswith(f"axme_sa_{made['key_id']}_")
    assert "token" not in embedded.json("keys", "list")["keys"][0]

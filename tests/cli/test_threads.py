"""``stepfast threads`` on an embedded store and behind a server."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest

from stepfast import open_store
from stepfast.threads import NewCheckpoint, PutThread, Threads
from tests.cli.kit import Cli


@pytest.fixture(params=["embedded", "server_cli"])
def cli(request: pytest.FixtureRequest) -> Cli:
    found: Cli = request.getfixturevalue(request.param)
    return found


def test_the_commands_list_show_delete_and_expire(cli: Cli) -> None:
    own = f"t{uuid4().hex[:8]}-"
    with open_store(cli.url) as store:
        for user in ("ann", "bob", "eve"):
            meta = json.dumps({"user": user, "age": 7})
            made = NewCheckpoint(ns="", checkpoint_id="c1", meta=meta, head=b"no codec reads this")
            store.one(PutThread(thread_id=own + user, home=uuid4().hex, checkpoint=made), tenant=store.tenant)

        found = cli.json("threads", "list", "--where", "user=ann", "--where", "age=7", "--prefix", own)
        assert [each["thread_id"] for each in found["threads"]] == [f"{own}ann"]
        page = cli.json("threads", "list", "--limit", "2", "--prefix", own)
        rest = cli.json("threads", "list", "--limit", "2", "--prefix", own, "--cursor", page["next_cursor"])
        names = [each["thread_id"] for each in page["threads"] + rest["threads"]]
        assert names == [f"{own}eve", f"{own}bob", f"{own}ann"]
        assert f"{own}bob" in cli("threads", "list").stdout
        one = cli.json("threads", "get", f"{own}ann")
        assert (one["checkpoints"], one["metadata"]["user"], one["status"]) == (1, "ann", None)
        assert f"{own}ann" in cli("threads", "get", f"{own}ann").stdout

        assert cli.error("threads", "get", "t-zoe", code=3)["message"]
        cli("threads", "list", "--where", "user", code=2)
        cli("threads", "list", "--status", "interrupted", "--prefix", own, code=2)
        assert cli.json("threads", "list", "--status", "interrupted")["threads"] == []
        cli("threads", "delete", f"{own}ann", "--json", code=2)
        gone = cli.json("threads", "delete", f"{own}ann", "t-zoe", "--yes")
        assert gone == {"deleted": [f"{own}ann"], "not_found": ["t-zoe"]}
        cli("threads", "delete", "t-zoe", "--yes", code=3)
        cli("threads", "expire", "--thread", f"{own}bob", code=2)
        assert cli.json("threads", "expire", "--thread", f"{own}bob", "--ttl", "30d")["expires_at"] is not None
        assert "never" in cli("threads", "expire", "--thread", f"{own}bob", "--never").stdout
        assert cli.json("threads", "expire") == {"deleted": 0}
        assert [each.thread_id for each in Threads(store).list(prefix=own)] == [f"{own}eve", f"{own}bob"]


def test_a_store_that_holds_no_threads_lists_none(embedded: Cli) -> None:
    assert embedded.json("threads", "list") == {"threads": [], "next_cursor": None}
    assert "no such threads" in embedded("threads", "list").stdout

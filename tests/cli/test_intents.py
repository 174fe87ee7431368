"""``stepfast intents`` on every kind of store."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stepfast import KeyRing, Stepfast, Suspended
from stepfast.codec import Codec
from tests.cli.kit import Cli

UNKNOWN = "01900000-0000-7000-8000-000000000000"


def test_what_was_sent_is_listed_shown_and_told(cli: Cli, address: str) -> None:
    sent = cli.json(
        "intents", "send", "--to", address, "--type", "intent.report.v1", "--data", '{"topic": "tides"}',
        "--label", "team=blue", "--ttl", "2h", "--correlation-id", "c-1", "--max-delivery-attempts", "5",
    )  # fmt: skip
    intent_id = sent["intent_id"]

    listed = cli.json("intents", "list", "--to", address)
    assert [each["intent_id"] for each in listed["intents"]] == [intent_id]
    assert [(each["step"], each["total_steps"], each["last_step"]) for each in listed["intents"]] == [(0, None, None)]
    assert listed["next_before"] is None

    shown = cli.json("intents", "get", intent_id)
    assert shown["payload"] == {"topic": "tides"}
    assert shown["labels"] == {"team": "blue"}
    assert shown["correlation_id"] == "c-1"
    assert shown["max_delivery_attempts"] == 5
    assert shown["deadline_at"] is not None
    assert (shown["step"], shown["decisions"]) == (0, [])

    events = cli.json("intents", "events", intent_id)["events"]
    assert [each["seq"] for each in events] == [1, 2, 3]
    assert cli.json("intents", "events", intent_id, "--since", "2")["events"] == events[2:]

    table = cli("intents", "list", "--to", address).stdout
    assert table.splitlines()[0].split() == ["ID", "STATUS", "AGE", "LAST_STEP", "OWNER"]
    assert intent_id in table
    text = cli("intents", "get", intent_id).stdout
    assert "tides" in text
    assert address in text
    assert "intent.submitted" in cli("intents", "events", intent_id).stdout


def test_lists_have_filters_and_pages(cli: Cli, address: str) -> None:
    ids = [cli.send(address, {"n": n}, "--label", f"n={n}") for n in range(3)]
    cli("intents", "cancel", ids[0])
    page = cli.json("intents", "list", "--to", address, "--limit", "2")
    assert [each["intent_id"] for each in page["intents"]] == [ids[2], ids[1]]
    rest = cli.json("intents", "list", "--to", address, "--limit", "2", "--before", page["next_before"])
    assert [each["intent_id"] for each in rest["intents"]] == [ids[0]]
    canceled = cli.json("intents", "list", "--to", address, "--status", "canceled,failed")
    assert [each["intent_id"] for each in canceled["intents"]] == [ids[0]]
    labelled = cli.json("intents", "list", "--to", address, "--label", "n=1")
    assert [each["intent_id"] for each in labelled["intents"]] == [ids[1]]
    assert "no such intents" in cli("intents", "list", "--to", address + "x").stdout


def test_the_same_key_gives_the_same_intent(cli: Cli, address: str) -> None:
    first, second = (cli.send(address, {"n": 1}, "--idempotency-key", address) for _ in range(2))
    assert first == second
    told = cli.error(
        "intents", "send", "--to", address, "--type", "intent.test.v1", "--data", "{}", "--idempotency-key", address,
        code=1,
    )  # fmt: skip
    assert told["code"] == "conflict"


def test_cancel_ends_it_once_and_says_why(cli: Cli, address: str) -> None:
    intent_id = cli.send(address)
    assert "CANCELED" in cli("intents", "cancel", intent_id, "--reason", "not needed").stdout
    shown = cli.json("intents", "get", intent_id)
    assert (shown["status"], shown["reason"]) == ("CANCELED", "not needed")
    assert cli.json("intents", "events", intent_id)["events"][-1]["actor"].startswith("cli")
    assert cli.error("intents", "cancel", intent_id, "--reason", "again", code=1)["code"] == "already_finished"


def test_retry_sends_the_same_work_anew_and_revive_keeps_the_journal(cli: Cli, address: str) -> None:
    intent_id = cli.send(address, {"n": 7}, "--label", "a=b")
    assert "nothing to retry" in cli.error("intents", "retry", intent_id, code=1)["message"]
    with Stepfast(cli.url) as sf:
        run = sf.claim(address)
        assert run is not None
        run.step(str, 1)  # and then it is as if the process had died
        cli("intents", "cancel", intent_id)

    again = cli.json("intents", "retry", intent_id)
    assert again["retry_of"] == intent_id
    assert (again["payload"], again["labels"], again["to_agent"]) == ({"n": 7}, {"a": "b"}, address)
    assert cli.json("intents", "get", again["intent_id"])["step"] == 0

    revived = cli.json("intents", "revive", intent_id)
    assert revived["revived_from"] == intent_id
    assert cli.json("intents", "get", revived["intent_id"])["step"] == 1
    assert cli.json("intents", "get", intent_id)["superseded_by"] == revived["intent_id"]
    assert cli("intents", "retry", intent_id, "--any").stdout.strip() != again["intent_id"]


def test_what_is_not_there_is_exit_code_3(cli: Cli) -> None:
    for verb in ("get", "events", "watch", "cancel", "retry", "revive"):
        assert cli.error("intents", verb, UNKNOWN, code=3)["code"] == "not_found"
    plain = cli("intents", "get", UNKNOWN, code=3)
    assert plain.stdout == ""
    assert plain.stderr.startswith("error: ")
    assert plain.stderr.count("\n") == 1


def test_prune_counts_asks_and_deletes(embedded: Cli) -> None:
    cli = embedded
    ids = [cli.send("somebody") for _ in range(4)]
    for intent_id in ids[:3]:
        cli("intents", "cancel", intent_id)
    assert "--older-than" in cli.error("intents", "prune", code=2)["message"]
    assert cli.json("intents", "prune", "--keep-latest", "1", "--dry-run") == {"dry_run": True, "would_delete": 2}
    assert cli.json("intents", "prune", "--older-than", "1h", "--dry-run")["would_delete"] == 0
    assert cli("intents", "prune", "--keep-latest", "1", code=None, given="n\n").exit_code == 1
    assert len(cli.json("intents", "list")["intents"]) == 4
    assert cli.error("intents", "prune", "--keep-latest", "1", code=2)["code"] == "usage"  # nobody to ask
    cli("intents", "prune", "--keep-latest", "1", given="y\n")
    assert sorted(each["intent_id"] for each in cli.json("intents", "list")["intents"]) == sorted(ids[2:])
    assert cli.json("intents", "prune", "--keep-latest", "0", "--yes") == {"dry_run": False, "deleted": 1}
    assert "nothing to delete" in cli("intents", "prune", "--keep-latest", "0").stdout


@pytest.mark.parametrize(
    "arguments",
    [("--keep-latest", "2"), ("--keep-latest", "1", "--status", "FAILED"), ("--older-than", "0s", "--label", "k=v")],
    ids=" ".join,
)
def test_a_dry_run_counts_what_goes(embedded: Cli, arguments: tuple[str, ...]) -> None:
    with Stepfast(embedded.url) as sf:
        for n in range(5):
            labels = {"k": "v"} if n < 2 else {}
            intent_id = sf.send_intent({"intent_type": "t", "to_agent": "a", "labels": labels})
            sf.resolve_intent(intent_id, "FAILED" if n % 2 else "COMPLETED", reason="x")
    would = embedded.json("intents", "prune", *arguments, "--dry-run")["would_delete"]
    assert embedded.json("intents", "prune", *arguments, "--yes")["deleted"] == would > 0


def test_a_payload_comes_from_a_file_or_stdin(embedded: Cli, tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text(json.dumps({"from": "file"}))
    send = ("intents", "send", "--to", "a", "--type", "t", "--data")
    first = embedded(*send, f"@{file}").stdout.strip()
    second = embedded(*send, "-", given='{"from": "stdin"}').stdout.strip()
    assert embedded.json("intents", "get", first)["payload"] == {"from": "file"}
    assert embedded.json("intents", "get", second)["payload"] == {"from": "stdin"}
    assert "not JSON" in embedded.error(*send, "{topic: tides}", code=2)["message"]


def test_deadlines_and_later_delivery(embedded: Cli) -> None:
    at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    intent_id = embedded.send("a", {}, "--deadline", at, "--not-before", at)
    assert embedded.json("intents", "get", intent_id)["deadline_at"][:16] == at[:16]
    assert (
        "such as 2026"
        in embedded.error("intents", "send", "--to", "a", "--type", "t", "--deadline", "soon", code=2)["message"]
    )


def test_a_run_is_shown_by_its_name_with_its_progress(embedded: Cli) -> None:
    with Stepfast(embedded.url) as sf, sf.run("nightly", total_steps=3, payload={"day": 1}) as run:
        run.options(name="fetch").step(str, 1)
        run.options(name="write").step(str, 2)
        shown = embedded.json("intents", "get", "nightly")
        assert (shown["step"], shown["total_steps"], shown["last_step"]) == (2, 3, "write")
        text = embedded("intents", "get", "nightly").stdout
        assert "2 of 3" in text
        table = embedded("intents", "list").stdout
        assert "nightly" in table
        assert "write (2/3)" in table
    assert "run by name" in embedded.error("intents", "retry", "nightly", code=2)["message"]


@dataclass
class Point:
    x: int


def test_values_that_cannot_be_read_here_are_shown_as_text(embedded: Cli) -> None:
    intent = {"intent_type": "t", "to_agent": "a"}
    with Stepfast(embedded.url) as sf:
        first = sf.send_intent({**intent, "payload": [Point(7)]})
    with Stepfast(embedded.url, codec=Codec(keyring=_ring())) as sf:
        second = sf.send_intent({**intent, "payload": {"secret": 42}})
    assert [each["intent_id"] for each in embedded.json("intents", "list")["intents"]] == [second, first]
    assert "Point(x=7)" in embedded.json("intents", "get", first)["payload"]["$opaque"]
    assert "Point(x=7)" in embedded("intents", "get", first).stdout
    assert embedded.json("intents", "get", second)["payload"] == {"$opaque": "encrypted"}
    again = embedded("intents", "retry", first, "--any").stdout.strip()  # what cannot be built here is sent again
    with Stepfast(embedded.url) as sf:
        assert sf.get_intent(again)["payload"] == [Point(7)]


def test_a_payload_is_sent_again_only_where_its_key_is(embedded: Cli) -> None:
    with Stepfast(embedded.url, codec=Codec(keyring=_ring())) as sf:
        sent = sf.send_intent({"intent_type": "t", "to_agent": "a", "payload": {"secret": 42}})
        told = embedded.error("intents", "retry", sent, "--any", code=1)["message"]
        assert f"the payload of {sent} cannot be sent again without its key" in told
        assert len(sf.list_intents()) == 1
        keys = f"k1:{b64encode(bytes(range(32))).decode()}"
        again = embedded("intents", "retry", sent, "--any", STEPFAST_ENCRYPTION_KEYS=keys).stdout.strip()
        assert sf.get_intent(again)["payload"] == {"secret": 42}


def _ring() -> KeyRing:
    return KeyRing({"k1": bytes(range(32))})


def test_a_question_that_cannot_be_read_here_is_no_error(embedded: Cli) -> None:
    with (
        Stepfast(embedded.url, codec=Codec(keyring=_ring())) as sf,
        pytest.raises(Suspended),
        sf.run("asks", on_wait="suspend") as run,
    ):
        run.ask("May I?", evidence={"secret": 42})
    shown = embedded.json("intents", "get", "asks")
    assert [each["question"] for each in shown["decisions"]] == ["(encrypted)"]
    assert "Waits for a decision" in embedded("intents", "get", "asks").stdout


def test_hostile_text_reaches_no_terminal(cli: Cli, address: str) -> None:
    hostile = "\x1b]0;owned\x07\x1b[31m[red]x[/red]\u202egnp.exe\u200b\x9b2J"
    intent_id = cli.send(address, {"title": hostile}, "--label", f"l={hostile}")
    cli("intents", "cancel", intent_id, "--reason", hostile)
    for arguments in (("get", intent_id), ("list", "--to", address), ("events", intent_id), ("watch", intent_id)):
        printed = cli("intents", *arguments, code=None).stdout
        assert not set(printed) & {"\x1b", "\x07", "\x9b", "\u202e", "\u200b"}
        as_json = cli("intents", *arguments, "--json", code=None).stdout
        assert as_json.isascii()
        assert not set(as_json) & {"\x1b", "\x07", "\x7f"}
    assert "[red]x[/red]<U+202E>gnp.exe<U+200B>" in cli("intents", "get", intent_id).stdout

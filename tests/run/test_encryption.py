"""With a key ring, nothing a run holds can be read from the files of its store."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stepfast import Check, Codec, Damaged, KeyRing, KeyUnavailable, StepfastError, Suspended
from stepfast.stored_names import RUN_TYPE
from tests.run.kit import Boom, Calls, Crash, Way, both, collect

RING = {"k1": bytes(range(32))}


def ring(**options: Any) -> Codec:
    return Codec(keyring=KeyRing(RING, **options))


def bytes_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("stepfast.db*")))


@both
async def test_nothing_of_a_run_stands_in_its_files_in_plain_text(way: Way, calls: Calls) -> None:
    sf = way.open(codec=ring(), checks={"good": lambda **_: True})
    canaries: list[str] = []

    def secret(what: str) -> str:
        canaries.append(f"canary-{what}")
        return canaries[-1]

    async def body(run: Any) -> None:
        await run.step(calls.answering("f", lambda _: secret("result")), secret("argument"))
        with pytest.raises(Boom):
            await run.options(key="g", record_errors=True).step(calls.raising("g", Boom(secret("recorded-error"))))
        await run.once(calls.answering("h", lambda _: [secret("once-result")]), secret("once-argument"))
        items = [secret("item-1"), secret("item-2")]
        await collect(run.map(calls.answering("m", lambda item: f"{item} {secret('item-result')}"), items))
        await run.checkpoint(
            {"state": secret("state")},
            resources=[Check("good", {"params": secret("check")})],
            pending=[secret("pending")],
        )
        await run.step(calls.answering("large", lambda: secret("large") * 20_000))
        await run.ask(secret("question"), evidence={"e": secret("evidence")}, comment_required=True)
        await run.once(calls.raising("doubt", Crash()), secret("doubt-argument"))

    with pytest.raises(Suspended):
        async with sf.run("r", payload={"p": secret("payload")}, on_wait="suspend") as run:
            await body(run)
    await sf.answer("r", "approved", value=secret("answer"), comment=secret("comment"))
    crashed = await sf.run("r", payload={"p": "canary-payload"})
    with pytest.raises(Crash):
        await body(crashed)
    way.lose(sf, crashed)
    with pytest.raises(Suspended):
        await sf.run("r", on_wait="suspend")
    [decision] = await sf.decisions("r")
    assert "canary-doubt-argument" in decision["evidence"]["arguments"]
    await sf.answer("r", "done", value=secret("doubt-result"), comment=secret("doubt-comment"))

    def where_it_broke() -> None:
        canary_in_the_source = secret("raised")  # its name and this line stand in the traceback
        raise Boom(canary_in_the_source)

    with pytest.raises(Boom):
        async with sf.run("r"):
            where_it_broke()
    told = (await sf.events("r"))[-1]
    assert told["data"]["message"] == "canary-raised"
    assert told["details"]["reason"] == "Boom"
    with pytest.raises(Boom):
        async with sf.run("r", on_error="fail"):
            where_it_broke()
    assert (await sf.get_intent("r"))["error"]["message"] == "canary-raised"
    async with sf.run("r", on_failed="revive") as run:
        run.complete(secret("run-result"))
    sent = await sf.send_intent({"intent_type": "t", "to_agent": "a", "payload": secret("sent")})
    assert (await sf.get_intent(sent))["payload"] == "canary-sent"
    assert len(set(canaries)) > 20
    stored = bytes_of(way.folder)
    found = [canary for canary in {*canaries, "canary_in_the_source", "where_it_broke"} if canary.encode() in stored]
    assert found == []
    # The search itself is sound: a name that is not a value does stand there.
    assert RUN_TYPE.encode() in stored


@both
async def test_without_the_key_a_run_is_not_served_and_with_it_goes_on(way: Way, calls: Calls) -> None:
    sf = way.open(codec=ring())
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a, "secret")
        await run.checkpoint({"n": 1})
    for codec in (Codec(), Codec(keyring=KeyRing({"k2": os.urandom(32)}))):
        stranger = way.open(codec=codec, clock=sf.store.clock)
        with pytest.raises(KeyUnavailable, match="k1"):
            await stranger.run("r")
    async with sf.run("r") as run:
        assert run.restored == {"n": 1}
        assert await run.step(calls.a, "secret") == ["a", "secret"]
    assert calls.names == ["a"]


@both
async def test_keys_are_rotated_under_a_run(way: Way, calls: Calls) -> None:
    sf = way.open(codec=ring())
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a)
    newer = KeyRing({**RING, "k2": os.urandom(32)}, active="k2")
    sf = way.open(codec=Codec(keyring=newer), clock=sf.store.clock)
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a)
        await run.step(calls.b)
    async with sf.run("r") as run:
        await run.step(calls.a)
        await run.step(calls.b)
    assert calls.names == ["a", "b"]


@both
async def test_rows_from_before_there_was_a_key_are_refused_unless_accepted(way: Way, calls: Calls) -> None:
    sf = way.open()
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a)
    strict = way.open(codec=ring(), clock=sf.store.clock)
    opened = await strict.run("r")
    with pytest.raises(KeyUnavailable):
        await opened.step(calls.a)
    way.lose(strict, opened)
    async with way.open(codec=ring(accept_plain=True), clock=sf.store.clock).run("r") as run:
        assert await run.step(calls.a) == ["a"]
        await run.step(calls.b)
    assert calls.names == ["a", "b"]


@both
async def test_a_row_moved_to_another_place_is_not_taken_for_its_own(way: Way, calls: Calls) -> None:
    sf = way.open(codec=ring())
    async with way.crashing(sf, "r") as run:
        await run.options(key="a").step(calls.answering("a", lambda: "of a"))
        await run.options(key="b").step(calls.answering("b", lambda: "of b"))
    with closing(sqlite3.connect(way.path)) as store:
        rows: dict[str, Any] = dict(store.execute("SELECT key, result FROM steps"))
        for key, other in (("a", "b"), ("b", "a")):
            store.execute("UPDATE steps SET result = ? WHERE key = ?", [rows[other], key])
        store.commit()
    async with way.crashing(sf, "r") as run:
        with pytest.raises(Damaged):
            await run.options(key="a").step(calls.a)
    assert calls.names == ["a", "b"]


@both
async def test_the_key_ring_comes_from_the_environment(way: Way, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    import base64

    monkeypatch.setenv("STEPFAST_ENCRYPTION_KEYS", "k1:" + base64.b64encode(RING["k1"]).decode())
    sf = way.open()
    assert sf.codec.encrypts
    async with sf.run("r") as run:
        await run.step(calls.a, "canary-argument")
    assert b"canary-argument" not in bytes_of(way.folder)


@both
async def test_a_changed_input_is_shown_to_who_has_the_key(way: Way, calls: Calls) -> None:
    sf = way.open(codec=ring())
    async with way.crashing(sf, "r") as run:
        await run.step(calls.a, "recorded-input")
    async with way.crashing(sf, "r") as run:
        with pytest.raises(StepfastError, match=r"(?s)recorded-input.*other-input"):
            await run.step(calls.a, "other-input")

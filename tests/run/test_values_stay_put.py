"""A stored value belongs to its tenant and its row: one that was moved to another row is refused."""

# ruff: noqa: PT012 - what is raised leaves the run, so the run is inside the block

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from stepfast import Codec, Damaged, KeyRing, Suspended
from stepfast.bindings import of_payload, open_payload
from stepfast.clock import new_id
from stepfast.ops import CreateIntent, NewIntent
from tests.run.kit import Calls, Way, both

ADDRESS = "agent://acme/prod/jobs"
Open = Callable[[], Codec]


def _ring() -> Codec:
    return Codec(keyring=KeyRing({"k1": bytes(range(32))}))


codecs = pytest.mark.parametrize("codec", [Codec, _ring], ids=["plain", "ring"])


def swap(way: Way, table: str, column: str, key: str, one: str, other: str) -> None:
    """Exchange the values of two rows, behind the library's back."""
    with closing(sqlite3.connect(way.path)) as store, store:
        found = dict(store.execute(f"SELECT {key}, {column} FROM {table} WHERE {key} IN (?, ?)", [one, other]))
        assert len({*found.values()} - {None}) == 2
        for name, value in ((one, found[other]), (other, found[one])):
            store.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", [value, name])


async def _sent(sf: Any, payload: Any) -> str:
    return await sf.send_intent({"intent_type": "t", "to_agent": ADDRESS, "payload": payload})


@codecs
@both
async def test_two_swapped_payloads_of_runs_are_refused(way: Way, codec: Open) -> None:
    sf = way.open(codec=codec())
    for name in ("a", "b"):
        with pytest.raises(InterruptedError):
            async with sf.run(name, payload={"of": name}) as run:
                assert run.payload == {"of": name}
                raise InterruptedError
    swap(way, "intents", "payload", "run_id", "a", "b")
    for name in ("a", "b"):
        with pytest.raises(Damaged):
            await sf.get_intent(name)
        with pytest.raises(Damaged):
            async with sf.run(name) as run:
                assert run.payload
    swap(way, "intents", "payload", "run_id", "a", "b")
    assert (await sf.get_intent("a"))["payload"] == {"of": "a"}


@codecs
@both
async def test_two_swapped_payloads_of_sent_intents_are_refused(way: Way, codec: Open) -> None:
    sf = way.open(codec=codec())
    first, second = await _sent(sf, 1), await _sent(sf, 2)
    swap(way, "intents", "payload", "intent_id", first, second)
    for intent_id in (first, second):
        with pytest.raises(Damaged):
            await sf.get_intent(intent_id)
    async with await sf.claim(ADDRESS) as run:
        with pytest.raises(Damaged):
            assert run.payload


@codecs
@both
async def test_a_revived_run_keeps_its_payload(way: Way, codec: Open) -> None:
    sf = way.open(codec=codec())
    for number in range(3):
        with pytest.raises(ZeroDivisionError):
            async with sf.run("r", payload={"n": 1}, on_error="fail", on_failed="revive") as run:
                assert run.payload == {"n": 1}
                assert (run.intent.revived_from is not None) == (number > 0)
                raise ZeroDivisionError


@codecs
@both
async def test_a_payload_of_an_older_store_is_read(way: Way, codec: Open) -> None:
    """It is bound to a constant, so it can be read; what is bound to its own row is never read by that constant."""
    sf = way.open(codec=codec())
    old, moved = new_id(), new_id()
    payload = codec().encode({"n": 1}, bind=b"payload")
    foreign = codec().encode({"n": 2}, bind=of_payload("local", new_id()))
    for intent_id, data in ((old, payload), (moved, foreign)):
        new = NewIntent(intent_id=intent_id, intent_type="t", to_agent=ADDRESS, payload=data)
        sf.store.one(CreateIntent(new=new))
    assert (await sf.get_intent(old))["payload"] == {"n": 1}
    async with await sf.claim(ADDRESS) as run:
        assert run.payload == {"n": 1}
    with pytest.raises(Damaged):
        await sf.get_intent(moved)


@codecs
def test_a_payload_of_another_tenant_is_refused(codec: Open) -> None:
    data = codec().encode({"n": 1}, bind=of_payload("acme", "i"))
    assert open_payload(codec(), data, "acme", "i") == {"n": 1}
    for tenant, journal_id in (("other", "i"), ("acme", "j")):
        with pytest.raises(Damaged):
            open_payload(codec(), data, tenant, journal_id)


@codecs
@both
async def test_swapped_results_steps_questions_answers_and_errors_are_refused(
    way: Way, codec: Open, calls: Calls
) -> None:
    sf = way.open(codec=codec())
    journals = {}
    for name in ("a", "b"):
        async with sf.run(name) as run:
            await run.step(calls.answering("f", lambda name=name: f"step of {name}"))
            run.complete(f"result of {name}")
        with pytest.raises(Suspended):
            async with sf.run(f"asks {name}", on_wait="suspend") as run:
                await run.ask(f"question of {name}", key="k")
        await sf.answer(f"asks {name}", "approved", value=f"answer of {name}")
        with pytest.raises(ZeroDivisionError):
            async with sf.run(f"fails {name}", on_error="fail"):
                raise ZeroDivisionError(name)
        journals[name] = [(await sf.get_intent(f"{what}{name}"))["intent_id"] for what in ("", "asks ", "fails ")]
    (done_a, asks_a, fails_a), (done_b, asks_b, fails_b) = journals["a"], journals["b"]
    swap(way, "intents", "result", "intent_id", done_a, done_b)
    swap(way, "intents", "error", "intent_id", fails_a, fails_b)
    swap(way, "decisions", "question", "journal_id", asks_a, asks_b)
    swap(way, "decisions", "value", "journal_id", asks_a, asks_b)
    for name in ("a", "fails a"):
        with pytest.raises(Damaged):
            await sf.get_intent(name)
    with pytest.raises(Damaged):
        await sf.decisions("asks a", pending=False)
    swap(way, "decisions", "question", "journal_id", asks_a, asks_b)
    with pytest.raises(Damaged):
        async with sf.run("asks a") as run:
            await run.ask("question of a", key="k")
    swap(way, "intents", "result", "intent_id", done_a, done_b)
    swap(way, "steps", "result", "journal_id", done_a, done_b)
    with pytest.raises(Damaged):
        async with sf.run("a") as run:
            await run.step(calls.f)

"""The promise, property by property, as the design states it: real processes, real SIGKILL, both databases."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from stepfast import AlreadyFinished, Conflict, RunFailed, Status, Stepfast, Suspended
from stepfast.intents import fold
from stepfast.ops import ReadCheckpoints, ReadEvents
from stepfast.testing import Effects
from tests.run.kit import LEASE_SECONDS, Spawn, make_nursery, make_spawn

__all__ = ["make_nursery", "make_spawn"]

WORK = {"intent_type": "report.v1", "to_agent": "agent://reporter", "payload": {"month": 7}}


@pytest.fixture(params=["sqlite-file", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of the test's own."""
    if request.param == "sqlite-file":
        return f"sqlite:///{tmp_path}/stepfast.db"
    address: str = request.getfixturevalue("postgres_url")
    return f"{address}{'&' if '?' in address else '?'}schema=properties_{uuid4().hex[:12]}"


@pytest.fixture
def sf(url: str) -> Iterator[Stepfast]:
    with Stepfast(url) as client:
        yield client


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path)


def test_property_1_acknowledged_means_kept(spawn: Spawn, url: str, sf: Stepfast) -> None:
    """Whatever a call returned for is there after a SIGKILL, and nothing is there that nobody asked for."""
    acked: list[Any] = []
    for attempt in (1, 2, 3):
        child = spawn("acknowledge", url, "r")
        assert child.hear("begun") == attempt
        acked += [child.hear("acked") for _ in range(60 * attempt)]
        child.kill()
        # What it said between our last reading and its death; its last line may be torn.
        acked += [json.loads(line)[1] for line in child.out if line.endswith("\n")]
    run = sf.run("r")
    try:
        steps = {key for key in run.steps() if not key.rpartition("/")[2].startswith("~")}
        wanted = set()
        intents = set()
        for kind, what in acked:
            if kind == "intent":
                intents.add(what)
            elif kind == "checkpoint":
                wanted.add(f"checkpoint-{what - 1}")
            elif kind == "items":
                wanted.add(f"map-{what[0]}")
            else:
                wanted.add(f"{kind}-{what}")
        assert wanted <= steps
        # Besides, only what was under way at each of the three ends.
        assert len(steps - wanted) <= 3
        listed = {intent["intent_id"] for intent in sf.list_intents(to_agent="nobody", limit=10_000)}
        assert intents <= listed
        assert len(listed - intents) <= 3
        last = max(what for kind, what in acked if kind == "checkpoint")
        kept = sf.store.one(ReadCheckpoints(journal_id=run.intent.journal_id, limit=10_000))
        assert {row.version for row in kept} >= set(range(1, last + 1))
        assert run.restored["n"] + 1 >= last
        for key in sorted(wanted)[:50]:
            kind, _, number = key.partition("-")
            if kind == "step":
                assert run.options(key=key, on_drift="accept").step(_never, int(number)) == number
            elif kind == "once":
                assert run.options(key=key, on_drift="accept").once(_never, int(number)) == number
    finally:
        run.__exit__(None, None, None)


def _never(*_args: Any) -> Any:
    raise AssertionError("a recorded step was run again")


def test_property_2_finished_means_never_again(spawn: Spawn, url: str, effects: Effects) -> None:
    """Killed in the middle of two of its five steps, the run repeats those two and no other."""
    for dies_at in (2, 4):
        child = spawn("five_steps", url, "r", dies_at)
        assert child.hear("happened") == f"step {dies_at}"
        child.kill()
    told = spawn("five_steps", url, "r", 0).hear("completed")
    assert told == [f"step {number} done" for number in range(1, 6)]
    assert effects.counts() == {"step 1": 1, "step 2": 2, "step 3": 1, "step 4": 2, "step 5": 1}
    assert spawn("five_steps", url, "r", 0).hear("completed") == told
    assert sum(effects.counts().values()) == 7


@pytest.mark.parametrize(
    ("failpoint", "answer"),
    [("once.started", "retry"), ("once.after_call", "done"), ("once.settled", None), ("run.finished", None)],
)
def test_property_3_one_shot_means_at_most_once(
    spawn: Spawn, url: str, sf: Stepfast, effects: Effects, failpoint: str, answer: str | None
) -> None:
    """Killed around its effect, a one-shot is asked about where its outcome is not known, and never repeated."""
    child = spawn("once_stopped_at", url, "r", failpoint)
    child.hear("at")
    child.kill()
    before = effects.counts()["pay"]
    assert before == (0 if failpoint == "once.started" else 1)
    if answer is not None:
        for _ in range(2):
            spawn("once_stopped_at", url, "r", "").hear("suspended")
        assert effects.counts()["pay"] == before
        assert sf.get_intent("r")["waiting_reason"] == "WAITING_FOR_HUMAN"
        [decision] = sf.decisions("r")
        assert (decision["kind"], decision["evidence"]["attempt"]) == ("in_doubt", 1)
        sf.answer("r", answer, value="pay done" if answer == "done" else None, actor="ann")
    assert spawn("once_stopped_at", url, "r", "").hear("completed") == "pay done"
    assert effects.counts() == {"pay": 1}


def test_property_4_one_owner(spawn: Spawn, url: str, sf: Stepfast, effects: Effects) -> None:
    """Of many who open a run at once, one gets it; and one that slept past its lease writes nothing more."""
    rivals = [spawn("compete", url, "race") for _ in range(4)]
    for rival in rivals:
        rival.hear("ready")
    for rival in rivals:
        rival.say()
    words = [rival.hear_any() for rival in rivals]
    assert sorted(word for word, _ in words) == ["lost", "lost", "lost", "won"]
    assert {what for word, what in words if word == "lost"} == {"RunBusy"}
    rivals[[word for word, _ in words].index("won")].say()
    assert sf.wait_for("race", timeout=60)["delivery_attempt"] == 1
    assert effects.counts() == {"work": 1}

    sleeper = spawn("hold_once", url, "r")
    assert sleeper.hear("holding") == 1
    sleeper.stop()
    sf.store.clock.advance(LEASE_SECONDS + 1)
    with sf.run("r") as run:
        assert run.attempt == 2
        sleeper.go_on()
        sleeper.say()
        kind, text = sleeper.hear("stopped")
        assert kind == "Fenced"
        assert "no longer owns it" in text
        assert run.steps() == []
    assert "pay" not in effects.counts()
    assert sf.steps("r") == []


def test_property_5_one_ending(spawn: Spawn, url: str, sf: Stepfast) -> None:
    """Of many different endings one is taken, and everybody is told that one, for ever."""
    intent_id = sf.send_intent(WORK)
    rivals = [spawn("end_it", url, intent_id, status) for status in ("COMPLETED", "FAILED", "CANCELED")]
    for rival in rivals:
        rival.hear("ready")
    for rival in rivals:
        rival.say()
    words = [rival.hear_any() for rival in rivals]
    assert sorted(word for word, _ in words) == ["lost", "lost", "won"]
    endings = [what if word == "won" else what[1] for word, what in words]
    assert {what[0] for word, what in words if word == "lost"} == {"AlreadyFinished"}
    sf.store.clock.advance(10**6)
    with Stepfast(url) as other:
        endings += [sf.wait_for(intent_id), other.wait_for(intent_id), other.get_intent(intent_id)]
    assert all(ending == endings[0] for ending in endings)
    assert endings[0]["reason"] == f"said {endings[0]['status']}"
    with pytest.raises(AlreadyFinished):
        sf.resolve_intent(intent_id, "FAILED", reason="too late")
    events = sf.events(intent_id)
    assert sum(event["status"] in ("COMPLETED", "FAILED", "CANCELED") for event in events) == 1


def test_property_5_an_ending_outlives_the_process_that_gave_it(spawn: Spawn, url: str, sf: Stepfast) -> None:
    child = spawn("once_stopped_at", url, "r", "run.finished")
    child.hear("at")
    child.kill()
    assert sf.wait_for("r", timeout=0)["result"] == "pay done"
    with sf.run("r") as run:
        assert run.replaying


def test_property_6_a_gapless_history(spawn: Spawn, url: str, sf: Stepfast) -> None:
    """Through kills, expiries, answers and an ending from outside: 1, 2, 3 …, each tied to the one before."""
    seen: list[dict[str, Any]] = []
    for _ in range(3):
        child = spawn("make_history", url, "r")
        child.hear("begun")
        for event in sf.observe("r", since=len(seen)):
            seen.append(event)
            if len(seen) % 40 == 0:
                break
        child.kill()
    sf.cancel("r", reason="enough")
    seen += sf.observe("r", since=len(seen))
    intent_id = sf.get_intent("r")["intent_id"]
    history = sf.store.one(ReadEvents(intent_id=intent_id, limit=100_000))
    status, length, _ = fold(history)
    assert (status, length) == (Status.CANCELED, len(history))
    assert [event["seq"] for event in seen] == list(range(1, len(history) + 1))
    assert seen == [event.as_dict() for event in history]
    assert sum(event["event_type"] == "intent.delivery_lost" for event in seen) == 2
    assert length > 120


def test_property_7_bounded_redelivery(spawn: Spawn, url: str, sf: Stepfast, effects: Effects) -> None:
    """Three deliveries lost in a row without a newly finished step, then FAILED with its reason, whole in the store,
    and it can be revived.
    """
    for _ in range(4):  # the first of them finishes a step
        child = spawn("crash_at", url, "r", True)
        child.hear("happened")
        child.kill()
    assert spawn("crash_at", url, "r", True).hear("stopped")[0] == "RunFailed"
    assert effects.counts() == {"first": 1, "second": 4}
    intent = sf.wait_for("r", timeout=0)
    assert (intent["status"], intent["delivery_attempt"], intent["lost_deliveries"]) == ("FAILED", 4, 3)
    assert intent["reason"] == (
        "3 of 3 deliveries were lost in a row without a newly finished step; the last one: its owner died"
    )
    with pytest.raises(RunFailed, match="revive"):
        sf.run("r")
    assert [step["key"] for step in sf.steps("r")] == ["effect#1"]
    sf.revive("r", actor="ann")
    spawn("crash_at", url, "r", False).hear("done")
    assert effects.counts() == {"first": 1, "second": 5}
    assert sf.wait_for(intent["intent_id"], timeout=0)["status"] == "FAILED"
    assert sf.wait_for("r", timeout=0)["status"] == "COMPLETED"


def test_property_7_a_run_that_gets_on_is_delivered_as_often_as_it_takes(
    spawn: Spawn, url: str, sf: Stepfast, effects: Effects
) -> None:
    for dies_at in range(1, 6):  # and each life but the first finishes one step more than the last one did
        child = spawn("five_steps", url, "r", dies_at)
        child.hear("happened")
        child.kill()
    spawn("five_steps", url, "r", 0).hear("completed")
    assert effects.counts() == {f"step {number}": 2 for number in range(1, 6)}
    intent = sf.get_intent("r")
    assert (intent["status"], intent["delivery_attempt"], intent["lost_deliveries"]) == ("COMPLETED", 6, 0)


def test_property_7_waiting_and_handing_back_cost_no_delivery(url: str, sf: Stepfast) -> None:
    for _ in range(5):
        with pytest.raises(Suspended), sf.run("r", on_wait="suspend") as run:
            run.ask("Deploy?")
        sf.store.clock.advance(10 * LEASE_SECONDS)
    sf.answer("r", "approved")
    sf.store.clock.advance(10 * LEASE_SECONDS)  # and nobody comes to work on it
    for _ in range(5):
        with pytest.raises(InterruptedError), sf.run("r"):
            raise InterruptedError
    with sf.run("r") as run:
        assert run.ask("Deploy?")
    assert sf.get_intent("r")["lost_deliveries"] == 0


def test_property_8_same_request_same_intent(spawn: Spawn, url: str, sf: Stepfast) -> None:
    """From processes at once, after the sender was killed, and after the work is done: one intent."""
    lost = spawn("send", url, WORK, "k")
    lost.hear("ready")
    lost.say()
    lost.hear("sent")  # the answer, which its sender does not live to use
    lost.kill()
    senders = [spawn("send", url, WORK, "k") for _ in range(3)]
    liar = spawn("send", url, {**WORK, "payload": {"month": 8}}, "k")
    for sender in (*senders, liar):
        sender.hear("ready")
    for sender in (*senders, liar):
        sender.say()
    ids = {sender.hear("sent") for sender in senders}
    assert liar.hear("refused") == "Conflict"
    [intent] = sf.list_intents()
    assert ids == {intent["intent_id"]}
    run = sf.claim("agent://reporter")
    assert run is not None
    with run:
        assert run.payload == {"month": 7}
    assert sf.send_intent(WORK, idempotency_key="k") in ids
    with pytest.raises(Conflict):
        sf.send_intent({**WORK, "labels": {"a": "b"}}, idempotency_key="k")
    assert sf.claim("agent://reporter") is None


def test_property_8_at_once_and_for_the_first_time(spawn: Spawn, url: str, sf: Stepfast) -> None:
    senders = [spawn("send", url, WORK, "k") for _ in range(4)]
    for sender in senders:
        sender.hear("ready")
    for sender in senders:
        sender.say()
    ids = {sender.hear("sent") for sender in senders}
    assert ids == {intent["intent_id"] for intent in sf.list_intents()}
    assert len(ids) == 1


def damage(url: str, version: int) -> None:
    """Flip a bit of a checkpoint's state, past whatever the library would do."""

    def flipped(state: bytes) -> bytes:
        at = len(state) // 2
        return state[:at] + bytes([state[at] ^ 4]) + state[at + 1 :]

    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as store:
            [state] = store.execute("SELECT state FROM checkpoints WHERE version = ?", [version]).fetchone()
            store.execute("UPDATE checkpoints SET state = ? WHERE version = ?", [flipped(state), version])
            store.commit()
        return
    address, _, schema = url.rpartition("schema=")
    with psycopg.connect(address.rstrip("&?"), options=f"-c search_path={schema}") as database:
        row = database.execute("SELECT state FROM checkpoints WHERE version = %s", [version]).fetchone()
        assert row is not None
        database.execute("UPDATE checkpoints SET state = %s WHERE version = %s", [flipped(row[0]), version])


def kill_after_checkpoints(spawn: Spawn, url: str, watched: Path | None = None) -> None:
    child = spawn("checkpoint_and_hang", url, "r", "" if watched is None else str(watched))
    child.hear("ready")
    child.kill()


def test_property_9_no_blind_trust_in_a_damaged_checkpoint(
    spawn: Spawn, url: str, sf: Stepfast, effects: Effects
) -> None:
    """It falls back to the one before and says so; and what the journal has is not repeated for it."""
    kill_after_checkpoints(spawn, url)
    damage(url, 2)
    with sf.run("r") as run:
        assert run.restored == {"cursor": 1}
        assert run.options(name="effect").step(_never, "first") == "first done"
        assert run.options(name="effect").step(_never, "second") == "second done"
    assert effects.counts() == {"first": 1, "second": 1}
    [told] = [e for e in sf.events("r") if e["event_type"] == "intent.checkpoint_damaged"]
    assert told["details"]["subject"] == "checkpoint 2"
    [checked] = [e for e in sf.events("r") if e["event_type"] == "intent.resume_checked"]
    assert (checked["details"]["verdict"], checked["details"]["checkpoint"]) == ("resume", 1)


def test_property_9_no_whole_checkpoint_is_a_person_s_decision(spawn: Spawn, url: str, sf: Stepfast) -> None:
    kill_after_checkpoints(spawn, url)
    for version in (1, 2):
        damage(url, version)
    with pytest.raises(Suspended):
        sf.run("r", on_wait="suspend")
    assert sf.get_intent("r")["waiting_reason"] == "WAITING_FOR_HUMAN"
    [decision] = sf.decisions("r")
    assert (decision["kind"], decision["outcomes"]) == ("resume", ["continue", "fail"])


@pytest.mark.parametrize("happens", ["as it was", "changed", "gone"])
def test_property_9_no_blind_trust_in_the_world(
    spawn: Spawn, url: str, sf: Stepfast, tmp_path: Path, happens: str
) -> None:
    source = tmp_path / "source.txt"
    source.write_text("as it was")
    kill_after_checkpoints(spawn, url, source)
    if happens == "gone":
        source.unlink()
    else:
        source.write_text(happens)
    if happens == "as it was":
        with sf.run("r", on_wait="suspend") as run:
            assert run.restored == {"cursor": 2}
    else:
        with pytest.raises(Suspended):
            sf.run("r", on_wait="suspend")
        [decision] = sf.decisions("r")
        assert str(source) in decision["question"]
    [checked] = [e for e in sf.events("r") if e["event_type"] == "intent.resume_checked"]
    assert checked["details"]["verdict"] == ("resume" if happens == "as it was" else "wait")

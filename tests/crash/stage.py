"""What the crash scenarios share: a store in a folder, a witness outside it, and the laws that hold after every cut.

A scenario does things to the world by ``stage.act(label)`` and says ``stage.kept(label)`` where a caller was told
that a thing is kept. Every value carries its label (``{"did": label}``), so the laws can read from the store what
it holds, whatever the scenario was.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepfast import AsyncStepfast, Stepfast
from stepfast.clock import Clock
from stepfast.codec import Codec
from stepfast.flow import drive
from stepfast.intents import Event, Intent
from stepfast.journal import Step, StepStatus
from stepfast.ops import Checkpoint, Filter, ListDecisions, ListIntents, ReadCheckpoints, ReadEvents, ReadJournal
from stepfast.run import Run
from stepfast.stores import Store, open_store
from stepfast.stores.base import LOCAL_TENANT
from stepfast.testing import Effects, ack
from stepfast.testing.contract_kit import check_history
from stepfast.vault import Vault

STORE = "store.db"


class Stage:
    """One folder: the store (a file in it, or the URL that a file in it names) and what witnesses it."""

    def __init__(self, folder: Path, hop: float = 0.0) -> None:
        self.folder = folder
        self.effects = Effects(folder)
        self.acks = Effects(folder, "acks")
        self.answers = Effects(folder, "answers")
        self.clock = Clock()
        if hop:
            lives = Effects(folder, "lives")
            self.clock.advance(hop * len(lives.lines()))
            lives.record("life")

    @property
    def embedded(self) -> bool:
        return not (self.folder / "url").exists()

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / STORE}" if self.embedded else (self.folder / "url").read_text()

    @property
    def tag(self) -> str:
        """The name of this stage's run; on a shared database it is this folder's own."""
        return "run" if self.embedded else f"{self.folder.parent.name}-{self.folder.name}"

    @property
    def mine(self) -> dict[str, str]:
        return {"stage": self.tag}

    def client(self) -> Stepfast:
        return Stepfast(self.url, clock=self.clock)

    def async_client(self) -> AsyncStepfast:
        return AsyncStepfast(self.url, clock=self.clock)

    def run(self, sf: Stepfast, **options: Any) -> Run:
        return sf.run(self.tag, labels=self.mine, max_delivery_attempts=10, **options)

    def act(self, label: str) -> dict[str, Any]:
        """Do something to the world, which can be counted; gives a value that says what was done."""
        self.effects.record(label)
        return {"did": label, "much": "x" * 40}

    def kept(self, label: str) -> None:
        """A caller was told that this is kept."""
        self.acks.record(label)

    def say(self, answer: str) -> None:
        """A person is about to answer."""
        self.answers.record(answer)


class Traced(Stage):
    """For power cuts: nothing but the store is in the folder, and what was kept is told to the tracer."""

    def act(self, label: str) -> dict[str, Any]:
        return {"did": label, "much": "x" * 40}

    def kept(self, label: str) -> None:
        ack(label)

    def say(self, answer: str) -> None:
        pass


# What the store holds


@dataclass
class Seen:
    """All of a stage's rows, and the labels of what counts as done."""

    intents: list[Intent] = field(default_factory=list)
    events: dict[str, list[Event]] = field(default_factory=dict)
    steps: dict[str, list[Step]] = field(default_factory=dict)
    checkpoints: dict[str, list[Checkpoint]] = field(default_factory=dict)
    decisions: dict[str, list[Any]] = field(default_factory=dict)
    #: Label to a digest of the value that holds it.
    labels: dict[str, str] = field(default_factory=dict)
    #: Labels of steps that were set aside.
    voided: set[str] = field(default_factory=set)
    states: dict[int, Any] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        return sum(map(self.losses, self.intents))

    def losses(self, intent: Intent) -> int:
        """How many deliveries of an intent were lost, also those that it does not count because it got on."""
        lost = ("intent.delivery_lost", "intent.delivery_failed")
        return sum(event.event_type in lost for event in self.events[intent.intent_id])

    def snapshot(self) -> Any:
        """All that may not change once everything is done."""
        return [
            [
                [i.intent_id, str(i.status), i.seq, i.attempt, i.lost, _digest(i.result), i.superseded_by]
                for i in self.intents
            ],
            [[s.key, s.generation, str(s.status), s.attempt, s.seal.hex(), s.voided] for s in _flat(self.steps)],
            [[c.version, c.pin, c.seal.hex()] for c in _flat(self.checkpoints)],
            [[d.key, d.outcome, d.actor] for d in _flat(self.decisions)],
        ]


def _flat(lists: dict[str, list[Any]]) -> Iterator[Any]:
    for found in lists.values():
        yield from found


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def labelled(value: Any) -> Iterator[tuple[str, str]]:
    """Each label inside a value, with a digest of the part that carries it."""
    if isinstance(value, dict):
        if "did" in value:
            yield value["did"], _digest(value)
        for part in value.values():
            yield from labelled(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from labelled(part)


def look(stage: Stage) -> Seen:
    """Read everything of a stage through the store's own reads."""
    with open_store(stage.url) as store:
        return read_all(store, stage.mine)


def read_all(store: Store, labels: dict[str, str]) -> Seen:
    seen = Seen(intents=store.one(ListIntents(where=Filter(labels=labels, limit=10_000))))
    codec = Codec()
    for intent in seen.intents:
        seen.events[intent.intent_id] = store.one(ReadEvents(intent_id=intent.intent_id, limit=10_000))
        vault = Vault(intent, None, codec, LOCAL_TENANT)
        if intent.result is not None:
            seen.labels.update(labelled(codec.decode(intent.result, bind=vault.bind("result", 0))))
        if intent.journal_id in seen.steps:
            continue
        steps = store.one(ReadJournal(journal_id=intent.journal_id, voided=True))
        seen.steps[intent.journal_id] = steps
        for step in steps:
            vault.check_seal(step)
            if step.status is StepStatus.FINISHED:
                bind = vault.bind(step.key, step.generation)
                value = drive(vault.unpack(step.result or b"", step.blob_id, bind), store, LOCAL_TENANT)
                if step.kind == "checkpoint":
                    value = {"did": f"version {value}"}
                if step.voided:
                    seen.voided.update(label for label, _ in labelled(value))
                else:
                    seen.labels.update(labelled(value))
        versions = store.one(ReadCheckpoints(journal_id=intent.journal_id, limit=1000))
        seen.checkpoints[intent.journal_id] = versions
        for version in versions:
            state, _ = drive(vault.open_checkpoint(version), store, LOCAL_TENANT)
            seen.states[version.version] = state
        found = store.one(ListDecisions(journal_id=intent.journal_id, pending=False, limit=1000))
        seen.decisions[intent.journal_id] = found
    return seen


def orphans(path: Path) -> list[tuple[Any, ...]]:
    """Rows of an embedded store that belong to no intent; a piece may be ahead of its row."""
    import sqlite3

    tables = ("steps", "decisions", "checkpoints", "pieces")
    with closing(sqlite3.connect(path)) as db:
        found = [
            (table, *row)
            for table in tables
            for row in db.execute(
                f"SELECT DISTINCT journal_id FROM {table} WHERE journal_id NOT IN (SELECT journal_id FROM intents)"
            )
        ]
        found += [
            ("events", *row)
            for row in db.execute(
                "SELECT DISTINCT intent_id FROM events WHERE intent_id NOT IN (SELECT intent_id FROM intents)"
            )
        ]
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return found


# The laws


@dataclass(frozen=True)
class Laws:
    """What a scenario promises beyond what all do."""

    #: Labels that must be in the store at the end.
    wanted: tuple[str, ...]
    #: Steps that may be at work at the same moment: so many may have been done without a record.
    in_flight: int = 1
    #: Labels done at most once, whatever happens (but once more for each time that a person said retry).
    once: tuple[str, ...] = ()
    #: Labels done exactly once, whatever happens.
    exactly: tuple[str, ...] = ()
    #: Labels in the store that no effect stands behind, such as a run's result.
    silent: tuple[str, ...] = ("end",)
    #: Acknowledged labels may be gone: a scenario that sets steps aside, or prunes.
    forgets: bool = False


def at_the_cut(stage: Stage, laws: Laws) -> None:
    """Nothing acknowledged is lost, nothing is there that was not asked for; and note what counts as finished."""
    seen = _look_aside(stage)
    check_rows(seen)
    acked = set(stage.acks.lines())
    kept = set(seen.labels) | (seen.voided if laws.forgets else set())
    assert acked <= kept, f"acknowledged and lost: {sorted(acked - kept)}"
    unasked = set(seen.labels) - acked - set(laws.silent)
    assert len(unasked) <= laws.in_flight, f"in the store and never acknowledged: {sorted(unasked)}"
    counts = stage.effects.counts()
    never = unasked - set(counts) - _answered(stage)
    assert not never, f"recorded as done and never done: {sorted(never)}"
    note = {"labels": seen.labels, "counts": counts}
    (stage.folder / "at-cut.json").write_text(json.dumps(note))


def _look_aside(stage: Stage) -> Seen:
    """Look at a copy, so that the recovery meets the files as the cut left them."""
    if not stage.embedded:
        return look(stage)
    aside = stage.folder.with_name(f"{stage.folder.name}-aside")
    aside.mkdir()
    for path in stage.folder.glob(f"{STORE}*"):
        shutil.copy2(path, aside / path.name)
    seen = look(Stage(aside))
    assert orphans(aside / STORE) == []
    shutil.rmtree(aside)
    return seen


def _answered(stage: Stage) -> set[str]:
    """Labels that a person vouched for."""
    said = (line.partition(":") for line in stage.answers.lines())
    return {label for word, _, label in said if word == "done"}


def check_rows(seen: Seen) -> None:
    """Gapless histories that add up to their rows, and never more than one ending."""
    for intent in seen.intents:
        check_history(intent, seen.events[intent.intent_id])
    current = [i.run_id for i in seen.intents if i.run_id is not None and i.superseded_by is None]
    assert len(set(current)) == len(current), f"two intents carry one run: {current}"


def at_the_end(stage: Stage, laws: Laws, refused: int = 0) -> Seen:
    """Everything is done, nothing that was finished was done again, and a second recovery changes nothing.

    A step is done again only after a lost delivery, or where the store refused its record.
    """
    seen = look(stage)
    check_rows(seen)
    if stage.embedded:
        assert orphans(stage.folder / STORE) == []
    assert set(laws.wanted) <= set(seen.labels), f"missing: {sorted(set(laws.wanted) - set(seen.labels))}"
    counts = stage.effects.counts()
    _nothing_twice(stage, laws, seen, counts, refused)
    snapshot = json.loads(json.dumps(seen.snapshot()))
    before = stage.folder / "snapshot.json"
    if before.exists():
        assert json.loads(before.read_text()) == snapshot, "a second recovery changed something"
    before.write_text(json.dumps(snapshot))
    return seen


def _nothing_twice(stage: Stage, laws: Laws, seen: Seen, counts: Counter[str], refused: int) -> None:
    note = stage.folder / "at-cut.json"
    if note.exists():
        then = json.loads(note.read_text())
        for label, digest in then["labels"].items():
            kept = seen.labels.get(label)
            if kept is None and laws.forgets:
                continue
            assert kept == digest, f"{label} was recorded, and is lost or another"
            again = counts[label] - then["counts"].get(label, 0)
            assert not again, f"{label} was recorded as finished, and done {again} times more"
    acked = set(stage.acks.lines())
    if not laws.forgets:
        assert acked <= set(seen.labels), f"acknowledged and lost: {sorted(acked - set(seen.labels))}"
    extra = {label: count - 1 for label, count in counts.items() if count > 1}
    excuses = seen.lost + refused
    assert sum(extra.values()) <= laws.in_flight * excuses, f"done again: {extra} with {seen.lost} deliveries lost"
    retries = Counter(line for line in stage.answers.lines() if line.startswith("retry:"))
    for label in laws.once:
        most = 1 + retries[f"retry:{label}"]
        assert counts[label] <= most, f"{label} was done {counts[label]} times, {most} allowed"
    for label in laws.exactly:
        assert counts[label] == 1, f"{label} was done {counts[label]} times, not once"
    for label in set(laws.wanted) - set(laws.silent) - _answered(stage):
        assert counts[label], f"{label} is recorded as done and was never done"

"""A store against a model of itself, through random operations.

The machine does the same thing to the store and to `contract_model.Model`, often with leases long lost, while
the clock jumps and the store crashes. After every step the two must agree, and every history must add up.

Model time moves in steps of 300 s, while leases, pauses and deadlines last 1000, 500, 2000 and 700 s: no
boundary is ever nearer than 100 s, so the real seconds that a run takes do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stepfast import ops
from stepfast.clock import new_id
from stepfast.errors import OutcomeUnknown, StepfastError, StoreUnavailable
from stepfast.intents import TERMINAL, Event, Intent, Status
from stepfast.journal import Step, StepStatus
from stepfast.ops import Lease, Op
from stepfast.stores.base import Store
from stepfast.testing.contract_kit import AGENT, check_history, new_intent, step
from stepfast.testing.contract_model import LEASE, Model, Papers, Refused

__all__ = ["Home", "machine", "sized"]

T = TypeVar("T")
STEP, PAUSE, TTL, EXPIRY = 300, 500, 2000, 700
KEYS, QUESTIONS = ("a", "b", "c"), ("p", "q")
RESENDS = 50
PICK = st.integers(0, 2**20)


class Home(Protocol):
    """Where the store under test lives."""

    def open(self) -> Store: ...

    def crash(self, store: Store) -> Store:
        """Lose the store without closing it, and give the one that is there afterwards."""


class StoreMachine(RuleBasedStateMachine):
    """Does everything twice: to the store and to the model."""

    home: ClassVar[Home]
    shared: ClassVar[dict[str, Store]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.tenant = new_id()
        self.model = Model()
        self.rows: dict[str, Intent] = {}
        self.events: dict[str, list[Event]] = {}
        self.journals: dict[str, str] = {}
        self.leases: list[Lease] = []
        self.last_claim: ops.Claim | None = None
        self.quiet = self.crashed = True

    @property
    def store(self) -> Store:
        return self.shared["store"]

    # --- whom it is done to: most often what is there and held, sometimes what is gone and lost ----

    def an_intent(self, pick: int) -> str:
        return _pick([*self.model.works] * 5 + [*self.journals], pick)

    def a_lease(self, pick: int) -> Lease:
        held = [work.lease for work in self.model.works.values() if work.lease is not None]
        return _pick(held * 5 + self.leases, pick)

    # --- the two sides ---------------------------------------------------------------------------

    def send(self, *batch: Op[Any]) -> list[Any]:
        """As a client does: what is not known to have been done is sent again."""
        if not all(op.reads for op in batch):
            self.quiet = self.crashed = False
        for _ in range(RESENDS):
            try:
                return self.store.execute(batch, tenant=self.tenant)
            except (StoreUnavailable, OutcomeUnknown):
                continue
        raise AssertionError("the store did not come back")

    def both(self, op: Op[Any], rule_of_model: Callable[[], Any], *, answers: bool = False) -> tuple[Any, Any]:
        """What the store and what the model said; (error, None) where both refused.

        ``answers``: where the model refuses, the store may also answer, as long as nothing changes.
        """
        refusal: Refused | None = None
        error: StepfastError | None = None
        expected = actual = None
        try:
            expected = rule_of_model()
        except Refused as refused:
            refusal = refused
        try:
            [actual] = self.send(op)
        except StepfastError as raised:
            error = raised
        if error is not None:
            assert refusal is not None, f"refused, and should not be: {op}: {error!r}"
            assert isinstance(error, refusal.kinds), f"expected {refusal.kinds}: {op}: {error!r}"
            return error, None
        assert refusal is None or answers, f"allowed, and should be {refusal}: {op}: {actual}"
        return actual, expected

    # --- intents ---------------------------------------------------------------------------------

    @initialize(most=st.sampled_from([None, 2]), ttl=st.sampled_from([TTL, None]), ready=st.booleans())
    def begin(self, most: int | None, ttl: float | None, ready: bool) -> None:
        self.create(None, None, b"one", most, ttl, None)
        self.create("k", "r", b"one", None, None, None)
        if ready:
            self.claim(2)

    @rule(
        key=st.sampled_from([None, None, "k"]),
        run=st.sampled_from([None, None, "r"]),
        body=st.sampled_from([b"one", b"one", b"two"]),
        most=st.sampled_from([None, 1, 2]),
        ttl=st.sampled_from([None, None, TTL]),
        delay=st.sampled_from([None, None, PAUSE]),
    )
    def create(
        self, key: str | None, run: str | None, body: bytes, most: int | None, ttl: float | None, delay: float | None
    ) -> None:
        new = new_intent(
            idempotency_key=key,
            run_id=run,
            body_hash=body,
            max_delivery_attempts=most,
            ttl_seconds=ttl,
            delay_seconds=delay,
        )
        actual, expected = self.both(ops.CreateIntent(new=new), lambda: self.model.create(new))
        if expected is not None:
            assert (actual.intent.intent_id, actual.existed) == (expected[0].intent_id, expected[1])
            self.journals[actual.intent.intent_id] = actual.intent.journal_id

    @rule(pick=PICK, twice=st.booleans())
    def revive(self, pick: int, twice: bool) -> None:
        sad = TERMINAL - {Status.COMPLETED}
        ended = [w.intent_id for w in self.model.works.values() if w.status in sad and w.superseded_by is None]
        intent_id = _pick([*ended * 5, self.an_intent(pick)], pick)
        op = ops.ReviveIntent(intent_id=intent_id, new_id=new_id())
        actual, expected = self.both(op, lambda: self.model.revive(intent_id, op.new_id))
        if expected is not None:
            self.journals[op.new_id] = expected.journal_id
            if twice:
                assert self.send(op)[0].intent == actual.intent

    @rule(pick=PICK, status=st.sampled_from([Status.CANCELED, Status.COMPLETED]))
    def finish_from_outside(self, pick: int, status: Status) -> None:
        intent_id = self.an_intent(pick)
        known = self.model.works.get(intent_id)
        assume(known is None or known.status not in (status, Status.TIMED_OUT))
        op = ops.FinishIntent(intent_id=intent_id, status=status)
        self.both(op, lambda: self.model.finish(intent_id, status, None))

    @rule(pick=PICK, n=st.integers(0, 2))
    def note(self, pick: int, n: int) -> None:
        intent_id = self.an_intent(pick)
        op = ops.AppendEvent(intent_id=intent_id, lease=None, note_id=f"n{n}", event_type="intent.noted")
        self.both(op, lambda: self.model.find(intent_id))

    # --- leases ----------------------------------------------------------------------------------

    @precondition(lambda self: not self.quiet)
    @rule(limit=st.integers(1, 2))
    def claim(self, limit: int) -> None:
        self.last_claim = ops.Claim(to_agent=AGENT, token=new_id(), owner="w", lease_seconds=LEASE, limit=limit)
        self._claim(self.last_claim)

    @precondition(lambda self: not self.quiet and self.last_claim is not None)
    @rule()
    def claim_again(self) -> None:
        assert self.last_claim is not None
        self._claim(self.last_claim)

    def _claim(self, op: ops.Claim) -> None:
        before = {i.intent_id: i for i in self._list()}
        [taken] = self.send(op)
        after = {i.intent_id: i for i in self._list()}
        # Where two fell due in the same instant, the store may have met either first; it met one that it ended
        # before the one that it gave out instead.
        order = sorted(
            (name for name, row in before.items() if row.claimable_at is not None),
            key=lambda n: (before[n].claimable_at, after[n].seq == before[n].seq, not after[n].finished),
        )
        expected = self.model.claim(order, op.token, op.limit)
        got = [Lease(i.intent_id, i.attempt, i.lease_token or "") for i in taken]
        assert sorted(got, key=str) == sorted(expected, key=str), f"claimed {got}, expected {expected}"
        self.leases += got
        self.quiet = not got

    @rule(pick=PICK, dead=st.booleans())
    def open(self, pick: int, dead: bool) -> None:
        self._take(self.an_intent(pick), dead=dead)

    def _take(self, intent_id: str, *, dead: bool) -> None:
        work = self.model.works.get(intent_id)
        op = ops.OpenIntent(
            intent_id=intent_id,
            token=new_id(),
            owner="w",
            lease_seconds=LEASE,
            dead_attempt=work.attempt if dead and work else None,
        )
        actual, expected = self.both(op, lambda: self.model.open(intent_id, op.token, op.dead_attempt))
        if not isinstance(actual, StepfastError):
            assert actual.lease == expected
            self.leases += [expected] if expected is not None else []

    @precondition(lambda self: self.leases)
    @rule(pick=PICK)
    def renew(self, pick: int) -> None:
        lease = self.a_lease(pick)
        self.both(ops.RenewLease(lease=lease, lease_seconds=LEASE), lambda: self.model.renew(lease))

    @precondition(lambda self: self.leases)
    @rule(pick=PICK, lost=st.booleans(), pause=st.sampled_from([0, PAUSE]))
    def release(self, pick: int, lost: bool, pause: int) -> None:
        lease = self.a_lease(pick)
        op = ops.ReleaseIntent(lease=lease, reason="because", lost=lost, delay_seconds=pause)
        self.both(op, lambda: self.model.release(lease, lost, pause), answers=True)

    @precondition(lambda self: self.leases)
    @rule(pick=PICK, status=st.sampled_from([Status.COMPLETED, Status.FAILED]))
    def finish(self, pick: int, status: Status) -> None:
        lease = self.a_lease(pick)
        known = self.model.works.get(lease.intent_id)
        assume(known is None or known.status not in (status, Status.TIMED_OUT))
        op = ops.FinishIntent(intent_id=lease.intent_id, status=status, lease=lease)
        self.both(op, lambda: self.model.finish(lease.intent_id, status, lease))

    @precondition(lambda self: self.leases)
    @rule(pick=PICK)
    def complete_twice(self, pick: int) -> None:
        lease = self.a_lease(pick)
        known = self.model.works.get(lease.intent_id)
        assume(known is not None and known.lease == lease)
        op = ops.FinishIntent(intent_id=lease.intent_id, status=Status.COMPLETED, lease=lease)
        first, _ = self.both(op, lambda: self.model.finish(lease.intent_id, Status.COMPLETED, lease))
        assert self.send(op) == [first]

    # --- the journal -----------------------------------------------------------------------------

    def _row(self, lease: Lease, key: str, value: int, status: StepStatus) -> tuple[str, Step]:
        journal_id = self.journals[lease.intent_id]
        papers = self.model.papers.get(journal_id, Papers())
        row = step(
            key,
            lease,
            position=1 + KEYS.index(key) + 10 * papers.generation(key),
            generation=papers.generation(key),
            status=status,
            result=b"%d" % value,
        )
        return journal_id, row

    @precondition(lambda self: self.leases)
    @rule(pick=PICK, key=st.sampled_from(KEYS), value=st.integers(0, 1), once=st.booleans())
    def record(self, pick: int, key: str, value: int, once: bool) -> None:
        self._record(self.a_lease(pick), key, value, once)

    def _record(self, lease: Lease, key: str, value: int, once: bool) -> None:
        status = StepStatus.STARTED if once else StepStatus.FINISHED
        journal_id, row = self._row(lease, key, value, status)
        op = ops.RecordStep(lease=lease, journal_id=journal_id, step=row)
        self.both(op, lambda: self.model.record(lease, journal_id, row))

    @precondition(lambda self: self.leases)
    @rule(pick=PICK, key=st.sampled_from(KEYS), value=st.integers(0, 1))
    def settle(self, pick: int, key: str, value: int) -> None:
        lease = self.a_lease(pick)
        begun = self.model.papers.get(self.journals[lease.intent_id], Papers()).begun()
        self._settle(lease, _pick([*begun * 5, key], pick), value)

    def _settle(self, lease: Lease, key: str, value: int) -> None:
        work = self.model.works.get(lease.intent_id)
        if work is not None and self.model.is_late(work):
            return
        journal_id, row = self._row(lease, key, value, StepStatus.FINISHED)
        op = ops.SettleStep(lease=lease, journal_id=journal_id, step=row)
        self.both(op, lambda: self.model.settle(lease, journal_id, row))

    @precondition(lambda self: self.leases)
    @rule(
        pick=PICK, key=st.sampled_from(KEYS), value=st.integers(0, 1), between=st.sampled_from([None, "lost", "late"])
    )
    def start_and_settle(self, pick: int, key: str, value: int, between: str | None) -> None:
        """A one-shot step, whose settling may come from an attempt that is none any more."""
        lease = self.a_lease(pick)
        self._record(lease, key, value, True)
        if between == "lost":
            self._take(lease.intent_id, dead=True)
        if between == "late":
            self.move_the_clock(4)
            self.claim(2)
        self._settle(lease, key, value)

    @precondition(lambda self: self.leases)
    @rule(pick=PICK, keys=st.sets(st.sampled_from(KEYS), min_size=1))
    def void(self, pick: int, keys: set[str]) -> None:
        lease = self.a_lease(pick)
        journal_id = self.journals[lease.intent_id]
        papers = self.model.papers.get(journal_id, Papers())
        steps = [(key, papers.generation(key)) for key in sorted(keys)]
        op = ops.VoidSteps(lease=lease, journal_id=journal_id, steps=steps, reason="because")
        actual, expected = self.both(op, lambda: self.model.void(lease, journal_id, sorted(keys)))
        assert expected is None or actual == expected

    # --- decisions -------------------------------------------------------------------------------

    @precondition(lambda self: self.leases)
    @rule(pick=PICK, key=st.sampled_from(QUESTIONS), expires=st.sampled_from([None, EXPIRY]))
    def ask(self, pick: int, key: str, expires: int | None) -> None:
        lease = self.a_lease(pick)
        journal_id = self.journals[lease.intent_id]
        op = ops.AskDecision(
            lease=lease,
            journal_id=journal_id,
            key=key,
            kind="ask",
            question=b"?",
            outcomes=["yes", "no"],
            expires_in=expires,
        )
        self.both(op, lambda: self.model.ask(lease, journal_id, key, expires), answers=True)

    @precondition(lambda self: self.leases)
    @rule(pick=PICK, keys=st.lists(st.sampled_from(QUESTIONS), max_size=2))
    def suspend(self, pick: int, keys: list[str]) -> None:
        lease = self.a_lease(pick)
        journal_id = self.journals[lease.intent_id]
        op = ops.SuspendIntent(lease=lease, waiting_reason="WAITING_FOR_HUMAN", keys=keys)
        self.both(op, lambda: self.model.suspend(lease, journal_id, keys), answers=True)

    @precondition(lambda self: self.leases)
    @rule(pick=PICK, key=st.sampled_from(QUESTIONS), first=st.booleans(), expires=st.sampled_from([None, EXPIRY]))
    def ask_and_wait(self, pick: int, key: str, first: bool, expires: int | None) -> None:
        self.ask(pick, key, expires)
        if first:
            self.answer(pick, key, "yes")
        self.suspend(pick, [key])

    @rule(pick=PICK, name=st.sampled_from(QUESTIONS), outcome=st.sampled_from(["yes", "no"]))
    def answer(self, pick: int, name: str, outcome: str) -> None:
        asked = [(journal, key) for journal, papers in self.model.papers.items() for key in papers.questions]
        journal_id, key = _pick([*asked * 5, (self.journals[self.an_intent(pick)], name)], pick)
        known = self.model.papers.get(journal_id, Papers()).questions.get(key)
        assume(known is None or known.outcome != "expired")
        assume(known is None or known.expires is None or known.expires > self.model.now)
        op = ops.AnswerDecision(journal_id=journal_id, key=key, outcome=outcome)
        self.both(op, lambda: self.model.answer(journal_id, key, outcome))

    # --- time, upkeep, accidents -----------------------------------------------------------------

    @rule(steps=st.sampled_from([1, 2, 3, 4, 4, 7, -1, -5]))
    def move_the_clock(self, steps: int) -> None:
        self.quiet = False
        self.store.clock.advance(steps * STEP)
        self.model.now += steps * STEP

    @precondition(lambda self: not self.quiet)
    @rule()
    def sweep(self) -> None:
        actual, expected = self.both(ops.Sweep(limit=1000), self.model.sweep)
        assert actual == expected

    @precondition(lambda self: any(work.finished for work in self.model.works.values()))
    @rule(
        keep=st.integers(0, 2),
        statuses=st.sampled_from([[], [], [Status.COMPLETED], [Status.FAILED, Status.CANCELED]]),
        limit=st.sampled_from([1, 100]),
    )
    def prune(self, keep: int, statuses: list[Status], limit: int) -> None:
        ended = [row for row in self.rows.values() if row.finished]
        order = [row.intent_id for row in sorted(ended, key=lambda r: (r.finished_at or 0, r.intent_id))]
        op = ops.Prune(keep_latest=keep, statuses=statuses, limit=limit)
        actual, expected = self.both(op, lambda: self.model.prune(order, keep, statuses, limit))
        assert actual == expected

    @precondition(lambda self: not self.crashed)
    @rule()
    def crash(self) -> None:
        self.crashed = True
        self.shared["store"] = self.home.crash(self.store)
        self.events.clear()

    # --- what always holds -----------------------------------------------------------------------

    def _list(self) -> list[Intent]:
        found: list[Intent] = self.send(ops.ListIntents(where=ops.Filter(limit=10_000)))[0]
        return found

    @invariant()
    def the_store_agrees_with_the_model(self) -> None:
        rows = {row.intent_id: row for row in self._list()}
        assert rows.keys() == self.model.works.keys()
        for name, row in rows.items():
            work = self.model.works[name]
            held = Lease(name, row.attempt, row.lease_token or "") if row.leased else None
            assert (row.status, row.attempt, row.lost, held) == (work.status, work.attempt, work.lost, work.lease)
            assert (row.claimable_at is None, row.superseded_by) == (work.due is None, work.superseded_by)
            self._check_change(self.rows.get(name), row)
        self.rows = rows

    def _check_change(self, before: Intent | None, row: Intent) -> None:
        if before is not None:
            assert row.attempt >= before.attempt, "an attempt number went back"
            assert row.seq >= before.seq, "a history became shorter"
            if before.finished:
                kept = ("status", "result", "error", "reason", "finished_at", "attempt", "lost")
                assert [getattr(row, f) for f in kept] == [getattr(before, f) for f in kept], "an ending changed"
        known = self.events.get(row.intent_id, [])
        if not known or known[-1].seq != row.seq:
            asked = ops.ReadEvents(intent_id=row.intent_id, since=len(known), limit=10_000)
            events, steps = self.send(asked, ops.ReadJournal(journal_id=row.journal_id, voided=True))
            self.events[row.intent_id] = known + events
            check_history(row, self.events[row.intent_id])
            self._check_steps(row.journal_id, steps)

    def _check_steps(self, journal_id: str, steps: list[Step]) -> None:
        entries = self.model.papers[journal_id].entries
        assert {(s.key, s.generation): s for s in steps} == {
            place: _voided(entry.row) if entry.voided else entry.row for place, entry in entries.items()
        }

    def teardown(self) -> None:
        """Once more, from the beginning of every history."""
        for row in self._list():
            events, steps = self.send(
                ops.ReadEvents(intent_id=row.intent_id, limit=10_000),
                ops.ReadJournal(journal_id=row.journal_id, voided=True),
            )
            check_history(row, events)
            self._check_steps(row.journal_id, steps)


def _voided(row: Step) -> Step:
    return msgspec.structs.replace(row, voided=True)


def _pick(pool: list[T], pick: int) -> T:
    return pool[pick % len(pool)]


def machine(home: Home) -> type[StoreMachine]:
    """A machine over the store that lives there; the caller closes ``machine.shared["store"]``."""
    members = {"home": home, "shared": {"store": home.open()}}
    return type("StoreMachine", (StoreMachine,), members)


def sized(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )

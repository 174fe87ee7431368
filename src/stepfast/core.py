"""What Stepfast and AsyncStepfast share: settings, checks of what callers pass, and the flows."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from stepfast import bindings
from stepfast import inputs as check
from stepfast.clock import from_micros, new_id
from stepfast.codec import Codec, KeyRing
from stepfast.errors import Damaged, InvalidInput, NotFound, Suspended
from stepfast.flow import Do, Flow, Until, do, drive
from stepfast.heart import Heart
from stepfast.intents import Event, Intent, Status
from stepfast.opening import OpenedRun, RunOptions, adopt, find, open_run, revive, settle_time
from stepfast.ops import (
    AnswerDecision,
    CheckWritable,
    CreateIntent,
    Decision,
    Filter,
    FinishIntent,
    GetIntent,
    GetProgress,
    Lease,
    ListDecisions,
    ListIntents,
    NewIntent,
    Op,
    Prune,
    ReadCheckpoints,
    ReadEvents,
    ReadJournal,
    SetTypePolicy,
    Sweep,
)
from stepfast.owner import this_process
from stepfast.recovery import Checks
from stepfast.steps import ON_DRIFT, Waiting
from stepfast.stored_names import RUN_TYPE
from stepfast.stores.base import Store

RUN_ADDRESS = "run://local"
CODE_VERSION = "code_version"
"""The label that holds the version of the code that began a run."""

_PLACES = {0: "current", 1: "previous"}
_ENDINGS = (Status.COMPLETED, Status.FAILED, Status.CANCELED)
_SWEEP_AGAIN_SECONDS = 1.0


class Retention(msgspec.Struct, frozen=True):
    """Which finished runs may go. Nothing goes unless ``older_than`` or ``keep_latest`` is given."""

    older_than: timedelta | None = None
    keep_latest: int | None = None
    labels: dict[str, str] = {}
    statuses: tuple[Status, ...] = ()

    def __post_init__(self) -> None:
        if self.older_than is not None and not isinstance(self.older_than, timedelta):
            raise InvalidInput(f"older_than: must be a timedelta, not {self.older_than!r}.")
        check.whole("keep_latest", self.keep_latest, optional=True)
        check.labels(self.labels)
        check.statuses(self.statuses, "statuses")


def check_run_options(
    *,
    total_steps: int | None = None,
    labels: Mapping[str, str] | None = None,
    payload: Any = None,
    max_delivery_attempts: int | None = None,
    deadline_at: datetime | None = None,
    ttl_seconds: float | None = None,
    on_error: str = "hand_back",
    on_wait: str = "block",
    on_drift: str = "raise",
    on_failed: str = "raise",
    wait: float | None = None,
) -> None:
    """Raise `InvalidInput` for the first option of ``sf.run`` that is wrong."""
    check_new_run(total_steps, labels, max_delivery_attempts, deadline_at, ttl_seconds)
    check_behaviour(on_error, on_wait, on_drift, on_failed, wait)


def check_new_run(
    total_steps: int | None,
    labels: Mapping[str, str] | None,
    max_delivery_attempts: int | None,
    deadline_at: datetime | None,
    ttl_seconds: float | None,
) -> None:
    """Check what is stored with a run."""
    check.whole("total_steps", total_steps, least=1, optional=True)
    check.labels(labels)
    check.whole("max_delivery_attempts", max_delivery_attempts, least=1, optional=True)
    check.moment("deadline_at", deadline_at)
    check.seconds("ttl_seconds", ttl_seconds, positive=True)


def check_behaviour(on_error: str, on_wait: str, on_drift: str, on_failed: str, wait: float | None) -> None:
    """Check how a run behaves in this process."""
    check.choice("on_error", on_error, ("hand_back", "fail"))
    if on_wait == "return":
        raise InvalidInput(
            "on_wait: 'return' is for calls that return something (@durable functions, the adapters). A with statement "
            "cannot return the open questions: pass 'suspend' and catch stepfast.Suspended, which has them."
        )
    check.choice("on_wait", on_wait, ("block", "suspend", "view"))
    check.choice("on_drift", on_drift, ON_DRIFT)
    check.choice("on_failed", on_failed, ("raise", "revive"))
    check.seconds("wait", wait)


class Core:
    """The state of a client, and each of its methods as a flow."""

    def __init__(
        self,
        store: Store,
        *,
        codec: Codec | None,
        tenant: str,
        checks: Mapping[str, Any] | None,
        retention: Retention | None,
        lease_seconds: float,
        code_version: str | None = None,
    ) -> None:
        check.seconds("lease_seconds", lease_seconds, least=1, optional=False)
        if retention is not None and not isinstance(retention, Retention):
            raise InvalidInput(f"retention: must be a Retention, not {retention!r}.")
        if codec is not None and not isinstance(codec, Codec):
            raise InvalidInput(f"codec: must be a Codec, not {codec!r}.")
        for name, function in check.mapping("checks", checks).items():
            check.function(f"checks[{name!r}]", function)
        self.code_version = check.name(
            "code_version", code_version or os.environ.get("STEPFAST_CODE_VERSION") or None, optional=True
        )
        self.store = store
        self.codec = codec or Codec(keyring=KeyRing.from_env())
        self.tenant = tenant
        self.checks: Checks = dict(checks or {})
        self.lease_seconds = lease_seconds
        self.retention = retention
        self.heart = Heart(store, tenant, self._prune_some if retention else None)
        if retention is not None:
            self.heart.start()
        self._owner: tuple[int, str, str] | None = None

    @property
    def owner(self) -> str:
        pid, session = os.getpid(), self.store.session
        if self._owner is None or self._owner[:2] != (pid, session):
            self._owner = (pid, session, this_process(session).text())
        return self._owner[2]

    def close(self) -> None:
        self.heart.stop()
        self.store.close()

    # --- runs ------------------------------------------------------------------------------------

    def new_run(
        self,
        run_id: str,
        *,
        total_steps: int | None,
        labels: Mapping[str, str] | None,
        payload: Any,
        max_delivery_attempts: int | None,
        deadline_at: datetime | None,
        ttl_seconds: float | None,
    ) -> NewIntent:
        check.name("run_id", run_id)
        check_new_run(total_steps, labels, max_delivery_attempts, deadline_at, ttl_seconds)
        named = dict(labels or {})
        if self.code_version is not None:
            named = {CODE_VERSION: self.code_version, **named}
        ends = check.moment("deadline_at", deadline_at)
        intent_id = new_id()
        return NewIntent(
            intent_id=intent_id,
            intent_type=RUN_TYPE,
            to_agent=f"{RUN_ADDRESS}/{run_id}",
            run_id=run_id,
            payload=self._pack_payload(intent_id, payload),
            body_hash=None if payload is None else self.codec.fingerprint((payload,), {})[0],
            labels=named,
            total_steps=total_steps,
            max_delivery_attempts=max_delivery_attempts,
            deadline_at=ends,
            ttl_seconds=ttl_seconds,
        )

    def open(self, new: NewIntent | None, intent_id: str | None, options: RunOptions) -> Flow[OpenedRun]:
        return open_run(
            new,
            intent_id,
            codec=self.codec,
            tenant=self.tenant,
            owner=self.owner,
            options=options,
            checks=self.checks,
        )

    def adopt(self, intent: Intent, options: RunOptions) -> Flow[OpenedRun]:
        """An intent that a claim has just given us, as a run."""
        lease = Lease(intent.intent_id, intent.attempt, intent.lease_token or "")
        return adopt(intent, lease, self.codec, self.tenant, self.owner, options, self.checks)

    # --- intents ---------------------------------------------------------------------------------

    def _pack_payload(self, intent_id: str, payload: Any) -> bytes | None:
        """A new intent begins a journal of the same id."""
        return None if payload is None else self.codec.encode(payload, bind=bindings.of_payload(self.tenant, intent_id))

    def send(self, intent: Mapping[str, Any], idempotency_key: str | None) -> Flow[str]:
        known = {
            "intent_type",
            "to_agent",
            "payload",
            "from_agent",
            "correlation_id",
            "labels",
            "deadline_at",
            "ttl_seconds",
            "max_delivery_attempts",
            "not_before",
            "total_steps",
        }
        if not isinstance(intent, Mapping):
            raise InvalidInput(f"intent: must be a dictionary with intent_type and to_agent, not {intent!r}.")
        unknown = set(intent) - known
        if unknown:
            raise InvalidInput(f"{', '.join(sorted(unknown))}: not known here. Known: {', '.join(sorted(known))}.")
        for field in ("intent_type", "to_agent"):
            check.name(field, intent.get(field))
        for field in ("from_agent", "correlation_id"):
            check.name(field, intent.get(field), optional=True)
        for field in ("max_delivery_attempts", "total_steps"):
            check.whole(field, intent.get(field), least=1, optional=True)
        check.seconds("ttl_seconds", intent.get("ttl_seconds"), positive=True)
        payload = intent.get("payload")
        hashed = {k: v for k, v in intent.items() if k != "correlation_id"}
        intent_id = new_id()
        new = NewIntent(
            intent_id=intent_id,
            intent_type=intent["intent_type"],
            to_agent=intent["to_agent"],
            from_agent=intent.get("from_agent"),
            correlation_id=intent.get("correlation_id"),
            payload=self._pack_payload(intent_id, payload),
            labels=check.labels(intent.get("labels")),
            idempotency_key=check.name("idempotency_key", idempotency_key, optional=True),
            body_hash=None if idempotency_key is None else self.codec.fingerprint((hashed,), {})[0],
            deadline_at=check.moment("deadline_at", intent.get("deadline_at")),
            ttl_seconds=intent.get("ttl_seconds"),
            not_before=check.moment("not_before", intent.get("not_before")),
            max_delivery_attempts=intent.get("max_delivery_attempts"),
            total_steps=intent.get("total_steps"),
        )
        created = yield from do(CreateIntent(new=new))
        return created.intent.intent_id

    def get(self, name: str) -> Flow[dict[str, Any]]:
        intent = yield from find(name)
        intent = yield from settle_time(intent, self.store.clock.now_us())
        return self.show(intent)

    def list_page(
        self, status: Any, to_agent: Any, intent_type: Any, labels: Any, before: Any, limit: Any
    ) -> Flow[list[dict[str, Any]]]:
        where = Filter(
            statuses=check.statuses(status),
            to_agent=check.text("to_agent", to_agent),
            intent_type=check.text("intent_type", intent_type),
            labels=check.labels(labels),
            before=check.text("before", before),
            limit=check.whole("limit", limit, least=1),
        )
        found = yield from do(ListIntents(where=where))
        return [self.show(intent) for intent in found]

    def wait_for(self, name: str, timeout: float | None) -> Flow[dict[str, Any]]:
        check.seconds("timeout", timeout)
        intent = yield from find(name)
        look = GetIntent(intent_id=intent.intent_id)
        ends = None if timeout is None else time.monotonic() + timeout
        quiet_until = 0.0

        def is_ready(results: list[Any]) -> bool:
            due = self._may_be_due(results[0]) and time.monotonic() >= quiet_until
            return results[0].finished or due

        while True:
            left = None if ends is None else max(0.0, ends - time.monotonic())
            results = yield Until((f"intent:{intent.intent_id}",), [look], is_ready, left)
            if results[0].finished:
                return self.show(results[0])
            if not is_ready(results):
                raise TimeoutError(f"intent {intent.intent_id} is still {results[0].status} after {timeout} seconds")
            yield from do(Sweep())
            # What looked due from here may not be: the store knows its own time, and what the last attempt finished.
            quiet_until = time.monotonic() + _SWEEP_AGAIN_SECONDS

    def _may_be_due(self, intent: Intent) -> bool:
        """Whether time alone may have ended it, as a sweep decides."""
        now = self.store.clock.now_us()
        if intent.deadline_at is not None and intent.deadline_at <= now:
            return True
        last = intent.lost + 1 >= intent.max_delivery_attempts
        return last and intent.leased and intent.claimable_at is not None and intent.claimable_at <= now

    def next_events(self, name: str, since: int) -> Flow[list[Event]]:
        """What came after ``since``, waiting for the first; empty once the history is complete."""
        check.whole("since", since)
        intent = yield from find(name)
        look: list[Op[Any]] = [
            ReadEvents(intent_id=intent.intent_id, since=since),
            GetIntent(intent_id=intent.intent_id),
        ]
        if intent.deadline_at is not None:
            look.insert(0, Sweep())
        results = yield Until((f"intent:{intent.intent_id}",), look, lambda r: bool(r[-2]) or r[-1].finished)
        events: list[Event] = results[-2]
        return events

    def events(self, name: str, since: int) -> Flow[list[dict[str, Any]]]:
        check.whole("since", since)
        intent = yield from find(name)
        events = yield from do(ReadEvents(intent_id=intent.intent_id, since=since, limit=100_000))
        return [self.show_event(event, intent) for event in events]

    def finish(self, name: str, ending: Any, *, result: Any, reason: str | None, actor: str) -> Flow[dict[str, Any]]:
        status = Status(check.choice("status", str(ending), _ENDINGS))
        check.text("reason", reason)
        check.text("actor", actor, optional=False)
        intent = yield from find(name)
        bind = bindings.of_result(self.tenant, intent.journal_id)
        packed = self.codec.encode(result, bind=bind) if status is Status.COMPLETED else None
        op = FinishIntent(intent_id=intent.intent_id, status=status, result=packed, reason=reason, actor=actor)
        return self.show((yield from do(op)))

    def revive(self, name: str, actor: str) -> Flow[dict[str, Any]]:
        check.text("actor", actor, optional=False)
        intent = yield from find(name)
        return self.show((yield from revive(intent, actor)).intent)

    def set_attempts(self, intent_type: str, count: int) -> Flow[None]:
        check.name("intent_type", intent_type)
        check.whole("count", count, least=1)
        yield from do(SetTypePolicy(intent_type=intent_type, max_delivery_attempts=count))

    # --- decisions -------------------------------------------------------------------------------

    def decisions(self, name: str | None, pending: bool) -> Flow[list[dict[str, Any]]]:
        check.flag("pending", pending)
        journal_id = None if name is None else (yield from find(name)).journal_id
        yield from do(Sweep())
        found = yield from do(ListDecisions(journal_id=journal_id, pending=pending, limit=10_000))
        shown = []
        for decision in found:
            intent = yield from do(GetIntent(intent_id=decision.intent_id))
            shown.append(self.show_decision(decision, intent))
        return shown

    def waiting(self, why: Any) -> Flow[Waiting]:
        if not isinstance(why, Suspended):
            raise InvalidInput(f"suspended: must be the Suspended that a run raised, not {why!r}.")
        known = yield from self.decisions(why.intent_id, pending=False)
        return Waiting(why.run_id, why.intent_id, [d for d in known if d["key"] in why.decisions])

    def answer(
        self, name: str, outcome: str, key: str | None, value: Any, comment: str | None, actor: str
    ) -> Flow[dict[str, Any]]:
        check.name("outcome", outcome)
        check.text("key", key, empty=False)
        check.text("comment", comment)
        check.text("actor", actor, optional=False)
        intent = yield from find(name)
        if key is None:
            open_ones = yield from do(ListDecisions(journal_id=intent.journal_id, pending=True))
            if not open_ones:
                raise NotFound(f"run {name!r} waits for no decision.")
            if len(open_ones) > 1:
                keys = ", ".join(d.key for d in open_ones)
                raise InvalidInput(f"key: run {name!r} waits for several decisions; name one of {keys}.")
            key = open_ones[0].key
        bind = bindings.of_answer(self.tenant, intent.journal_id, key)
        op = AnswerDecision(
            journal_id=intent.journal_id,
            key=key,
            outcome=outcome,
            value=None if value is None else self.codec.encode(value, bind=bind),
            comment=None if comment is None else self.codec.encode(comment, bind=bind),
            actor=actor,
        )
        decision = yield from do(op)
        return self.show_decision(decision, intent)

    # --- looking in ------------------------------------------------------------------------------

    def describe(self, name: str) -> Flow[dict[str, Any]]:
        """All that is known of a run from outside: where it is, what it holds open, what it waits for."""
        intent = yield from find(name)
        intent = yield from settle_time(intent, self.store.clock.now_us())
        progress, versions, open_decisions = yield Do(
            [
                GetProgress(intent_id=intent.intent_id),
                ReadCheckpoints(journal_id=intent.journal_id, limit=1),
                ListDecisions(journal_id=intent.journal_id, pending=True),
            ]
        )
        meta: dict[str, Any] = {}
        if versions:
            bind = bindings.of_checkpoint(self.tenant, intent.journal_id, versions[0].version)
            try:
                meta = self.codec.decode(versions[0].meta, bind=bind)
            except Damaged as error:  # opening the run falls back to the version before; looking in goes on
                meta = {"damaged": str(error)}
        return {
            **self.show(intent),
            "step": progress.finished,
            "total_steps": progress.total_steps,
            "records": progress.recorded,
            "last_step": progress.last_step,
            "checkpoint": versions[0].version if versions else None,
            "resources": meta.get("resources", []),
            "pending": meta.get("pending", []),
            "checkpoint_damaged": meta.get("damaged"),
            "decisions": [self.show_decision(d, intent) for d in open_decisions],
        }

    def steps(self, name: str) -> Flow[list[dict[str, Any]]]:
        intent = yield from find(name)
        found = yield from do(ReadJournal(journal_id=intent.journal_id, voided=True))
        return [
            {
                "key": s.key,
                "kind": s.kind,
                "name": s.name,
                "scope": s.scope,
                "status": str(s.status),
                "attempt": s.attempt,
                "generation": s.generation,
                "voided": s.voided,
                "items": s.tally,
                "started_at": iso(s.started_at),
                "finished_at": iso(s.finished_at),
            }
            for s in found
        ]

    def checkpoints(self, name: str) -> Flow[list[dict[str, Any]]]:
        intent = yield from find(name)
        found = yield from do(ReadCheckpoints(journal_id=intent.journal_id, limit=1000))
        return [
            {
                "version": c.version,
                "pins": [p for p in (_PLACES.get(n), c.pin) if p],
                "attempt": c.attempt,
                "at": iso(c.at),
            }
            for n, c in enumerate(found)
        ]

    # --- upkeep ----------------------------------------------------------------------------------

    def check(self) -> Flow[datetime]:
        now = yield from do(CheckWritable())
        moment = from_micros(now)
        assert moment is not None  # noqa: S101
        return moment

    def prune(self, policy: Retention, batch: int = 100) -> Flow[int]:
        """In small batches, each a transaction of its own, so that writers get in between."""
        if not isinstance(policy, Retention):
            raise InvalidInput(f"policy: must be a Retention, not {policy!r}.")
        before = None
        if policy.older_than is not None:
            before = self.store.clock.now_us() - int(policy.older_than.total_seconds() * 1_000_000)
        gone = 0
        while True:
            count = yield from do(
                Prune(
                    finished_before=before,
                    keep_latest=policy.keep_latest,
                    labels=policy.labels,
                    statuses=list(policy.statuses),
                    limit=batch,
                )
            )
            gone += count
            if count == 0:
                return gone

    def _prune_some(self) -> None:
        if self.retention is not None:
            drive(self.prune(self.retention), self.store, self.tenant)

    # --- shapes ----------------------------------------------------------------------------------

    def show(self, intent: Intent) -> dict[str, Any]:
        place = (self.tenant, intent.journal_id)

        def value(data: bytes | None, bind: bytes) -> Any:
            return None if data is None else self.codec.decode(data, bind=bind)

        payload = intent.payload
        return {
            "intent_id": intent.intent_id,
            "run_id": intent.run_id,
            "intent_type": intent.intent_type,
            "to_agent": intent.to_agent,
            "from_agent": intent.from_agent,
            "correlation_id": intent.correlation_id,
            "status": str(intent.status),
            "lifecycle_status": str(intent.status),
            "waiting_reason": intent.waiting_reason,
            "labels": intent.labels,
            "payload": None if payload is None else bindings.open_payload(self.codec, payload, *place),
            "result": value(intent.result, bindings.of_result(*place)),
            "error": value(intent.error, bindings.of_error(*place)),
            "reason": intent.reason,
            "delivery_attempt": intent.attempt,
            "lost_deliveries": intent.lost,
            "max_delivery_attempts": intent.max_delivery_attempts,
            "deadline_at": iso(intent.deadline_at),
            "created_at": iso(intent.created_at),
            "updated_at": iso(intent.updated_at),
            "finished_at": iso(intent.finished_at),
            "seq": intent.seq,
            "revived_from": intent.revived_from,
            "superseded_by": intent.superseded_by,
        }

    def show_event(self, event: Event, intent: Intent) -> dict[str, Any]:
        shown = event.as_dict()
        if event.data is not None:
            shown["data"] = self.codec.decode(event.data, bind=bindings.of_error(self.tenant, intent.journal_id))
        return shown

    def show_evidence(self, decision: Decision, asked: dict[str, Any]) -> Any:
        """What an asker gave along; for a one-shot in doubt, what is known of it."""
        if decision.kind != "in_doubt":
            return asked.get("evidence")
        return {**asked, "started_at": iso(asked["started_at"])}

    def show_decision(self, decision: Decision, intent: Intent) -> dict[str, Any]:
        bind = bindings.of_question(self.tenant, decision.journal_id, decision.key)
        question = self.codec.decode(decision.question, bind=bind)
        return {
            "key": decision.key,
            "run_id": intent.run_id,
            "intent_id": decision.intent_id,
            "kind": decision.kind,
            "question": question.pop("question"),
            "evidence": self.show_evidence(decision, question),
            "outcomes": decision.outcomes,
            "comment_required": decision.comment_required,
            "asked_at": iso(decision.asked_at),
            "expires_at": iso(decision.expires_at),
            "default": decision.default_outcome,
            "outcome": decision.outcome,
            "actor": decision.actor,
            "answered_at": iso(decision.answered_at),
        }


def iso(micros: int | None) -> str | None:
    moment = from_micros(micros)
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")

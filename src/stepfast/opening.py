"""Opening a run: create or take it over, read its journal, judge whether it may go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import msgspec

from stepfast import inputs as check
from stepfast import telemetry
from stepfast._failpoints import failpoint
from stepfast.bindings import of_error
from stepfast.clock import new_id
from stepfast.codec import Codec
from stepfast.deciding import OnWait
from stepfast.errors import (
    AlreadyFinished,
    Damaged,
    Fenced,
    InvalidInput,
    NotFound,
    RunBusy,
    RunFailed,
    RunFinished,
    StepfastError,
    Suspension,
)
from stepfast.flow import Call, Do, Flow, Until, do
from stepfast.intents import Intent, Status
from stepfast.journal import StepStatus
from stepfast.ops import (
    Checkpoint,
    Created,
    Decision,
    GetIntent,
    Lease,
    ListDecisions,
    NewIntent,
    Opened,
    OpenIntent,
    ReadCheckpoints,
    ReadEvents,
    ReadJournal,
    ReleaseIntent,
    ReviveIntent,
    Sweep,
)
from stepfast.order import recorded_order
from stepfast.owner import in_use, life_of
from stepfast.recovery import Checks, Finding, Verdict, inspect_resources, judge
from stepfast.session import Session, refuse
from stepfast.steps import OnDrift

OnFailed = Literal["raise", "revive"]


class RunOptions(NamedTuple):
    """How a run behaves in this process; none of it is stored.

    ``on_wait``: where the run has to wait, *block* waits in this process and *suspend* raises. *view* is for adapters
    that return a framework's own result: it raises too, but a run that waits already is opened for reading. Its calls
    return what was recorded, and new work raises `Suspension`.

    ``hand_back=False``: where it cannot be opened, whoever claimed it says what that costs.
    """

    on_wait: OnWait = "block"
    on_drift: OnDrift = "raise"
    on_failed: OnFailed = "raise"
    wait: float | None = None
    lease_seconds: float = 30.0
    hand_back: bool = True
    code_version: str | None = None


class OpenedRun(NamedTuple):
    session: Session
    restored: Any
    verdict: Verdict | None


def open_run(
    new: NewIntent | None,
    intent_id: str | None,
    *,
    codec: Codec,
    tenant: str,
    owner: str,
    options: RunOptions,
    checks: Checks,
) -> Flow[OpenedRun]:
    with in_use.asking(new_id()) as token:
        opened, known = yield from _take_or_see(token, new, intent_id, owner, options)
        intent = opened.intent
        if intent.finished and intent.status is not Status.COMPLETED and options.on_failed == "revive":
            again = yield from revive(intent, actor="sf.run")
            opened, known = yield from _take_or_see(token, None, again.intent.intent_id, owner, options)
            intent = opened.intent
        if intent.finished and intent.status is not Status.COMPLETED:
            raise ended_badly(intent, codec, tenant)
        return (yield from adopt(opened.intent, opened.lease, codec, tenant, owner, options, checks, known))


def adopt(
    intent: Intent,
    lease: Lease | None,
    codec: Codec,
    tenant: str,
    owner: str,
    options: RunOptions,
    checks: Checks,
    known: Sequence[Decision] = (),
) -> Flow[OpenedRun]:
    """Make a run of an intent that this process holds (or that is finished, or waits: ``known`` are its decisions)."""
    session = Session(
        intent=intent,
        lease=lease,
        journal=(),
        codec=codec,
        tenant=tenant,
        owner=owner,
        lease_seconds=options.lease_seconds,
        on_wait=options.on_wait,
        on_drift=options.on_drift,
    )
    in_use.add(session, intent.intent_id)
    try:
        opened = yield from _begin(session, options, checks, known)
        if session.lease is not None and telemetry.active():
            yield from _trace(session)
        return opened
    except GeneratorExit:
        in_use.discard(session)
        raise
    except BaseException as error:
        # Whatever it was, it is not to look like a crash, nor to keep others waiting for the lease to end.
        if options.hand_back:
            with suppress(StepfastError):
                yield from session.hand_back(error)
        in_use.discard(session)
        if isinstance(error, Suspension):
            raise error.as_error() from None
        raise


def _trace(session: Session) -> Flow[None]:
    """Begin the span of this attempt, linked to the one before, and tell it in the history for the one after."""
    intent = session.intent
    ids = [i for i in (intent.revived_from, intent.intent_id) if i is not None]
    told = (yield Do([ReadEvents(intent_id=i, limit=100_000) for i in ids])) if intent.attempt > 1 or ids[1:] else []
    session.span = telemetry.begin(intent, session.hold().attempt, [event for events in told for event in events])
    yield from session.note(telemetry.EVENT, {"traceparent": session.span.text})


def _begin(session: Session, options: RunOptions, checks: Checks, known: Sequence[Decision]) -> Flow[OpenedRun]:
    intent = session.intent
    if session.lease is None and not session.replaying:
        # WAITING: somebody has to answer before anything else happens.
        if options.on_wait == "block":
            yield from session.wait_until_claimable(expires=True)
        else:
            waits = session.suspension([d for d in known if d.outcome is None])
            if options.on_wait == "suspend":
                raise waits
            session.waits, session.seen = waits, {d.key: d for d in known}
    elif intent.attempt == 1 and intent.revived_from is None and not session.replaying:
        return OpenedRun(session, None, None)
    journal, checkpoints = yield Do(
        [
            ReadJournal(journal_id=intent.journal_id, voided=True),
            ReadCheckpoints(journal_id=intent.journal_id, limit=50),
        ]
    )
    for step in journal:
        session.remember(step)
    if not session.replaying:  # a finished run takes no new work, in whatever order it is read
        session.earlier = recorded_order(journal)
    session.last_version = max((c.version for c in checkpoints), default=0)
    if session.replaying or session.waits is not None:
        state, _, _, _ = yield from _newest_whole(session, checkpoints)
        return OpenedRun(session, state, None)
    return (yield from _resume(session, checkpoints, checks, options.code_version))


def _take_or_see(
    token: str, new: NewIntent | None, intent_id: str | None, owner: str, options: RunOptions
) -> Flow[tuple[Opened, list[Decision]]]:
    """The same as `_take`; of a run that waits and is not waited for here, its decisions too."""
    while True:
        opened = yield from _take(token, new, intent_id, owner, options)
        if opened.lease is not None or opened.intent.status is not Status.WAITING or options.on_wait == "block":
            return opened, []
        intent, known = yield Do(
            [
                GetIntent(intent_id=opened.intent.intent_id),
                ListDecisions(journal_id=opened.intent.journal_id, pending=False, limit=10_000),
            ]
        )
        if intent.status is Status.WAITING and intent.claimable_at is None:
            return opened, known
        # It was answered just now: it can be opened after all.


def _take(token: str, new: NewIntent | None, intent_id: str | None, owner: str, options: RunOptions) -> Flow[Opened]:
    """The lease if it can be had: at once from a dead owner, after the lease from an unknown one."""
    op = OpenIntent(token=token, owner=owner, lease_seconds=options.lease_seconds, new=new, intent_id=intent_id)
    opened = yield from do(op)
    if opened.lease is None and opened.intent.status is Status.WAITING:
        _, opened = yield Do([Sweep(), op])  # what it waits for may have expired
    while opened.lease is None and opened.intent.leased:
        if opened.intent.owner == owner and _was_left_here(opened.intent):
            opened = yield from _take_back(opened.intent, op)
            continue
        life = life_of(opened.intent.owner)
        if life == "dead":
            opened = yield from do(msgspec.structs.replace(op, dead_attempt=opened.intent.attempt))
            continue
        patience = options.wait
        if patience is None:
            patience = 0.0 if life == "alive" else options.lease_seconds + 5.0
        if patience <= 0:
            raise busy(opened.intent)
        results = yield Until(
            (f"intent:{opened.intent.intent_id}",),
            [op],
            lambda r: r[0].lease is not None or not r[0].intent.leased or life_of(r[0].intent.owner) == "dead",
            timeout=patience,
        )
        opened = results[0]
        if opened.lease is None and opened.intent.leased and life_of(opened.intent.owner) != "dead":
            raise busy(opened.intent)
    return opened


def _was_left_here(intent: Intent) -> bool:
    """Whether this very process holds the lease, and has nothing left that works under it.

    So it is after the store failed while a run was opened or ended.
    """
    return bool(intent.lease_token) and not in_use.covers(intent.intent_id, intent.lease_token)


def _take_back(intent: Intent, op: OpenIntent) -> Flow[Opened]:
    """No delivery is lost, and the new attempt fences whatever the old one may still have on its way."""
    left = Lease(intent.intent_id, intent.attempt, intent.lease_token or "")
    try:
        _, opened = yield Do([ReleaseIntent(lease=left, reason="its process lost the store, and goes on"), op])
    except (Fenced, AlreadyFinished):  # somebody was quicker
        opened = yield from do(op)
    return opened  # type: ignore[no-any-return]


def _resume(
    session: Session, checkpoints: list[Checkpoint], checks: Checks, code_version: str | None
) -> Flow[OpenedRun]:
    """The three looks, in their order, and what follows from them."""
    state, meta, version, findings = yield from _newest_whole(session, checkpoints)
    findings += yield from _missing(session, checkpoints)
    for finding in findings:
        yield from session.note("intent.checkpoint_damaged", msgspec.structs.asdict(finding))
    if findings and version is None:
        findings.append(Finding("structure", "checkpoint", "no version of it is whole", "wait"))
    findings += yield Call(inspect_resources, (meta.get("resources", []), checks), {})
    doubtful = [s for s in session.journal.values() if s.status is StepStatus.STARTED]
    for step in doubtful:
        session.check_seal(step)
        outcome: Literal["resume", "wait"] = "wait" if step.kind == "once" else "resume"
        findings.append(
            Finding("one_shot", step.key, f"started in attempt {step.attempt} and never confirmed", outcome)
        )
    verdict = judge(findings, version)
    told = verdict.as_dict()
    if code_version is not None:
        told["code_version"] = session.code_version = code_version
    yield from session.note("intent.resume_checked", told)
    failpoint("resume.judged")
    if verdict.outcome == "fail":
        refusal = refuse(verdict.as_dict(), session.intent.run_id or session.intent.intent_id)
        yield from session.end(Status.FAILED, reason=str(refusal))
        raise refusal
    doubts = [f for f in findings if f.outcome == "wait" and f.look != "one_shot"]
    if doubts:
        yield from _ask_to_go_on(session, doubts, version)
    for step in doubtful:
        if step.kind in ("once", "once-retry", "once-fail"):
            yield from session.settle_one_shot(step)
    return OpenedRun(session, state, verdict)


def _ask_to_go_on(session: Session, doubts: list[Finding], version: int | None) -> Flow[None]:
    evidence = [msgspec.structs.asdict(f) for f in doubts]
    fingerprint = session.codec.fingerprint((evidence,), {})[0].hex()
    decision = yield from session.decide_for_this_intent(
        key=f"resume:{version}:{fingerprint[:12]}",
        kind="resume",
        question={
            "question": "Go on although this changed? " + "; ".join(f"{f.subject}: {f.detail}" for f in doubts),
            "evidence": evidence,
        },
        outcomes=["continue", "fail"],
    )
    if decision.outcome != "continue":
        refusal = refuse({"findings": evidence}, session.intent.run_id or session.intent.intent_id)
        yield from session.end(Status.FAILED, reason=str(refusal))
        raise refusal


def _newest_whole(
    session: Session, checkpoints: list[Checkpoint]
) -> Flow[tuple[Any, Mapping[str, Any], int | None, list[Finding]]]:
    """The newest checkpoint that is whole, and what was wrong with those after it."""
    findings: list[Finding] = []
    for row in checkpoints:
        try:
            state, meta = yield from session.open_checkpoint(row)
        except Damaged as error:
            findings.append(Finding("structure", f"checkpoint {row.version}", str(error), "resume"))
        else:
            return state, meta, row.version, findings
    return None, {}, None, findings


def _missing(session: Session, checkpoints: list[Checkpoint]) -> Flow[list[Finding]]:
    """The newest checkpoint that the journal says was taken, if it is not there."""
    taken = [s for s in session.journal.values() if s.kind == "checkpoint" and s.status is StepStatus.FINISHED]
    last = max(taken, key=lambda s: s.position, default=None)
    if last is None:
        return []
    session.check_seal(last)
    bind = session.bind(last.key, last.generation)
    version = yield from session.unpack(last.result or b"", last.blob_id, bind)
    if checkpoints and checkpoints[0].version >= version:
        return []
    return [Finding("structure", f"checkpoint {version}", "it was taken, and is not in the store", "resume")]


Undo = Callable[[dict[str, Any]], Any]


def rewind_run(
    name: str,
    step: str,
    *,
    include_once: bool,
    reason: str,
    also: Mapping[str, Undo],
    open_run: Callable[[str], Flow[OpenedRun]],
) -> Flow[int]:
    """Open a run, set a step and all after it aside, and hand the run back; returns how many steps went."""
    intent = yield from find(name)
    session = (yield from open_run(intent.intent_id)).session
    try:
        if session.replaying:
            raise RunFinished(f"run {name} is finished; there is nothing to go on with after a rewind.")
        ordered = sorted(session.journal.values(), key=lambda s: s.position)
        keys = [s.key for s in ordered]
        if step not in keys:
            raise InvalidInput(f"step: run {name} has no {step!r}; it has {', '.join(keys) or 'none'}.")
        at = keys.index(step)
        for kind, undo in also.items():
            values: dict[str, Any] = {}
            for found in ordered[at:]:
                if found.kind == kind and found.status is StepStatus.FINISHED:
                    session.check_seal(found)
                    bind = session.bind(found.key, found.generation)
                    values[found.key] = yield from session.unpack(found.result or b"", found.blob_id, bind)
            # Before the steps go: if this ends half way, the same rewind finds them again and does the rest.
            yield Call(undo, (values,))
        after = keys[at - 1] if at else None
        count = yield from session.rewind("", reason, after=after, include_once=include_once)
    except BaseException as error:
        with suppress(StepfastError):
            yield from session.hand_back(error)
        raise
    else:
        yield from session.hand_back(Rewound(f"{count} steps were set aside: {reason}"))
        return count
    finally:
        in_use.discard(session)


class Rewound(Exception):
    """Why a rewound run was handed back, for its history."""


def revive(intent: Intent, actor: str) -> Flow[Created]:
    return (yield from do(ReviveIntent(intent_id=intent.intent_id, new_id=new_id(), actor=actor)))


def find(name: str) -> Flow[Intent]:
    """An intent by its run id or its own id; what is due by time is settled first."""
    check.name("intent_id", name)
    try:
        intent = yield from do(GetIntent(run_id=name))
    except NotFound:
        try:
            intent = yield from do(GetIntent(intent_id=name))
        except NotFound:
            raise NotFound(f"there is no run and no intent {name!r} in this store.") from None
    return intent


def settle_time(intent: Intent, now: int) -> Flow[Intent]:
    """Past its deadline an intent is TIMED_OUT even if no worker ever looks at it again."""
    if intent.finished or intent.deadline_at is None or intent.deadline_at > now:
        return intent
    yield from do(Sweep())
    return (yield from do(GetIntent(intent_id=intent.intent_id)))


def busy(intent: Intent) -> RunBusy:
    return RunBusy(
        f"run {intent.run_id or intent.intent_id} is held by a living owner (attempt {intent.attempt}: "
        f"{intent.owner}). Stop it, or open with wait=SECONDS to wait for it.",
        intent_id=intent.intent_id,
        owner=intent.owner,
    )


def ended_badly(intent: Intent, codec: Codec, tenant: str) -> RunFailed:
    name = intent.run_id or intent.intent_id
    why = f": {intent.reason}" if intent.reason else ""
    details: dict[str, Any] = {"intent_id": intent.intent_id, "status": str(intent.status)}
    if intent.error is not None:
        details["error"] = codec.decode(intent.error, bind=of_error(tenant, intent.journal_id))
    return RunFailed(
        f"run {name} is {intent.status}{why}. Its finished steps are kept: sf.revive({name!r}) lets it go on.",
        **details,
    )

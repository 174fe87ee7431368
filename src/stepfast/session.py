"""An open run: its journal in memory, its lease, and what each call does, as flows.

Nothing here waits or touches a store by itself; `flow` drives it. `run` puts the public face on it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from stepfast._failpoints import declare, failpoint
from stepfast.bindings import of_answer, of_checkpoint
from stepfast.errors import (
    Diverged,
    Fenced,
    InvalidInput,
    ResumeRefused,
    RunFailed,
    StoreError,
    Suspended,
)
from stepfast.flow import Call, Do, Flow, Sleep
from stepfast.intents import Status
from stepfast.journal import Step, StepStatus
from stepfast.ledger import Ledger, StepCall
from stepfast.ops import (
    Checkpoint,
    Lease,
    Op,
    PutCheckpoint,
    RecordStep,
    SettleStep,
)
from stepfast.order import turn_of
from stepfast.steps import (
    DID_NOT_HAPPEN,
    Happened,
    Retry,
    describe_error,
    rebuild_error,
)
from stepfast.stored_names import UNKNOWN_OUTCOME_TYPE
from stepfast.vault import checkpoint_parts

log = logging.getLogger("stepfast")

declare(
    "step.before_call",
    "step.after_call",
    "step.recorded",
    "once.started",
    "once.after_call",
    "once.settled",
    "checkpoint.written",
    "resume.judged",
)


class Session(Ledger):
    """An open run that makes calls: what is in the journal is answered from there, the rest is done and recorded."""

    def has_more(self, scope: str) -> bool:
        """Whether earlier attempts went further in this scope than this one has come."""
        return self.earlier is not None and self.earlier.has_more(scope, self.taken, self.journal)

    def check_order(self, call: StepCall) -> None:
        """Refuse a call that comes in place of a recorded one: the code has changed under the run."""
        skipped = self.skipped(call.key, call.scope, turn_of(call.position))
        one_shots = [step for step in skipped if step.kind.startswith("once")]
        if one_shots:
            raise self._replaced(call, one_shots)
        # Where a call that had failed before was made again, going another way is not a change of code.
        if not skipped or self.changed_course or call.on_drift in ("accept", "rerun"):
            return
        if call.on_drift == "warn":
            log.warning("%s", self._replaced(call, skipped))
            return
        raise self._replaced(call, skipped)

    def _replaced(self, call: StepCall, skipped: list[Step], inside: str | None = None) -> Diverged:
        """Say which recorded steps have no call, which call has no record, and what can be done."""
        known = call.key in self.journal
        missing = "".join(
            f"\n  recorded, not called: {step.key} ({'one-shot step' if step.kind.startswith('once') else step.kind}, "
            f"{step.status.lower()} in attempt {step.attempt}) {self.show_preview(step)}"
            for step in skipped[:5]
        )
        more = f"\n  and {len(skipped) - 5} more" if len(skipped) > 5 else ""
        comes = "called now, recorded later" if known else "called, not recorded"
        first = skipped[0]
        method = "once" if first.kind.startswith("once") else "step"
        begun = self.intent.labels.get("code_version")
        versions = f" (code version {begun}; this is {self.code_version})" if begun and self.code_version else ""
        around = f" The call {inside} that they were made in has not been made again." if inside else ""
        return Diverged(
            f"run {self.name} was begun by other code{versions}: its journal and its calls no longer match."
            f"{missing}{more}\n"
            f"  {comes}: {call.key} {call.preview.decode('utf-8', 'replace')}\n"
            f"Nothing was called.{around} If {first.name} was renamed, write run.options(renamed_from={first.name!r})."
            f"{method}(…). To change code under living runs, keep the old way behind `if run.patched('a-name'): … "
            "else: …`, or give steps keys (run.options(key=…)). To let the recorded step go, "
            f"sf.rewind({self.name!r}, {first.key!r}, include_once=True).",
            key=call.key,
            missing=[step.key for step in skipped],
            intent_id=self.intent.intent_id,
        )

    def recall(self, call: StepCall) -> tuple[Any] | None:
        """The recorded result, where nothing but the journal in memory is needed to give it."""
        step = self.journal.get(call.key)
        if (
            step is None
            or self.poison is not None
            or step.status is not StepStatus.FINISHED
            or step.blob_id is not None
            or step.input_hash != call.input_hash
        ):
            return None
        self.check_seal(step)
        return (self.codec.decode(step.result or b"", bind=self.bind(step.key, step.generation)),)

    def perform(self, call: StepCall, once: bool) -> Flow[Any]:
        """Answer from the journal, or do it and record it."""
        if self.poison is not None:
            raise self.poison
        step = self.journal.get(call.key)
        if step is not None:
            step = yield from self._accept(call, step)
        if step is not None:
            answered, value = yield from self._replay(call, step)
            if answered:
                return value
        if self.earlier is not None:
            abandoned = self.earlier.abandoned(call.key, self.taken, self.journal)
            if abandoned is not None:
                raise self._replaced(call, abandoned[1], inside=abandoned[0])
        frame = self.enter(call.key)
        run_span, failure = self.span, None
        span = None if run_span is None else run_span.start_step(call.key, call.kind, call.name)
        try:
            if self.suspended:
                yield from self.ready()
            self.hold()
            return (yield from (self._do_once(call) if once else self._do(call)))
        except BaseException as error:
            failure = error
            if not isinstance(error, StoreError) and call.key not in self.journal:
                self.give_back(call)
            raise
        finally:
            if run_span is not None and span is not None:
                run_span.end_step(span, failure)
            failure = None  # or the error would hold itself by its traceback
            self.leave(frame)

    def _accept(self, call: StepCall, step: Step) -> Flow[Step | None]:
        """The record, if it is of the same call; a changed input is the caller's policy to judge."""
        self.check_seal(step)
        if step.input_hash == call.input_hash or call.on_drift == "accept":
            return step
        before, now = self.show_preview(step), call.preview.decode("utf-8", "replace")
        text = (
            f"step {call.key} was recorded with other input.\n  recorded: {before}\n  now:      {now}\n"
            "Give the step another key, or pass on_drift='accept' to keep the record or 'rerun' to do it again."
        )
        if call.on_drift == "raise":
            raise Diverged(text, key=call.key, recorded=before, now=now, intent_id=self.intent.intent_id)
        if call.on_drift == "warn":
            log.warning("%s", text)
            return step
        if step.kind.startswith("once"):
            raise Diverged(
                f"{text}\nIt is a one-shot step, so it is not run again.",
                key=call.key,
                recorded=before,
                now=now,
            )
        yield from self.void([step], "its input changed")
        return None

    def _replay(self, call: StepCall, step: Step) -> Flow[tuple[bool, Any]]:
        bind = self.bind(step.key, step.generation)
        if step.status is StepStatus.FINISHED:
            return True, (yield from self.unpack(step.result or b"", step.blob_id, bind))
        if step.status is StepStatus.FAILED:
            raise rebuild_error((yield from self.unpack(step.error or b"", step.blob_id, bind)), step.key)
        if self.waits is not None:
            raise self.waits
        if step.key in self.begun:
            raise InvalidInput(f"step {step.key} is already running in this attempt; give each call its own key.")
        return (yield from self._settle_doubt(call, step))

    def _row(
        self, call: StepCall, status: StepStatus, started_at: int, value: Any = None
    ) -> tuple[Step, list[Op[Any]]]:
        """A step's first row, sealed, and the pieces that must be written before it."""
        attempt = self.hold().attempt
        key, preview = call.key, call.preview
        generation = self.generations.get(key, 0)
        bind = self.bind(key, generation)
        if self.codec.encrypts:
            preview = self.codec.encode(preview, bind=bind)
        packed, blob_id, pieces, finished_at = None, None, _NO_PIECES, None
        if status is not StepStatus.STARTED:
            packed, blob_id, pieces = self.pack(value, bind)
            finished_at = _now()
        failed = status is StepStatus.FAILED
        step = Step(
            key,
            generation,
            call.position,
            call.kind,
            call.name,
            call.scope,
            status,
            call.input_hash,
            preview,
            None if failed else packed,
            packed if failed else None,
            blob_id,
            attempt,
            started_at,
            finished_at,
            b"",
        )
        return self.sealed(step), pieces

    def _ended(self, row: Step, status: StepStatus, value: Any) -> tuple[Step, list[Op[Any]]]:
        """The row of a one-shot with its ending, which belongs to the attempt that settles it."""
        packed, blob_id, pieces = self.pack(value, self.bind(row.key, row.generation))
        good = status is StepStatus.FINISHED
        ended = msgspec.structs.replace(
            row,
            status=status,
            result=packed if good else None,
            error=None if good else packed,
            blob_id=blob_id,
            attempt=self.hold().attempt,
            finished_at=_now(),
        )
        return self.sealed(ended), pieces

    def _do(self, call: StepCall) -> Flow[Any]:
        started = _now()
        failpoint("step.before_call")
        try:
            if call.retry is None:
                value = yield Call(call.function, call.args, call.kwargs)
            else:
                value = yield from self._call_with_retries(call, call.retry)
        except Suspended:
            raise  # another run waits that the step opened: that is no outcome of the step
        except call.record_errors as error:
            yield from self.record(call, StepStatus.FAILED, describe_error(error), started)
            raise
        failpoint("step.after_call")
        yield from self.record(call, StepStatus.FINISHED, value, started)
        failpoint("step.recorded")
        return value

    def record(self, call: StepCall, status: StepStatus, value: Any, started: int) -> Flow[None]:
        """Write a step that has come to its end: one commit."""
        if self.suspended:
            yield from self.ready()
        step, pieces = self._row(call, status, started, value)
        op = RecordStep(lease=self.hold(), journal_id=self.journal_id, step=step)
        if pieces:
            yield from self.write(pieces, op)
        else:
            yield Do((op,))
        self.remember(step)

    def record_with(self, call: StepCall, value: Any, ops: Sequence[Op[Any]]) -> Flow[Any]:
        """A step whose value is there already, and what belongs to it elsewhere in the store: one commit."""
        if self.poison is not None:
            raise self.poison
        step = self.journal.get(call.key)
        if step is not None:
            step = yield from self._accept(call, step)
        if step is not None:
            return (yield from self._replay(call, step))[1]
        yield from self.ready()
        step, pieces = self._row(call, StepStatus.FINISHED, _now(), value)
        yield from self.write(pieces, *ops, RecordStep(lease=self.hold(), journal_id=self.journal_id, step=step))
        failpoint("step.recorded")
        self.remember(step)
        return value

    def _call_with_retries(self, call: StepCall, retry: Retry) -> Flow[Any]:
        failures = 0
        while True:
            try:
                return (yield Call(call.function, call.args, call.kwargs))
            except Suspended:
                raise
            except retry.on as error:
                failures += 1
                if failures >= retry.attempts:
                    raise
                pause = retry.pause_after(failures)
                log.info("step %s failed (%s); trying again in %.2f s", call.key, error, pause)
            yield Sleep(pause)
            self.hold()

    # --- one-shot steps --------------------------------------------------------------------------

    def _do_once(self, call: StepCall) -> Flow[Any]:
        """Started before the effect, settled after it: two commits, and never a second effect unasked."""
        row, _ = self._row(call, StepStatus.STARTED, _now())
        yield Do((RecordStep(lease=self.hold(), journal_id=self.journal_id, step=row),))
        self.remember(row)
        self.begun.add(row.key)
        failpoint("once.started")
        try:
            value = yield Call(call.function, call.args, call.kwargs)
        except (StoreError, Fenced, Suspended):
            raise  # it came from inside Stepfast: whether the effect took place is not known
        except call.retry_on:
            yield from self.void([row], "the error says that nothing happened")
            raise
        except Exception as error:
            yield from self._settle(row, StepStatus.FAILED, describe_error(error))
            raise
        failpoint("once.after_call")
        yield from self._settle(row, StepStatus.FINISHED, value)
        failpoint("once.settled")
        return value

    def _settle(self, row: Step, status: StepStatus, value: Any) -> Flow[Step]:
        yield from self.ready()
        step, pieces = self._ended(row, status, value)
        yield from self.write(pieces, SettleStep(lease=self.hold(), journal_id=self.journal_id, step=step))
        self.remember(step)
        return step

    def _settle_doubt(self, call: StepCall, step: Step) -> Flow[tuple[bool, Any]]:
        """A one-shot that started in an earlier attempt and was never confirmed."""
        policy = call.on_in_doubt
        if callable(policy):
            frame = self.enter(call.key)
            try:
                told = yield Call(policy, call.args, call.kwargs)
            finally:
                self.leave(frame)
            if isinstance(told, Happened):
                yield from self._settle(step, StepStatus.FINISHED, told.result)
                return True, told.result
            if told is DID_NOT_HAPPEN:
                yield from self.void([step], "a probe found that it did not happen")
                return False, None
        yield from self.settle_one_shot(step)
        settled = self.journal.get(step.key)
        return (False, None) if settled is None else (yield from self._replay(call, settled))

    def settle_doubts(self, only: str | None = None) -> Flow[int]:
        """What is asked at the opening of a run, asked again: for one-shots that were left open since, or for one."""
        doubtful = [s for s in self.journal.values() if s.status is StepStatus.STARTED and only in (None, s.key)]
        for step in doubtful:
            self.begun.discard(step.key)
            if step.kind != "once-probe":
                yield from self.settle_one_shot(step)
        return len(doubtful)

    def settle_one_shot(self, step: Step) -> Flow[None]:
        """Apply the policy recorded with the step; *ask* waits for a person's word."""
        if step.kind == "once-retry":
            yield from self.void([step], "in doubt, and safe to repeat")
            return
        if step.kind == "once-fail":
            yield from self._settle(step, StepStatus.FAILED, _unknown_outcome(step))
            return
        decision = yield from self.decide_for_this_intent(
            key=f"in-doubt:{step.key}:{step.generation}",
            kind="in_doubt",
            question=self._evidence(step),
            outcomes=["done", "retry", "fail"],
        )
        bind = of_answer(self.tenant, self.journal_id, decision.key)
        if decision.outcome == "done":
            value = None if decision.value is None else self.codec.decode(decision.value, bind=bind)
            yield from self._settle(step, StepStatus.FINISHED, value)
        elif decision.outcome == "retry":
            yield from self.void([step], f"in doubt; {decision.actor or 'somebody'} said retry")
        else:
            who = decision.actor or "somebody"
            reason = f"one-shot step {step.key} was left in doubt, and {who} decided to fail the run"
            yield from self.end(Status.FAILED, reason=reason)
            raise RunFailed(f"run {self.name}: {reason}.", key=step.key)

    def _evidence(self, step: Step) -> dict[str, Any]:
        return {
            "question": f"Did {step.name} happen? It was started and never confirmed.",
            "step": step.key,
            "name": step.name,
            "arguments": self.show_preview(step),
            "attempt": step.attempt,
            "started_at": step.started_at,
            "idempotency_key": self.idempotency_key(step.key),
        }

    # --- checkpoints -------------------------------------------------------------------------------

    def put_checkpoint(self, call: StepCall, state: Any, meta: dict[str, Any], pin: str | None, keep: int) -> Flow[int]:
        """A version of its own and the step that says it was taken, in one commit."""
        step = self.journal.get(call.key)
        if step is not None:
            step = yield from self._accept(call, step)
        if step is not None:
            return (yield from self._replay(call, step))[1]  # type: ignore[no-any-return]
        yield from self.ready()
        lease = self.hold()
        with self.lock:
            version = self.last_version = self.last_version + 1
        try:
            yield from self._write_checkpoint(call, lease, version, state, meta, pin, keep)
        except StoreError:
            raise
        except BaseException:
            with self.lock:
                # A gap in the versions would count among those to keep.
                self.last_version -= self.last_version == version
            raise
        self.moved_on = True
        failpoint("checkpoint.written")
        return version

    def _write_checkpoint(
        self, call: StepCall, lease: Lease, version: int, state: Any, meta: dict[str, Any], pin: str | None, keep: int
    ) -> Flow[None]:
        bind = of_checkpoint(self.tenant, self.journal_id, version)
        packed, blob_id, pieces = self.pack(state, bind)
        row = Checkpoint(
            journal_id=self.journal_id,
            version=version,
            pin=pin,
            state=packed,
            meta=self.codec.encode(meta, bind=bind),
            blob_id=blob_id,
            attempt=lease.attempt,
            at=_now(),
            seal=b"",
        )
        row = msgspec.structs.replace(row, seal=self.codec.seal(*checkpoint_parts(row)))
        step, _ = self._row(call, StepStatus.FINISHED, row.at, version)
        yield from self.write(
            pieces,
            PutCheckpoint(lease=lease, checkpoint=row, keep=keep),
            RecordStep(lease=lease, journal_id=self.journal_id, step=step),
        )
        self.remember(step)


_NO_PIECES: list[Op[Any]] = []


def _unknown_outcome(step: Step) -> dict[str, Any]:
    return {
        "type": UNKNOWN_OUTCOME_TYPE,
        "message": f"{step.name} was started in attempt {step.attempt} and never confirmed: its outcome is unknown",
        "args": [],
        "traceback": "",
    }


def refuse(verdict: dict[str, Any], name: str) -> ResumeRefused:
    found = "; ".join(f"{f['subject']}: {f['detail']}" for f in verdict["findings"])
    return ResumeRefused(f"run {name} must not go on: {found}. Mend this and revive the run.", verdict=verdict)


def _now() -> int:
    return time.time_ns() // 1000

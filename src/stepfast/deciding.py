"""Questions a run waits on: ask, wait in this process or give it up, and take the answer."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

from stepfast._failpoints import declare, failpoint
from stepfast.bindings import of_answer, of_question
from stepfast.clock import new_id
from stepfast.codec import Codec
from stepfast.errors import Diverged, RunBusy, RunFailed, StepfastError, Suspension
from stepfast.flow import Do, Flow, Until, do
from stepfast.intents import Intent, Status, WaitingReason
from stepfast.ops import AskDecision, Decision, GetIntent, Lease, ListDecisions, Op, OpenIntent, SuspendIntent, Sweep
from stepfast.reporting import Reporting
from stepfast.steps import Answer

log = logging.getLogger("stepfast")

declare("ask.asked", "ask.suspended")

OnWait = Literal["block", "suspend", "view"]


class Frame(NamedTuple):
    """Where in a run the caller stands: an open step or map item makes its own scope."""

    session: Deciding
    scope: str
    actor: object
    depth: int = 0


current_frame: ContextVar[Frame | None] = ContextVar("stepfast_frame", default=None)


def current_actor() -> object:
    """Who makes calls in order: the running task, or the thread where there is none.

    The objects, not their numbers: the system gives a number out again once its thread has ended.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or (loop := asyncio._get_running_loop()) is None:
        return threading.current_thread()
    return asyncio.current_task(loop)


class Deciding(Reporting):
    """A run that can stop for a person without holding on to its lease."""

    def __init__(
        self,
        intent: Intent,
        lease: Lease | None,
        codec: Codec,
        tenant: str,
        *,
        owner: str,
        lease_seconds: float,
        on_wait: OnWait,
    ) -> None:
        super().__init__(intent, lease, codec, tenant, lease_seconds=lease_seconds)
        self.owner = owner
        self.on_wait = on_wait
        self.lock = threading.Lock()
        self.in_flight = 0
        self.waiting: dict[str, int] = {}  # the questions that branches wait on, and how deep these stand
        self.suspended = False
        self.seen: dict[str, Decision] = {}  # the decisions of a run that waits, as they stood when it was opened
        self.face: Any = None

    def depth(self) -> int:
        """How many steps of this run the caller stands inside."""
        frame = current_frame.get()
        return frame.depth if frame is not None and frame.session is self else 0

    def decide(
        self,
        *,
        key: str,
        kind: Literal["ask", "in_doubt", "resume"],
        question: dict[str, Any],
        outcomes: list[str],
        comment_required: bool = False,
        expires_in: float | None = None,
        default: str | None = None,
        wait: bool = True,
    ) -> Flow[Decision]:
        """Ask, and give the answered decision; wait for it in this process or give the process up.

        Without ``wait``, the decision as it stands.
        """
        packed = self.codec.encode(question, bind=of_question(self.tenant, self.journal_id, key))
        decision: Decision | None = None
        if self.intent.status is Status.COMPLETED:
            decision = yield from self._recorded(key)
        elif self.waits is not None:
            decision = self.seen.get(key)
        if decision is None:
            yield from self.ready()
            ask = AskDecision(
                lease=self.hold(),
                journal_id=self.journal_id,
                key=key,
                kind=kind,
                question=packed,
                outcomes=outcomes,
                comment_required=comment_required,
                expires_in=expires_in,
                default_outcome=default,
            )
            decision = yield from do(ask)
        failpoint("ask.asked")
        asked = self.codec.decode(decision.question, bind=of_question(self.tenant, self.journal_id, key))
        if kind == "ask" and asked != question:
            raise Diverged(
                f"decision {key} was asked with other words or other evidence.\n  recorded: {asked}\n"
                f"  now:      {question}\nAn answer counts only for what was asked: give it another key.",
                key=key,
            )
        if decision.outcome is None and wait:
            if self.waits is not None:
                raise self.waits
            decision = yield from self._wait_for_answer(decision, question)
        return decision

    def _recorded(self, key: str) -> Flow[Decision | None]:
        """What a finished run was answered; nothing is asked any more."""
        found = yield from do(ListDecisions(journal_id=self.journal_id, pending=False, limit=10_000))
        return next((d for d in found if d.key == key and d.outcome is not None), None)

    def decide_for_this_intent(
        self, *, key: str, kind: Literal["in_doubt", "resume"], question: dict[str, Any], outcomes: list[str]
    ) -> Flow[Decision]:
        """The same, but that somebody let the run fail holds only for the intent that failed of it.

        Whoever revives the run wants to be asked again.
        """
        asked: dict[str, Any] = {"kind": kind, "question": question, "outcomes": outcomes}
        decision = yield from self.decide(key=key, **asked)
        if decision.outcome == "fail" and decision.intent_id != self.intent.intent_id:
            decision = yield from self.decide(key=f"{key}:{self.intent.intent_id}", **asked)
        return decision

    def _wait_for_answer(self, decision: Decision, question: dict[str, Any]) -> Flow[Decision]:
        """While other branches of this run are at work the lease is kept, so that they are not stopped."""
        key = decision.key
        look: list[Op[Any]] = [ListDecisions(journal_id=self.journal_id, pending=False, limit=10_000)]
        if decision.expires_at is not None:
            look.insert(0, Sweep())
        with self.lock:
            self.waiting[key] = self.depth()
        try:
            while True:
                known: list[Decision] = (yield Do(look))[-1]
                answered = {d.key: d for d in known if d.outcome is not None}
                if key in answered:
                    yield from self.ready()
                    self.hold()
                    return answered[key]
                if self._is_idle(answered):
                    yield from self._suspend([d for d in known if d.outcome is None])
                else:
                    yield Until(
                        (f"intent:{self.intent.intent_id}",),
                        look,
                        lambda results: any(d.key == key and d.outcome is not None for d in results[-1]),
                        timeout=0.2,
                    )
                if self.poison is not None:
                    raise self.poison
        finally:
            with self.lock:
                self.waiting.pop(key, None)

    def _is_idle(self, answered: dict[str, Decision]) -> bool:
        """Whether all branches wait, each for an answer that is not there yet; who is told so must suspend."""
        with self.lock:
            idle = not self.suspended and self.in_flight <= sum(self.waiting.values())
            if not idle or any(key in answered for key in self.waiting):
                return False
            self.suspended = True
            return True

    def _suspend(self, pending: list[Decision]) -> Flow[None]:
        """Give the lease up, and come back with a new one once there is an answer."""
        try:
            reason = str(WaitingReason.WAITING_FOR_HUMAN)
            suspend = SuspendIntent(lease=self.hold(), waiting_reason=reason, keys=list(self.waiting))
            self.intent = (yield Do([*self.last_words(), suspend]))[-1]
            self.lease = None
            failpoint("ask.suspended")
            signal = self.suspension(pending)
            if self.on_wait != "block":
                self.poison = signal
                raise self.poison
            log.warning("%s", signal)
            yield from self.wait_until_claimable(any(d.expires_at for d in pending))
        finally:
            self.suspended = False

    def suspension(self, pending: Sequence[Decision]) -> Suspension:
        """Returns the signal that this run waits, with its open questions and how to answer them."""
        name = self.name
        questions = "; ".join(f"{self._words_of(d)} [{d.key}: {' or '.join(d.outcomes)}]" for d in pending)
        if not pending:
            text = f"run {name} waits ({self.intent.waiting_reason})."
        elif len(pending) == 1:
            how = f"sf.answer({name!r}, {pending[0].outcomes[0]!r}, {pending[0].key!r})"
            text = f"run {name} waits for a decision: {questions}. Answer with {how}; the run then goes on."
        else:
            how = f"sf.answer({name!r}, OUTCOME, KEY)"
            text = f"run {name} waits for {len(pending)} decisions: {questions}. Answer each with {how}."
        return Suspension(text, run_id=name, intent_id=self.intent.intent_id, decisions=[d.key for d in pending])

    def _words_of(self, decision: Decision) -> str:
        try:
            asked = self.codec.decode(decision.question, bind=self.bind(f"question:{decision.key}", 0))
        except StepfastError as error:  # what cannot be read must not hide that the run waits
            return f"<{error.code}>"
        return str(asked["question"])

    def ready(self) -> Flow[None]:
        """Where another branch waits for a person, wait until it has the lease again."""
        while self.suspended and self.poison is None:
            yield Until(
                (f"intent:{self.intent.intent_id}",),
                [GetIntent(intent_id=self.intent.intent_id)],
                lambda _: not self.suspended or self.poison is not None,
                timeout=0.2,
            )

    def refresh(self) -> Flow[None]:
        """Another process had the run meanwhile."""
        raise NotImplementedError

    def wait_until_claimable(self, expires: bool = False) -> Flow[None]:
        """Hold no lease while waiting; take the run up again when somebody has answered."""
        intent_id = self.intent.intent_id
        look: list[Op[Any]] = [GetIntent(intent_id=intent_id)]
        if expires or self.intent.deadline_at is not None:
            look.insert(0, Sweep())

        def is_over(results: list[Any]) -> bool:
            intent: Intent = results[-1]
            return intent.status is not Status.WAITING or intent.claimable_at is not None

        yield Until((f"intent:{intent_id}",), look, is_over)
        opened = yield from do(
            OpenIntent(token=new_id(), owner=self.owner, lease_seconds=self.lease_seconds, intent_id=intent_id)
        )
        before = self.intent.attempt
        self.intent, self.lease = opened.intent, opened.lease
        if self.lease is not None:
            if self.lease.attempt > before + 1:
                yield from self.refresh()
            return
        if self.intent.finished:
            why = f": {self.intent.reason}" if self.intent.reason else ""
            self.poison = RunFailed(
                f"run {self.name} became {self.intent.status} while it waited{why}.", intent_id=intent_id
            )
        else:
            self.poison = RunBusy(
                f"run {self.name} was answered and another worker goes on with it ({self.intent.owner}).",
                intent_id=intent_id,
            )
        raise self.poison

    def as_answer(self, decision: Decision) -> Answer:
        bind = of_answer(self.tenant, self.journal_id, decision.key)
        outcome = decision.outcome or ""
        return Answer(
            outcome=outcome,
            value=None if decision.value is None else self.codec.decode(decision.value, bind=bind),
            comment=None if decision.comment is None else self.codec.decode(decision.comment, bind=bind),
            actor=decision.actor,
            positive=outcome == decision.outcomes[0],
        )

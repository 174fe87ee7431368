"""The engine of scenarios: a pure function from a state and what happened to the next state and what to do.

A scenario is one parent intent that people watch, and the steps of its bundle one after the other. Each agent's step
is an intent of its own (a child); a person's step is the parent itself, waiting. The whole state lies in one record;
whoever moves it on writes the new state and its effects in one transaction, and only if the record is still as it was
read. So any number of servers may try, and one of them does it.

``phase`` says what the state waits for: ``agent`` (the child to end), ``human`` or ``gate`` (an answer; after a gate
the agent's work begins), ``delay`` and ``retry`` (a time), ``done`` (nothing).
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Literal

import msgspec

from stepfast.intents import Status, WaitingReason
from stepfast.server.bundles import END, Plan, Step

Phase = Literal["new", "agent", "human", "gate", "delay", "retry", "done"]

MOST_STEPS = 1000  # steps one scenario may take before it is cut off: a bundle may lead round in a circle


class State(msgspec.Struct, frozen=True, kw_only=True):
    """All there is to know of a scenario. Times are microseconds of the store's clock."""

    parent_id: str
    plan: Plan
    phase: Phase = "new"
    step_id: str = ""
    taken: int = 0  # steps begun, and tries of them
    tries: int = 0  # of the present step, after the first
    child_id: str | None = None
    until: int | None = None  # the end of a delay, or a person's deadline
    remind_at: int | None = None
    reminded: int = 0
    escalated: bool = False
    results: dict[str, Any] = {}
    last: str = ""
    now: int = 0
    most: int = MOST_STEPS

    @property
    def due_at(self) -> int | None:
        """When time itself makes the next thing happen."""
        times = [t for t in (self.until, self.remind_at) if t is not None]
        return min(times) if times else None


# --- what happens -----------------------------------------------------------------------------------


class Begin(msgspec.Struct, frozen=True):
    """The parent was created."""


class Again(msgspec.Struct, frozen=True):
    """A scenario that ended without completing was revived under another parent: it goes on at the step it ended in."""

    parent_id: str


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


class ChildEnded(msgspec.Struct, frozen=True, kw_only=True):
    child_id: str
    status: Status
    result: Any = None
    error: Any = None
    reason: str | None = None


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """A person has decided. ``taken`` names the question, so that no answer counts for a later one."""

    positive: bool
    task_result: dict[str, Any]
    actor: str = ""
    taken: int


class ParentEnded(msgspec.Struct, frozen=True):
    """Somebody, or the deadline, ended the whole scenario. ``child_open``: its child has not ended with it."""

    child_open: bool = True


Happening = Begin | Again | Tick | ChildEnded | Answered | ParentEnded


# --- what to do ---------------------------------------------------------------------------------------


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """Create the child."""

    child_id: str
    step_id: str
    address: str
    number: int
    input: Any
    deadline: float | None
    results: dict[str, Any]


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """The parent waits; ``task`` is what a person is asked."""

    reason: WaitingReason
    note_id: str
    step_id: str
    pending_with: dict[str, Any]
    task: dict[str, Any] | None = None


class Note(msgspec.Struct, frozen=True, kw_only=True):
    event_type: str
    note_id: str
    details: dict[str, Any]


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    child_id: str
    reason: str


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    status: Status
    result: Any = None
    error: Any = None
    reason: str | None = None


Effect = Dispatch | Wait | Note | Cancel | Finish


def advance(state: State, happening: Happening, now: int) -> tuple[State, list[Effect]]:
    """The next state and its effects; the very same state, and none, where it does not concern it."""
    if (state.phase == "done") is not isinstance(happening, Again):
        return state, []
    machine = _Machine(state, max(now, state.now))
    if not machine.take(happening):
        return state, []
    return msgspec.structs.replace(machine.state, now=machine.now), machine.effects


def child_id(parent_id: str, step_id: str, number: int, now: int) -> str:
    """Always the same for the same try of a step, and in the order of time as other ids are."""
    tail = sha256(f"{parent_id}|{step_id}|{number}".encode("utf-8", "surrogatepass")).digest()
    bits = int.from_bytes(tail[:10], "big")
    value = (now // 1000 & (1 << 48) - 1) << 80 | 0x7 << 76 | (bits >> 62 & 0xFFF) << 64 | 0b10 << 62
    text = f"{value | bits & (1 << 62) - 1:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class _Machine:
    def __init__(self, state: State, now: int) -> None:
        self.state = state
        self.now = now
        self.effects: list[Effect] = []
        self.notes = 0

    @property
    def step(self) -> Step:
        return self.state.plan.step(self.state.step_id)

    def set(self, **fields: Any) -> None:
        self.state = msgspec.structs.replace(self.state, **fields)

    def note(self, event_type: str, **details: Any) -> None:
        self.notes += 1
        state = self.state
        note_id = f"scenario:{state.taken}:{state.phase}:{state.reminded}:{event_type}:{self.notes}"
        shown = {"step_id": state.step_id, **{k: v for k, v in details.items() if v is not None}}
        self.effects.append(Note(event_type=event_type, note_id=note_id, details=shown))

    def wait(self, reason: WaitingReason, pending: dict[str, Any], task: dict[str, Any] | None = None) -> None:
        note_id = f"scenario:{self.state.taken}:{self.state.phase}"
        step_id = self.state.step_id
        self.effects.append(Wait(reason=reason, note_id=note_id, step_id=step_id, pending_with=pending, task=task))

    # --- one happening ---------------------------------------------------------------------------

    def take(self, happening: Happening) -> bool:
        state = self.state
        match happening:
            case Begin():
                if state.phase != "new":
                    return False
                self.enter(state.plan.entry)
            case Again():
                self.set(parent_id=happening.parent_id, most=state.taken + MOST_STEPS)
                self.enter(state.step_id or state.plan.entry)
            case ChildEnded():
                if state.phase != "agent" or happening.child_id != state.child_id:
                    return False
                self.child_ended(happening)
            case Answered():
                if state.phase not in ("human", "gate") or happening.taken != state.taken:
                    return False
                self.answered(happening)
            case ParentEnded():
                if state.child_id is not None and happening.child_open:
                    self.effects.append(Cancel(child_id=state.child_id, reason="its scenario has ended"))
                self.rest("done")
            case Tick():
                if state.due_at is None or state.due_at > self.now:
                    return False
                self.tick()
        return True

    def tick(self) -> None:
        state, step = self.state, self.step
        if state.until is not None and state.until <= self.now:
            if state.phase == "retry":
                self.dispatch()
            elif state.phase == "delay" and step.kind == "delay":
                self.succeed({"waited_seconds": step.seconds})
            else:
                self.fail(Status.TIMED_OUT, {"reason": f"step {step.step_id!r} passed its deadline"})
            return
        rule = step.reminders
        if state.reminded < rule.limit:
            self.set(reminded=state.reminded + 1)
            self.note("intent.reminder", remind_count=self.state.reminded, max_reminders=rule.limit)
            self.set(remind_at=self.next_reminder(state.remind_at or self.now))
            return
        self.set(remind_at=None, escalated=True)
        self.note("intent.escalated", escalated_to=rule.escalate_to)

    def next_reminder(self, last: int) -> int | None:
        """One pause later; what fell due while no server ran counts as one."""
        rule = self.step.reminders
        if self.state.reminded >= rule.limit and rule.escalate_to is None:
            return None
        pause = int(rule.pause * 1_000_000)
        return last + pause if last + pause > self.now else self.now + max(pause, 1)

    # --- steps -----------------------------------------------------------------------------------

    def rest(self, phase: Phase) -> None:
        """Nothing of an earlier wait is left."""
        self.set(phase=phase, child_id=None, until=None, remind_at=None, reminded=0, escalated=False)

    def enter(self, step_id: str) -> None:
        """Begin a step; those that only tell something are done at once, so that the next one begins."""
        while True:
            self.rest("new")
            self.set(step_id=step_id, tries=0)
            if self.state.taken >= self.state.most:
                reason = f"the scenario was cut off after {self.state.taken} steps; it goes round in a circle"
                self.finish(Status.FAILED, error={"step_id": step_id, "reason": reason}, reason=reason)
                return
            step = self.step
            if step.kind in ("notification", "reminder", "escalation"):
                self.set(taken=self.state.taken + 1)
                self.tell(step)
                self.set(last=step_id, results={**self.state.results, step_id: {"told": True}})
                if step.on_success == END:
                    self.complete()
                    return
                step_id = step.on_success
                continue
            break
        if step.kind == "agent" and not step.gated:
            self.dispatch()
        elif step.kind in ("human", "agent"):
            self.ask(step)
        else:
            self.set(phase="delay", taken=self.state.taken + 1, until=self.now + int(step.seconds * 1_000_000))
            pending = {"type": "internal", "ref": step.step_id, "name": step.kind}
            self.wait(WaitingReason.WAITING_FOR_TIME, pending)

    def tell(self, step: Step) -> None:
        message = step.config.get("message")
        if step.kind == "escalation":
            self.note("intent.escalated", escalated_to=step.reminders.escalate_to or step.assignee, message=message)
        elif step.kind == "reminder":
            self.note("intent.reminder", message=message, to=step.assignee)
        else:
            self.note("intent.notification", message=message, to=step.assignee, config=step.config or None)

    def ask(self, step: Step) -> None:
        task, rule = step.task or {}, step.reminders
        phase: Phase = "human" if step.kind == "human" else "gate"
        self.set(
            phase=phase,
            taken=self.state.taken + 1,
            until=None if step.deadline is None else self.now + int(step.deadline * 1_000_000),
            remind_at=None if rule.after is None else self.now + int(rule.after * 1_000_000),
        )
        if rule.limit == 0 and rule.escalate_to is None:
            self.set(remind_at=None)
        who = (task.get("assignees") or [step.assignee or "anybody"])[0]
        self.wait(WaitingReason.WAITING_FOR_HUMAN, {"type": "human", "ref": who, "name": who}, task)

    def dispatch(self) -> None:
        step, tries = self.step, self.state.tries
        self.rest("agent")
        number = self.state.taken + 1
        child = child_id(self.state.parent_id, step.step_id, number, self.now)
        self.set(taken=number, child_id=child)
        self.note("intent.step_started", child_intent_id=child, attempt=tries + 1, agent=step.address)
        self.effects.append(
            Dispatch(
                child_id=child,
                step_id=step.step_id,
                address=step.address or "",
                number=number,
                input=step.input,
                deadline=step.deadline,
                results=self.state.results,
            )
        )
        pending = {"type": "agent", "ref": step.address, "name": step.step_id}
        self.wait(WaitingReason.WAITING_FOR_AGENT, pending)

    # --- endings ---------------------------------------------------------------------------------

    def child_ended(self, ended: ChildEnded) -> None:
        if ended.status is Status.COMPLETED:
            self.succeed(ended.result)
            return
        step = self.step
        error = {"child_intent_id": ended.child_id, "reason": ended.reason, "error": ended.error}
        if ended.status is not Status.CANCELED and self.state.tries < step.retries:
            tries = self.state.tries + 1
            self.note("intent.step_retry", attempt=tries, retry_in_seconds=step.retry_delay, **error)
            self.rest("retry")
            self.set(tries=tries, until=self.now + int(step.retry_delay * 1_000_000))
            pending = {"type": "internal", "ref": step.step_id, "name": "retry"}
            self.wait(WaitingReason.WAITING_FOR_TIME, pending)
            return
        self.fail(ended.status, error)

    def answered(self, answer: Answered) -> None:
        outcome, comment = answer.task_result.get("outcome"), answer.task_result.get("comment")
        self.note("intent.answered", outcome=outcome, comment=comment, by=answer.actor or None)
        if not answer.positive:
            reason = f"step {self.state.step_id!r} was answered {outcome!r}"
            self.fail(Status.FAILED, {"reason": reason, "outcome": outcome, "task_result": answer.task_result})
        elif self.state.phase == "gate":
            self.dispatch()
        else:
            self.succeed(answer.task_result)

    def succeed(self, result: Any) -> None:
        step = self.step
        self.note("intent.step_completed")
        self.set(last=step.step_id, results={**self.state.results, step.step_id: result})
        if step.on_success == END:
            self.complete()
        else:
            self.enter(step.on_success)

    def fail(self, status: Status, error: dict[str, Any]) -> None:
        step = self.step
        known = {k: v for k, v in error.items() if v is not None}
        self.note("intent.step_failed", step_status=str(status), on_failure=step.on_failure, **known)
        failed = {"status": str(status), **known}
        self.set(last=step.step_id, results={**self.state.results, step.step_id: failed})
        if step.on_failure is not None:
            self.enter(step.on_failure)
            return
        reason = known.get("reason") or f"it became {status}"
        if not str(reason).startswith("step "):
            reason = f"step {step.step_id!r}: {reason}"
        ending = Status.TIMED_OUT if status is Status.TIMED_OUT else Status.FAILED
        self.finish(ending, error={"step_id": step.step_id, **failed}, reason=str(reason))

    def complete(self) -> None:
        last = self.state.last
        result = {"last_step": last, "result": self.state.results.get(last), "results": self.state.results}
        self.finish(Status.COMPLETED, result=result)

    def finish(self, status: Status, *, result: Any = None, error: Any = None, reason: str | None = None) -> None:
        self.rest("done")
        self.effects.append(Finish(status=status, result=result, error=error, reason=reason))

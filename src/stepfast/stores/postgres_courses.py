"""Requests on their way through their plans, and the transaction that carries several of them at once.

Every question to the server is a journey, so plans are driven in step: what all of them ask next
travels together, and the commit travels with what they ask last. That is sound for requests that
do not touch the same intent, run or key; `subjects` says which those are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stepfast import ops
from stepfast.stores.group import Request
from stepfast.stores.plans import plan_for
from stepfast.stores.postgres_bulk import events_params, steps_params
from stepfast.stores.postgres_link import BEGIN, COMMIT, Batch, Link, Refused, Statement
from stepfast.stores.sql import Plan, Query, Row, Rows, Together

Common = dict[str, Any]


class Course:
    """Some operations under way: what they ask next (``queries``, None at the end), and their results.

    ``last``: nothing will be asked after that, so the commit may go along.
    """

    __slots__ = ("_answers_singly", "_ops", "_plan", "common", "last", "queries", "results", "topics")

    def __init__(self, todo: Iterable[ops.Op[Any]], common: Common) -> None:
        self.common = common
        self.queries: Sequence[Query | Rows] | None = None
        self.last = False
        self.results: list[Any] = []
        self.topics: list[str] = []
        self._ops = list(todo)[::-1]
        self._plan: Plan[Any] = plan_for(self._ops.pop())
        self._answers_singly = False
        self._ask(None)

    def take(self, answers: list[Any]) -> None:
        """Go on with the answers to what was asked."""
        self._ask(answers[0] if self._answers_singly else answers)

    def _ask(self, answer: Any) -> None:
        while True:
            try:
                asked = self._plan.send(answer)
            except StopIteration as stop:
                self.results.append(stop.value)
                if not self._ops:
                    self.queries = None
                    return
                self._plan = plan_for(self._ops.pop())
                answer = None
                continue
            answer = None
            if isinstance(asked, Query):
                self.queries, self.last, self._answers_singly = [asked], False, True
                return
            if isinstance(asked, Together):
                if asked.queries:
                    self.queries, self._answers_singly = asked.queries, False
                    self.last = asked.last and not self._ops
                    return
                answer = []
            else:
                self.topics.append(asked.topic)


# Their first query writes all or nothing and says which: if it did, nothing else is asked.
DECIDED_AT_ONCE = frozenset({ops.RecordStep, ops.SettleStep, ops.RenewLease, ops.PutPiece, ops.CheckWritable})


def only_query(plan: Plan[Any]) -> Query:
    """What the plan of an operation that is decided at once asks."""
    asked = next(plan)
    assert isinstance(asked, Query)  # noqa: S101 - that is what DECIDED_AT_ONCE says
    return asked


class Volley(Course):
    """Operations that are each decided at once: all of their questions travel together."""

    __slots__ = ("_plans",)

    def __init__(self, todo: Iterable[ops.Op[Any]], common: Common) -> None:
        self.common = common
        self.last = False
        self.results = []
        self.topics = []
        self._plans = [plan_for(op) for op in todo]
        self.queries = [only_query(plan) for plan in self._plans]

    def take(self, answers: list[Any]) -> None:
        for plan, answer in zip(self._plans, answers, strict=True):
            try:
                plan.send(answer)
            except StopIteration as stop:
                self.results.append(stop.value)
            else:
                raise Refused("", "an operation was not decided at once")
        self.queries = None


class Steps(Course):
    """Requests that are one step each, all recorded by one statement, or none."""

    __slots__ = ("_requests",)

    def __init__(self, requests: Sequence[Request], clock_offset: int) -> None:
        self.common = {"clock_offset": clock_offset}
        self.queries = [Query("record_steps_at_once", steps_params(requests))]
        self.last = False
        self.results = [None]
        self.topics = []
        self._requests = requests

    def take(self, answers: list[Any]) -> None:
        if len(answers[0]) != len(self._requests):
            raise Refused("", "a step of the group was not written")
        self.queries = None


def transact(
    link: Link,
    statements: dict[str, Statement],
    courses: Sequence[Course],
    *,
    begin: Statement = BEGIN,
    opening: Batch | None = None,
    closing: Callable[[], Batch] | None = None,
) -> None:
    """Carry courses to their end in one transaction; what raises has been rolled back.

    ``opening`` is done before all else; ``closing`` gives what is done beside the last writes.
    """
    try:
        opened = False
        while True:
            active = [course for course in courses if course.queries is not None]
            due = [course for course in active if not course.last]
            closes = not due
            due = due or active
            batch: Batch = [] if opened else [(begin, {}), (statements["end_if_idle"], {}), *(opening or ())]
            places = _gather(due, statements, batch)
            if closes:
                batch += closing() if closing is not None else []
                batch.append((COMMIT, {}))
            answers = link.many(batch, commits=closes and begin is BEGIN)
            opened = True
            for course, found in zip(due, places, strict=True):
                course.take([1 if place is None else answers[place] for place in found])
            if closes:
                if any(course.queries is not None for course in courses):
                    raise RuntimeError("a plan asked for more after what it called its last")
                return
    except BaseException:
        link.rollback()
        raise


def _gather(courses: Sequence[Course], statements: dict[str, Statement], batch: Batch) -> list[list[int | None]]:
    """Put what courses ask into a batch; gives where in it the answers will be. All events go as one:
    nobody looks at the answer, and if one cannot be written, nothing is."""
    places: list[list[int | None]] = []
    events: list[Row] = []
    for course in courses:
        found: list[int | None] = []
        for asked in course.queries or ():
            if isinstance(asked, Rows):
                events += [(course.common["tenant"], *row) for row in asked.rows]
                found.append(None)
            else:
                found.append(len(batch))
                batch.append((statements[asked.name], {**asked.params, **course.common}))
        places.append(found)
    if events:
        batch.append((statements["insert_events_at_once"], events_params(events)))
    return places


_Subjects = tuple[tuple[str, ...], tuple[str, ...]]


def _of_lease(op: Any) -> _Subjects:
    return (f"intent {op.lease.intent_id}",), ()


def _of_step(op: Any) -> _Subjects:
    return (), (f"intent {op.lease.intent_id}",)


def _of_new(new: ops.NewIntent) -> _Subjects:
    found = [f"intent {new.intent_id}"]
    if new.run_id is not None:
        found.append(f"run {new.run_id}")
    if new.idempotency_key is not None:
        found.append(f"key {new.idempotency_key}")
    return tuple(found), ()


def _of_opened(op: ops.OpenIntent) -> _Subjects:
    return _of_new(op.new) if op.new is not None else ((f"intent {op.intent_id}",), ())


# What an operation has for itself, and what it shares with others of its kind. What is not here goes
# alone: it may touch any intent (Claim, Sweep, Prune), or one it does not name (AnswerDecision).
_SUBJECTS: dict[type[Any], Callable[[Any], _Subjects]] = {
    ops.RecordStep: _of_step,
    ops.SettleStep: _of_step,
    ops.CreateIntent: lambda op: _of_new(op.new),
    ops.OpenIntent: _of_opened,
    ops.FinishIntent: lambda op: ((f"intent {op.intent_id}",), ()),
    ops.AppendEvent: lambda op: ((f"intent {op.intent_id}",), ()),
    ops.ReleaseIntent: _of_lease,
    ops.SuspendIntent: _of_lease,
    ops.AskDecision: _of_lease,
    ops.VoidSteps: _of_lease,
    ops.PutCheckpoint: _of_lease,
    ops.PutPiece: lambda op: ((), ()),
    ops.PutThread: lambda op: ((f"thread {op.thread_id}",), ()),
    ops.SetThreadTtl: lambda op: ((f"thread {op.thread_id}",), ()),
}


class Wave:
    """Requests that can share a transaction, because none touches what another does."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._own: set[tuple[str, str]] = set()
        self._shared: set[tuple[str, str]] = set()
        self._full = False

    def admits(self, request: Request) -> bool:
        """Take the request in if it fits. What it would touch stays reserved even if not, so that a
        later request does not overtake it."""
        if self._full:
            return False
        own: set[tuple[str, str]] = set()
        shared: set[tuple[str, str]] = set()
        for op in request.ops:
            find = _SUBJECTS.get(type(op))
            if find is None:
                fits = not self.requests
                self._full = True
                if fits:
                    self.requests.append(request)
                return fits
            mine, common = find(op)
            own.update((request.tenant, name) for name in mine)
            shared.update((request.tenant, name) for name in common)
        fits = self._own.isdisjoint(own) and self._own.isdisjoint(shared) and self._shared.isdisjoint(own)
        self._own |= own
        self._shared |= shared
        if fits:
            self.requests.append(request)
        return fits


def waves(group: Sequence[Request]) -> Iterable[list[Request]]:
    """A group in as few transactions as can be; requests that touch the same keep their order."""
    rest = list(group)
    while rest:
        wave = Wave()
        rest = [request for request in rest if not wave.admits(request)]
        yield wave.requests

"""The rules of a store in plain Python, as briefly as they can be said and without a look at the plans.

`stepfast.testing.model` compares a store with this. Time is in whole seconds, moved by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepfast import ops
from stepfast.errors import AlreadyAnswered, AlreadyFinished, Conflict, Fenced, NotFound, StepfastError
from stepfast.intents import TERMINAL, Status
from stepfast.journal import Step, StepStatus
from stepfast.ops import Lease

__all__ = ["LEASE", "Model", "Papers", "Refused", "Work"]

LEASE = 1000


class Refused(Exception):
    """What the model expects of a call that must not succeed: one of these errors."""

    def __init__(self, *kinds: type[StepfastError]) -> None:
        super().__init__(kinds)
        self.kinds = kinds


@dataclass
class Work:
    """An intent, as far as the rules speak of it."""

    intent_id: str
    journal_id: str
    most: int
    due: int | None
    key: str | None = None
    run: str | None = None
    body: bytes = b""
    deadline: int | None = None
    status: Status = Status.DELIVERED
    attempt: int = 0
    lost: int = 0
    lease: Lease | None = None
    superseded_by: str | None = None

    @property
    def finished(self) -> bool:
        return self.status in TERMINAL

    def end(self, status: Status) -> None:
        self.status, self.due, self.lease = status, None, None


@dataclass
class Entry:
    """A step of a journal."""

    row: Step
    voided: bool = False


@dataclass
class Question:
    expires: int | None
    outcome: str | None = None


@dataclass
class Papers:
    """What hangs on a journal."""

    entries: dict[tuple[str, int], Entry] = field(default_factory=dict)
    questions: dict[str, Question] = field(default_factory=dict)

    def generation(self, key: str) -> int:
        return sum(1 for (name, _), entry in self.entries.items() if name == key and entry.voided)

    def current(self, key: str) -> Entry | None:
        return self.entries.get((key, self.generation(key)))

    def begun(self) -> list[str]:
        found = [self.current(key) for key in sorted({name for name, _ in self.entries})]
        return [e.row.key for e in found if e is not None and e.row.status is StepStatus.STARTED]


class Model:
    """The rules. A method refuses before it changes anything."""

    def __init__(self) -> None:
        self.now = 0
        self.works: dict[str, Work] = {}
        self.papers: dict[str, Papers] = {}

    def find(self, intent_id: str) -> Work:
        if intent_id not in self.works:
            raise Refused(NotFound)
        return self.works[intent_id]

    def owned(self, lease: Lease) -> Work:
        work = self.find(lease.intent_id)
        if work.finished:
            raise Refused(AlreadyFinished)
        if work.lease != lease:
            raise Refused(Fenced)
        return work

    def is_late(self, work: Work) -> bool:
        return not work.finished and work.deadline is not None and work.deadline <= self.now

    def create(self, new: ops.NewIntent) -> tuple[Work, bool]:
        works = self.works.values()
        same = [w for w in works if new.idempotency_key is not None and w.key == new.idempotency_key]
        same += [w for w in works if new.run_id is not None and w.run == new.run_id and w.superseded_by is None]
        if same:
            if same[0].body != new.body_hash:
                raise Refused(Conflict)
            return same[0], True
        made = Work(
            new.intent_id,
            new.intent_id,
            new.max_delivery_attempts or 3,
            self.now + int(new.delay_seconds or 0),
            new.idempotency_key,
            new.run_id,
            new.body_hash or b"",
            None if new.ttl_seconds is None else self.now + int(new.ttl_seconds),
        )
        self.works[made.intent_id] = made
        self.papers[made.intent_id] = Papers()
        return made, False

    def advanced(self, work: Work) -> bool:
        """Whether the current attempt finished a step, and did not set it aside again."""
        entries = self.papers[work.journal_id].entries.values()
        mine = [e for e in entries if e.row.attempt == work.attempt and not e.voided]
        return any(e.row.status is not StepStatus.STARTED for e in mine)

    def lose(self, work: Work) -> None:
        work.lost = 0 if self.advanced(work) else work.lost + 1
        work.lease = None
        if work.lost >= work.most:
            work.end(Status.FAILED)

    def deliver(self, work: Work, token: str) -> Lease | None:
        if self.is_late(work):
            work.end(Status.TIMED_OUT)
            return None
        if work.lease is not None:
            self.lose(work)
            if work.finished:
                return None
        work.attempt += 1
        work.status, work.due = Status.IN_PROGRESS, self.now + LEASE
        work.lease = Lease(work.intent_id, work.attempt, token)
        return work.lease

    def claim(self, order: list[str], token: str, limit: int) -> list[Lease]:
        """``order`` is that in which the store meets the intents."""
        mine = [w for w in self.works.values() if w.lease is not None and w.lease.token == token]
        held = [w.lease for w in mine if w.lease is not None and w.due is not None and w.due > self.now]
        if held:
            return held
        taken: list[Lease] = []
        for work in (self.works[name] for name in order):
            if len(taken) < limit and work.due is not None and work.due <= self.now:
                lease = self.deliver(work, token)
                taken += [lease] if lease is not None else []
        return taken

    def open(self, intent_id: str, token: str, dead: int | None) -> Lease | None:
        work = self.find(intent_id)
        free = work.lease is None or (work.due or 0) <= self.now or dead == work.attempt
        if work.status is Status.WAITING and work.due is None:
            free = self.is_late(work)
        return self.deliver(work, token) if free and not work.finished else None

    def renew(self, lease: Lease) -> None:
        self.owned(lease).due = self.now + LEASE

    def release(self, lease: Lease, lost: bool, pause: int) -> None:
        work = self.owned(lease)
        if self.is_late(work):
            work.end(Status.TIMED_OUT)
            return
        work.lease, work.due = None, self.now + pause
        if lost:
            self.lose(work)

    def finish(self, intent_id: str, status: Status, lease: Lease | None) -> None:
        work = self.find(intent_id)
        if lease is not None:
            self.owned(lease)
        if work.finished:
            raise Refused(AlreadyFinished)
        work.end(Status.TIMED_OUT if self.is_late(work) else status)

    def record(self, lease: Lease, journal_id: str, row: Step) -> None:
        papers = self.papers.get(journal_id, Papers())
        known = papers.entries.get((row.key, row.generation))
        if known is not None and known.row == row:
            return
        work = self.find(lease.intent_id)
        if self.is_late(work):
            raise Refused(Fenced)
        self.owned(lease)
        if known is not None:
            raise Refused(Conflict)
        papers.entries[row.key, row.generation] = Entry(row)

    def settle(self, lease: Lease, journal_id: str, row: Step) -> None:
        known = self.papers.get(journal_id, Papers()).entries.get((row.key, row.generation))
        if known is not None and known.row == row:
            return
        self.owned(lease)
        if known is None or known.row.status is not StepStatus.STARTED:
            raise Refused(Conflict)
        known.row = row

    def void(self, lease: Lease, journal_id: str, keys: list[str]) -> int:
        self.owned(lease)
        found = [entry for entry in map(self.papers[journal_id].current, keys) if entry is not None]
        for entry in found:
            entry.voided = True
        return len(found)

    def ask(self, lease: Lease, journal_id: str, key: str, expires: int | None) -> None:
        self.owned(lease)
        due = None if expires is None else self.now + expires
        self.papers[journal_id].questions.setdefault(key, Question(due))

    def suspend(self, lease: Lease, journal_id: str, keys: list[str]) -> None:
        work = self.owned(lease)
        questions = self.papers[journal_id].questions
        ready = any(questions[key].outcome is not None for key in keys if key in questions)
        work.status, work.lease, work.due = Status.WAITING, None, self.now if ready else None

    def carrier(self, journal_id: str) -> Work | None:
        mine = [w for w in self.works.values() if w.journal_id == journal_id and w.superseded_by is None]
        return mine[0] if mine else None

    def answer(self, journal_id: str, key: str, outcome: str) -> None:
        work = self.carrier(journal_id)
        question = self.papers[journal_id].questions.get(key) if journal_id in self.papers else None
        if work is None or question is None:
            raise Refused(NotFound)
        if question.outcome is not None:
            if question.outcome != outcome:
                raise Refused(AlreadyAnswered)
            return
        if work.finished:
            raise Refused(AlreadyFinished)
        self._answered(work, question, outcome)

    def _answered(self, work: Work | None, question: Question, outcome: str) -> None:
        question.outcome = outcome
        if work is not None and work.status is Status.WAITING:
            work.due = self.now

    def revive(self, intent_id: str, fresh: str) -> Work:
        old = self.find(intent_id)
        if old.superseded_by is not None or not old.finished or old.status is Status.COMPLETED:
            raise Refused(Conflict)
        old.superseded_by = fresh
        self.works[fresh] = Work(
            fresh, old.journal_id, old.most, self.now, run=old.run, body=old.body, attempt=old.attempt
        )
        return self.works[fresh]

    def sweep(self) -> int:
        late = [work for work in self.works.values() if self.is_late(work)]
        for work in late:
            work.end(Status.TIMED_OUT)
        exhausted = [w for w in self.works.values() if w.lease and w.due is not None and w.due <= self.now]
        exhausted = [w for w in exhausted if w.lost + 1 >= w.most and not self.advanced(w)]
        for work in exhausted:
            self.lose(work)
        expired = 0
        for journal_id, papers in self.papers.items():
            carrier = self.carrier(journal_id)
            for question in papers.questions.values() if carrier is not None else ():
                if question.outcome is None and question.expires is not None and question.expires <= self.now:
                    self._answered(carrier, question, "expired")
                    expired += 1
        return len(late) + len(exhausted) + expired

    def prune(self, order: list[str], keep: int, statuses: list[Status], limit: int) -> int:
        """``order`` is that of the endings, oldest first."""
        ended = [name for name in order if not statuses or self.works[name].status in statuses]
        going = ended[: max(0, len(ended) - keep)][:limit]
        for name in going:
            journal_id = self.works.pop(name).journal_id
            if not any(work.journal_id == journal_id for work in self.works.values()):
                del self.papers[journal_id]
        return len(going)

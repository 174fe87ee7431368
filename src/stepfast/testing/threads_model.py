"""Threads as a plain model keeps them, in dictionaries that are copied whole; a store must tell the same story."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

from stepfast.errors import Conflict
from stepfast.ops import CopyThread, DeleteThread, DropCheckpoints, ListCheckpoints, ListThreads, PutThread, ReadThread
from stepfast.ops.threads import NewCheckpoint, Piece, Span, Write, Writes
from stepfast.testing.contract_kit import Driver

NAMES = ("a", "b", "c")
SPACES = ("", "child")
LANES = ("l", "m")
IDS = tuple(f"c{n}" for n in range(8))


class Refusal(Exception):
    """The model's Conflict; says what is stale."""


class Model:
    """One thread."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.heads: dict[str, str | None] = {}
        self.tips: dict[tuple[str, str], int] = {}
        self.pieces: dict[tuple[str, str, int], Piece] = {}
        self.checkpoints: dict[tuple[str, str], NewCheckpoint] = {}  # in the order they were first put
        self.writes: dict[tuple[str, str, str], dict[int, Write]] = {}

    def put(self, op: PutThread) -> None:
        if op.home != self.home:
            raise Refusal("home")
        before = dict(self.pieces)
        for piece in op.pieces:
            lane = (op.ns, piece.lane)
            if piece.n == self.tips.get(lane, 0):
                self.tips[lane] = piece.n + piece.count
                self.pieces[(*lane, piece.n)] = piece
            elif before.get((*lane, piece.n)) != piece:
                raise Refusal("lane")
        if op.checkpoint is not None:
            self._put_checkpoint(op.checkpoint, op.fork)
        for writes in op.writes:
            known = self.writes.setdefault((writes.ns, writes.checkpoint_id, writes.task_id), {})
            for write in writes.writes:
                if write.idx < 0 or write.idx not in known:
                    known[write.idx] = write

    def _put_checkpoint(self, new: NewCheckpoint, fork: bool) -> None:
        key = (new.ns, new.checkpoint_id)
        there = self._elements(new.ns)
        if not all((span.lane, n) in there for span in new.spans for n in range(span.start, span.end)):
            raise Refusal("lane")
        if any(span.end > self.tips.get((new.ns, span.lane), 0) for span in new.spans):
            raise Refusal("lane")
        if key not in self.checkpoints:
            if not fork and self.heads.get(new.ns) != new.parent_id:
                raise Refusal("head")
            self.heads[new.ns] = new.checkpoint_id
        self.checkpoints[key] = new

    def _elements(self, ns: str) -> set[tuple[str, int]]:
        return {
            (piece.lane, n)
            for (space, _, _), piece in self.pieces.items()
            if space == ns
            for n in range(piece.n, piece.n + piece.count)
        }

    def drop(self, places: list[tuple[str, str]]) -> tuple[int, bool]:
        """How many checkpoints went, and whether nothing is left by that."""
        dropped = [place for place in dict.fromkeys(places) if self.checkpoints.pop(place, None) is not None]
        gone = {key for key in self.writes if key[:2] in places}
        for key in gone:
            del self.writes[key]
        if dropped or gone:
            for ns in {ns for ns, _ in places}:
                self._cut_back(ns)
        return len(dropped), bool(dropped or gone) and self.empty

    def _cut_back(self, ns: str) -> None:
        left = [new for (space, _), new in self.checkpoints.items() if space == ns]
        self.heads[ns] = left[-1].checkpoint_id if left else None
        needed = {(span.lane, n) for new in left for span in new.spans for n in range(span.start, span.end)}
        for key, piece in list(self.pieces.items()):
            if key[0] == ns and not any((piece.lane, n) in needed for n in range(piece.n, piece.n + piece.count)):
                del self.pieces[key]

    @property
    def empty(self) -> bool:
        return not (self.checkpoints or self.pieces or any(self.writes.values()))

    def history(self) -> list[tuple[str, str, bytes]]:
        return [(*key, new.head) for key, new in reversed(self.checkpoints.items())]

    def view(self, ns: str) -> tuple[Any, ...]:
        head = self.heads.get(ns)
        new = None if head is None else self.checkpoints[(ns, head)]
        needed = [] if new is None else new.spans
        pieces = [
            piece
            for key, piece in sorted(self.pieces.items())
            if key[0] == ns
            and any(s.lane == piece.lane and s.start < piece.n + piece.count and piece.n < s.end for s in needed)
        ]
        writes = {
            task: [known[idx] for idx in sorted(known)]
            for (space, at, task), known in sorted(self.writes.items())
            if (space, at) == (ns, head) and known
        }
        tips = {lane: tip for (space, lane), tip in self.tips.items() if space == ns}
        return self.home, tips, new, pieces, writes


class Models:
    """All threads of a tenant."""

    def __init__(self) -> None:
        self.threads: dict[str, Model] = {}

    def do(self, op: Any) -> Any:
        """What the operation gives, or raises."""
        if isinstance(op, PutThread):
            made = deepcopy(self.threads.get(op.thread_id)) or Model(op.home)
            made.put(op)
            self.threads[op.thread_id] = made
            return None
        if isinstance(op, CopyThread):
            if op.source in self.threads and op.target not in self.threads:
                self.threads[op.target] = deepcopy(self.threads[op.source])
            return None
        if isinstance(op, DeleteThread):
            return self.threads.pop(op.thread_id, None) is not None
        thread = self.threads.get(op.thread_id)
        if thread is None:
            return 0
        dropped, gone = thread.drop(op.drop)
        if gone:
            del self.threads[op.thread_id]
        return dropped


def some_put(rng: Random, models: Models, serial: int) -> PutThread:
    """A put that mostly fits, and sometimes does not."""
    name, ns = rng.choice(NAMES), rng.choice(SPACES)
    thread = models.threads.get(name)
    tips = {lane: thread.tips.get((ns, lane), 0) if thread else 0 for lane in LANES}
    pieces = []
    for _ in range(rng.randrange(3)):
        lane, count = rng.choice(LANES), rng.randint(1, 3)
        wrong = rng.random() < 0.05
        pieces.append(Piece(lane, max(0, tips[lane] - 1) if wrong else tips[lane], count, b"p%d" % serial))
        tips[lane] += 0 if wrong else count
    new = None
    if rng.random() < 0.8:
        spans = []
        for lane in rng.sample(LANES, rng.randint(0, 2)):
            low, high = sorted((rng.randint(0, tips[lane]), rng.randint(0, tips[lane])))
            spans.append(Span(lane, low, high))
        head = thread.heads.get(ns) if thread else None
        new = NewCheckpoint(
            ns=ns,
            checkpoint_id=rng.choice(IDS),
            parent_id=head if rng.random() < 0.9 else rng.choice(IDS),
            spans=spans,
            head=b"h%d" % serial,
        )
    writes = [
        Writes(
            ns=ns,
            checkpoint_id=rng.choice(IDS),
            task_id=rng.choice(("t1", "t2")),
            writes=[Write(rng.randint(-2, 2), "ch", b"w%d" % serial)],
        )
        for _ in range(rng.randrange(3))
    ]
    home = thread.home if thread and rng.random() < 0.97 else f"home {serial}"
    fork = rng.random() < 0.3
    return PutThread(thread_id=name, home=home, ns=ns, pieces=pieces, checkpoint=new, fork=fork, writes=writes)


def some_operation(rng: Random, models: Models, serial: int) -> Any:
    chance = rng.random()
    if chance < 0.75 or not models.threads:
        return some_put(rng, models, serial)
    name = rng.choice(sorted(models.threads))
    if chance < 0.87:
        target = rng.choice([other for other in NAMES if other != name])
        if target in models.threads:
            return DeleteThread(thread_id=target)
        return CopyThread(source=name, target=target)
    if chance < 0.97:
        places = sorted(models.threads[name].checkpoints)
        chosen = rng.sample(places, rng.randint(0, len(places)))
        return DropCheckpoints(thread_id=name, drop=[*chosen, ("", rng.choice(IDS))])
    return DeleteThread(thread_id=name)


async def walk(driver: Driver, rng: Random, steps: int) -> None:
    """Do random operations to a store and to the model, and find them agreed after each."""
    models = Models()
    for serial in range(steps):
        op = some_operation(rng, models, serial)
        try:
            expected: Any = models.do(op)
        except Refusal as refusal:
            expected = str(refusal)
        try:
            actual = await driver.do(op)
        except Conflict as error:
            actual = error.details.get("stale")
        assert actual == expected or isinstance(op, PutThread), (op, actual, expected)
        assert isinstance(actual, str) == isinstance(expected, str), (op, actual, expected)
        await compare(driver, models, op)


async def compare(driver: Driver, models: Models, op: Any) -> None:
    listed = await driver.do(ListThreads())
    assert sorted(info.thread_id for info in listed.items) == sorted(models.threads), op
    counts = {info.thread_id: info.checkpoints for info in listed.items}
    for name, thread in models.threads.items():
        assert counts[name] == len(thread.checkpoints), op
        page = await driver.do(ListCheckpoints(thread_id=name, limit=1000, values=False))
        told = [(i.checkpoint.ns, i.checkpoint.checkpoint_id, i.checkpoint.head) for i in page.items]
        assert told == thread.history(), op
        for ns in SPACES:
            view = await driver.do(ReadThread(thread_id=name, ns=ns))
            assert view is not None
            found = view.checkpoint
            assert (
                view.home,
                view.tips,
                None if found is None else found.head,
                view.pieces,
                {one.task_id: one.writes for one in view.writes},
            ) == _bare(thread.view(ns)), (op, ns)


def _bare(seen: tuple[Any, ...]) -> tuple[Any, ...]:
    home, tips, new, pieces, writes = seen
    return home, tips, None if new is None else new.head, pieces, writes

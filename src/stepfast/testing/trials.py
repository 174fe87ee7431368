"""The trials of a crash matrix: one scene played in forked children, killed at one place each, and played to its end.

All of this runs in a process that has imported the scene's framework and has no threads: see ``matrix``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import random
import select
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepfast import NotFound, Stepfast, Suspended
from stepfast.testing.lines import Boundaries, choose, every_failpoint, every_line
from stepfast.testing.processes import Child, Ended, Note, in_shards
from stepfast.testing.scenes import WAITING, Scene, Stage
from stepfast.testing.verdicts import Expected, Kind, expected_of, judge, unjudged

# A framework that is broken at each point would fill the disk with evidence.
MOST_FINDINGS = 10


@dataclass(frozen=True)
class Cut:
    """Where a life is killed: at the ``hit``-th meeting of a label, or after some seconds of its time.

    A hit of a line counts all lines: the label is empty.
    """

    life: int
    label: str = ""
    hit: int = 0
    seconds: float | None = None

    @property
    def is_line(self) -> bool:
        return not self.label and self.seconds is None

    def __str__(self) -> str:
        where = f"{self.label}#{self.hit}" if self.label else f"line {self.hit}"
        if self.seconds is not None:
            where = f"{self.seconds * 1000:.1f} ms"
        return where if self.life == 1 else f"{where} of life {self.life}"


class Counting:
    """Counts the boundaries that a process passes, and kills it at the chosen one."""

    def __init__(self, cut: Cut | None) -> None:
        self.cut = cut
        self.labels: list[str] = []
        self.hits: Counter[str] = Counter()
        self.lock = threading.RLock()  # a finaliser may meet a boundary while its thread is in here

    def hit(self, label: str) -> None:
        with self.lock:
            self.labels.append(label)
            self.hits[label] += 1
            cut = self.cut
            if cut is None or cut.seconds is not None or cut.label not in ("", label):
                return
            if cut.hit == (self.hits[label] if cut.label else len(self.labels)):
                os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def on(self, at: Boundaries) -> Iterator[None]:
        at.start(self.hit)
        try:
            yield
        finally:
            at.stop()


class Broken(Exception):
    """A trial that cannot go on: an exception in a life, or a hang."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(text)
        self.kind: Kind = kind


@dataclass
class Trial:
    """One folder, one run, and all lives in it."""

    matrix: Trials
    stage: Stage
    kills: int = 0

    def live(self, cut: Cut | None, by_line: bool = False) -> Ended:
        """One process that plays the scene; its boundaries are the named ones, or the lines of the packages."""
        matrix, stage = self.matrix, self.stage

        def body(note: Note) -> None:
            counting = Counting(cut)
            stacks = (stage.folder / "stacks").open("w")
            faulthandler.dump_traceback_later(matrix.timeout * 0.9, file=stacks)
            with counting.on(every_line(*matrix.packages) if by_line else every_failpoint()):
                try:
                    result = matrix.scene.play(stage if by_line else replace(stage, hit=counting.hit))
                except Suspended:
                    result = WAITING
            note({"result": result, "labels": counting.labels})

        child = Child(body)
        if cut is not None and cut.seconds is not None:
            time.sleep(cut.seconds)
            child.kill()
        return self.settled(child)

    def settled(self, child: Child) -> Ended:
        ended = child.wait(self.matrix.timeout)
        if ended.error.startswith("still running"):
            raise Broken("hang", f"life {self.stage.life} was {ended.error}; the file stacks shows where")
        if ended.code not in (0, -signal.SIGKILL):
            raise Broken("error", f"life {self.stage.life} ended with\n{ended.why}")
        return ended

    def to_the_end(self, cuts: Sequence[Cut], by_line: bool = False) -> list[dict[str, Any]]:
        """Lives until the run is done, killed where the cuts say; what each life that was not killed noted."""
        noted: list[dict[str, Any]] = []
        waiting = list(cuts)
        for life in range(1, self.matrix.lives + 1):
            self.stage = replace(self.stage, life=life)
            cut = next((cut for cut in waiting if cut.life == life), None)
            began = time.monotonic()
            ended = self.live(cut, by_line)
            if ended.code:
                self.kills += 1
                self.stage.tell(cut=str(cut), finished=self.finished())
                continue
            noted.append({"seconds": time.monotonic() - began, **ended.notes[-1]})
            if noted[-1]["result"] != WAITING:
                self.stage.tell(end=noted[-1]["result"])
                return noted
            self.stage.tell(waits=self.answer())
        raise Broken("hang", f"it was not done after {self.matrix.lives} lives")

    def again(self) -> None:
        """A run that has ended does nothing more, and has the same result."""
        self.stage = replace(self.stage, life=self.stage.life + 1)
        self.stage.tell(end=self.live(None).notes[-1]["result"])

    def finished(self) -> list[str]:
        names = self.matrix.scene.finished
        return list(self.settled(Child(lambda note: note(list(names(self.stage))))).notes[-1])

    def answer(self) -> list[Any]:
        """Answer all that the run waits for, as a person would who knows what has happened."""
        stage, rule, runs = self.stage, self.matrix.scene.answer, self.matrix.scene.runs

        def body(note: Note) -> None:
            keys: list[str] = []
            with Stepfast(stage.url) as sf:
                for run_id in runs(stage):
                    asked: list[dict[str, Any]] = []
                    with contextlib.suppress(NotFound):
                        asked = sf.decisions(run_id)
                    for question in asked:
                        sf.answer(run_id, key=question["key"], actor="matrix", **rule(stage, question))
                        keys.append(question["key"])
            note(keys)

        keys = list(self.settled(Child(body)).notes[-1])
        if not keys:
            raise Broken("hang", "the run waits, and no question is open")
        return keys


@dataclass(frozen=True)
class Trials:
    """A scene on a store, with all limits: what a request to the zygote asks for."""

    scene: Scene
    store: str
    options: Mapping[str, Any]
    base: Path
    seed: int
    jobs: int
    lives: int
    timeout: float
    packages: tuple[str, ...]

    def trial(self, name: str) -> Trial:
        folder = self.base / name
        folder.mkdir()
        url = f"sqlite:///{folder}/store.db?durability=process" if self.store == "sqlite" else self.store
        # On a shared store each trial is a run of its own.
        run_id = f"{self.base.name}-{name}"
        return Trial(self, Stage(folder, url, run_id, dict(self.options)))

    def undisturbed(self) -> tuple[list[list[str]], list[float], Expected, list[str]]:
        """Labels and duration of each life, what was done, and what could never be judged."""
        trial = self.trial("undisturbed")
        noted = trial.to_the_end(())
        story = trial.stage.story()
        expected = expected_of(story, noted[-1]["result"], self.scene.once, self.scene.at_once)
        blind = unjudged(story, expected, trial.finished())
        trial.again()
        for kind, text in judge(trial.stage.story(), expected):
            raise Broken(kind, f"with no kill at all: {text}")
        labels = [life["labels"] for life in noted]
        return labels, [life["seconds"] for life in noted], expected, blind

    def killed(self, name: str, cuts: Sequence[Cut], expected: Expected) -> dict[str, Any]:
        """One trial: its kills and lives, and what was wrong with it."""
        trial = self.trial(name)
        found: list[tuple[str, str]] = []
        try:
            trial.to_the_end(cuts, by_line=cuts[0].is_line)
            trial.again()
        except Broken as broken:
            found.append((broken.kind, str(broken)))
        found += judge(trial.stage.story(), expected)
        if not found:
            shutil.rmtree(trial.stage.folder)
        at_text = " and then ".join(map(str, cuts))
        findings = [{"kind": k, "at": at_text, "text": text, "folder": str(trial.stage.folder)} for k, text in found]
        return {"at": at_text, "kills": trial.kills, "lives": trial.stage.life, "findings": findings}

    def points(self, labels: Sequence[Sequence[str]]) -> list[Cut]:
        """Each boundary that the undisturbed run passed, with its occurrence in its life."""
        found = []
        for life, met in enumerate(labels, 1):
            hits: Counter[str] = Counter()
            for label in met:
                hits[label] += 1
                found.append(Cut(life, label, hits[label]))
        return found

    def count_lines(self) -> int:
        """How many lines of the packages the first life of an undisturbed run executes."""
        return len(self.trial("lines").to_the_end((), by_line=True)[0]["labels"])

    def run(self, points: int | None, moments: int, lines: int, kills: int) -> dict[str, Any]:
        """All trials, several at a time; the fields of a Report."""
        labels, seconds, expected, blind = self.undisturbed()
        known = self.points(labels)
        chosen = [known[n - 1] for n in choose([cut.label for cut in known], 1, points, None, self.seed)]
        dice = random.Random(self.seed)
        for _ in range(moments):
            life = dice.randrange(len(seconds))
            chosen.append(Cut(life + 1, seconds=dice.uniform(0, seconds[life])))
        if lines:
            most = self.count_lines()
            chosen += [Cut(1, hit=dice.randint(1, most)) for _ in range(lines)]

        def cuts(cut: Cut) -> list[Cut]:
            """The place, and for further kills a boundary each, in the lives that follow."""
            more = [replace(dice.choice(known), life=cut.life + n) for n in range(1, kills)]
            return [cut, *(more if cut.label else ())]

        plans = [cuts(cut) for cut in chosen]
        found = in_shards(self.jobs, lambda shard, note: self._work(plans, shard, expected, note))
        found.sort(key=lambda one: one["number"])
        return {
            "points": [str(cut) for cut in known],
            "tried": [one["at"] for one in found],
            "missed": [one["at"] for one in found if not one["kills"]],
            "kills": sum(one["kills"] for one in found),
            "lives": sum(one["lives"] for one in found),
            "calls": dict(expected.calls),
            "unjudged": blind,
            "findings": [finding for one in found for finding in one["findings"]],
        }

    def _work(self, plans: Sequence[Sequence[Cut]], shard: int, expected: Expected, note: Note) -> None:
        findings = 0
        for number in range(shard, len(plans), self.jobs):
            done = self.killed(f"trial-{number:04d}", plans[number], expected)
            note({"number": number, **done})
            findings += bool(done["findings"])
            if findings >= MOST_FINDINGS or abandoned():
                return


def abandoned() -> bool:
    """Whether the process at the other end of standard input is gone."""
    poll = select.poll()
    poll.register(sys.__stdin__.fileno() if sys.__stdin__ else 0, select.POLLHUP)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def warm_up(trials: Trials, play: Callable[[Stage], object]) -> bool:
    """Play a scene in this process, so that what is built at first use is built once; whether that was safe.

    It is safe to fork from a process afterwards only if no thread is left: that is tried in a child first.
    """

    def body(folder: str) -> None:
        with contextlib.suppress(Suspended):
            play(trials.trial(folder).stage)

    def attempt(note: Note) -> None:
        known = set(sys.modules)
        body("warm-1")
        note({"threads": threads(2.0), "modules": [name for name in sys.modules if name not in known]})

    ended = Child(attempt).wait(trials.timeout)
    if ended.code:
        raise Broken("error", f"with no kill at all: {ended.why}")
    for name in ended.notes[-1]["modules"]:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    safe = bool(ended.notes[-1]["threads"] == 1)
    if safe:
        body("warm-2")
    if threads(30.0) > 1:
        raise RuntimeError(f"this process must not be forked, since it has threads: {threading.enumerate()}")
    return safe


def threads(patience: float) -> int:
    """How many threads this process has, with those of C libraries where the system shows them; some may be ending."""
    tasks = Path("/proc/self/task")
    until = time.monotonic() + patience
    while True:
        found = len(list(tasks.iterdir())) if tasks.is_dir() else threading.active_count()
        if found == 1 or time.monotonic() >= until:
            return found
        time.sleep(0.005)

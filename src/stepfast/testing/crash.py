"""Kill a scenario at every boundary, start it again, and check what it left behind.

A scenario is a function of a folder: it opens its store there, does its work, and records what it did to
the outside world in ``Effects(folder)``. It runs in forked children, so that nothing (a connection, a lock,
a thread) passes from one life to the next, and so that a life costs milliseconds, not an interpreter's start.
Call ``explore`` and ``random_kills`` from a process without other threads: only the calling one is forked.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import selectors
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepfast.testing.lines import Action, Boundaries, Point, Trigger, choose, points_of
from stepfast.testing.processes import (
    Body,
    Child,
    CrashTestFailed,
    Effects,
    Ended,
    Note,
    Unsupported,
    in_shards,
    scratch,
)

__all__ = [
    "Explored",
    "Killed",
    "RandomKills",
    "explore",
    "random_kills",
    "run_until_killed",
]


@dataclass(frozen=True)
class Story:
    """What is run, how it is run again, and what must hold afterwards."""

    scenario: Body
    check: Body
    recovery: Body
    setup: Body | None
    after_kill: Body | None
    recover: int
    timeout: float
    base: Path

    def __post_init__(self) -> None:
        if self.recover < 1:
            raise ValueError("recover must be at least 1: a crash test starts the scenario again")

    def folder(self, name: str) -> Path:
        """A fresh work folder, as the set-up left it."""
        folder = self.base / name
        if self.setup is None:
            folder.mkdir()
        else:
            shutil.copytree(self.base / "template", folder)
        return folder

    def alone(self, body: Body, folder: Path) -> Ended:
        return Child(lambda note: body(folder)).wait(self.timeout)

    def rehearse(self) -> list[str] | None:
        """Set up, run once with no crash, and import here what that run imported; its failure, if any."""
        if self.setup is not None:
            (self.base / "template").mkdir()
            ended = self.alone(self.setup, self.base / "template")
            if ended.code:
                return ["the set-up", ended.why]
        folder = self.folder("rehearsal")
        known = set(sys.modules)

        def run(note: Note) -> None:
            self.scenario(folder)
            note({"modules": [name for name in sys.modules if name not in known]})

        ended = Child(run).wait(self.timeout)
        if ended.code:
            return ["the scenario with no crash", ended.why]
        for name in ended.notes[-1]["modules"]:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        failure = self.aftermath(folder)
        if failure:
            return [f"{failure[0]}, with no crash at all", failure[1]]
        shutil.rmtree(folder)
        return None

    def aftermath(self, folder: Path) -> list[str] | None:
        """Recover and check as often as asked; ``[stage, reason]`` of the first thing that is wrong."""
        before: list[str] | None = None
        for turn in range(1, self.recover + 1):
            ended = self.alone(self.recovery, folder)
            if ended.code:
                return [f"recovery {turn}", ended.why]
            ended = self.alone(self.check, folder)
            if ended.code:
                return [f"the check after recovery {turn}", ended.why]
            try:
                after = Effects(folder).lines()
            except CrashTestFailed as torn:
                return [f"recovery {turn}", str(torn)]
            if before is not None and after != before:
                return [f"recovery {turn}", f"nothing was left to do, yet it did {after[len(before) :]}"]
            before = after
        return None

    def judge(self, folder: Path, killed: bool = True) -> list[str] | None:
        """The aftermath of a cut, with the state at the cut kept beside it while it lasts."""
        evidence = folder.with_name(f"{folder.name}-as-cut")
        shutil.copytree(folder, evidence)
        failure = None
        if killed and self.after_kill is not None:
            ended = self.alone(self.after_kill, folder)
            failure = ["the check right after the cut", ended.why] if ended.code else None
        failure = failure or self.aftermath(folder)
        if failure is None:
            shutil.rmtree(evidence)
            shutil.rmtree(folder)
        return failure


def in_server(base: Path, name: str, serve: Callable[[Note], object]) -> dict[str, Any]:
    """Run a whole exploration in a child (warmed with the scenario's imports) and give its last note."""
    try:
        answer: dict[str, Any] = in_shards(1, lambda _, note: serve(note))[-1]
    except BaseException:
        shutil.rmtree(base, ignore_errors=True)
        raise
    failure = answer.get("failure")
    if failure is None:
        shutil.rmtree(base, ignore_errors=True)
        return answer
    where, stage, why = failure["where"], failure["stage"], failure["why"]
    text = f"{name}: {stage} failed{where and f', cut at {where}'}\n\n{why.rstrip()}\n"
    kept = base / failure["folder"]
    if not kept.is_dir():
        shutil.rmtree(base, ignore_errors=True)
        raise CrashTestFailed(text, where=where, stage=stage)
    text += f"\nkept: {kept}"
    if kept.with_name(f"{kept.name}-as-cut").is_dir():
        text += f"\nas the cut left it: {kept}-as-cut"
    if "again" in failure:
        text += f"\nto run only this: {failure['again']}"
    raise CrashTestFailed(text, where=where, stage=stage, folder=kept)


def failed(folder: str, where: str, stage: str, why: str, again: str = "") -> dict[str, str]:
    found = {"folder": folder, "where": where, "stage": stage, "why": why}
    return found | {"again": again} if again else found


def _name(body: Body) -> str:
    return getattr(body, "__name__", type(body).__name__)


# Every boundary


@dataclass(frozen=True)
class Explored:
    """What was covered: ``points`` exist, ``tried`` were cut at, ``kills`` of those cuts were reached."""

    points: tuple[Point, ...]
    tried: tuple[Point, ...]
    kills: int
    missed: int
    seconds: float

    @property
    def labels(self) -> frozenset[str]:
        """The distinct failpoints and lines that were tried."""
        return frozenset(point.label for point in self.tried)

    def __str__(self) -> str:
        places = len({point.label for point in self.points})
        return (
            f"{len(self.tried)} of {len(self.points)} points tried, {len(self.labels)} of {places} places, "
            f"{self.kills} cuts, {self.missed} not reached, {self.seconds:.1f} s"
        )


@dataclass(frozen=True)
class _Cuts:
    story: Story
    at: Boundaries
    action: Action
    kills: int
    seed: int

    def count(self) -> tuple[list[str], list[str] | None]:
        """The labels of every boundary that an uncut run meets, in order; or why there are none."""
        folder = self.story.folder("count")

        def run(note: Note) -> None:
            trigger = Trigger(None, "kill", note)
            with trigger.on(self.at):
                self.story.scenario(folder)
            note({"labels": trigger.labels})

        ended = Child(run).wait(self.story.timeout)
        if ended.code:
            return [], ["counting the points", ended.why]
        shutil.rmtree(folder)
        labels: list[str] = ended.notes[-1]["labels"]
        if not labels:
            return [], ["counting the points", "no boundary was met, so nothing would be tested"]
        return labels, None

    def cut(self, body: Body, folder: Path, number: int) -> Ended:
        """Run a body to the given boundary; under ``pause``, another life recovers before it goes on."""

        def run(note: Note) -> None:
            with Trigger(number, self.action, note).on(self.at):
                body(folder)

        child = Child(run)
        if self.action == "pause" and child.stopped(self.story.timeout):
            try:
                # It may fail: the paused life may hold a lock. What counts is the aftermath.
                self.story.alone(self.story.recovery, folder)
            finally:
                child.resume()
        return child.wait(self.story.timeout)

    def trial(self, number: int, total: int) -> dict[str, Any]:
        name = f"point-{number:06d}"
        folder = self.story.folder(name)
        ended = self.cut(self.story.scenario, folder, number)
        where = [note["at"] for note in ended.notes if "at" in note]
        reached = bool(where)
        failure = self._ended_badly(ended, reached)
        dice = random.Random(f"{self.seed}/{number}")
        for _ in range(self.kills - 1):
            if failure is None and reached:
                ended = self.cut(self.story.recovery, folder, dice.randint(1, total))
                again = [note["at"] for note in ended.notes if "at" in note]
                failure = self._ended_badly(ended, bool(again))
                where += [f"then at {place}" for place in again]
        failure = failure or self.story.judge(folder, reached)
        answer: dict[str, Any] = {"number": number, "reached": reached}
        if failure:
            place = ", ".join(where) or f"no point: the run ended before point {number}"
            hint = f"explore(…, only=[{number}], kills={self.kills}, seed={self.seed})"
            answer["failure"] = failed(name, place, failure[0], failure[1], hint)
        return answer

    def _ended_badly(self, ended: Ended, reached: bool) -> list[str] | None:
        if ended.code == 0 or (reached and self.action != "kill"):
            return None
        if reached and ended.code == -signal.SIGKILL and not ended.error:
            return None
        return ["the scenario itself", ended.why]


def explore(
    scenario: Body,
    check: Body,
    *,
    at: Boundaries,
    action: Action = "kill",
    recover: int = 2,
    kills: int = 1,
    recovery: Body | None = None,
    setup: Body | None = None,
    after_kill: Body | None = None,
    stride: int = 1,
    max_points: int | None = None,
    only: Sequence[int] | None = None,
    seed: int = 0,
    jobs: int = 2,
    timeout: float = 60.0,
    folder: Path | None = None,
) -> Explored:
    """Cut the scenario at each boundary in turn, run it again ``recover`` times, and check after each.

    ``action`` is what happens there: ``kill`` (SIGKILL), ``raise`` (``Injected``), or ``pause``: the process
    is stopped, another one recovers, then the stopped one goes on as a zombie. With ``kills=2`` the recovery
    is cut too, at a boundary drawn from the seed, before it may run whole.

    The last recovery must record no effect that the first did not. ``recovery`` defaults to the scenario
    itself; ``setup`` runs once, and every trial starts from a copy of what it left; ``after_kill`` checks
    the folder as the cut left it. ``stride``, ``max_points`` (drawn from the seed, each place once before any
    twice) and ``only`` make it shorter, and the result says how much was left out.

    Raises CrashTestFailed at the first point that breaks, keeping its folder and a copy as the cut left it.
    """
    started = time.monotonic()
    base = scratch(folder, "explore")
    plot = Story(scenario, check, recovery or scenario, setup, after_kill, recover, timeout, base)
    cuts = _Cuts(plot, at, action, kills, seed)

    def serve(note: Note) -> None:
        failure = plot.rehearse()
        if failure:
            note({"failure": failed("rehearsal", "", *failure)})
            return
        labels, failure = cuts.count()
        if failure:
            note({"failure": failed("count", "", *failure)})
            return
        numbers = choose(labels, stride, max_points, only, seed)

        def work(shard: int, tell: Note) -> None:
            parent = os.getppid()
            for number in numbers[shard::jobs]:
                answer = cuts.trial(number, len(labels))
                tell(answer)
                if "failure" in answer or os.getppid() != parent:
                    return

        answers = sorted(in_shards(jobs, work), key=lambda answer: int(answer["number"]))
        broken = next((answer["failure"] for answer in answers if "failure" in answer), None)
        tried = [answer["number"] for answer in answers]
        missed = [answer["number"] for answer in answers if not answer["reached"]]
        note({"failure": broken, "labels": labels, "tried": tried, "missed": missed})

    answer = in_server(base, _name(scenario), serve)
    points = points_of(answer["labels"])
    tried = tuple(points[number - 1] for number in answer["tried"])
    missed = len(answer["missed"])
    return Explored(tuple(points), tried, len(tried) - missed, missed, time.monotonic() - started)


# Random moments


@dataclass(frozen=True)
class RandomKills:
    """``kills`` of ``trials`` lives ended by SIGKILL before they were done; none of them broke anything."""

    kills: int
    trials: int
    seconds: float

    @property
    def bound(self) -> float:
        """No failure in so many kills: the failure rate is below this with 95 % confidence."""
        return 3 / self.kills if self.kills else 1.0

    def __str__(self) -> str:
        runs = f"{self.kills} kills in {self.trials} runs, {self.seconds:.1f} s"
        return f"{runs}, failure rate below {self.bound:.2%} (95 % confidence)"


def random_kills(
    scenario: Body,
    check: Body,
    n: int,
    seed: int,
    *,
    recover: int = 2,
    recovery: Body | None = None,
    setup: Body | None = None,
    after_kill: Body | None = None,
    jobs: int = 2,
    timeout: float = 60.0,
    folder: Path | None = None,
) -> RandomKills:
    """Kill the scenario ``n`` times, each at a random moment of its measured duration; recover and check.

    The moments come from the seed, the schedule of the machine does not: a failure keeps its folder as the
    kill left it. Runs that were done before their kill do not count; there are at most three for each kill.
    """
    started = time.monotonic()
    base = scratch(folder, "kills")
    plot = Story(scenario, check, recovery or scenario, setup, after_kill, recover, timeout, base)

    def serve(note: Note) -> None:
        failure = plot.rehearse()
        if failure:
            note({"failure": failed("rehearsal", "", *failure)})
            return
        lasts = statistics.median(_seconds(plot, f"measure-{turn}") for turn in range(5))

        def work(shard: int, tell: Note) -> None:
            parent = os.getppid()
            wanted = len(range(shard, n, jobs))
            dice = random.Random(f"{seed}/{shard}")
            killed = trials = 0
            span = lasts
            while killed < wanted and trials < 3 * wanted and os.getppid() == parent:
                trials += 1
                name = f"kill-{shard}-{trials:06d}"
                delay = dice.uniform(0, span)
                dead, failure = _kill_after(plot, name, delay)
                killed += dead
                # The first runs may have been slow or quick by chance: most kills shall find one running.
                span *= 1.02 if dead else 0.9
                if failure:
                    tell({"failure": failed(name, f"{delay * 1000:.2f} ms of {lasts * 1000:.2f}", *failure)})
                    return
            tell({"kills": killed, "trials": trials})

        answers = in_shards(jobs, work)
        broken = next((answer["failure"] for answer in answers if "failure" in answer), None)
        total = {key: sum(answer.get(key, 0) for answer in answers) for key in ("kills", "trials")}
        note({"failure": broken} | total)

    answer = in_server(base, _name(scenario), serve)
    return RandomKills(answer["kills"], answer["trials"], time.monotonic() - started)


def _seconds(plot: Story, name: str) -> float:
    folder = plot.folder(name)
    started = time.monotonic()
    plot.alone(plot.scenario, folder)
    return time.monotonic() - started


def _kill_after(plot: Story, name: str, delay: float) -> tuple[bool, list[str] | None]:
    folder = plot.folder(name)
    child = Child(lambda note: plot.scenario(folder))
    time.sleep(delay)
    child.kill()
    ended = child.wait(plot.timeout)
    dead = ended.code == -signal.SIGKILL
    if ended.code and not dead:
        return dead, ["the scenario itself", ended.why]
    return dead, plot.judge(folder, dead)


# A real interpreter


@dataclass(frozen=True)
class Killed:
    """A process that was killed: what it had printed by then."""

    pid: int
    lines: tuple[str, ...]


def run_until_killed(
    argv: Sequence[str],
    when: str | Callable[[str], bool],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    delay: float = 0.0,
    timeout: float = 60.0,
) -> Killed:
    """Start a program, wait until it prints a line (equal to ``when``, or for which it is true), SIGKILL it.

    Only the program itself is killed, as a crash would: its children live on in their own session. ``env`` is
    added to this process's own. Raises CrashTestFailed if the line never comes.
    """
    if not hasattr(signal, "SIGKILL"):
        raise Unsupported("run_until_killed needs SIGKILL: Linux or macOS")
    wanted: Callable[[str], bool] = when if callable(when) else lambda line: line == when
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=cwd, start_new_session=True
        )
        try:
            lines, found = _read_until(process, wanted, time.monotonic() + timeout)
            if found:
                time.sleep(delay)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        if found:
            return Killed(process.pid, tuple(lines))
        errors.seek(0)
        heard = "\n".join(lines)
        said = errors.read().decode(errors="replace")
    raise CrashTestFailed(
        f"{argv[0]} never printed the line waited for (exit code {process.returncode})\n\n{heard}\n{said}"
    )


def _read_until(
    process: subprocess.Popen[bytes], wanted: Callable[[str], bool], deadline: float
) -> tuple[list[str], bool]:
    assert process.stdout is not None
    lines: list[str] = []
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                break
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk:
                break
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                lines.append(line.decode(errors="replace").rstrip("\r"))
                if wanted(lines[-1]):
                    return lines, True
    return lines, False

"""Kill a 50-step agent in the middle of step 47, start it again, and count what was done twice: nothing.

    make demo                                  no key, no network, about ten seconds
    make demo ARGS="--kill-at 11 --keep"       another place to die, and the store stays

The exit code is 0 only if every claim on the screen was checked and held.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepfast import Stepfast

PIPELINE = Path(__file__).with_name("pipeline.py")
RUN_ID = "energy-brief"
LIMIT_SECONDS = 55.0
BAR = 30


class Screen:
    """Colours and a moving bar on a terminal, plain lines elsewhere, nothing at all with --json."""

    def __init__(self, silent: bool) -> None:
        self._silent = silent
        self._moves = sys.stdout.isatty() and not silent and os.environ.get("TERM") != "dumb"
        self._colours = self._moves and "NO_COLOR" not in os.environ
        self._open = False

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colours else text

    def bold(self, text: str) -> str:
        return self.paint(text, "1")

    def dim(self, text: str) -> str:
        return self.paint(text, "2")

    def good(self, text: str) -> str:
        return self.paint(text, "32")

    def bad(self, text: str) -> str:
        return self.paint(text, "31;1")

    def say(self, text: str = "") -> None:
        if self._silent:
            return
        if self._open:
            print()
            self._open = False
        print(text, flush=True)

    def progress(self, number: int, total: int, name: str) -> None:
        if self._moves:
            full = BAR * number // total
            bar = self.good("█" * full) + self.dim("░" * (BAR - full))
            print(f"\r\x1b[2K  {bar} {number:>3}/{total}  {name}", end="", flush=True)
            self._open = True
        else:
            self.say(f"  step {number:>3}/{total}  {name}")


@dataclass
class Life:
    """One process that ran the pipeline: what it told, and how it ended."""

    pid: int
    opened: dict[str, Any] = field(default_factory=dict)
    begun: list[int] = field(default_factory=list)
    result: Any = None
    exit_code: int | None = None
    killed: bool = False
    seconds_to_first_step: float = 0.0


@dataclass
class Demo:
    """The experiment: its settings, its evidence, and what was found wrong."""

    folder: Path
    store: str
    run_id: str
    steps: int
    kill_at: int
    pace: float
    drama: float
    screen: Screen
    ends: float
    problems: list[str] = field(default_factory=list)

    @property
    def effects(self) -> Path:
        return self.folder / "effects.jsonl"

    def live(self, *, kill: bool) -> Life:
        """Run the pipeline in a process of its own; with ``kill``, cut it down in the middle of a step."""
        command = [sys.executable, str(PIPELINE), "--json", "--store", self.store, "--run-id", self.run_id]
        command += ["--effects", str(self.effects), "--steps", str(self.steps), "--pace", str(self.pace)]
        if kill:
            command += ["--stall-at", str(self.kill_at)]
        with self._process(command) as process:
            life = Life(process.pid)
            assert process.stdout is not None
            for line in process.stdout:
                self._hear(life, json.loads(line))
                if kill and life.begun and life.begun[-1] == self.kill_at:
                    time.sleep(self.drama)
                    process.kill()  # SIGKILL: no handler runs, nothing is flushed, nobody is told
                    life.killed = True
                    break
            life.exit_code = process.wait()
        return life

    def _hear(self, life: Life, told: dict[str, Any]) -> None:
        if told["what"] == "opened":
            life.opened = told
            life.seconds_to_first_step = time.monotonic()
        elif told["what"] == "begun":
            if not life.begun:
                life.seconds_to_first_step = time.monotonic() - life.seconds_to_first_step
                if told["step"] > 1:
                    self.screen.say(
                        f"  {told['step'] - 1} finished steps answered from the journal in "
                        f"{life.seconds_to_first_step * 1000:.0f} ms; going on at step {told['step']}"
                    )
            life.begun.append(told["step"])
            self.screen.progress(told["step"], self.steps, life.opened["plan"][told["step"] - 1][0])
        elif told["what"] == "completed":
            life.result = told["result"]

    @contextmanager
    def _process(self, command: list[str]) -> Iterator[subprocess.Popen[str]]:
        with (self.folder / "stderr.txt").open("a") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8")
            watchdog = threading.Timer(max(self.ends - time.monotonic(), 1.0), process.kill)
            watchdog.start()
            try:
                yield process
            finally:
                watchdog.cancel()
                if process.poll() is None:
                    process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()

    def unbroken(self) -> Any:
        """The result of the same job where nobody was killed."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            other = Demo(
                Path(folder),
                f"sqlite:///{folder}/other.db",
                self.run_id,
                self.steps,
                self.kill_at,
                0.0,
                0.0,
                Screen(silent=True),
                self.ends,
            )
            return other.live(kill=False).result

    def counts(self) -> tuple[Counter[int], Counter[int], list[dict[str, Any]]]:
        """How often each step began and took effect, by the file outside the store."""
        lines = self.effects.read_text().splitlines() if self.effects.exists() else []
        told = [json.loads(line) for line in lines]
        begun = Counter(t["step"] for t in told if t["what"] == "begun")
        done = Counter(t["step"] for t in told if t["what"] == "done")
        return begun, done, [t for t in told if t["what"] == "done"]

    def claim(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)


def check_first_life(demo: Demo, life: Life, seen: dict[str, Any]) -> None:
    begun, done, _ = demo.counts()
    before = demo.kill_at - 1
    if os.name == "posix":
        demo.claim(life.exit_code == -signal.SIGKILL, f"the first process ended with {life.exit_code}, not by SIGKILL")
    demo.claim(done == Counter(range(1, demo.kill_at)), f"before the kill, steps took effect as {dict(done)}")
    demo.claim(begun[demo.kill_at] == 1, f"step {demo.kill_at} had begun {begun[demo.kill_at]} times, not once")
    demo.claim(seen["step"] == before, f"the store held {seen['step']} finished steps, not {before}")


def check_second_life(demo: Demo, life: Life, seen: dict[str, Any]) -> None:
    begun, done, _ = demo.counts()
    every = range(1, demo.steps + 1)
    demo.claim(life.exit_code == 0, f"the second process ended with {life.exit_code}, not with 0")
    demo.claim(
        life.begun == list(range(demo.kill_at, demo.steps + 1)),
        f"the second process ran the steps {life.begun}, not {demo.kill_at} to {demo.steps}",
    )
    for step in every:
        demo.claim(done[step] == 1, f"step {step} took effect {done[step]} times, not once")
        wanted = 2 if step == demo.kill_at else 1
        demo.claim(begun[step] == wanted, f"step {step} began {begun[step]} times, not {wanted}")
    demo.claim(seen["status"] == "COMPLETED", f"the run is {seen['status']}, not COMPLETED")
    demo.claim(seen["delivery_attempt"] == 2, f"the run had {seen['delivery_attempt']} attempts, not 2")


def show_counts(demo: Demo) -> None:
    say = demo.screen.say
    begun, done, _ = demo.counts()
    say()
    say(demo.screen.bold("How often each step was executed"))
    say(demo.screen.dim("  Each step writes a line to a file outside the store when its work is done, and syncs it."))
    per_row = 10
    for first in range(1, demo.steps + 1, per_row):
        cells = []
        for step in range(first, min(first + per_row, demo.steps + 1)):
            mark = "*" if begun[step] > done[step] else " "
            cell = f"{step:>4} x{done[step]}{mark}"
            cells.append(demo.screen.good(cell) if done[step] == 1 else demo.screen.bad(cell))
        say(" ".join(cells))
    times = begun[demo.kill_at]
    say(f"  * Step {demo.kill_at} began {times} times: it was killed before its work was done, so there was no result")
    say("    to keep, and its call is made again. That is the price of the crash.")


def saved(demo: Demo) -> dict[str, Any]:
    _, _, lines = demo.counts()
    spared = [line for line in lines if line["step"] < demo.kill_at]
    calls = [line for line in spared if line["kind"] == "model"]
    return {
        "steps": len(spared),
        "model_calls": len(calls),
        "tokens": sum(line["tokens"] for line in calls),
        "mails": sum(line["kind"] == "mail" for line in spared),
        "seconds": round(sum(line["seconds"] for line in spared), 2),
    }


def perform(demo: Demo) -> dict[str, Any]:
    screen, say = demo.screen, demo.screen.say
    begins = time.monotonic()
    say(screen.bold(f"A {demo.steps}-step agent is killed in the middle of step {demo.kill_at} and started again."))
    say(screen.dim("The model, the web and the mail are scripted. The process, SIGKILL and the store are real."))
    say()
    say(screen.bold("First life"))
    first = demo.live(kill=True)
    demo.claim(first.killed, f"the first process ended by itself before step {demo.kill_at}")
    if demo.problems:
        return report(demo, first, None, begins)
    say(screen.bad(f"  kill -9 {first.pid} in the middle of step {demo.kill_at}; exit code {first.exit_code}"))
    with Stepfast(demo.store) as sf:
        between = sf.describe(demo.run_id)
    say(f"  in the store: step {between['step']} of {between['total_steps']}, run {between['status']}")
    check_first_life(demo, first, between)
    if demo.problems:
        return report(demo, first, None, begins)

    say()
    say(screen.bold("Second life"))
    second = demo.live(kill=False)
    with Stepfast(demo.store) as sf:
        after = sf.describe(demo.run_id)
        url = sf.url
    check_second_life(demo, second, after)
    same = second.result == demo.unbroken()
    demo.claim(same, "the result is not that of a run that was never killed")

    show_counts(demo)
    spared = saved(demo)
    say()
    say(screen.bold("What was not paid for again"))
    say(
        f"  {spared['steps']} steps: {spared['model_calls']} model calls, {spared['tokens']:,} tokens, "
        f"{spared['seconds']:.1f} s of work; {spared['mails']} mail not sent twice"
    )
    if same:
        say("  The result is the same as that of a run that was never killed.")
    say()
    say(screen.bold("The store"))
    say(f"  {url}")
    say("  To look inside:")
    say("    from stepfast import Stepfast")
    say(f"    print(Stepfast({url!r}).describe({demo.run_id!r}))")
    picked = ("status", "step", "total_steps", "delivery_attempt", "lost_deliveries", "last_step")
    say(screen.dim("    " + str({name: after[name] for name in picked})[:-1] + ", …}"))
    return report(demo, first, second, begins)


def report(demo: Demo, first: Life, second: Life | None, begins: float) -> dict[str, Any]:
    begun, done, _ = demo.counts()
    return {
        "ok": not demo.problems,
        "problems": demo.problems,
        "steps": demo.steps,
        "killed_at": demo.kill_at,
        "first_exit_code": first.exit_code,
        "resumed_at": second.begun[0] if second and second.begun else None,
        "executions": {str(step): done[step] for step in range(1, demo.steps + 1)},
        "begun": {str(step): begun[step] for step in range(1, demo.steps + 1)},
        "saved": saved(demo),
        "run_id": demo.run_id,
        "store": first.opened.get("store"),
        "seconds": round(time.monotonic() - begins, 2),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=50, help="how long the job is (default 50)")
    parser.add_argument("--kill-at", type=int, help="the step in whose middle it is killed (default 47)")
    parser.add_argument("--store", help="a store of your own: sqlite:///file.db or postgresql://… (it stays)")
    parser.add_argument("--keep", action="store_true", help="leave the demo's own store in place")
    parser.add_argument("--fast", action="store_true", help="no pauses to watch")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the show")
    options = parser.parse_args()
    if not 8 <= options.steps <= 1000:
        parser.error("--steps: from 8 to 1000")
    if options.kill_at is None:
        options.kill_at = max(options.steps - 3, 3)
    if not 1 <= options.kill_at <= options.steps:
        parser.error(f"--kill-at: from 1 to {options.steps}")
    if options.kill_at in (2, options.steps):
        parser.error(
            f"--kill-at: step {options.kill_at} sends a mail. A one-shot step that is killed waits for a person:\n"
            "see examples/one_shot_in_doubt. Choose another step."
        )
    return options


def main() -> int:
    options = parse()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for terminals that have no "█"
    folder = Path(tempfile.mkdtemp(prefix="stepfast-demo-"))
    screen = Screen(silent=options.json)
    own = options.store is None
    pace = 0.004 if options.fast else min(0.1, 6.0 / options.steps)
    demo = Demo(
        folder,
        f"sqlite:///{folder}/stepfast.db" if own else options.store,
        RUN_ID if own else f"{RUN_ID}-{time.time_ns()}",
        options.steps,
        options.kill_at,
        pace,
        0.0 if options.fast else 0.6,
        screen,
        time.monotonic() + LIMIT_SECONDS,
    )
    try:
        found = perform(demo)
        if options.json:
            print(json.dumps(found, indent=2))
        if demo.problems:
            errors = (folder / "stderr.txt").read_text().strip()
            for problem in demo.problems:
                print(f"FAILED: {problem}", file=sys.stderr)
            print(errors[-2000:], file=sys.stderr)
            return 1
        if own:
            screen.say("  It is kept." if options.keep else "  It is removed now; --keep leaves it in place.")
        screen.say()
        screen.say(screen.good(f"Every claim above was checked and holds. {found['seconds']:.1f} s."))
        return 0
    finally:
        if not (own and options.keep):
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

"""A server, two workers, one kill -9: the other worker goes on at the step where the first one died.

    python examples/killed_worker/demo.py              no key, no network, about ten seconds
    python examples/killed_worker/demo.py --json       the evidence as one JSON document

The exit code is 0 only if every claim on the screen was checked and held.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stepfast import Stepfast

WORKER = Path(__file__).with_name("worker.py")
ADDRESS = "agent://acme/prod/pipeline"
LIMIT_SECONDS = 55.0
# A lease that nobody renews lasts this long; being much quicker is what the demo shows.
LEASE_SECONDS = 30.0


class Demo:
    """The processes, the evidence, and what was found wrong."""

    def __init__(self, folder: Path, store: str, steps: int, kill_at: int, pace: float, silent: bool) -> None:
        self.folder = folder
        self.store = store
        self.steps = steps
        self.kill_at = kill_at
        self.pace = pace
        self.silent = silent
        self.ends = time.monotonic() + LIMIT_SECONDS
        self.problems: list[str] = []
        self.effects = folder / "effects.jsonl"
        self._open = ExitStack()
        self._shown = 0

    def say(self, text: str = "") -> None:
        if not self.silent:
            print(text, flush=True)

    def claim(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)

    def start(self, *command: str) -> subprocess.Popen[str]:
        errors = self._open.enter_context((self.folder / "stderr.txt").open("a"))
        process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=errors, text=True)
        self._open.callback(_end, process)
        return process

    def serve(self) -> str:
        """Start a server on a free port; gives its URL."""
        process = self.start("-m", "stepfast", "serve", "--port", "0", "--store", self.store)
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(r"http://[\d.:]+", line)
            if found:
                return found.group()
        raise SystemExit(f"the server did not start: {(self.folder / 'stderr.txt').read_text()}")

    def work(self, url: str, *more: str) -> subprocess.Popen[str]:
        """Start a worker, in a process and with a connection of its own."""
        process = self.start(str(WORKER), "--url", url, "--effects", str(self.effects), "--pace", str(self.pace), *more)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit(f"a worker did not start: {(self.folder / 'stderr.txt').read_text()}")
        return process

    def lines(self) -> list[dict[str, Any]]:
        if not self.effects.exists():
            return []
        return [json.loads(line) for line in self.effects.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def wait_for_step(self, step: int) -> None:
        while not any(line["what"] == "begun" and line["step"] == step for line in self.lines()):
            if time.monotonic() > self.ends:
                raise SystemExit(f"step {step} was not reached in {LIMIT_SECONDS:.0f} s")
            self.show_progress()
            time.sleep(0.01)
        self.show_progress()

    def show_progress(self) -> None:
        lines = self.lines()
        for line in lines[self._shown :]:
            if line["what"] == "begun":
                self.say(f"  step {line['step']:>3}/{self.steps}  worker {line['pid']}")
        self._shown = len(lines)

    def close(self) -> None:
        self._open.close()


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def perform(demo: Demo) -> dict[str, Any]:
    say = demo.say
    say(f"One server, two workers. The worker that has the job is killed in the middle of step {demo.kill_at}.")
    say()
    url = demo.serve()
    first = demo.work(url, "--stall-at", str(demo.kill_at))
    say(f"  server at {url}")
    with Stepfast(url) as sf:
        job = {"intent_type": "intent.pipeline.process.v1", "to_agent": ADDRESS, "payload": {"steps": demo.steps}}
        sent = sf.send_intent(job)
        demo.wait_for_step(1)
        second = demo.work(url)
        demo.wait_for_step(demo.kill_at)
        os.kill(first.pid, signal.SIGKILL)
        killed_at = time.time()
        say(f"  kill -9 {first.pid} in the middle of step {demo.kill_at}")
        ended = sf.wait_for(sent, timeout=max(1.0, demo.ends - time.monotonic()))
        demo.show_progress()
        intent = sf.get_intent(sent)
    return judge(demo, first.pid, second.pid, killed_at, ended, intent)


def judge(
    demo: Demo, first: int, second: int, killed_at: float, ended: dict[str, Any], intent: dict[str, Any]
) -> dict[str, Any]:
    lines = demo.lines()
    done = Counter(line["step"] for line in lines if line["what"] == "done")
    theirs = [line for line in lines if line["pid"] == second and line["what"] == "begun"]
    resumed_at = theirs[0]["step"] if theirs else None
    gap = theirs[0]["at"] - killed_at if theirs else None
    wanted = sum(step * step for step in range(1, demo.steps + 1))
    demo.claim(ended["status"] == "COMPLETED", f"the intent is {ended['status']}, not COMPLETED")
    demo.claim(intent["result"] == wanted, f"the result is {intent['result']}, not {wanted}")
    demo.claim(resumed_at == demo.kill_at, f"the second worker began at step {resumed_at}, not at {demo.kill_at}")
    demo.claim({line["pid"] for line in lines} == {first, second}, "other processes than the two took part")
    for step in range(1, demo.steps + 1):
        demo.claim(done[step] == 1, f"step {step} took effect {done[step]} times, not once")
    demo.claim(intent["delivery_attempt"] == 2, f"there were {intent['delivery_attempt']} deliveries, not 2")
    demo.claim(intent["lost_deliveries"] == 0, "the lost delivery counts, although it had finished steps")
    demo.claim(gap is not None and gap < LEASE_SECONDS / 3, f"it took {gap} s until the work went on")
    demo.say()
    if not demo.problems:
        demo.say(f"  worker {second} went on at step {resumed_at}, {(gap or 0) * 1000:.0f} ms after the kill")
        demo.say(f"  every one of the {demo.steps} steps took effect once; the result is {intent['result']}")
    for problem in demo.problems:
        demo.say(f"  WRONG: {problem}")
    return {
        "ok": not demo.problems,
        "problems": demo.problems,
        "steps": demo.steps,
        "killed_at": demo.kill_at,
        "resumed_at": resumed_at,
        "seconds_to_resume": None if gap is None else round(gap, 3),
        "executions": {str(step): done[step] for step in range(1, demo.steps + 1)},
        "result": intent["result"],
        "delivery_attempt": intent["delivery_attempt"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="how long the job is (default 12)")
    parser.add_argument("--kill-at", type=int, default=8, help="the step in whose middle the worker is killed")
    parser.add_argument("--store", help="a store of your own for the server: sqlite:///file.db or postgresql://…")
    parser.add_argument("--fast", action="store_true", help="short steps")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the show")
    options = parser.parse_args()
    if not 3 <= options.kill_at <= options.steps <= 1000:
        parser.error("--kill-at: from 3 to --steps, and --steps at most 1000")
    folder = Path(tempfile.mkdtemp(prefix="stepfast-demo-"))
    store = options.store or f"sqlite:///{folder / 'store.db'}"
    demo = Demo(folder, store, options.steps, options.kill_at, 0.15 if options.fast else 0.3, options.json)
    try:
        told = perform(demo)
    finally:
        demo.close()
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps(told, indent=2))
    return 0 if told["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())

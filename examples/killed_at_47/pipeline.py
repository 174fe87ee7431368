"""An agent-like job of 50 steps: plan, read 15 topics, compare, write a brief, mail it.

The model, the web and the mail server are scripted, so it needs no key and no network. All else is real.
Start it, kill it, start it again with the same arguments:

    python pipeline.py --store sqlite:///brief.db --effects effects.jsonl
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepfast import Run, Stepfast

TOPICS = [
    "offshore wind",
    "grid storage",
    "heat pumps",
    "solar glass",
    "green steel",
    "e-fuels",
    "nuclear restarts",
    "carbon capture",
    "smart meters",
    "interconnectors",
    "rooftop solar",
    "ammonia",
    "geothermal",
    "tidal power",
    "long-haul trucks",
]
FEWEST_STEPS = 8


@dataclass(frozen=True)
class Task:
    """One step of the plan; ``kind`` is model, tool or mail."""

    number: int
    verb: str
    topic: str
    kind: str

    def __str__(self) -> str:
        return f"{self.verb} {self.topic}"


def make_plan(steps: int) -> list[Task]:
    """1 plan, 2 mail, then fetch, look up and summarise each topic, then compare, write and mail the brief."""

    def tasks() -> Iterator[tuple[str, str, str]]:
        yield "plan", "the brief", "model"
        yield "mail", "the editor: begun", "mail"
        for number in range(steps - 5):
            topic = TOPICS[number // 3 % len(TOPICS)]
            yield (("fetch", topic, "tool"), ("look up", topic, "tool"), ("summarise", topic, "model"))[number % 3]
        yield "compare", "all topics", "model"
        yield "write", "the brief", "model"
        yield "mail", "the editor: done", "mail"

    return [Task(number, *task) for number, task in enumerate(tasks(), 1)]


class World:
    """All that a step does to the outside, each line synced before the step goes on."""

    def __init__(self, effects: Path, pace: float, stall_at: int | None, tell: Callable[..., None]) -> None:
        self._effects = effects
        self._pace = pace
        self._stall_at = stall_at
        self._tell = tell

    def perform(self, number: int, verb: str, topic: str, kind: str, so_far: str) -> dict[str, Any]:
        """Do one task. The line ``done`` in the effects file is its effect."""
        self._append("begun", number)
        self._tell("begun", step=number)
        began = time.monotonic()
        # A slow answer from the model: long enough for somebody to pull the plug in the middle of it.
        time.sleep(60.0 if number == self._stall_at else self._pace)
        answer = hashlib.sha256(f"{verb}|{topic}|{so_far}".encode()).hexdigest()
        tokens = 400 + int(answer[:3], 16) % 900 if kind == "model" else 0
        seconds = time.monotonic() - began
        self._append("done", number, kind=kind, tokens=tokens, seconds=round(seconds, 4))
        return {"text": answer[:12], "tokens": tokens}

    def _append(self, what: str, number: int, **more: Any) -> None:
        line = json.dumps({"what": what, "step": number, "pid": os.getpid(), **more}) + "\n"
        fd = os.open(self._effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, line.encode())
            os.fsync(fd)
        finally:
            os.close(fd)


def work(run: Run, plan: list[Task], world: World, tell: Callable[..., None]) -> dict[str, Any]:
    """The agent: an ordinary loop. What it does not know is whether this is its first life."""
    so_far, tokens = "", 0
    for task in plan:
        # Mail is one-shot: never sent a second time without asking. All else may simply be tried again.
        named = run.options(name=f"{task.verb} {task.topic}")
        call = named.once if task.kind == "mail" else named.step
        result = call(world.perform, task.number, task.verb, task.topic, task.kind, so_far)
        so_far, tokens = result["text"], tokens + result["tokens"]
        tell("finished", step=task.number)
    return {"brief": so_far, "tokens": tokens, "steps": len(plan)}


def teller(as_json: bool, total: int) -> Callable[..., None]:
    def tell(what: str, **more: Any) -> None:
        if as_json:
            print(json.dumps({"what": what, **more}), flush=True)
        elif what == "begun":
            print(f"step {more['step']:>2} of {total} …", flush=True)
        elif what == "opened":
            print(f"attempt {more['attempt']}, {more['recorded']} steps recorded, store {more['store']}", flush=True)
        elif what == "completed":
            print(f"completed: {more['result']}", flush=True)

    return tell


def main() -> int:
    parser = argparse.ArgumentParser(description="A 50-step job that may be killed at any moment.")
    parser.add_argument("--store", help="where the journal lies (default: the embedded store)")
    parser.add_argument("--run-id", default="energy-brief")
    parser.add_argument("--effects", type=Path, default=Path("effects.jsonl"))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--pace", type=float, default=0.1, help="seconds a step takes")
    parser.add_argument("--stall-at", type=int, help="a step that takes a minute")
    parser.add_argument("--json", action="store_true", help="tell what happens as JSON lines")
    options = parser.parse_args()
    if options.steps < FEWEST_STEPS:
        parser.error(f"--steps: at least {FEWEST_STEPS}")

    plan = make_plan(options.steps)
    tell = teller(options.json, options.steps)
    world = World(options.effects, options.pace, options.stall_at, tell)
    # A short lease, for systems that cannot tell whether the last owner is dead.
    with (
        Stepfast(options.store, lease_seconds=5) as sf,
        sf.run(options.run_id, total_steps=options.steps) as run,
    ):
        names = [[str(task), task.kind] for task in plan]
        tell("opened", attempt=run.attempt, recorded=len(run.steps()), store=sf.url, plan=names)
        run.complete(work(run, plan, world, tell))
        tell("completed", result=run.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())

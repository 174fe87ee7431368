"""Agents of the OpenAI Agents SDK: durable runs beside bare ones and beside DBOS's integration, with a model that takes
no time, so that what is left is the SDK and what durability adds to it."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import util
from itertools import count
from pathlib import Path
from typing import Any

from tests.bench import agents_stage as stage
from tests.bench.peers import Dbos
from tests.bench.rounds import Contender, Samples
from tests.bench.sections import DBOS, Figure, Workshop

BARE = "bare SDK"
OURS = "Stepfast"
ONCE = "Stepfast, one-shot tools"
RESUMED = "Stepfast, resumed"
MODEL = "a model call"
TOOL = "a tool call"
ONCE_TOOL = "a one-shot tool call"
AGAIN = "finished calls made again"
TWICE = "tools that ran twice"
_REWRITTEN = "its tools rewritten as steps"
_KILLED = {stage.STEPFAST: OURS, stage.DBOS_PLAIN: DBOS, stage.DBOS_STEPS: f"{DBOS}, {_REWRITTEN}"}

_numbers = count(1)


def installed(*names: str) -> bool:
    return all(util.find_spec(name) for name in ("agents", "stepfast_openai_agents", *names))


class Side:
    """Runs of one kind, on an event loop of its own."""

    def __init__(self, url: str | None, policy: str = "idempotent") -> None:
        stage.without_tracing()
        self._loop = asyncio.Runner()
        self._client: Any = None
        self._policy = policy
        if url is not None:
            from stepfast import AsyncStepfast

            self._client = AsyncStepfast(url)

    def run(self, agent: Any, turns: int, run_id: str) -> float:
        """Seconds for the whole run, or up to where its model breaks."""
        from agents import Runner

        options: dict[str, Any] = {"max_turns": turns + 2}
        started: Any = Runner.run
        if self._client is not None:
            from stepfast_openai_agents import DurableRunner

            options |= {"run_id": run_id, "store": self._client, "policies": {"work": self._policy}}
            started = DurableRunner.run

        async def drive() -> float:
            began = time.perf_counter()
            with suppress(stage.Broken):
                await started(agent, "go", **options)
            return time.perf_counter() - began

        return self._loop.run(drive())

    def turn(self, turns: int, tools: int) -> float:
        """Seconds for a turn of a new run; the end is a turn too."""
        agent = stage.agent_with(stage.scripted(turns, tools), stage.work)
        return self.run(agent, turns, f"run-{next(_numbers)}") / (turns + 1)

    def close(self) -> None:
        if self._client is not None:
            self._loop.run(self._client.close())
        self._loop.close()


class Peer(Dbos):
    program = "tests.bench.agents_dbos"

    def turn(self, turns: int, tools: int) -> float:
        return self._ask("turn", turns, tools)


def turn(shop: Workshop) -> list[Figure]:
    """A turn with one tool call and one with many: from the two follows what a call costs."""
    if not installed():
        return []
    scale, place = shop.scale, shop.place
    sides: dict[str, Any] = {
        BARE: shop.keep(Side(None)),
        OURS: shop.keep(Side(place.url("agents"))),
        ONCE: shop.keep(Side(place.url("agents_once"), "once")),
    }
    if shop.dbos is not None and installed("dbos_openai_agents"):
        sides[DBOS] = shop.keep(Peer(place.url("agents_dbos")))
    for side in sides.values():
        side.turn(2, 2)
    counts = (1, scale.agent_tools)
    work = [
        Contender(
            at_once(name, tools),
            partial(side.turn, scale.agent_turns, tools),
            units=0 if name == DBOS else scale.agent_turns + 1,
        )
        for tools in counts
        for name, side in sides.items()
    ]
    samples = shop.alternate(work, scale.agent_rounds)
    figures = []
    for tools in counts:
        part = of_tools(samples, list(sides), tools)
        for figure in shop.figures("agent_turn", part, BARE):
            figure.contender = at_once(figure.contender, tools)
            figures.append(figure)
    return figures + added(shop, samples, [name for name in sides if name != BARE])


def at_once(name: str, tools: int) -> str:
    return f"{name}, {tools} tool call{'s' if tools > 1 else ''}"


def of_tools(samples: Samples, names: Sequence[str], tools: int) -> Samples:
    """The rounds of the turns with so many tool calls, by contender."""
    rounds = [{name: taken[at_once(name, tools)] for name in names} for taken in samples.rounds]
    spent = {n: samples.processor[at_once(n, tools)] for n in names if at_once(n, tools) in samples.processor}
    return Samples(list(names), rounds, spent)


def added(
    shop: Workshop, samples: Samples, names: Sequence[str], section: str = "agent_added", base: str = BARE
) -> list[Figure]:
    """Above the bare framework in the same round; what opening and ending a run takes is counted with model calls."""
    turns, most = shop.scale.agent_turns, shop.scale.agent_tools
    figures = []

    def over(taken: dict[str, float | None], name: str, tools: int) -> float:
        """Seconds that a whole run takes more."""
        here, bare = taken[at_once(name, tools)], taken[at_once(base, tools)]
        return ((here or 0.0) - (bare or 0.0)) * (turns + 1)

    for name in names:
        # A run has turns x tools tool calls, and one model call more than turns.
        few, many = ([over(taken, name, tools) for taken in samples.rounds] for tools in (1, most))
        tool = [(m - f) / (turns * (most - 1)) for f, m in zip(few, many, strict=True)]
        model = [(f - turns * t) / (turns + 1) for f, t in zip(few, tool, strict=True)]
        kinds = {ONCE: [(ONCE_TOOL, tool)]}.get(name, [(MODEL, model), (TOOL, tool)])
        for what, values in kinds:
            who = OURS if name == ONCE else name
            figure = shop.figure(section, f"{who}, {what}", statistics.median(values), "s")
            figure.rounds = values
            figures.append(figure)
    return figures


class Lives:
    """A process that forks one for each life of an agent, so that imports are paid once."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.agents_stage"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def live(self, contender: str, url: str, folder: str, kill: str | None) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([contender, url, folder, kill]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate("")


def kills(shop: Workshop) -> list[Figure]:
    """kill -9 at each boundary, and one start after it: what was done again."""
    if not installed():
        return []
    known = [stage.STEPFAST]
    if shop.dbos is not None and installed("dbos_openai_agents"):
        known += [stage.DBOS_PLAIN, stage.DBOS_STEPS]
    lives = shop.keep(Lives())
    figures = []
    boundaries = stage.BOUNDARIES[: shop.scale.agent_kills]
    for contender in known:
        again = twice = 0
        for number, kill in enumerate(boundaries):
            shop.tell(f"{contender} killed at {kill}")
            url = shop.place.url(f"agents_kill_{contender.replace('-', '_')}_{number}")
            with tempfile.TemporaryDirectory() as folder:
                codes = [lives.live(contender, url, folder, word) for word in (kill, None)]
                if codes != [-9, 0]:
                    raise RuntimeError(f"{contender}, killed at {kill}, ended with {codes}")
                found = stage.repeated(Path(folder, "world.txt").read_text().splitlines(), kill)
            again, twice = again + found[0], twice + found[1]
        note = f"{len(boundaries)} kills"
        figures.append(shop.figure("agent_kills", f"{_KILLED[contender]}, {AGAIN}", again, "calls", note))
        figures.append(shop.figure("agent_kills", f"{_KILLED[contender]}, {TWICE}", twice, "calls", note))
    return figures


def resume(shop: Workshop) -> list[Figure]:
    """A long run up to its last call, from the journal; and the same in the bare SDK, from its beginning."""
    if not installed():
        return []
    turns = shop.scale.agent_resumed
    bare, ours = shop.keep(Side(None)), shop.keep(Side(shop.place.url("agents_resume")))
    agent = stage.agent_with(stage.scripted(turns, 1, ends=False), stage.work)
    ours.run(agent, turns, "long")
    work = [
        Contender(BARE, lambda: bare.run(agent, turns, "")),
        Contender(RESUMED, lambda: ours.run(agent, turns, "long")),
    ]
    figures = shop.figures("agent_resume", shop.alternate(work, shop.scale.agent_resume_rounds), BARE)
    for figure in figures:
        figure.note = f"{turns} turns"
    return figures


AGENT_SECTIONS: dict[str, Callable[[Workshop], list[Figure]]] = {
    "agent_turn": turn,
    "agent_kills": kills,
    "agent_resume": resume,
}

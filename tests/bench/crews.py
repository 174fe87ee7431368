"""Crews of CrewAI: durable ones beside bare ones and beside CrewAI's own checkpoints, with LLMs that take no time.

CrewAI asks for other versions than the benchmarks' environment has, so all of it runs in a process of the adapter's own
environment, and this module only asks that one. ``make bench`` names its Python in ``BENCH_CREWAI_PYTHON``; without
that, and where CrewAI is not installed, the sections are empty.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import util
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.agents import AGAIN, ONCE, ONCE_TOOL, OURS, TOOL, TWICE, at_once
from tests.bench.agents_stage import repeated
from tests.bench.rounds import Contender, Samples
from tests.bench.sections import Figure, Workshop

BARE = "bare CrewAI"
THEIRS = "CrewAI's checkpoints"
MODEL = "an LLM call"
A_RUN = "a run, with its task and crew"
STORED = "bytes for a run of two small tasks"
BOUNDARIES = (
    *("m1 returned", "t1 done", "m2 asked", "m2 returned"),  # the first task
    *("m3 asked", "m3 returned", "t2 done", "m4 asked", "m4 returned"),  # the second one
)

_ROOT = Path(__file__).parents[2]
_NAMES = {BARE: "bare", OURS: "stepfast", ONCE: "stepfast-once", THEIRS: "checkpoints"}


def interpreter() -> str | None:
    """The Python that has CrewAI: this one, or that of the adapter's environment."""
    if util.find_spec("crewai") and util.find_spec("stepfast_crewai"):
        return sys.executable
    return os.environ.get("BENCH_CREWAI_PYTHON")


class Shape(NamedTuple):
    """A run: turns with tool calls, and tool calls in each."""

    turns: int
    tools: int


class Stage:
    """A process of that environment, which does what it is asked for."""

    def __init__(self, python: str, module: str = "crews_stage", names: dict[str, str] = _NAMES) -> None:
        self.spent: dict[str, list[float]] = {}
        self._names = names
        self._process = subprocess.Popen(
            [python, "-W", "ignore", "-c", f"from tests.bench.{module} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])},
        )

    def ask(self, *request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process with the framework ended at {request}")
        return json.loads(answer)

    def turn(self, name: str, url: str, turns: int, tools: int, label: str = "") -> float:
        seconds, spent = self.ask("turn", self._names[name], url, turns, tools)
        self.spent.setdefault(label or at_once(name, tools), []).append(spent)
        return float(seconds)

    def close(self) -> None:
        self._process.communicate("")


def shown(name: str, shape: Shape) -> str:
    return f"{at_once(name, shape.tools)}, {shape.turns} turns"


def turn(shop: Workshop) -> list[Figure]:
    """Short runs, runs with many tool calls at once and long runs: from these follows what a call costs, and a run."""
    python = interpreter()
    if python is None:
        return []
    scale, url, stage = shop.scale, shop.place.url("crews"), shop.keep(Stage(python))
    short, wide = Shape(scale.agent_turns, 1), Shape(scale.agent_turns, scale.agent_tools)
    shapes = (short, wide, Shape(3 * scale.agent_turns, 1))
    names = [BARE, OURS, ONCE, THEIRS]
    for name in names:
        stage.turn(name, url, 2, 2)
    stage.spent.clear()
    work = [
        Contender(shown(name, shape), partial(stage.turn, name, url, *shape, shown(name, shape)))
        for shape in shapes
        for name in names
    ]
    samples = shop.alternate(work, scale.agent_rounds)
    samples.processor = stage.spent
    figures = []
    for shape in shapes:
        rounds = [{name: taken[shown(name, shape)] for name in names} for taken in samples.rounds]
        spent = {name: stage.spent[shown(name, shape)] for name in names}
        for figure in shop.figures("crew", Samples(names, rounds, spent), BARE):
            figure.contender = shown(figure.contender, shape)
            figures.append(figure)
    by_clock = [{name: value or 0.0 for name, value in taken.items()} for taken in samples.rounds]
    by_processor = [dict(zip(stage.spent, values, strict=True)) for values in zip(*stage.spent.values(), strict=True)]
    for name in (OURS, ONCE, THEIRS):
        clock, processor = (added(rounds, name, shapes) for rounds in (by_clock, by_processor))
        for what, values in clock.items():
            if name == ONCE and what != TOOL:
                continue
            told = f"{OURS}, {ONCE_TOOL}" if name == ONCE else f"{name}, {what}"
            figure = shop.figure("crew_added", told, statistics.median(values), "s")
            figure.rounds, figure.processor = values, statistics.median(processor[what])
            figures.append(figure)
    return figures


def added(
    rounds: Sequence[Mapping[str, float]], name: str, shapes: tuple[Shape, Shape, Shape]
) -> dict[str, list[float]]:
    """Seconds above bare CrewAI, round by round: for an LLM call, for a tool call, and for a run whatever its length.

    A run has turns x tools tool calls, and one LLM call more than turns.
    """
    short, wide, long = shapes
    found: dict[str, list[float]] = {MODEL: [], TOOL: [], A_RUN: []}
    for taken in rounds:
        over = [(taken[shown(name, s)] - taken[shown(BARE, s)]) * (s.turns + 1) for s in shapes]
        tool = (over[1] - over[0]) / (short.turns * (wide.tools - 1))
        model = (over[2] - over[0]) / (long.turns - short.turns) - tool
        found[TOOL].append(tool)
        found[MODEL].append(model)
        found[A_RUN].append(over[0] - short.turns * tool - (short.turns + 1) * model)
    return found


def stored(shop: Workshop) -> list[Figure]:
    """What a run leaves on the disk."""
    python = interpreter()
    if python is None or shop.place.store != "SQLite":
        return []
    stage = shop.keep(Stage(python))
    figures = []
    with tempfile.TemporaryDirectory(dir=shop.place.folder) as folder:
        for name in (OURS, THEIRS):
            size, snapshots = stage.ask("stored", _NAMES[name], str(Path(folder, _NAMES[name])))
            note = f"{snapshots} snapshots" if snapshots else "mean of 20 runs, growth of the file"
            figures.append(shop.figure("crew_stored", f"{name}, {STORED}", size / 1000, "kB", note))
    return figures


def kills(shop: Workshop) -> list[Figure]:
    """kill -9 at each boundary, and one start after it: what was done again."""
    python = interpreter()
    if python is None:
        return []
    stage = shop.keep(Stage(python))
    figures = []
    chosen = BOUNDARIES if shop.scale.agent_kills >= 7 else BOUNDARIES[-shop.scale.agent_kills :]
    for name in (OURS, THEIRS) if shop.place.store == "SQLite" else (OURS,):
        again = twice = 0
        for number, kill in enumerate(chosen):
            shop.tell(f"{name} killed at {kill}")
            url = shop.place.url(f"crews_kill_{number}")
            with tempfile.TemporaryDirectory() as folder:
                port = _free_port()
                codes = [stage.ask("live", _NAMES[name], url, folder, port, word) for word in (kill, None)]
                if codes != [-9, 0]:
                    raise RuntimeError(f"{name}, killed at {kill}, ended with {codes}")
                found = repeated(Path(folder, "world.txt").read_text().splitlines(), kill, BOUNDARIES)
            again, twice = again + found[0], twice + found[1]
        note = f"{len(chosen)} kills"
        figures.append(shop.figure("crew_kills", f"{name}, {AGAIN}", again, "calls", note))
        figures.append(shop.figure("crew_kills", f"{name}, {TWICE}", twice, "calls", note))
    return figures


def _free_port() -> int:
    """A port for both lives of a run: a checkpoint keeps the address of the LLM."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


CREW_SECTIONS: dict[str, Callable[[Workshop], list[Figure]]] = {
    "crew": turn,
    "crew_stored": stored,
    "crew_kills": kills,
}
CALLS = (MODEL, TOOL, ONCE_TOOL)

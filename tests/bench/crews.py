"""Crews of CrewAI: durable ones beside bare ones and beside CrewAI's own checkpoints, with LLMs that take no time.

CrewAI asks for other versions than the benchmarks' environment has, so all of it runs in a process of the adapter's own
environment, and this module only asks that one. ``make bench`` names its Python in ``BENCH_CREWAI_PYTHON``; without
that, and where CrewAI is not installed, the sections are empty.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import util
from pathlib import Path
from typing import Any

from tests.bench.agents import AGAIN, ONCE, ONCE_TOOL, OURS, TOOL, TWICE, added, at_once, of_tools
from tests.bench.agents_stage import repeated
from tests.bench.rounds import Contender
from tests.bench.sections import Figure, Workshop

BARE = "bare CrewAI"
THEIRS = "CrewAI's checkpoints"
MODEL = "an LLM call"
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

    def turn(self, name: str, url: str, turns: int, tools: int) -> float:
        seconds, spent = self.ask("turn", self._names[name], url, turns, tools)
        self.spent.setdefault(at_once(name, tools), []).append(spent)
        return float(seconds)

    def close(self) -> None:
        self._process.communicate("")


def turn(shop: Workshop) -> list[Figure]:
    """A turn with one tool call and one with many: from the two follows what a call costs."""
    python = interpreter()
    if python is None:
        return []
    scale, url, stage = shop.scale, shop.place.url("crews"), shop.keep(Stage(python))
    names = [BARE, OURS, ONCE, THEIRS]
    for name in names:
        stage.turn(name, url, 2, 2)
    stage.spent.clear()
    counts = (1, scale.agent_tools)
    work = [
        Contender(at_once(name, tools), partial(stage.turn, name, url, scale.agent_turns, tools))
        for tools in counts
        for name in names
    ]
    samples = shop.alternate(work, scale.agent_rounds)
    samples.processor = stage.spent
    figures = []
    for tools in counts:
        for figure in shop.figures("crew", of_tools(samples, names, tools), BARE):
            figure.contender = at_once(figure.contender, tools)
            figures.append(figure)
    more = added(shop, samples, [OURS, ONCE, THEIRS], "crew_added", BARE)
    for figure in more:
        figure.contender = figure.contender.replace("a model call", MODEL)
    return figures + more


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

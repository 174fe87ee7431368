"""Teams of AgentChat: durable ones beside bare ones, with models that take no time.

As for crews, all of it runs in a process of the adapter's environment. ``make bench`` names its Python in
``BENCH_AUTOGEN_PYTHON``; without that, and where AgentChat is not installed, the sections are empty.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import util

from tests.bench.agents import ONCE, OURS, added, at_once, of_tools
from tests.bench.crews import MODEL, Stage
from tests.bench.rounds import Contender
from tests.bench.sections import Figure, Workshop

BARE = "bare AutoGen"
MESSAGES = 600

_NAMES = {BARE: "bare", OURS: "stepfast", ONCE: "stepfast-once"}


def interpreter() -> str | None:
    """The Python that has AgentChat: this one, or that of the adapter's environment."""
    if util.find_spec("autogen_agentchat") and util.find_spec("stepfast_autogen"):
        return sys.executable
    return os.environ.get("BENCH_AUTOGEN_PYTHON")


def turn(shop: Workshop) -> list[Figure]:
    """A turn with one tool call and one with many: from the two follows what a call costs."""
    python = interpreter()
    if python is None:
        return []
    scale, url, stage = shop.scale, shop.place.url("teams"), shop.keep(Stage(python, "teams_stage", _NAMES))
    names = [BARE, OURS, ONCE]
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
        for figure in shop.figures("team", of_tools(samples, names, tools), BARE):
            figure.contender = at_once(figure.contender, tools)
            figures.append(figure)
    more = added(shop, samples, [OURS, ONCE], "team_added", BARE)
    for figure in more:
        figure.contender = figure.contender.replace("a model call", MODEL)
    return figures + more


def replay(shop: Workshop) -> list[Figure]:
    """A run that stopped at its last call is gone on with: all calls but that one come from the journal."""
    python = interpreter()
    if python is None:
        return []
    stage = shop.keep(Stage(python, "teams_stage", _NAMES))
    messages = MESSAGES if shop.scale.agent_rounds > 5 else 30
    rounds = [
        stage.ask("replay", shop.place.url(f"teams_{n}"), messages) for n in range(shop.scale.agent_resume_rounds)
    ]
    bare, ours = (min(each[which] for each in rounds) for which in (0, 1))
    return [
        shop.figure("team_replay", BARE, bare, "s", f"{messages} messages, the best of {len(rounds)}"),
        shop.figure("team_replay", OURS, ours, "s", f"{messages} messages, the best of {len(rounds)}"),
    ]


TEAM_SECTIONS: dict[str, Callable[[Workshop], list[Figure]]] = {"team": turn, "team_replay": replay}

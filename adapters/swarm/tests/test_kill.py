"""Real SIGKILL at every boundary of a Swarm run: the same ending, nothing recorded is done again, no effect twice."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from adapters.openai_agents.tests.nursery import Nursery
from adapters.swarm.tests.kit import RUN, Log
from stepfast import NotFound, Stepfast

EFFECTS = ["charge", "email", "look_up", "reserve", "weigh"]
ONE_SHOT = {"charge_card": "charge", "send_email": "email"}


class Theatre:
    """Plays the story once without a kill, then again for each boundary with one."""

    def __init__(self, nursery: Nursery, folder: Path, options: dict[str, Any]) -> None:
        self.nursery, self.folder, self.options = nursery, folder, options
        clean = self.place("clean")
        self.output = self.to_the_end(clean)
        self.labels = Log(clean / "labels.log").lines
        self.models = len(Log(clean / "models.log").lines)
        assert sorted(line.split()[0] for line in Log(clean / "effects.log").lines) == EFFECTS

    def place(self, name: str) -> Path:
        made = self.folder / name.replace(" ", "_")
        made.mkdir()
        return made

    def url(self, place: Path) -> str:
        return f"sqlite:///{place}/stepfast.db"

    def to_the_end(self, place: Path) -> str:
        """Start it until it is done; whoever is asked answers by what the effects' file shows."""
        for _ in range(4):
            code, said = self.nursery.play(place, self.url(place), self.options)
            assert code == 0, said
            if said.startswith("done: "):
                return said
            assert said == "waits", said
            self.answer(place)
        raise AssertionError("it never ended")

    def answer(self, place: Path) -> None:
        with Stepfast(self.url(place)) as sf:
            for asked in sf.decisions(RUN):
                effect = ONE_SHOT[asked["evidence"]["name"]]
                happened = any(line.startswith(effect) for line in Log(place / "effects.log").lines)
                if not happened:
                    sf.answer(RUN, "retry", asked["key"], actor="test")
                    continue
                variables = {"paid": 42} if effect == "charge" else {}
                told = {"value": f"{effect} done", "context_variables": variables}
                sf.answer(RUN, "done", asked["key"], value=told, actor="test")

    def killed_at(self, label: str) -> None:
        place = self.place(f"kill {label}")
        code, said = self.nursery.play(place, self.url(place), self.options, label)
        assert code == -signal.SIGKILL, (label, said)
        before = len(Log(place / "models.log").lines)
        recorded = self.recorded(place)
        assert self.to_the_end(place) == self.output, label
        after = len(Log(place / "models.log").lines) - before
        assert after == self.models - recorded, (label, "a recorded model call was made again, or one is missing")
        lines = Log(place / "effects.log").lines
        counts = Counter(line.split()[0] for line in lines)
        assert sorted(counts) == EFFECTS, label
        assert all(counts[name] == 1 for name in ONE_SHOT.values()), label
        assert len(lines) <= len(EFFECTS) + 1, (label, "more than the one call that was under way is repeated")
        assert len(set(lines)) == len(EFFECTS), (label, "a repeat has the same idempotency key")

    def recorded(self, place: Path) -> int:
        with Stepfast(self.url(place)) as sf:
            try:
                return sum(step["kind"] == "model" for step in sf.steps(RUN))
            except NotFound:
                return 0


@pytest.fixture(params=["whole", "streamed"])
def theatre(request: Any, nursery: Nursery, tmp_path: Path) -> Theatre:
    return Theatre(nursery, tmp_path, {"streamed": request.param == "streamed"})


@pytest.mark.timeout(300)
def test_a_run_killed_at_a_boundary_goes_on_and_repeats_nothing(theatre: Theatre) -> None:
    for label in theatre.labels[2 :: len(theatre.labels) // 10]:
        theatre.killed_at(label)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_run_killed_at_any_boundary_goes_on_and_repeats_nothing(theatre: Theatre) -> None:
    assert len(theatre.labels) > 40
    for label in theatre.labels:
        theatre.killed_at(label)

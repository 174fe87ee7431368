"""Real SIGKILL at every boundary of a run: the same output, nothing recorded done again, one-shot effects once."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from adapters.openai_agents.tests.kit import Log
from adapters.openai_agents.tests.nursery import Nursery
from adapters.openai_agents.tests.scenes import RUN, session_of
from stepfast import Stepfast
from stepfast_openai_agents._clients import close_clients

MODES: dict[str, dict[str, Any]] = {
    "run": {},
    "approval": {"hitl": True},
    "guardrail": {"guardrail": True},
    "session": {"session": "stepfast"},
    "session approval": {"session": "stepfast", "hitl": True},
    "sqlite session": {"session": "sqlite", "guardrail": True},
    "streamed": {"streamed": True},
    "streamed approval": {"streamed": True, "hitl": True},
    "streamed session": {"streamed": True, "session": "stepfast", "guardrail": True, "hitl": True},
}
EFFECTS = ["charge", "email", "handoff", "look_up", "reserve", "weigh"]
ONE_SHOT = ("charge", "email")
EFFECT_OF = {
    "charge_card": "charge",
    "send_email": "email",
    "transfer_to_shipping": "handoff",
    "look_up": "look_up",
    "reserve": "reserve",
    "weigh": "weigh",
}


def _ended(step: dict[str, Any]) -> bool:
    return bool(step["status"] == "FINISHED")


class Theatre:
    """Plays a story once without a kill, then again for each boundary with one."""

    def __init__(self, nursery: Nursery, folder: Path, options: dict[str, Any]) -> None:
        self.nursery, self.folder, self.options = nursery, folder, options
        clean = self.place("clean")
        self.output = self.to_the_end(clean)
        self.history = self.session_of(clean)
        self.labels = list(dict.fromkeys(Log(clean / "labels.log").lines))
        self.models = len(Log(clean / "models.log").lines)
        assert sorted(line.split()[0] for line in Log(clean / "effects.log").lines) == EFFECTS

    def place(self, name: str) -> Path:
        made = self.folder / name.replace("/", "_").replace(" ", "_")
        made.mkdir()
        return made

    def url(self, place: Path) -> str:
        return f"sqlite:///{place}/stepfast.db"

    def to_the_end(self, place: Path, kill: str | None = None) -> str:
        """Start it until it is done; whoever is asked answers by what the effects' file shows."""
        for _ in range(6):
            code, said = self.nursery.play(place, self.url(place), self.options, kill)
            kill = None
            assert code == 0, said
            if said.startswith("done: "):
                return said
            assert said == "waits"
            self.answer(place)
        raise AssertionError("it never ended")

    def answer(self, place: Path) -> None:
        with Stepfast(self.url(place)) as sf:
            for asked in sf.decisions(RUN):
                if asked["kind"] == "ask":
                    sf.answer(RUN, "approved", asked["key"], actor="test")
                    continue
                name = asked["evidence"]["name"]
                effect = EFFECT_OF[name]
                happened = any(line.startswith(effect) for line in Log(place / "effects.log").lines)
                if happened:
                    sf.answer(RUN, "done", asked["key"], value=f"{effect} done", actor="test")
                else:
                    sf.answer(RUN, "retry", asked["key"], actor="test")

    def killed_at(self, label: str) -> None:
        place = self.place(f"kill {label}")
        code, said = self.nursery.play(place, self.url(place), self.options, label)
        while code == 0 and said == "waits":  # not met before the pause
            self.answer(place)
            code, said = self.nursery.play(place, self.url(place), self.options, label)
        if code == 0:
            assert said == self.output, label  # the order of threads differs: this boundary was not met
            return
        assert code == -signal.SIGKILL, (label, said)
        before = len(Log(place / "models.log").lines)
        recorded = self.recorded(place)
        models = sum(step["kind"] == "model" for step in recorded)
        finished = {EFFECT_OF[step["name"]] for step in recorded if step["name"] in EFFECT_OF and _ended(step)}
        assert self.to_the_end(place) == self.output, label
        after = len(Log(place / "models.log").lines) - before
        assert after == self.models - models, (label, "a recorded model call was made again, or one is missing")
        self.check_effects(place, finished, label)
        assert self.session_of(place) == self.history, (label, "the session lost an item or has one twice")

    def session_of(self, place: Path) -> list[Any]:
        """What the session holds in the end, without the ids that each real call gives anew."""
        session = session_of(place, self.url(place), self.options)
        if session is None:
            return []
        items = asyncio.run(session.get_items())
        close_clients()
        if hasattr(session, "close"):
            session.close()
        ids = ("id", "call_id")
        return [{name: value for name, value in item.items() if name not in ids} for item in items]

    def recorded(self, place: Path) -> list[dict[str, Any]]:
        """What was in the journal when it died."""
        with Stepfast(self.url(place)) as sf:
            return sf.steps(RUN) if sf.list_intents() else []

    def check_effects(self, place: Path, finished: set[str], label: str) -> None:
        lines = Log(place / "effects.log").lines
        counts = Counter(line.split()[0] for line in lines)
        assert sorted(counts) == EFFECTS, label
        for name, count in counts.items():
            most = 1 if name in ONE_SHOT or name in finished else 2
            assert count <= most, (label, name, "was recorded, or is one-shot, and happened again")
        assert len(set(lines)) == len(EFFECTS), (label, "a repeat has another idempotency key")


def sample(labels: list[str], number: int) -> list[str]:
    return labels if number >= len(labels) else [labels[i * len(labels) // number] for i in range(number)]


@pytest.fixture(params=MODES, scope="module")
def theatre(request: Any, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Theatre:
    return Theatre(nursery, tmp_path_factory.mktemp(request.param), MODES[request.param])


@pytest.mark.timeout(300)
def test_a_run_killed_at_a_boundary_goes_on_and_repeats_nothing(theatre: Theatre) -> None:
    for label in sample(theatre.labels, 8):
        theatre.killed_at(label)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_run_killed_at_any_boundary_goes_on_and_repeats_nothing(theatre: Theatre) -> None:
    assert len(theatre.labels) > 50
    for label in theatre.labels:
        theatre.killed_at(label)

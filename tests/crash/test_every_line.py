"""Killed before every executed line of the package: the points that nobody thought of naming."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from stepfast import _failpoints
from stepfast.testing import Boundaries, every_line, explore
from stepfast.testing.lines import Hit
from tests.crash import scenarios
from tests.crash.proofs import Proof
from tests.crash.scenarios import Scenario, nothing

SEED = 20261116
SAMPLE = 8


class Between(Boundaries):
    """Only what one thread meets from one failpoint to another: a step from its call to its acknowledgement."""

    def __init__(self, inner: Boundaries, first: str, last: str) -> None:
        self.inner, self.first, self.last = inner, first, last

    def start(self, hit: Hit) -> None:
        inside: int | None = None

        def at_failpoint(name: str) -> None:
            nonlocal inside
            if name == self.first:
                inside = threading.get_ident()
            elif name == self.last:
                inside = None

        def at_line(label: str) -> None:
            if inside == threading.get_ident():
                hit(label)

        _failpoints.install(at_failpoint)
        self.inner.start(at_line)

    def stop(self) -> None:
        self.inner.stop()
        _failpoints.uninstall()


@dataclass(frozen=True)
class Part:
    """What lies between two failpoints of a small scenario; a large part has each line once, not each execution."""

    scenario: Scenario
    first: str
    last: str
    most: int | None = None


PARTS = {
    "a step, from its call to its acknowledgement": Part(scenarios.TINY, "step.before_call", "step.recorded", 90),
    "a one-shot step, from its start to its acknowledgement": Part(
        scenarios.TINY_ONCE, "once.started", "once.settled", 60
    ),
    "the completion of a run": Part(scenarios.TINY, "run.before_finish", "run.finished", 30),
}


@pytest.mark.parametrize("name", PARTS)
def test_every_line_of_a_small_part_may_be_the_last(name: str, proof: Proof) -> None:
    part = PARTS[name]
    result = explore(
        part.scenario,
        nothing,
        at=Between(every_line("stepfast"), part.first, part.last),
        setup=part.scenario.setup,
        recovery=part.scenario.twice,
        recover=1,
        max_points=part.most,
        seed=SEED,
    )
    assert result.missed == 0
    places = len({point.label for point in result.points})
    left_out = len(result.points) - len(result.tried)
    proof(f"lines, sqlite, {name}", kills=result.kills, lines=len(result.labels), of=places, left_out=left_out)


@pytest.mark.parametrize("scenario", scenarios.EVERY, ids=[s.name.replace(" ", "-") for s in scenarios.EVERY])
def test_any_line_may_be_the_last_sampled(scenario: Scenario, proof: Proof) -> None:
    result = explore(
        scenario,
        nothing,
        at=every_line("stepfast"),
        setup=scenario.setup,
        recovery=scenario.twice,
        recover=1,
        max_points=SAMPLE,
        seed=SEED,
    )
    proof(
        f"sampled lines, sqlite, {scenario.name}",
        kills=result.kills,
        of=len(result.points),
        left_out=len(result.points) - len(result.tried),
        seed=SEED,
    )


ALL = (*scenarios.SMALL, *scenarios.EVERY)


@pytest.mark.chaos
@pytest.mark.parametrize("scenario", ALL, ids=[s.name.replace(" ", "-") for s in ALL])
def test_every_line_may_be_the_last(scenario: Scenario, proof: Proof) -> None:
    result = explore(
        scenario, nothing, at=every_line("stepfast"), setup=scenario.setup, recovery=scenario.twice, recover=1
    )
    assert result.tried == result.points
    proof(f"every line, sqlite, {scenario.name}", kills=result.kills, lines=len(result.labels))

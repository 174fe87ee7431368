"""Killed at every named boundary: before the write, after it, after the effect, before the acknowledgement."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepfast import _failpoints
from stepfast.testing import Boundaries, Explored, every_failpoint, explore
from stepfast.testing.crash import Story
from stepfast.testing.lines import Trigger
from stepfast.testing.processes import Child, Note
from tests.crash import scenarios
from tests.crash.proofs import Proof
from tests.crash.scenarios import Scenario, nothing

ALL = (*scenarios.SMALL, *scenarios.EVERY)
# Threads take turns as they like, so a run may be over before the chosen point of another run is met.
UNSTEADY = {scenario.name for scenario in (scenarios.MAP, scenarios.THREADS, scenarios.GATHER, scenarios.ASK_BLOCKING)}


# The two recoveries are processes of their own; for the others, to be quick, they share one.
APART = (*scenarios.SMALL, scenarios.PLAIN, scenarios.ONCE)


def named(chosen: tuple[Scenario, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("scenario", chosen, ids=[s.name.replace(" ", "-") for s in chosen])


def check_all_tried(scenario: Scenario, result: Explored) -> None:
    assert result.tried == result.points, "every point is tried"
    check_missed(scenario, result)


def check_missed(scenario: Scenario, result: Explored) -> None:
    most = len(result.tried) // 3 if scenario.name in UNSTEADY else 0
    assert result.missed <= most, str(result)


@named(ALL)
def test_nothing_is_lost_or_repeated_when_killed_at_any_failpoint(scenario: Scenario, proof: Proof) -> None:
    if scenario in APART:
        result = explore(scenario, nothing, at=every_failpoint(), setup=scenario.setup, recovery=scenario.again)
    else:
        result = explore(
            scenario, nothing, at=every_failpoint(), setup=scenario.setup, recovery=scenario.twice, recover=1
        )
    check_all_tried(scenario, result)
    proof(f"failpoints, sqlite, {scenario.name}", kills=result.kills, points=len(result.points))


TWICE = (scenarios.ONCE, scenarios.DOUBT_RETRY, scenarios.INTENTS, scenarios.NESTED)


@named(TWICE)
def test_a_recovery_that_is_killed_too_is_recovered_from(scenario: Scenario, proof: Proof) -> None:
    result = explore(
        scenario,
        nothing,
        at=every_failpoint(),
        setup=scenario.setup,
        recovery=scenario.again,
        kills=2,
        stride=6,
    )
    assert result.missed == 0
    proof(f"failpoints, the recovery killed too, {scenario.name}", kills=2 * result.kills, points=len(result.points))


@pytest.mark.chaos
@named(ALL)
@pytest.mark.parametrize("seed", range(3))
def test_every_pair_of_kills_is_recovered_from(scenario: Scenario, seed: int, proof: Proof) -> None:
    result = explore(
        scenario,
        nothing,
        at=every_failpoint(),
        setup=scenario.setup,
        recovery=scenario.again,
        kills=2,
        seed=seed,
    )
    proof(f"failpoints, pairs of kills, {scenario.name}, seed {seed}", kills=2 * result.kills)


# Zombies: stopped at a boundary, overtaken, and let go on.

ZOMBIES = (scenarios.PLAIN, scenarios.TINY_ONCE, scenarios.INTENTS)


def overtaken(scenario: Scenario) -> Scenario:
    """The same, with leases that have run out by the store's clock whenever another life begins."""
    from dataclasses import replace

    return replace(scenario, hop=60.0)


def without_the_lock() -> Boundaries:
    return every_failpoint(
        "step.*", "once.*", "map.*", "checkpoint.*", "run.*", "resume.*", "ask.*", "sqlite.before_begin"
    )


@named(ZOMBIES)
def test_a_zombie_that_was_overtaken_changes_nothing(scenario: Scenario, proof: Proof) -> None:
    late = overtaken(scenario)
    result = explore(late, late.check, at=without_the_lock(), setup=late.setup, action="pause")
    assert result.missed == 0
    proof(f"zombies, sqlite, {scenario.name}", pauses=result.kills)


# The names


def names_met(scenario: Scenario, folder: Path) -> set[str]:
    """The failpoints that one uncut run of a scenario passes."""
    home = folder / scenario.name.replace(" ", "-")
    home.mkdir()
    story = Story(scenario, scenario.check, scenario, None, None, 1, 60.0, home)
    assert story.alone(scenario.setup, home).code == 0

    def run(note: Note) -> None:
        trigger = Trigger(None, "kill", note)
        with trigger.on(every_failpoint()):
            scenario(home)
        note({"labels": sorted(set(trigger.labels))})

    ended = Child(run).wait(60)
    assert ended.code == 0, ended.why
    found: set[str] = set(ended.notes[-1]["labels"])
    return found


def test_the_failpoints_that_are_declared_are_those_at_which_we_kill(memory: Path, proof: Proof) -> None:
    """Every point that a scenario meets is cut at above, so what is met here is what is exercised."""
    met = set().union(*(names_met(scenario, memory) for scenario in ALL))
    declared = {name for name in _failpoints.declared() if not name.startswith("postgres.")}
    assert met == declared, f"never exercised: {sorted(declared - met)}; never declared: {sorted(met - declared)}"
    proof("failpoint names, sqlite", names=len(met))

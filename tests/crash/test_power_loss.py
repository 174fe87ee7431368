"""A power cut at any moment: what was acknowledged is kept, nothing else is there, and the file is whole."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from stepfast import Stepfast
from stepfast.testing import Log, PowerLossExplored, check_states, trace
from tests.crash import scenarios
from tests.crash.hooks import checkpoint_often
from tests.crash.proofs import Proof, bound
from tests.crash.scenarios import Scenario
from tests.crash.stage import STORE, Stage, Traced, check_rows, look, orphans

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs ptrace as Linux has it")

SEED = 20261116
CHOSEN = (scenarios.PLAIN, scenarios.ONCE, scenarios.MAP, scenarios.CHECKPOINTS)
Entries = Literal["kept", "lost"]


class Unsynced(Traced):
    """A store that does not flush each commit, as ``durability="process"`` has it."""

    def client(self) -> Stepfast:
        return Stepfast(self.url, clock=self.clock, durability="process")


def traced(scenario: Scenario, folder: Path, stage: type[Traced] = Traced, pages: int | None = None) -> Log:
    """The system calls of one run of a scenario, with nothing but the store in its folder."""

    def body(home: Path) -> None:
        if pages is not None:
            checkpoint_often(pages)
        scenario.body(stage(home))

    home = folder / "traced"
    home.mkdir()
    log = trace(body, home)
    assert log.code == 0, log.error
    assert log.acked[-1] == "end"
    assert log.mapped == ()
    return log


def laws_of(scenario: Scenario) -> Callable[[Path, tuple[str, ...]], None]:
    laws = scenario.laws

    def check(folder: Path, acked: tuple[str, ...]) -> None:
        if not (folder / STORE).exists():
            assert not acked, "acknowledged, and the whole store is gone"
            return
        seen = look(Stage(folder))
        lost = set(acked) - set(seen.labels)
        assert not lost, f"acknowledged and lost: {sorted(lost)}"
        unasked = set(seen.labels) - set(acked) - set(laws.silent)
        assert len(unasked) <= laws.in_flight, f"never acknowledged and there: {sorted(unasked)}"
        assert set(seen.labels) <= set(laws.wanted) | set(laws.silent), "a phantom"
        check_rows(seen)
        assert orphans(folder / STORE) == []

    return check


def explored(
    log: Log, scenario: Scenario, *, entries: Entries = "kept", prefixes: int, subsets: int, enough: int = 1
) -> PowerLossExplored:
    return check_states(
        log,
        laws_of(scenario),
        seed=SEED,
        prefixes=prefixes,
        subsets=subsets,
        entries=entries,
        enough=enough,
    )


def first_of(result: PowerLossExplored) -> str:
    return "" if not result.violations else f"{result.violations[0].state}\n{result.violations[0].why}"


@pytest.mark.parametrize("scenario", CHOSEN, ids=lambda s: s.name.replace(" ", "-"))
def test_a_power_cut_at_any_moment_loses_nothing_acknowledged(scenario: Scenario, memory: Path, proof: Proof) -> None:
    log = traced(scenario, memory)
    many = 1 if scenario is scenarios.CHECKPOINTS else 2  # its writes are many by themselves
    result = explored(log, scenario, prefixes=many, subsets=many)
    assert not result.violations, first_of(result)
    proof(f"power loss, {scenario.name}", states=result.states, calls=len(log.calls), violations=0, seed=SEED)


def test_nor_does_one_that_takes_the_names_of_new_files(memory: Path, proof: Proof) -> None:
    log = traced(scenarios.PLAIN, memory)
    result = explored(log, scenarios.PLAIN, entries="lost", prefixes=2, subsets=2)
    assert not result.violations, first_of(result)
    proof("power loss, names lost too", states=result.states, violations=0, seed=SEED)


def test_nor_does_one_amid_checkpoints_of_the_log(memory: Path, proof: Proof) -> None:
    log = traced(scenarios.PLAIN, memory, pages=4)
    moved = [call for call in log.calls if call.op == "write" and call.path == STORE]
    assert len(moved) > 10, "the log was to be copied into the main file again and again"
    result = explored(log, scenarios.PLAIN, prefixes=2, subsets=2)
    assert not result.violations, first_of(result)
    proof("power loss, amid checkpoints", states=result.states, violations=0, seed=SEED)


def test_the_same_check_catches_a_store_that_does_not_flush(memory: Path, proof: Proof) -> None:
    """``durability="process"`` may lose the last instants, as it says; were that not seen, the check would be blind."""
    log = traced(scenarios.PLAIN, memory, Unsynced)
    result = explored(log, scenarios.PLAIN, prefixes=3, subsets=3, enough=1_000_000)
    lost = [violation for violation in result.violations if "acknowledged and lost" in violation.why]
    assert lost
    assert len(lost) == len(result.violations), "it loses the last instants, and breaks nothing else"
    proof('power loss, durability="process" (must fail)', states=result.states, violations=len(lost), seed=SEED)
    for violation in result.violations:
        if violation.folder is not None:
            import shutil

            shutil.rmtree(violation.folder.parent, ignore_errors=True)


class Witnessed(Traced):
    """What is done to the world leaves its mark in the log of calls too."""

    def act(self, label: str) -> dict[str, Any]:
        self.effects.record(label)
        return {"did": label}


def test_nothing_is_acknowledged_before_it_is_flushed_nor_a_one_shot_done(memory: Path, proof: Proof) -> None:
    """The order of the calls themselves: at each promise, and at each effect, the log has nothing unflushed."""
    log = traced(scenarios.ONCE, memory, Witnessed)
    unflushed = 0
    promises = effects = 0
    for call in log.calls:
        if call.path == f"{STORE}-wal" and call.op == "write":
            unflushed += 1
        elif call.path == f"{STORE}-wal" and call.op == "sync":
            unflushed = 0
        elif call.op == "ack":
            assert not unflushed, f"{call.data!r} was promised with {unflushed} writes not flushed"
            promises += 1
        elif call.path == "effects" and call.op == "write":
            assert not unflushed, f"{call.data!r} was done with {unflushed} writes not flushed"
            effects += 1
    assert (promises, effects) == (5, 4)
    proof("order of calls", promises=promises, effects=effects)


@pytest.mark.chaos
@pytest.mark.parametrize("entries", ["kept", "lost"])
@pytest.mark.parametrize("pages", [None, 4])
@pytest.mark.parametrize("scenario", scenarios.ANYWHERE, ids=lambda s: s.name.replace(" ", "-"))
def test_many_more_power_cuts(
    scenario: Scenario, pages: int | None, entries: Entries, memory: Path, proof: Proof
) -> None:
    log = traced(scenario, memory, pages=pages)
    result = explored(log, scenario, entries=entries, prefixes=16, subsets=40)
    assert not result.violations, first_of(result)
    proof(
        f"power loss, {scenario.name}, pages {pages}, names {entries}",
        states=result.states,
        seed=SEED,
        says=bound(result.states),
    )

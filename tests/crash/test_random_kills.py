"""Killed at random moments: a lone run, and a crew of workers that compete for intents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepfast import mapping, vault
from stepfast.testing import random_kills
from tests.crash import scenarios
from tests.crash.proofs import Proof
from tests.crash.scenarios import Scenario, nothing
from tests.crash.stage import Laws, Stage
from tests.crash.workers import Crew

SEED = 20261116
ITEMS = 12


def all_sorts(stage: Stage) -> None:
    """A bit of everything in one run."""
    mapping.CHUNK_ITEMS = 3
    vault.PIECE_SIZE = 16 * 1024

    def work(run: Any) -> None:
        for label in ("a", "b"):
            run.step(stage.act, label)
            stage.kept(label)
        run.options(key="charge").once(stage.act, "charge")
        stage.kept("charge")
        for value in run.map(stage.act, [f"item {n}" for n in range(ITEMS)], concurrency=3, name="item"):
            stage.kept(value["did"])
        run.checkpoint({"cursor": 1})
        assert run.ask("Deploy?")
        run.checkpoint({"data": scenarios.big(2)})
        run.step(stage.act, "c")
        stage.kept("c")

    scenarios.with_a_person(stage, "done", work)


ALL_SORTS = Scenario(
    "all sorts",
    all_sorts,
    Laws(
        ("a", "b", "charge", *(f"item {n}" for n in range(ITEMS)), "c", "end"),
        in_flight=ITEMS,
        once=("charge",),
        silent=("end", "version 1", "version 2"),
    ),
)


def kill_at_random(n: int, seed: int, proof: Proof) -> None:
    print(f"seed {seed}")
    result = random_kills(ALL_SORTS, nothing, n, seed, setup=ALL_SORTS.setup, recovery=ALL_SORTS.twice, recover=1)
    assert result.kills >= n * 0.9, f"too few runs were still going when they were to be killed: {result}"
    proof("random kills, sqlite", kills=result.kills, seed=seed, failures=0, rate_below=result.bound)


def test_a_kill_at_a_random_moment_loses_and_repeats_nothing(proof: Proof) -> None:
    kill_at_random(60, SEED, proof)


def test_workers_killed_at_random_complete_every_intent_once(memory: Path, proof: Proof) -> None:
    counted = Crew(memory, intents=24).toil(kills=20, seed=SEED, timeout=90)
    proof(
        "workers competing, sqlite",
        intents=24,
        kills=counted.kills,
        deliveries=counted.deliveries,
        lost=counted.lost,
        seed=SEED,
    )


def test_a_stopped_worker_that_goes_on_is_fenced(memory: Path, proof: Proof) -> None:
    counted = Crew(memory, intents=40).toil(kills=0, stops=3, seed=SEED, timeout=90)
    assert counted.stops
    proof("workers stopped and let go on, sqlite", intents=40, stops=counted.stops, lost=counted.lost, seed=SEED)

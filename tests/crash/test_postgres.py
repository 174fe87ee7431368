"""The same on PostgreSQL: the client is killed at every failpoint, and a crew of workers at random."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from stepfast import _failpoints
from stepfast.stores import Store, open_store
from stepfast.stores.postgres import PostgresStore
from stepfast.testing import every_failpoint, explore
from stepfast.testing.processes import Child
from tests.crash import scenarios
from tests.crash.fencing import WRITES, check_fenced_in_the_write, check_gapless_over_two_stores
from tests.crash.proofs import Proof
from tests.crash.scenarios import Scenario, nothing
from tests.crash.stage import Stage
from tests.crash.test_every_failpoint import check_all_tried, check_missed, named, names_met, overtaken
from tests.crash.workers import Crew

SEED = 20261116


@pytest.fixture(scope="session")
def url(postgres_url: str) -> str:
    """A schema of these tests' own, made before the first life begins."""
    address = f"{postgres_url}{'&' if '?' in postgres_url else '?'}schema=crash_{uuid4().hex[:8]}"
    ended = Child(lambda _: open_store(address).close()).wait(60)
    assert ended.code == 0, ended.why
    return address


def placed(scenario: Scenario, url: str) -> Scenario:
    """The same scenario on a database that all lives share, each folder under a name of its own."""

    def before(stage: Stage) -> None:
        (stage.folder / "url").write_text(url)

    return replace(scenario, before=before)


LATER = (scenarios.ASK_BLOCKING, scenarios.HANDED_BACK)
# More than any scenario has failpoints, so that each is tried; not each time that it is met.
MOST = 16


@named((scenarios.TINY_ONCE, *(s for s in scenarios.ANYWHERE if s not in LATER)))
def test_nothing_is_lost_or_repeated_on_postgres_when_killed_at_any_failpoint(
    scenario: Scenario, url: str, proof: Proof
) -> None:
    there = placed(scenario, url)
    result = explore(
        there,
        nothing,
        at=every_failpoint(),
        setup=there.setup,
        recovery=there.twice,
        recover=1,
        max_points=MOST,
        seed=SEED,
    )
    check_missed(scenario, result)
    assert {point.label for point in result.tried} == {point.label for point in result.points}, (
        "every failpoint is tried"
    )
    proof(f"failpoints, postgres, {scenario.name}", kills=result.kills, points=len(result.points))


@pytest.mark.chaos
@named((scenarios.TINY_ONCE, *scenarios.ANYWHERE))
def test_nor_each_time_that_a_failpoint_is_met(scenario: Scenario, url: str, proof: Proof) -> None:
    there = placed(scenario, url)
    result = explore(there, nothing, at=every_failpoint(), setup=there.setup, recovery=there.again)
    check_all_tried(scenario, result)
    proof(f"failpoints, postgres, {scenario.name}", kills=result.kills, points=len(result.points))


@named((scenarios.PLAIN, scenarios.TINY_ONCE))
def test_a_zombie_on_postgres_changes_nothing(scenario: Scenario, url: str, proof: Proof) -> None:
    late = overtaken(placed(scenario, url))
    result = explore(late, late.check, at=every_failpoint(), setup=late.setup, action="pause", recover=1)
    assert result.missed == 0
    proof(f"zombies, postgres, {scenario.name}", pauses=result.kills)


def test_the_failpoints_of_postgres_are_those_at_which_we_kill(url: str, memory: Path) -> None:
    met = names_met(placed(scenarios.PLAIN, url), memory)
    declared = {name for name in _failpoints.declared() if name.startswith("postgres.")}
    assert declared, f"{PostgresStore.__name__} has failpoints"
    assert {name for name in met if name.startswith("postgres.")} == declared


def test_workers_on_postgres_killed_at_random_complete_every_intent_once(url: str, memory: Path, proof: Proof) -> None:
    (memory / "url").write_text(url)
    counted = Crew(memory, intents=24).toil(kills=15, seed=SEED, timeout=100)
    proof(
        "workers competing, postgres",
        intents=24,
        kills=counted.kills,
        deliveries=counted.deliveries,
        lost=counted.lost,
        seed=SEED,
    )


@pytest.fixture
def pair(url: str) -> Iterator[tuple[Store, Store]]:
    """Two stores on one database, as two processes would have them."""
    with open_store(url) as store, open_store(url) as other:
        yield store, other


@pytest.mark.parametrize("write", WRITES)
def test_a_write_overtaken_on_its_way_to_postgres_is_fenced(write: str, pair: tuple[Store, Store]) -> None:
    check_fenced_in_the_write(*pair, write, "postgres.before_send")


def test_two_stores_at_once_leave_a_gapless_history_on_postgres(pair: tuple[Store, Store]) -> None:
    check_gapless_over_two_stores(*pair, 25)

"""Long and random: crews of workers under everything at once. Each test prints its seed and what its totals bound."""

from __future__ import annotations

import random
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from stepfast.testing import random_kills
from tests.crash.proofs import Proof, bound
from tests.crash.scenarios import nothing
from tests.crash.test_postgres import placed
from tests.crash.test_random_kills import ALL_SORTS, kill_at_random
from tests.crash.workers import Counted, Crew
from tests.stores.faults import OwnServer

pytestmark = pytest.mark.chaos

ROUNDS = 12
SKEWS = (0.0, 600.0, -600.0, 0.0)


@pytest.fixture
def seed() -> int:
    """Another one each time; a failure prints it."""
    chosen = secrets.randbelow(2**32)
    print(f"seed {chosen}")
    return chosen


@pytest.fixture
def url(postgres_url: str) -> str:
    return f"{postgres_url}{'&' if '?' in postgres_url else '?'}schema=chaos_{uuid4().hex[:8]}"


def tell(proof: Proof, what: str, rounds: list[Counted], seed: int) -> None:
    kills, stops = sum(r.kills for r in rounds), sum(r.stops for r in rounds)
    proof(
        what,
        rounds=len(rounds),
        kills=kills,
        stops=stops,
        deliveries=sum(r.deliveries for r in rounds),
        lost=sum(r.lost for r in rounds),
        seconds=round(sum(r.seconds for r in rounds)),
        seed=seed,
        says=bound(kills + stops),
    )


def test_two_thousand_kills_at_random_moments(seed: int, proof: Proof) -> None:
    kill_at_random(2000, seed, proof)


def test_kills_at_random_moments_on_postgres(url: str, seed: int, proof: Proof) -> None:
    there = placed(ALL_SORTS, url)
    result = random_kills(there, nothing, 500, seed, setup=there.setup, recovery=there.again)
    proof("random kills, postgres", kills=result.kills, seed=seed, says=bound(result.kills))


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_crew_under_kills_stops_and_wrong_clocks(
    store: str, memory: Path, request: pytest.FixtureRequest, seed: int, proof: Proof
) -> None:
    """Clocks ten minutes ahead and behind take leases from living workers, and still nothing is done twice."""
    dice = random.Random(seed)
    rounds = []
    for turn in range(ROUNDS):
        folder = memory / f"round-{turn}"
        folder.mkdir()
        if store == "postgres":
            (folder / "url").write_text(request.getfixturevalue("url"))
        crew = Crew(folder, intents=100, size=4, skews=SKEWS)
        rounds.append(crew.toil(kills=40, stops=4, seed=dice.randrange(2**32), timeout=600))
    tell(proof, f"soak, {store}: kills, stops, clocks ±600 s", rounds, seed)


@pytest.fixture
def own_server() -> Iterator[OwnServer]:
    with tempfile.TemporaryDirectory(prefix="stepfast-chaos-") as folder:
        server = OwnServer(Path(folder) / "data")
        yield server
        server.stop()


def test_a_crew_while_the_server_crashes(own_server: OwnServer, memory: Path, seed: int, proof: Proof) -> None:
    """PostgreSQL itself is killed every few seconds, and its workers besides."""
    dice = random.Random(seed)
    rounds: list[Counted] = []
    crashes = 0
    next_crash = time.monotonic() + 2

    def meanwhile() -> None:
        nonlocal crashes, next_crash
        if time.monotonic() >= next_crash:
            own_server.crash()
            time.sleep(dice.uniform(0, 0.5))
            own_server.restart()
            crashes += 1
            next_crash = time.monotonic() + dice.uniform(1, 4)

    for turn in range(ROUNDS):
        folder = memory / f"round-{turn}"
        folder.mkdir()
        mark = "&" if "?" in own_server.url else "?"
        (folder / "url").write_text(f"{own_server.url}{mark}schema=chaos")
        crew = Crew(folder, intents=80, size=3)
        rounds.append(crew.toil(kills=20, seed=dice.randrange(2**32), timeout=600, meanwhile=meanwhile))
    assert crashes >= ROUNDS
    tell(proof, f"soak, postgres crashed {crashes} times", rounds, seed)

"""Real SIGKILL at every boundary of a Swarm run: the same ending, nothing recorded is done again, no effect twice."""

from __future__ import annotations

import pytest

from adapters.swarm.tests.scenes import order
from stepfast.testing import crash_matrix

pytestmark = [pytest.mark.xdist_group("kill"), pytest.mark.timeout(600)]
each_way = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
each_store = pytest.mark.parametrize("store", ["sqlite", "http"])


@each_way
@each_store
def test_a_run_killed_at_a_boundary_goes_on_and_repeats_nothing(streamed: bool, store: str) -> None:
    report = crash_matrix(order, store=store, options={"streamed": streamed}, points=10 if store == "sqlite" else 3)
    report.assert_clean()


@pytest.mark.chaos
@each_way
@each_store
def test_a_run_killed_at_any_boundary_goes_on_and_repeats_nothing(streamed: bool, store: str) -> None:
    report = crash_matrix(order, store=store, options={"streamed": streamed}, moments=20)
    print(report)
    report.assert_clean()
    crash_matrix(order, store=store, options={"streamed": streamed}, kills=2, seed=1).assert_clean()

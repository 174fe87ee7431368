"""Plain runs in the crash matrix for adapters, on every kind of store."""

from __future__ import annotations

import pytest

from stepfast.testing import Scene, crash_matrix
from tests.crash import matrix_scene
from tests.crash.proofs import Proof

each_scene = pytest.mark.parametrize("scene", [matrix_scene.order, matrix_scene.side_by_side], ids=lambda s: s.name)
each_store = pytest.mark.parametrize("store", ["sqlite", "postgres", "http"])


def kill(scene: Scene, store: str, request: pytest.FixtureRequest, proof: Proof, **options: int) -> None:
    url = request.getfixturevalue("postgres_url") if store == "postgres" else store
    report = crash_matrix(scene, store=url, **options)  # type: ignore[arg-type]
    report.assert_clean()
    proof(f"matrix, {store}, {scene.name}", kills=report.kills, points=len(report.points))


@each_scene
@each_store
def test_a_plain_run_killed_at_a_boundary_repeats_nothing(
    scene: Scene, store: str, request: pytest.FixtureRequest, proof: Proof
) -> None:
    kill(scene, store, request, proof, points=6, moments=2)


@pytest.mark.chaos
@each_scene
@each_store
def test_a_plain_run_killed_at_any_boundary_repeats_nothing(
    scene: Scene, store: str, request: pytest.FixtureRequest, proof: Proof
) -> None:
    kill(scene, store, request, proof, moments=30)
    kill(scene, store, request, proof, kills=2, seed=1)

"""Every store against the model of it."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from stepfast.testing.model import machine, sized
from tests.contract.http_places import Http
from tests.contract.places import Place, Postgres


def run(place: Place, *, examples: int, steps: int) -> None:
    made = machine(place)
    try:
        run_state_machine_as_test(made, settings=sized(examples, steps))
    finally:
        made.shared["store"].close()


@pytest.mark.timeout(300)
def test_the_store_agrees_with_its_model(place: Place) -> None:
    examples = 4 if isinstance(place, Http) else 20 if isinstance(place, Postgres) else 40
    run(place, examples=examples, steps=40)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_the_store_agrees_with_its_model_for_long(place: Place) -> None:
    run(place, examples=500, steps=50)

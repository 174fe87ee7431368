"""A lease that this very process holds for nobody: it is taken back at once. What is at work keeps its own."""

# ruff: noqa: PT012 - what is raised leaves the run, so the run is inside the block

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from stepfast import Fenced, OutcomeUnknown, RunBusy, Stepfast, StoreUnavailable
from stepfast.ops import FinishIntent, OpenIntent, ReadJournal, ReleaseIntent
from tests.run.kit import events_of


class Faults:
    """Fails the operations of a kind: before they are applied, or after."""

    def __init__(self, store: Any) -> None:
        self.kinds: tuple[type, ...] = ()
        self.applied = False
        execute = store.execute

        def executed(ops: Any, **more: Any) -> Any:
            if not any(isinstance(op, self.kinds) for op in ops):
                return execute(ops, **more)
            if self.applied:
                execute(ops, **more)
                raise OutcomeUnknown("the answer was lost")
            raise StoreUnavailable("away for the test")

        store.execute = executed


@pytest.fixture
def sf(url: str) -> Iterator[Stepfast]:
    with Stepfast(url) as made:
        yield made


@pytest.fixture
def faults(sf: Stepfast) -> Faults:
    return Faults(sf.store)


def test_after_a_store_error_while_completing_the_run_opens_again_at_once(sf: Stepfast, faults: Faults) -> None:
    faults.kinds = (FinishIntent, ReleaseIntent)
    with pytest.raises(StoreUnavailable), sf.run("r") as run:
        run.step(str, 1)
        run.complete("first")
    faults.kinds = ()
    with sf.run("r") as again:
        assert (again.attempt, again.steps()) == (2, ["str#1"])
        with pytest.raises(Fenced):
            run.step(str, 2)
    assert sf.get_intent("r")["lost_deliveries"] == 0
    assert "released" in events_of(sf.events("r"))


def test_after_a_lost_answer_while_opening_the_run_opens_again_at_once(sf: Stepfast, faults: Faults) -> None:
    faults.kinds, faults.applied = (OpenIntent,), True
    with pytest.raises(OutcomeUnknown):
        sf.run("r")
    faults.kinds = ()
    with sf.run("r") as run:
        assert run.attempt == 2
    assert sf.get_intent("r")["lost_deliveries"] == 0


def test_after_a_store_error_while_reading_the_journal_the_run_opens_again_at_once(
    sf: Stepfast, faults: Faults
) -> None:
    with pytest.raises(KeyError), sf.run("r") as run:
        run.step(str, 1)
        raise KeyError
    faults.kinds = (ReadJournal, ReleaseIntent)
    with pytest.raises(StoreUnavailable):
        sf.run("r")
    faults.kinds = ()
    with sf.run("r") as run:
        assert (run.attempt, run.steps()) == (3, ["str#1"])
    assert sf.get_intent("r")["lost_deliveries"] == 0


def test_a_run_that_is_open_in_this_process_is_still_busy(sf: Stepfast, url: str) -> None:
    with sf.run("r") as run, Stepfast(url) as other:
        with pytest.raises(RunBusy):
            sf.run("r")
        with pytest.raises(RunBusy):
            other.run("r")
        run.step(str, 1)


def test_of_many_threads_that_open_what_was_left_behind_one_gets_it(sf: Stepfast, faults: Faults) -> None:
    faults.kinds = (FinishIntent, ReleaseIntent)
    with pytest.raises(StoreUnavailable), sf.run("r"):
        pass
    faults.kinds = ()
    outcomes: list[Any] = []
    ready = threading.Barrier(8)

    def open_it() -> None:
        ready.wait()
        try:
            outcomes.append(sf.run("r"))
        except RunBusy:
            outcomes.append(None)

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [run for run in outcomes if run is not None]
    winner.step(str, 1)
    winner.__exit__(None, None, None)
    assert sf.get_intent("r")["status"] == "COMPLETED"

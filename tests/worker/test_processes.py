"""Workers in processes of their own: killed, drained, restarted."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepfast import Stepfast
from stepfast.testing import Effects
from stepfast.worker import _arrivals
from tests.worker.kit import ADDRESS, PAIRS, SECONDS, Launch

HUP = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture
def sf(url: str) -> Iterator[Stepfast]:
    with Stepfast(url) as made:
        yield made


def send(sf: Stepfast, name: str) -> str:
    return sf.send_intent({"intent_type": "t.v1", "to_agent": ADDRESS, "payload": name})


def ended(sf: Stepfast, intent_id: str) -> dict[str, Any]:
    return sf.wait_for(intent_id, timeout=SECONDS)


def fate(intent: dict[str, Any]) -> tuple[Any, ...]:
    return intent["status"], intent["delivery_attempt"], intent["lost_deliveries"]


def test_a_standby_goes_on_where_a_killed_worker_stopped_long_before_its_lease_ends(
    launch: Launch, sf: Stepfast, tmp_path: Path
) -> None:
    first = launch(hang_at=3)
    first.hear("ready")
    intent_id = send(sf, "a")
    first.hear("at")
    launch().hear("ready")
    killed = time.monotonic()
    first.kill()
    done = ended(sf, intent_id)
    assert time.monotonic() - killed < 10  # its lease is 30 seconds long
    assert fate(done) == ("COMPLETED", 2, 0)  # the lost delivery had finished steps
    assert done["result"] == [1, 2, 3, 4, 5]
    # The killed step had its effect and was never recorded: it is done again, and nothing else is.
    assert Effects(tmp_path).lines() == ["a:1", "a:2", "a:3", "a:3", "a:4", "a:5"]


@PAIRS
def test_the_lease_of_a_killed_worker_runs_out_where_nobody_can_tell_that_it_is_dead(
    launch: Launch, sf: Stepfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = launch(hang_at=1, lease_seconds=1.0)
    first.hear("ready")
    intent_id = send(sf, "a")
    first.hear("at")
    first.kill()
    from stepfast import foraging

    monkeypatch.setattr(foraging, "life_of", lambda _owner: "unknown")
    worker = sf.worker(ADDRESS)(lambda run, payload: run.step(len, payload))
    worker.start()
    assert fate(ended(sf, intent_id)) == ("COMPLETED", 2, 1)


@PAIRS
def test_an_intent_with_new_steps_in_each_life_survives_five_crashes(
    launch: Launch, sf: Stepfast, tmp_path: Path
) -> None:
    intent_id = send(sf, "a")
    for number in range(2, 7):
        program = launch(hang_at=number, steps=6)
        program.hear("ready")
        program.hear("at")
        program.kill()
    launch(steps=6).hear("ready")
    done = ended(sf, intent_id)
    assert fate(done) == ("COMPLETED", 6, 0)
    assert done["result"] == [1, 2, 3, 4, 5, 6]
    assert Effects(tmp_path).counts() == {"a:1": 1, **{f"a:{number}": 2 for number in range(2, 7)}}


@PAIRS
def test_three_crashes_without_a_new_step_fail_the_intent_and_reviving_it_goes_on_behind_the_finished_steps(
    launch: Launch, sf: Stepfast, tmp_path: Path
) -> None:
    intent_id = send(sf, "a")
    for _ in range(4):  # the first of them finishes a step
        program = launch(hang_at=2)
        program.hear("ready")
        program.hear("at")
        program.kill()
    launch().hear("ready")
    failed = ended(sf, intent_id)
    assert fate(failed) == ("FAILED", 4, 3)
    assert "3 of 3 deliveries were lost in a row without a newly finished step" in failed["reason"]
    again = sf.revive(intent_id, actor="ann")["intent_id"]
    assert ended(sf, again)["result"] == [1, 2, 3, 4, 5]
    assert Effects(tmp_path).counts() == {"a:1": 1, "a:2": 5, "a:3": 1, "a:4": 1, "a:5": 1}


@PAIRS
@pytest.mark.parametrize("number", HUP, ids=lambda number: number.name)
def test_a_worker_told_to_stop_lets_its_handler_end(launch: Launch, sf: Stepfast, number: signal.Signals) -> None:
    program = launch(hang_at=2)
    program.hear("ready")
    intent_id = send(sf, "a")
    program.hear("at")
    program.signal(number)
    later = send(sf, "b")
    program.say()
    program.hear("stopped")
    program.end()
    assert fate(ended(sf, intent_id)) == ("COMPLETED", 1, 0)
    assert fate(sf.get_intent(later)) == ("DELIVERED", 0, 0)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals of threads are POSIX's")
def test_a_signal_to_stop_is_seen_before_python_has_handled_it() -> None:
    main = threading.main_thread().ident
    assert main is not None
    assert main == threading.get_ident()
    handled: list[int] = []
    before = {
        number: signal.signal(number, lambda n, _: handled.append(n)) for number in (signal.SIGTERM, signal.SIGUSR1)
    }
    try:
        with _arrivals() as has_arrived:
            assert not has_arrived()
            signal.pthread_kill(main, signal.SIGUSR1)
            assert not has_arrived(), "this one is none of ours"
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            signal.pthread_kill(main, signal.SIGTERM)
            assert has_arrived(), "it is pending"
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            assert has_arrived(), "it has arrived"
        assert handled == [signal.SIGUSR1, signal.SIGTERM]
        assert signal.set_wakeup_fd(-1) == -1, "nothing is left behind"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@PAIRS
def test_what_a_stopped_worker_could_not_finish_is_handed_back_and_costs_no_attempt(
    launch: Launch, sf: Stepfast, tmp_path: Path
) -> None:
    program = launch(hang_at=2, drain_seconds=0.1)
    program.hear("ready")
    intent_id = send(sf, "a")
    program.hear("at")
    program.signal(signal.SIGTERM)
    program.hear("stopped")
    program.end()
    assert sf.events(intent_id)[-1]["details"]["reason"] == "the worker was stopped"
    launch().hear("ready")
    assert fate(ended(sf, intent_id)) == ("COMPLETED", 2, 0)
    assert Effects(tmp_path).lines() == ["a:1", "a:2", "a:2", "a:3", "a:4", "a:5"]


@PAIRS
def test_a_second_signal_hands_everything_back_at_once(launch: Launch, sf: Stepfast) -> None:
    program = launch(hang_at=1, drain_seconds=600.0, concurrency=2)
    program.hear("ready")
    both = [send(sf, "a"), send(sf, "b")]
    program.hear("at")
    program.hear("at")
    program.signal(signal.SIGTERM)
    program.signal(signal.SIGINT)
    program.hear("stopped")
    program.end()
    for intent_id in both:
        assert fate(sf.get_intent(intent_id)) == ("IN_PROGRESS", 1, 0)
        assert sf.events(intent_id)[-1]["event_type"] == "intent.released"


@PAIRS
def test_a_rolling_restart_handles_each_intent_exactly_once(launch: Launch, sf: Stepfast, tmp_path: Path) -> None:
    options = {"concurrency": 2, "steps": 2}
    workers = [launch(**options) for _ in range(3)]
    for worker in workers:
        worker.hear("ready")
    sent = [send(sf, f"i{number}") for number in range(25)]
    fresh = []
    for number, worker in enumerate(workers):
        fresh.append(launch(**options))
        worker.signal(signal.SIGTERM)
        sent += [send(sf, f"j{number}-{n}") for n in range(8)]
        worker.hear("stopped")
        worker.end()
    sent.append(send(sf, "last"))
    for worker in fresh:
        worker.hear("ready")
    assert len(sent) == 50
    # A claim that came with the signal is handed back unbegun: a second attempt, but no lost delivery.
    assert {fate(ended(sf, intent_id))[::2] for intent_id in sent} == {("COMPLETED", 0)}
    assert set(Effects(tmp_path).counts().values()) == {1}
    assert len(Effects(tmp_path).lines()) == 100
    for worker in fresh:
        worker.signal(signal.SIGTERM)
        worker.end()

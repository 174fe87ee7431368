from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
import warnings
from contextlib import closing, suppress
from pathlib import Path

import pytest

from stepfast._failpoints import declared, failpoint
from stepfast.testing import (
    CrashTestFailed,
    Effects,
    Injected,
    Killed,
    every_failpoint,
    every_line,
    explore,
    random_kills,
    run_until_killed,
)
from tests.testing import toys

TOYS = Path(toys.__file__)


# explore


def test_a_careful_program_survives_a_kill_at_every_line_and_failpoint() -> None:
    result = explore(toys.careful, toys.charged_once, at=every_line(TOYS) | every_failpoint())
    assert result.kills == len(result.tried) == len(result.points) > 40
    assert result.missed == 0
    assert declared() <= result.labels


def test_the_declared_failpoints_can_be_compared_with_those_exercised() -> None:
    assert explore(toys.careful, toys.charged_once, at=every_failpoint()).labels == declared()


def test_an_effect_that_is_repeated_is_caught_and_its_place_is_named(memory: Path) -> None:
    with pytest.raises(CrashTestFailed, match="charged_once") as caught:
        explore(toys.forgetful, toys.charged_once, at=every_failpoint(), folder=memory)
    assert caught.value.where == "toy.acted (hit 1, point 1)"
    assert caught.value.stage == "the check after recovery 1"
    assert "only=[1]" in str(caught.value)


def test_a_line_is_named_with_its_file_and_hit(memory: Path) -> None:
    with pytest.raises(CrashTestFailed) as caught:
        explore(toys.forgetful, toys.charged_once, at=every_line(TOYS), folder=memory)
    assert caught.value.where.startswith("toys.py:")
    assert "(hit 1, point " in caught.value.where


def test_an_acknowledgement_before_the_commit_is_caught(memory: Path) -> None:
    with pytest.raises(CrashTestFailed, match="an acknowledged step is lost") as caught:
        explore(toys.hasty, toys.acks_kept, at=every_failpoint(), after_kill=toys.acks_kept, folder=memory)
    assert caught.value.stage == "the check right after the cut"


def test_the_folder_of_a_failure_is_kept_with_a_copy_as_the_kill_left_it(tmp_path: Path) -> None:
    with pytest.raises(CrashTestFailed) as caught:
        explore(toys.forgetful, toys.charged_once, at=every_failpoint(), folder=tmp_path)
    kept = caught.value.folder
    assert kept is not None
    assert kept.is_relative_to(tmp_path)
    assert Effects(kept).counts()["charge:1"] == 2
    assert Effects(kept.with_name(f"{kept.name}-as-cut")).counts()["charge:1"] == 1


def test_a_success_leaves_nothing_behind(tmp_path: Path) -> None:
    explore(toys.careful, toys.charged_once, at=every_failpoint(), folder=tmp_path)
    random_kills(toys.careful, toys.charged_once, 3, 1, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_recovery_that_never_comes_to_rest_is_caught_without_any_crash(memory: Path) -> None:
    with pytest.raises(CrashTestFailed, match=r"nothing was left to do.*hello"):
        explore(toys.restless, toys.charged_once, at=every_failpoint(), folder=memory)


def test_a_scenario_that_fails_by_itself_is_not_mistaken_for_a_crash(memory: Path) -> None:
    def broken(folder: Path) -> None:
        raise ValueError("no such luck")

    with pytest.raises(CrashTestFailed, match="no such luck") as caught:
        explore(broken, toys.charged_once, at=every_failpoint(), folder=memory)
    assert caught.value.stage == "the scenario with no crash"


def test_an_exploration_that_meets_no_boundary_fails(memory: Path) -> None:
    with pytest.raises(CrashTestFailed, match="no boundary was met"):
        explore(lambda folder: None, lambda folder: None, at=every_failpoint(), folder=memory)


def test_an_undeclared_failpoint_fails_the_exploration(memory: Path) -> None:
    with pytest.raises(CrashTestFailed, match="never declared"):
        explore(lambda folder: failpoint("toy.mistyped"), lambda folder: None, at=every_failpoint(), folder=memory)


def test_a_scenario_that_hangs_is_ended_and_reported(memory: Path) -> None:
    def hang(folder: Path) -> None:
        failpoint("toy.started")
        time.sleep(60)

    with pytest.raises(CrashTestFailed, match=r"still running after 0\.2 s"):
        explore(hang, lambda folder: None, at=every_failpoint(), timeout=0.2, folder=memory)


def test_sampling_says_how_much_it_left_out() -> None:
    result = explore(toys.careful, toys.charged_once, at=every_line(TOYS), max_points=5, seed=3)
    assert len(result.tried) == result.kills == 5
    assert len(result.points) > 40
    assert f"5 of {len(result.points)} points tried" in str(result)
    again = explore(toys.careful, toys.charged_once, at=every_line(TOYS), max_points=5, seed=3)
    assert again.tried == result.tried


def test_one_point_can_be_run_alone() -> None:
    result = explore(toys.careful, toys.charged_once, at=every_failpoint(), only=[4])
    assert [str(point) for point in result.tried] == ["toy.started (hit 2, point 4)"]


def test_the_recovery_can_be_killed_as_well(memory: Path) -> None:
    result = explore(toys.careful, toys.charged_once, at=every_line(TOYS), kills=2, stride=3)
    assert result.missed == 0
    with pytest.raises(CrashTestFailed):
        explore(toys.forgetful, toys.charged_once, at=every_failpoint(), kills=2, folder=memory)


def test_every_trial_starts_from_what_the_setup_left() -> None:
    def setup(folder: Path) -> None:
        with closing(toys.opened(folder)) as db:
            db.execute("INSERT INTO steps VALUES ('charge:1', 1)")
        Effects(folder).record("charge:1")

    result = explore(toys.careful, toys.charged_once, at=every_failpoint(), setup=setup)
    assert len(result.points) == 6


def test_an_exception_can_be_raised_at_each_boundary_instead() -> None:
    def tidy(folder: Path) -> None:
        try:
            toys.careful(folder)
        except Injected:
            Effects(folder, "caught").record("yes")

    def check(folder: Path) -> None:
        toys.charged_once(folder)
        if (folder / "cut").exists():
            assert Effects(folder, "caught").lines() == ["yes"]

    result = explore(
        tidy, check, at=every_failpoint(), action="raise", after_kill=lambda folder: (folder / "cut").touch()
    )
    assert result.kills == 9


# A paused process that comes back after another has taken over.


class Fenced(Exception):
    pass


def epochs(folder: Path, fenced: bool) -> None:
    with closing(sqlite3.connect(folder / "toy.db", isolation_level=None, timeout=0.2)) as db:
        db.execute("CREATE TABLE IF NOT EXISTS log (number INTEGER, epoch INTEGER)")
        db.execute("CREATE TABLE IF NOT EXISTS owner (epoch INTEGER)")
        db.execute("INSERT INTO owner SELECT count(*) + 1 FROM owner")
        (mine,) = db.execute("SELECT max(epoch) FROM owner").fetchone()
        done = {number for (number,) in db.execute("SELECT number FROM log")}
        for number in range(3):
            failpoint("toy.started")
            if number in done:
                continue
            db.execute("BEGIN IMMEDIATE")
            if fenced and db.execute("SELECT max(epoch) FROM owner").fetchone() != (mine,):
                raise Fenced
            db.execute("INSERT INTO log VALUES (?, ?)", (number, mine))
            db.execute("COMMIT")


def each_number_once(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "toy.db")) as db:
        assert [number for (number,) in db.execute("SELECT number FROM log ORDER BY number")] == [0, 1, 2]


def test_a_zombie_is_caught_where_nothing_fences_it(memory: Path) -> None:
    result = explore(lambda folder: epochs(folder, fenced=True), each_number_once, at=every_failpoint(), action="pause")
    assert result.kills == 3
    with pytest.raises(CrashTestFailed, match=r"\[0, 0, 1"):
        explore(
            lambda folder: epochs(folder, fenced=False),
            each_number_once,
            at=every_failpoint(),
            action="pause",
            folder=memory,
        )


# random_kills


def test_a_careful_program_survives_kills_at_random_moments() -> None:
    result = random_kills(toys.careful, toys.charged_once, 30, seed=11)
    assert result.kills == 30
    assert result.trials <= 90
    assert result.bound == pytest.approx(0.1)


def test_random_kills_catch_an_acknowledgement_before_the_commit(memory: Path) -> None:
    def slow_to_commit(folder: Path) -> None:
        with closing(toys.opened(folder)) as db:
            db.execute("BEGIN IMMEDIATE")
            for number in range(30):
                db.execute("INSERT OR IGNORE INTO steps (key) VALUES (?)", (str(number),))
                Effects(folder, "acks").record(str(number))
                time.sleep(0.0005)
            db.execute("COMMIT")

    with pytest.raises(CrashTestFailed, match="an acknowledged step is lost") as caught:
        random_kills(slow_to_commit, toys.acks_kept, 50, seed=5, after_kill=toys.acks_kept, folder=memory)
    assert " ms of " in caught.value.where
    assert caught.value.folder is not None


# Processes


def test_forking_beside_a_thread_gives_no_warning() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            explore(toys.careful, toys.charged_once, at=every_failpoint("toy.started"))
    finally:
        done.set()
        thread.join()


def test_what_the_scenario_does_to_its_process_stays_there() -> None:
    def scenario(folder: Path) -> None:
        failpoint("toy.started")
        os.environ["STEPFAST_TOY"] = "set"
        sys.modules["stepfast_toy"] = sys

    explore(scenario, lambda folder: None, at=every_failpoint())
    assert "STEPFAST_TOY" not in os.environ
    assert "stepfast_toy" not in sys.modules


# Effects


def test_effects_are_counted_in_order(tmp_path: Path) -> None:
    effects = Effects(tmp_path)
    assert effects.lines() == []
    for effect in ("mail:1", "charge:42", "mail:1"):
        effects.record(effect)
    assert effects.lines() == ["mail:1", "charge:42", "mail:1"]
    assert effects.counts()["mail:1"] == 2


def test_a_torn_effect_is_never_tolerated(tmp_path: Path) -> None:
    effects = Effects(tmp_path)
    effects.record("charge:42")
    with effects.path.open("ab") as file:
        file.write(b"charge:4")
    with pytest.raises(CrashTestFailed, match="torn"):
        effects.counts()


@pytest.mark.parametrize("effect", ["", "two\nlines"])
def test_an_effect_is_one_line(tmp_path: Path, effect: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        Effects(tmp_path).record(effect)


# run_until_killed


def python(script: str, when: str, timeout: float = 60.0) -> Killed:
    return run_until_killed([sys.executable, "-c", script], when, env={"TOY": "ready"}, timeout=timeout)


def test_a_real_process_is_killed_at_its_marker(tmp_path: Path) -> None:
    script = f"""
import os, time
print("before")
print(os.environ["TOY"])
time.sleep(30)
open({str(tmp_path / "survived")!r}, "w")
"""
    started = time.monotonic()
    killed = python(script, "ready")
    assert killed.lines == ("before", "ready")
    assert time.monotonic() - started < 20
    assert not (tmp_path / "survived").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(killed.pid, 0)


def test_a_marker_may_be_a_condition() -> None:
    script = "import itertools\nfor n in itertools.count(): print('step', n)"
    killed = run_until_killed([sys.executable, "-c", script], lambda line: line == "step 47")
    assert len(killed.lines) == 48


def test_only_the_process_itself_is_killed_not_its_children() -> None:
    script = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
print(child.pid)
print("ready")
child.wait()
"""
    killed = python(script, "ready")
    child = int(killed.lines[0])
    os.kill(child, 0)
    os.kill(child, 9)


def test_a_marker_that_never_comes_fails_with_what_was_said() -> None:
    with pytest.raises(CrashTestFailed, match=r"(?s)exit code 1.*hello.*ZeroDivisionError"):
        python("print('hello'); 1 / 0", "ready")
    with pytest.raises(CrashTestFailed, match="never printed"):
        python("import time; time.sleep(30)", "ready", timeout=0.3)
    with suppress(ChildProcessError):
        assert os.waitpid(-1, os.WNOHANG) == (0, 0), "a child was left behind"

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from stepfast.testing import (
    CrashTestFailed,
    Effects,
    Inject,
    Log,
    Unsupported,
    ack,
    crash_states,
    explore_faults,
    trace,
)
from stepfast.testing.powerloss import CrashState
from tests.testing import toys


def after_everything(log: Log) -> CrashState:
    """The state in which every write survived: what the program itself last saw."""
    return [state for state in crash_states(log) if state.kept in ("all unsynced kept", "nothing unsynced kept")][-1]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def many_calls(folder: Path) -> None:
    """Every way Python has to change a file."""
    path = folder / "file"
    path.write_bytes(b"0123456789")
    with path.open("ab") as file:
        file.write(b"appended")
    with path.open("r+b", buffering=0) as file:
        file.seek(4)
        file.write(b"----")
        os.pwrite(file.fileno(), b"++", 1)
        os.writev(file.fileno(), [b"a", b"", b"bc"])
        os.pwritev(file.fileno(), [b"y", b"z"], 30)
        os.ftruncate(file.fileno(), 31)
        copy = os.dup(file.fileno())
        os.write(copy, b"dup")
        os.close(copy)
    (folder / "emptied").write_bytes(b"gone")
    (folder / "emptied").write_bytes(b"new")
    os.truncate(folder / "emptied", 2)
    (folder / "deep" / "er").mkdir(parents=True)
    shutil.copyfile(path, folder / "deep" / "er" / "copied")
    os.link(path, folder / "linked")
    path.rename(folder / "deep" / "renamed")
    (folder / "removed").write_bytes(b"x" * 2000)
    (folder / "removed").unlink()
    (folder / "again").write_bytes(b"may get the removed file's inode")
    os.chdir(folder / "deep")
    Path("relative").write_bytes(b"seen from elsewhere")
    fd = os.open("relative", os.O_WRONLY | os.O_DSYNC)
    os.write(fd, b"SEEN")
    os.close(fd)
    with (folder / "allocated").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 700)


def test_the_log_rebuilds_exactly_the_files_that_the_program_left(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"was here before")
    log = trace(many_calls, tmp_path)
    assert log.error == ""
    assert after_everything(log).files == contents(tmp_path)
    assert log.before == {"old": b"was here before"}


def test_the_log_rebuilds_an_sqlite_database(tmp_path: Path) -> None:
    log = trace(toys.ledger, tmp_path)
    assert log.code == 0
    assert after_everything(log).files == contents(tmp_path)


def test_acknowledgements_stand_in_the_log_between_the_calls(tmp_path: Path) -> None:
    log = trace(toys.ledger, tmp_path)
    assert log.acked == tuple(str(number) for number in range(12))
    for call, before in zip(log.calls[1:], log.calls, strict=False):
        if call.op == "ack":
            assert (before.op, before.path) == ("sync", "toy.db-wal")


def test_the_log_shows_that_normal_does_not_sync_before_it_acknowledges(tmp_path: Path) -> None:
    log = trace(lambda folder: toys.ledger(folder, synchronous="normal"), tmp_path)
    before = [log.calls[call.index - 1].op for call in log.calls if call.op == "ack"]
    assert set(before) == {"write"}


def test_threads_are_followed(tmp_path: Path) -> None:
    def two_threads(folder: Path) -> None:
        def write(name: str) -> None:
            for _ in range(20):
                with (folder / name).open("ab") as file:
                    file.write(name.encode())
                    os.fsync(file.fileno())
            ack(name)

        threads = [threading.Thread(target=write, args=(name,)) for name in ("left", "right")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    log = trace(two_threads, tmp_path)
    assert log.error == ""
    assert after_everything(log).files == {"left": b"left" * 20, "right": b"right" * 20}
    assert sorted(log.acked) == ["left", "right"]
    assert len({call.tid for call in log.calls if call.op == "write"}) == 2


def test_programs_that_the_scenario_starts_are_followed(tmp_path: Path) -> None:
    script = "import sys; open(sys.argv[1], 'w').write('from a child')"

    def starts_a_program(folder: Path) -> None:
        subprocess.run([sys.executable, "-S", "-c", script, str(folder / "file")], check=True)

    log = trace(starts_a_program, tmp_path)
    assert log.error == ""
    assert after_everything(log).files == {"file": b"from a child"}


def test_a_failure_of_the_scenario_is_in_the_log(tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        raise ValueError("no such luck")

    log = trace(fails, tmp_path)
    assert log.code == 1
    assert "no such luck" in log.error


def test_a_scenario_that_hangs_is_ended_with_all_its_threads(tmp_path: Path) -> None:
    def hangs(folder: Path) -> None:
        threading.Thread(target=time.sleep, args=(60,)).start()
        time.sleep(60)

    started = time.monotonic()
    log = trace(hangs, tmp_path, timeout=0.3)
    assert log.timed_out
    assert "still running" in log.error
    assert time.monotonic() - started < 20


def test_a_mapped_database_is_reported_and_refused(tmp_path: Path) -> None:
    def mapped(folder: Path) -> None:
        with closing(toys.opened(folder)) as db:
            db.execute("PRAGMA mmap_size=1000000")
            db.execute("INSERT INTO steps (key) VALUES ('1')")
            db.execute("PRAGMA wal_checkpoint")
            db.execute("SELECT * FROM steps").fetchall()

    log = trace(mapped, tmp_path)
    assert log.mapped == ("toy.db",)
    with pytest.raises(ValueError, match="mmap_size=0"):
        next(crash_states(log))


# Faults


@pytest.mark.parametrize(
    ("fault", "ops", "said"),
    [("EIO", "sync", "disk I/O error"), ("ENOSPC", "write", "database or disk is full")],
)
def test_a_call_can_be_made_to_fail(tmp_path: Path, fault: str, ops: str, said: str) -> None:
    def insert(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "toy.db")) as db:
            db.execute("INSERT INTO steps (key) VALUES ('1')")
            db.commit()

    toys.opened(tmp_path).close()
    log = trace(insert, tmp_path, inject=Inject(fault, 1, (ops,), "*-wal"))  # type: ignore[arg-type]
    assert said in log.error
    assert log.hit is not None
    assert (log.hit.op, log.hit.path, log.hit.ok) == (ops, "toy.db-wal", False)


def writes_three(folder: Path) -> None:
    for number in range(3):
        (folder / str(number)).write_bytes(b"whole")


def test_a_process_can_be_killed_before_or_after_a_call(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    before = trace(writes_three, tmp_path / "a", inject=Inject("kill-before", 2, ("write",)))
    after = trace(writes_three, tmp_path / "b", inject=Inject("kill-after", 2, ("write",)))
    assert before.code == after.code == -9
    assert contents(tmp_path / "a") == {"0": b"whole", "1": b""}
    assert contents(tmp_path / "b") == {"0": b"whole", "1": b"whole"}


def test_a_sticky_fault_stays(tmp_path: Path) -> None:
    def tries(folder: Path) -> None:
        for number in range(4):
            try:
                (folder / str(number)).write_bytes(b"whole")
            except OSError as error:
                ack(str(error.errno))

    log = trace(tries, tmp_path, inject=Inject("ENOSPC", 2, ("write",), sticky=True))
    assert log.acked == ("28", "28", "28")
    assert contents(tmp_path) == {"0": b"whole", "1": b"", "2": b"", "3": b""}


def test_a_fault_that_is_never_reached_hits_nothing(tmp_path: Path) -> None:
    assert trace(writes_three, tmp_path, inject=Inject("EIO", 4, ("write",))).hit is None


@pytest.mark.parametrize("fault", ["EIO", "ENOSPC", "kill-before", "kill-after"])
def test_a_careful_program_survives_each_fault_at_every_call(fault: str) -> None:
    result = explore_faults(toys.careful, toys.charged_once, fault=fault, stride=3)  # type: ignore[arg-type]
    assert result.calls > 30
    assert result.hits == len(range(0, result.calls, 3))


def blind(folder: Path) -> None:
    """Wrong: it takes a commit that failed for one that did not."""
    with closing(toys.opened(folder)) as db:
        for key in toys.CHARGES:
            try:
                db.execute("INSERT OR IGNORE INTO steps (key) VALUES (?)", (key,))
            except sqlite3.OperationalError:
                pass
            if key not in Effects(folder, "acks").lines():
                Effects(folder, "acks").record(key)


def test_an_ignored_error_is_caught_and_its_call_is_named(memory: Path) -> None:
    def opened_again(folder: Path) -> None:
        toys.opened(folder).close()

    with pytest.raises(CrashTestFailed, match="an acknowledged step is lost") as caught:
        explore_faults(
            blind, toys.acks_kept, fault="EIO", ops=("sync",), path="toy.db-wal", recovery=opened_again, folder=memory
        )
    assert caught.value.where.startswith("EIO at call ")
    assert "fdatasync of toy.db-wal" in caught.value.where


def test_exploring_faults_of_calls_that_are_never_made_is_refused() -> None:
    with pytest.raises(ValueError, match="makes no call"):
        explore_faults(toys.careful, toys.charged_once, fault="EIO", ops=("link",))


def test_another_machine_is_told_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(Unsupported, match="riscv64"):
        trace(toys.ledger, tmp_path)


def test_a_move_out_of_the_folder_is_refused_not_misread(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()

    def moves(folder: Path) -> None:
        (folder / "file").write_bytes(b"x")
        (folder / "file").rename(folder.parent / "outside")

    with pytest.raises(Unsupported, match="rename"):
        trace(moves, tmp_path / "inside")

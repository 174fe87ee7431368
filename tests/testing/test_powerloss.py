from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from stepfast.testing import (
    Call,
    CrashTestFailed,
    Log,
    ack,
    check_states,
    crash_states,
    explore_power_loss,
    trace,
)
from tests.testing import toys


def log_of(*calls: Call) -> Log:
    return Log(calls, {}, {}, (), None, 0, "", False)


def opened(index: int, path: str, inode: int = 7) -> Call:
    return Call(index, 1, "open", "openat", path, 3, inode=inode, created=True, began=index)


def wrote(index: int, data: bytes, offset: int = 0, inode: int = 7) -> Call:
    return Call(index, 1, "write", "pwrite64", "file", len(data), inode, offset, data, began=index)


def synced(index: int, began: int | None = None, inode: int = 7, path: str = "file") -> Call:
    return Call(index, 1, "sync", "fsync", path, 0, inode, began=index if began is None else began)


# SQLite


def test_the_search_ends_early_when_it_has_seen_enough(tmp_path: Path, memory: Path) -> None:
    log = trace(partial(toys.ledger, synchronous="normal"), tmp_path)
    result = check_states(log, toys.ledger_kept, enough=10, folder=memory)
    assert len(result.violations) == 10
    assert not result.complete
    assert "ended early" in str(result)


def test_wal_with_full_keeps_every_acknowledged_row_in_1500_states() -> None:
    result = explore_power_loss(partial(toys.ledger, rows=40), toys.ledger_kept)
    assert result.states >= 1500


def test_wal_with_normal_is_caught_losing_acknowledged_rows(memory: Path) -> None:
    with pytest.raises(CrashTestFailed, match="acknowledged and lost") as caught:
        explore_power_loss(partial(toys.ledger, synchronous="normal"), toys.ledger_kept, folder=memory)
    assert caught.value.folder is not None
    with pytest.raises(AssertionError, match="acknowledged and lost"):
        toys.ledger_kept(caught.value.folder, ("0", "1", "2"))


def test_a_rollback_journal_with_full_keeps_what_it_acknowledged() -> None:
    result = explore_power_loss(partial(toys.ledger, journal="delete"), toys.ledger_kept)
    assert result.states > 1000


def test_a_rollback_journal_with_normal_is_caught(tmp_path: Path, memory: Path) -> None:
    log = trace(partial(toys.ledger, journal="delete", synchronous="normal"), tmp_path)
    result = check_states(log, toys.ledger_kept, folder=memory)
    assert 0 < len(result.violations) < result.states / 10


def test_where_names_can_be_lost_a_rollback_journal_needs_extra_and_wal_does_not(memory: Path) -> None:
    for journal, synchronous in [("delete", "extra"), ("wal", "full")]:
        ledger = partial(toys.ledger, journal=journal, synchronous=synchronous)
        explore_power_loss(ledger, toys.ledger_kept, entries="lost")
    with pytest.raises(CrashTestFailed, match="acknowledged and lost"):
        explore_power_loss(partial(toys.ledger, journal="delete"), toys.ledger_kept, entries="lost", folder=memory)


# Plain files


def replaces(folder: Path, sync_file: bool, sync_folder: bool) -> None:
    """Write a new version beside the old one and put it in its place."""
    with (folder / "new").open("wb") as file:
        file.write(b"new version")
        file.flush()
        if sync_file:
            os.fsync(file.fileno())
    (folder / "new").replace(folder / "file")
    if sync_folder:
        fd = os.open(folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    ack("replaced")


def has_old(folder: Path) -> None:
    (folder / "file").write_bytes(b"old version")


def replaced(folder: Path, acked: tuple[str, ...]) -> None:
    content = (folder / "file").read_bytes()
    assert content in ([b"new version"] if acked else [b"old version", b"new version"])


def test_a_file_replaced_with_both_syncs_is_safe() -> None:
    scenario = partial(replaces, sync_file=True, sync_folder=True)
    explore_power_loss(scenario, replaced, setup=has_old, entries="kept")
    explore_power_loss(scenario, replaced, setup=has_old, entries="lost")


def test_a_file_replaced_without_syncing_it_may_be_empty(memory: Path) -> None:
    scenario = partial(replaces, sync_file=False, sync_folder=True)
    with pytest.raises(CrashTestFailed, match="b''"):
        explore_power_loss(scenario, replaced, setup=has_old, folder=memory)


def test_a_file_replaced_without_syncing_its_folder_may_be_the_old_one(memory: Path) -> None:
    scenario = partial(replaces, sync_file=True, sync_folder=False)
    explore_power_loss(scenario, replaced, setup=has_old, entries="kept")
    with pytest.raises(CrashTestFailed, match="old version"):
        explore_power_loss(scenario, replaced, setup=has_old, entries="lost", folder=memory)


# The model


def contents(*calls: Call) -> set[bytes | None]:
    """What the file may hold after a power cut that follows all these calls."""
    end = Call(len(calls), 1, "ack", "write", "", 3, data=b"end", began=len(calls))
    states = crash_states(log_of(*calls, end), subsets=50)
    return {state.files.get("file") for state in states if state.acked}


def test_an_unsynced_write_is_kept_dropped_or_torn_at_a_sector() -> None:
    a = b"a" * 512
    assert contents(opened(0, "file"), wrote(1, a + a)) == {b"", a, a + a, bytes(512) + a}


def test_sectors_are_those_of_the_file_not_of_the_write() -> None:
    torn = contents(opened(0, "file"), wrote(1, b"a" * 600, offset=500))
    assert bytes(500) + b"a" * 12 in torn
    assert bytes(500) + b"a" * 524 in torn
    assert len(torn) == 8


def test_unsynced_writes_survive_in_any_combination() -> None:
    assert contents(opened(0, "file"), wrote(1, b"a"), wrote(2, b"b", offset=1)) == {b"", b"a", b"\0b", b"ab"}


def test_what_was_synced_stays() -> None:
    assert contents(opened(0, "file"), wrote(1, b"safe"), synced(2), wrote(3, b"MORE")) == {b"safe", b"MORE"}


def test_a_truncation_is_kept_or_dropped_whole() -> None:
    cut = Call(3, 1, "truncate", "ftruncate", "file", 0, 7, offset=2, began=3)
    assert contents(opened(0, "file"), wrote(1, b"safe"), synced(2), cut) == {b"safe", b"sa"}


def test_a_sync_covers_only_what_had_finished_when_it_began() -> None:
    calls = [opened(0, "file"), wrote(1, b"safe"), wrote(2, b"MORE"), synced(3, began=2)]
    assert contents(*calls) == {b"safe", b"MORE"}


def test_a_sync_of_another_file_covers_nothing() -> None:
    calls = [opened(0, "file"), opened(1, "other", 8), wrote(2, b"lost"), synced(3, inode=8, path="other")]
    assert contents(*calls) == {b"", b"lost"}


def test_a_sync_that_failed_covers_nothing() -> None:
    failed = Call(2, 1, "sync", "fsync", "file", -5, 7, began=2)
    assert contents(opened(0, "file"), wrote(1, b"lost"), failed) == {b"", b"lost"}


def test_a_write_through_o_sync_is_safe_but_covers_no_earlier_one() -> None:
    through = replace(wrote(2, b"b", offset=1), synced=True)
    assert contents(opened(0, "file"), wrote(1, b"a"), through) == {b"\0b", b"ab"}


def test_a_new_file_does_not_inherit_from_the_removed_one_whose_inode_it_got() -> None:
    removed = Call(3, 1, "unlink", "unlink", "file", 0, 7, began=3)
    assert contents(opened(0, "file"), wrote(1, b"old"), synced(2), removed, opened(4, "file")) == {b""}


def test_renaming_a_folder_is_refused_not_misread() -> None:
    moved = Call(1, 1, "rename", "rename", "folder", 0, 9, other="elsewhere", began=1)
    with pytest.raises(ValueError, match="renaming a folder"):
        list(crash_states(log_of(opened(0, "folder/file"), moved)))


def test_the_shared_memory_file_of_sqlite_is_left_out() -> None:
    shm = [opened(0, "toy.db-shm"), Call(1, 1, "write", "write", "toy.db-shm", 1, 7, 0, b"x")]
    *_, last = crash_states(log_of(*shm, opened(2, "file", 8)))
    assert last.files == {"file": b""}


def test_states_are_distinct_and_the_same_for_the_same_seed(tmp_path: Path) -> None:
    log = trace(toys.ledger, tmp_path)
    states = list(crash_states(log, seed=1))
    assert len({(len(state.acked), *sorted(state.files.items())) for state in states}) == len(states)
    assert list(crash_states(log, seed=1)) == states
    assert list(crash_states(log, seed=2)) != states
    shards = [list(crash_states(log, seed=1, shard=shard, shards=3)) for shard in range(3)]
    assert [shards[number % 3][number // 3] for number in range(len(states))] == states


def test_a_scenario_that_fails_by_itself_is_told_apart(memory: Path) -> None:
    def fails(folder: Path) -> None:
        raise ValueError("no such luck")

    with pytest.raises(CrashTestFailed, match=r"(?s)no power cut.*no such luck"):
        explore_power_loss(fails, toys.ledger_kept, folder=memory)

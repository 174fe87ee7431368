from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from stepfast.testing import CrashTestFailed, explore_bit_flips, flips
from tests.testing import toys


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store" / "rows.db"
    path.parent.mkdir()
    toys.sealed_rows(path)
    return path


def test_each_copy_differs_in_exactly_the_bit_it_names(path: Path) -> None:
    original = int.from_bytes(path.read_bytes(), "little")
    for flip in flips(path, 50, seed=1):
        assert original ^ int.from_bytes(flip.data, "little") == 1 << (flip.offset * 8 + flip.bit)


def test_every_page_is_hit_before_any_is_hit_again(path: Path) -> None:
    pages = path.stat().st_size // 4096
    hits = Counter(flip.offset // 4096 for flip in flips(path, pages * 3, seed=1))
    assert hits == dict.fromkeys(range(pages), 3)


def test_no_bit_is_flipped_twice_and_the_seed_decides(path: Path) -> None:
    places = [(flip.offset, flip.bit) for flip in flips(path, 500, seed=1)]
    assert len(set(places)) == 500
    assert places == [(flip.offset, flip.bit) for flip in flips(path, 500, seed=1)]
    assert places != [(flip.offset, flip.bit) for flip in flips(path, 500, seed=2)]


def test_a_small_file_has_no_more_flips_than_bits(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"ab")
    assert len(list(flips(tmp_path / "small", 100, seed=1))) == 16
    (tmp_path / "empty").write_bytes(b"")
    assert list(flips(tmp_path / "empty", 100, seed=1)) == []


def test_rows_with_a_checksum_are_served_exactly_or_refused(path: Path) -> None:
    result = explore_bit_flips(path, partial(toys.read_rows, sealed=True), 300, seed=4)
    assert set(result.verdicts) == {"exact", "refused"}
    assert result.verdicts.total() == 300


def test_rows_without_one_are_caught_being_served_wrong(path: Path, memory: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(CrashTestFailed, match=r"rows\.db with bit \d of byte \d+ flipped") as caught:
        explore_bit_flips(path, partial(toys.read_rows, sealed=False), 300, seed=4, folder=memory)
    assert caught.value.folder is not None
    with pytest.raises(AssertionError):
        toys.read_rows(caught.value.folder / "rows.db", sealed=False)
    assert path.read_bytes() == before

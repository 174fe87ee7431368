"""The fence is judged in the write itself: there is no moment between looking and writing."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepfast.stores.sqlite import SqliteStore
from tests.crash.fencing import WRITES, check_fenced_in_the_write, check_gapless_over_two_stores
from tests.crash.stage import STORE


@pytest.mark.parametrize("write", WRITES)
def test_a_write_overtaken_on_its_way_is_fenced(write: str, memory: Path) -> None:
    with SqliteStore(memory / STORE) as store, SqliteStore(memory / STORE) as other:
        check_fenced_in_the_write(store, other, write, "sqlite.before_begin")


def test_two_stores_at_once_leave_a_gapless_history(memory: Path) -> None:
    with SqliteStore(memory / STORE) as store, SqliteStore(memory / STORE) as other:
        check_gapless_over_two_stores(store, other, 25)

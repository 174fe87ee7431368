"""What a run has recorded can be read from outside, by clients of both kinds, whether or not it is finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepfast import AsyncStepfast, NotFound, Stepfast
from stepfast.adapters import value_of


async def test_a_recorded_value_is_read_while_the_run_is_open_and_after(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    with Stepfast(url) as sf:
        with sf.run("order") as run:
            run.record({"total": 42}, key="sum")
            assert value_of(sf, "order", "sum") == {"total": 42}
        async with AsyncStepfast(url) as other:
            assert await value_of(other, "order", "sum") == {"total": 42}
        with pytest.raises(NotFound, match="no finished step 'other'"):
            value_of(sf, "order", "other")
        with pytest.raises(NotFound):
            value_of(sf, "nothing", "sum")

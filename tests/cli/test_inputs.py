"""What people type is read exactly, or refused with the place and the remedy."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stepfast.cli import inputs
from stepfast.cli.failures import Usage


def test_spans_have_a_unit() -> None:
    assert inputs.span("x", "30s") == timedelta(seconds=30)
    assert inputs.span("x", "1.5h") == timedelta(minutes=90)
    assert inputs.span("x", "2W") == timedelta(weeks=2)


@pytest.mark.parametrize("text", ["", "30", "-1d", "1y", "d", "1d2h", "9" * 400 + "d"])
def test_other_spans_are_refused(text: str) -> None:
    with pytest.raises(Usage):
        inputs.span("--older-than", text)


def test_moments_are_utc_unless_they_say_otherwise() -> None:
    assert inputs.moment("x", "2026-01-31T12:00:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert inputs.moment("x", "2026-01-31T12:00:00+01:00") == datetime(2026, 1, 31, 11, tzinfo=UTC)
    with pytest.raises(Usage):
        inputs.moment("x", "tomorrow")


def test_json_comes_as_text_or_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text('{"a": 1}')
    assert inputs.read_json("x", "[1]") == [1]
    assert inputs.read_object("x", f"@{file}") == {"a": 1}


@pytest.mark.parametrize("text", ["{", "NaN", "[Infinity]", "@/no/such/file", "[" * 100_000])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(Usage, match="--data"):
        inputs.read_json("--data", text)


def test_a_list_is_no_object() -> None:
    with pytest.raises(Usage, match="JSON object"):
        inputs.read_object("x", "[1]")


def test_pairs_need_a_name_and_a_value() -> None:
    assert inputs.pairs("x", ["a=1", "b=c=d", "e="]) == {"a": "1", "b": "c=d", "e": ""}
    for wrong in ("a", "=b"):
        with pytest.raises(Usage):
            inputs.pairs("x", [wrong])

"""Requests in short: what counts, what is kept, and what is said when they differ."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest

from stepfast import Diverged
from stepfast.adapters import Digests, Request, compare, differences, digest, items_of, plain, shorten


@dataclass
class Setting:
    name: str
    value: object


class FakeModel:
    """What the kit knows of a pydantic model."""

    __pydantic_fields_set__: Any = None

    def model_dump(self, **options: Any) -> dict[str, Any]:
        assert options == {"mode": "json", "exclude_unset": True, "warnings": False}
        return {"dumped": True}


def test_plain_values() -> None:
    assert plain({"a": (1, Setting("x", None)), 2: {3}}) == {"a": [1, {"name": "x", "value": None}], "2": "{3}"}
    assert plain(FakeModel()) == {"dumped": True}
    assert plain(FakeModel) == str(FakeModel)


def test_a_digest_leaves_out_what_changes_by_itself() -> None:
    assert digest({"id": 1, "text": "a"}, without=("id",)) == digest({"text": "a", "id": 2}, without=("id",))
    assert digest({"id": 1, "text": "a"}) != digest({"id": 2, "text": "a"})
    # Stored with each recorded request: another value would make every old run Diverged.
    assert digest({"b": [1, "ä"], "a": None}) == "fb1db879dd9f"


def test_only_new_items_are_described_again() -> None:
    described: list[Any] = []

    def describe(item: Any) -> str:
        described.append(item)
        return f"item {digest(item)}"

    digests = Digests(describe)
    items = [{"role": "user", "text": "a"}, {"role": "user", "text": "b"}]
    first = digests.of(items)
    assert digests.of([*items, {"role": "user", "text": "c"}])[:2] == first
    assert len(described) == 3
    items[0]["text"] = "changed in place"
    assert digests.of(items)[0] != first[0]


def test_a_request_keeps_only_what_the_one_before_did_not_have() -> None:
    first = Request({"model": "m"}, ["a 1", "b 2"])
    second = Request({"model": "m"}, ["a 1", "b 2", "c 3"])
    packed = second.pack(first.items)
    assert packed == {"model": "m", "input": [2, "c 3"]}
    assert items_of(packed, first.items) == second.items
    assert second.summary["items"] == 3


def recorded(**sections: Any) -> dict[str, Any]:
    return {"model": "m", "tools": {"a": "1"}, "instructions": "x", **sections, "input": [0, "message of user 1"]}


def test_differences_are_readable() -> None:
    now = Request({"model": "n", "tools": {"a": "2", "b": "1"}, "instructions": "x"}, ["message of user 2", "tool 3"])
    assert differences(recorded(), ["message of user 1"], now) == [
        "model: 'm' → 'n'",
        "tools: a has another description or schema",
        "tools: b is new",
        "input: item 0 (message of user) changed",
        "input: 1 items → 2 items",
    ]


def test_drift_is_raised_logged_or_accepted(caplog: pytest.LogCaptureFixture) -> None:
    now = Request({"model": "m", "tools": {"a": "1"}, "instructions": "y" * 400}, ["message of user 1"])
    items = ["message of user 1"]
    with pytest.raises(Diverged, match=r"model call model:3 of agent clerk was recorded .*\n.*'x' → 'yyy") as raised:
        compare("raise", recorded(), items, now, key="model:3", agent="clerk")
    assert raised.value.details["key"] == "model:3"
    assert "rewind the run to model:3" in str(raised.value)
    with caplog.at_level(logging.WARNING, "stepfast"):
        assert compare("warn", recorded(), items, now, key="model:3", agent="clerk")
    assert "instructions: 'x' → " in caplog.text
    assert compare("accept", recorded(), items, now, key="model:3", agent="clerk") == []
    with pytest.raises(Diverged, match=r"Pass stream=True again\."):
        compare("accept", recorded(), items, now, key="model:3", agent="clerk", remedy="Pass stream=True again.")
    same = Request({name: value for name, value in recorded().items() if name != "input"}, items)
    assert compare("raise", recorded(), items, same, key="model:3", agent="clerk") == []


def test_long_texts_are_kept_in_short() -> None:
    assert shorten(None) is None
    assert shorten("a") == "a"
    assert shorten("a" * 5000) == {"begins": "a" * 1000, "length": 5000, "digest": digest("a" * 5000)}

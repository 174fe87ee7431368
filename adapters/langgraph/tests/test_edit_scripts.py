"""Any sequence of edits, by any number of processes, reads back exactly and costs what it changed."""

from __future__ import annotations

import enum
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from adapters.langgraph.tests.lanes_kit import Rows
from stepfast_langgraph._types import make_codec


class Mood(enum.StrEnum):
    GLAD = "glad"
    SAD = "sad"


CODEC = make_codec()
LEAVES = st.sampled_from([0, 1, True, False, 0.0, -0.0, 1.0, None, "glad", Mood.GLAD, Mood.SAD, "", b"", (), "x" * 40])
EDITS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "append",
                "extend",
                "remove",
                "insert",
                "mutate",
                "nest",
                "retype",
                "drop_key",
                "replace",
                "copy",
                "swap",
                "truncate",
                "repeat",
                "fork",
                "reload",
            ]
        ),
        st.integers(0, 10_000),
        st.integers(0, 10_000),
        LEAVES,
    ),
    min_size=1,
    max_size=25,
)


class Maker:
    """New elements, no two alike but those that are meant to be."""

    def __init__(self) -> None:
        self.made = 0

    def element(self, leaf: Any) -> Any:
        self.made += 1
        if self.made % 3 == 0:
            return {"n": self.made, "leaf": leaf, "deep": {"xs": [leaf, {"y": leaf}]}}
        if self.made % 7 == 0:
            return leaf
        return AIMessage(
            content=f"message {self.made}", id=str(self.made), additional_kwargs={"leaf": leaf, "xs": [[]]}
        )


def retyped(old: Any, leaf: Any) -> Any:
    """Something equal to the old value but of another type, where there is such a thing."""
    if old == "glad":
        return "glad" if isinstance(old, Mood) else Mood.GLAD
    if old == 1:
        return {bool: 1, int: 1.0, float: True}[type(old)]
    return leaf


def container(element: Any) -> Any:
    """A dict inside an element that may be changed in place."""
    if isinstance(element, AIMessage):
        return element.additional_kwargs
    return element["deep"] if isinstance(element, dict) and "deep" in element else None


def edited(kind: str, items: list[Any], at: int, to: int, leaf: Any, maker: Maker) -> tuple[list[Any], int]:
    """The list after one edit, and how many elements may have to be written for it."""
    items = list(items)
    place = at % len(items) if items else 0
    found = container(items[place]) if items else None
    if kind in ("mutate", "nest", "retype", "drop_key"):
        if found is None:
            return items, 0
        if kind == "mutate":
            found["leaf" if to % 2 else "other"] = leaf
        elif kind == "nest":
            found.setdefault("xs", []).append({"z": [leaf]})
        elif kind == "retype":
            found["leaf"] = retyped(found.get("leaf"), leaf)
        else:
            found.pop("leaf", None)
        # The same object may stand in the list several times.
        return items, sum(each is items[place] for each in items)
    if kind == "append":
        return [*items, maker.element(leaf)], 1
    if kind == "extend":
        more = [maker.element(leaf) for _ in range(to % 5)]
        return items + more, len(more)
    if kind == "insert":
        items.insert(place, maker.element(leaf))
        return items, 1
    if not items:
        return items, 0
    if kind == "remove":
        del items[place]
    elif kind == "replace":
        items[place] = maker.element(leaf)
        return items, 1
    elif kind == "copy":
        items[place] = CODEC.unpack(CODEC.pack(items[place]))
    elif kind == "swap":
        other = to % len(items)
        items[place], items[other] = items[other], items[place]
    elif kind == "truncate":
        items = items[place:] if to % 2 else items[:place]
    elif kind == "repeat":
        items.append(items[place])
        return items, 1
    return items, 0


def frozen(items: list[Any]) -> list[bytes]:
    return [CODEC.pack(item) for item in items]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(EDITS)
def test_a_list_reads_back_exactly_whatever_was_done_to_it(script: list[tuple[str, int, int, Any]]) -> None:
    rows, maker = Rows(CODEC), Maker()
    items: list[Any] = [maker.element("start") for _ in range(8)]
    lanes = rows.lanes
    written = rows.put({"xs": items}, {}, lanes)
    past = [(written, frozen(items))]
    for kind, at, to, leaf in script:
        if kind == "reload":
            lanes = rows.process()
            items = rows.get(written, lanes)["xs"]
        elif kind == "fork":
            written, _ = past[at % len(past)]
            items = rows.get(written, lanes)["xs"]
        before = written.refs
        items, cost = edited(kind, items, at, to, leaf, maker)
        written = rows.put({"xs": items}, before, lanes)
        if isinstance(before["xs"], list) and items:
            assert sum(piece.count for piece in written.pieces) <= cost
        past.append((written, frozen(items)))
    history = rows.history()
    for each, expected in past:
        assert frozen(rows.get(each)["xs"]) == expected
        assert frozen(history.values(each.refs)["xs"]) == expected
        assert frozen(history.values(each.refs)["xs"]) == expected
        assert frozen(history.values(each.refs)["xs"]) == expected

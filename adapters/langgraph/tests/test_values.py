"""Channel values as lanes of elements: what is stored once, what is found again, what comes back."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from adapters.langgraph.tests.lanes_kit import Rows
from stepfast import Damaged, KeyRing, Unencodable
from stepfast_langgraph._heads import Place, decode_head, encode_head
from stepfast_langgraph._types import make_codec
from stepfast_langgraph._values import INLINE, Written, spans_of

LONG = "x" * 500


def message(n: int, text: str = LONG) -> AIMessage:
    return AIMessage(content=f"{n} {text}", id=f"m{n}")


def messages(count: int) -> list[BaseMessage]:
    return [message(n) if n % 2 else HumanMessage(f"{n} {LONG}", id=f"m{n}") for n in range(count)]


def test_a_thousand_appended_messages_are_a_thousand_pieces_and_one_span() -> None:
    rows = Rows()
    said: list[BaseMessage] = []
    written = Written()
    for each in messages(1000):
        said = [*said, each]
        written = rows.put({"messages": said}, written.refs)
        assert len(written.pieces) == 1
    assert len(rows.pieces) == 1000
    assert [(s.start, s.end) for s in written.spans] == [(0, 1000)]
    assert rows.size < 1000 * 900
    assert rows.get(written)["messages"] == said


def test_a_short_value_stands_in_the_head_and_a_long_one_in_its_lane() -> None:
    rows = Rows()
    written = rows.put({"short": "abc", "none": None, "few": [1, 2], "empty": [], "long": LONG, "table": {"k": LONG}})
    assert {name for name, ref in written.refs.items() if isinstance(ref, bytes)} == {"short", "none", "few", "empty"}
    assert all(len(ref) <= INLINE for ref in written.refs.values() if isinstance(ref, bytes))
    assert [(s.lane, s.start, s.end) for s in spans_of(written.refs)] == [("long", 0, 1), ("table", 0, 1)]
    assert rows.get(written) == {
        "short": "abc",
        "none": None,
        "few": [1, 2],
        "empty": [],
        "long": LONG,
        "table": {"k": LONG},
    }


def test_a_long_value_that_did_not_change_is_not_written_again() -> None:
    rows = Rows()
    first = rows.put({"table": {"k": LONG}, "n": 1})
    again = rows.put({"table": {"k": LONG}, "n": 2}, first.refs)  # an equal one, not the same
    assert again.pieces == []
    assert again.refs["table"] == first.refs["table"]
    changed = rows.put({"table": {"k": LONG + "y"}}, again.refs)
    assert len(changed.pieces) == 1


def test_a_channel_that_is_not_named_as_changed_keeps_its_ref() -> None:
    rows = Rows()
    first = rows.put({"table": {"k": LONG}, "n": 1})
    written = rows.lanes.write({"table": {"k": "other"}, "n": 2}, ["n"], first.refs)
    assert written.refs["table"] == first.refs["table"]
    assert rows.get(written)["n"] == 2


def test_a_message_changed_in_place_is_stored_and_the_others_are_shared() -> None:
    rows = Rows()
    said = messages(100)
    first = rows.put({"messages": said})
    said[40].additional_kwargs["flag"] = {"deep": [True]}
    second = rows.put({"messages": said}, first.refs)
    assert sum(piece.count for piece in second.pieces) == 1
    assert second.refs["messages"] == [0, 40, 100, 101, 41, 100]
    said[40].additional_kwargs["flag"]["deep"][0] = 1
    third = rows.put({"messages": [*said, message(100)]}, second.refs)
    assert sum(piece.count for piece in third.pieces) == 2
    found = [rows.get(each)["messages"] for each in (first, second, third)]
    assert [found[0][40].additional_kwargs, found[1][40].additional_kwargs] == [{}, {"flag": {"deep": [True]}}]
    assert found[1][40].additional_kwargs["flag"]["deep"][0] is True
    assert type(found[2][40].additional_kwargs["flag"]["deep"][0]) is int


@pytest.mark.parametrize(
    ("edit", "cost", "spans"),
    [
        (lambda xs: xs[1:], 0, 1),
        (lambda xs: xs[-20:], 0, 1),
        (lambda xs: [*xs[-20:], message(900)], 1, 1),
        (lambda xs: [*xs[:30], *xs[31:]], 0, 2),
        (lambda xs: [*xs[:30], message(900), *xs[30:]], 1, 3),
        (lambda xs: [message(900), *xs], 1, 2),
        (lambda xs: [xs[-1], *xs[:-1]], 0, 2),
        (lambda xs: [*xs, *messages(3)], 3, 1),  # equal to the first three, which are used already
        (lambda xs: [xs[0], *xs], 1, None),
        (lambda xs: [each.model_copy(deep=True) for each in xs], 0, 1),
        (lambda xs: xs[::-1], 100, 1),  # more spans than a head should have: written anew
    ],
)
def test_an_edit_costs_what_it_changed(edit: Any, cost: int, spans: int | None) -> None:
    rows = Rows()
    said = messages(100)
    first = rows.put({"messages": said})
    edited = edit(said)
    second = rows.put({"messages": edited}, first.refs)
    assert sum(piece.count for piece in second.pieces) == cost
    if spans is not None:
        assert len(second.spans) == spans
    assert rows.get(second)["messages"] == edited
    assert rows.get(first)["messages"] == said


def test_equal_elements_that_keep_coming_do_not_make_the_list_be_written_anew() -> None:
    rows = Rows()
    log: list[str] = []
    parent: dict[str, Any] = {}
    for _ in range(300):
        log = [*log, LONG]
        parent = rows.put({"log": log}, parent).refs
    assert sum(piece.count for piece in rows.pieces.values()) == 300
    assert parent["log"] == [0, 300]


def test_a_list_that_is_edited_again_and_again_stays_in_few_spans() -> None:
    rows = Rows()
    said: list[Any] = messages(50)
    chooser = random.Random(4)
    written = rows.put({"messages": said})
    stored = 0
    for n in range(300):
        said.insert(chooser.randrange(len(said)), message(1000 + n))
        written = rows.put({"messages": said}, written.refs)
        stored += sum(piece.count for piece in written.pieces)
        assert len(written.spans) <= 64
    assert stored < 300 + 12 * 350  # anew about once in thirty edits
    assert rows.get(written)["messages"] == said


def test_a_new_process_goes_on_with_what_it_read() -> None:
    rows = Rows()
    first = rows.put({"messages": messages(200)})
    other = rows.process()
    said = other.read(first.refs, rows.covering(first.spans))["messages"]
    second = rows.put({"messages": [*said, message(200)]}, first.refs, other)
    assert second.refs["messages"] == [0, 201]
    said[7].content = "changed after it was read"
    third = rows.put({"messages": [*said, message(200)]}, second.refs, other)
    assert sum(piece.count for piece in third.pieces) == 1
    assert rows.get(third)["messages"][7].content == "changed after it was read"


def test_reading_the_thread_in_between_does_not_make_the_writer_forget() -> None:
    rows = Rows()
    said: list[Any] = messages(100)
    written = rows.put({"messages": said})
    for n in range(3):
        looked_at = rows.get(written, rows.lanes)["messages"]
        looked_at[0].content = "what a reader does to its copy is its own affair"
        said = [*said, message(100 + n)]
        written = rows.put({"messages": said}, written.refs)
        assert sum(piece.count for piece in written.pieces) == 1
    assert rows.get(written)["messages"] == said


def test_what_another_process_wrote_is_learned_by_its_bytes() -> None:
    rows = Rows()
    first = rows.put({"messages": messages(100), "table": {"k": LONG}})
    other = rows.process()
    spans = other.unknown(first.refs, ["messages", "table", "absent"])
    assert [(s.lane, s.start, s.end) for s in spans] == [("messages", 0, 100), ("table", 0, 1)]
    other.learn(rows.covering(spans))
    assert other.unknown(first.refs, ["messages", "table"]) == []
    second = rows.put({"messages": messages(101), "table": {"k": LONG}}, first.refs, other)
    assert sum(piece.count for piece in second.pieces) == 1


def test_nothing_but_the_parents_elements_is_shared() -> None:
    rows = Rows()
    said = messages(50)
    rows.put({"messages": said})
    alone = rows.put({"messages": said})  # a parent that has no such channel
    assert alone.refs["messages"] == [50, 100]


def test_two_branches_of_one_parent_share_it() -> None:
    rows = Rows()
    said: list[Any] = messages(60)
    base = rows.put({"messages": said})
    one = rows.put({"messages": [*said, message(1)]}, base.refs)
    two = rows.put({"messages": [*said, message(2), message(3)]}, base.refs)
    assert [sum(p.count for p in each.pieces) for each in (one, two)] == [1, 2]
    assert rows.get(one)["messages"][-1] == message(1)
    assert rows.get(two)["messages"][-2:] == [message(2), message(3)]


def test_what_was_written_counts_only_once_it_is_accepted() -> None:
    rows = Rows()
    said = messages(10)
    lost = rows.lanes.write({"messages": said}, ["messages"], {})
    again = rows.put({"messages": said})
    assert [piece.n for piece in lost.pieces] == [piece.n for piece in again.pieces]
    assert rows.get(again)["messages"] == said


def test_each_reading_gives_new_objects() -> None:
    rows = Rows()
    written = rows.put({"messages": messages(5), "table": {"k": [LONG]}})
    history = rows.history()
    readings = [rows.get(written, rows.lanes) for _ in range(2)] + [history.values(written.refs) for _ in range(4)]
    for values in readings:
        assert values == {"messages": messages(5), "table": {"k": [LONG]}}
        values["messages"][0].content = "mine"
        values["messages"][1].additional_kwargs["mine"] = 1
        values["messages"][2].__pydantic_fields_set__.add("name")
        values["table"]["k"].append("mine")


def test_many_elements_at_once_make_few_pieces() -> None:
    rows = Rows()
    written = rows.put({"messages": messages(1000), "vector": [n / 7 for n in range(1536)]})
    assert len([piece for piece in written.pieces if piece.lane == "messages"]) < 20
    assert len([piece for piece in written.pieces if piece.lane == "vector"]) <= 24
    assert rows.get(written)["vector"] == [n / 7 for n in range(1536)]


def test_a_value_that_cannot_be_stored_names_its_channel_and_type_and_nothing_is_kept() -> None:
    rows = Rows()
    said: list[Any] = messages(40)
    first = rows.put({"messages": said})
    with pytest.raises(Unencodable, match=r'channel "messages"\[40\].*object'):
        rows.lanes.write({"messages": [*said, object()]}, ["messages"], first.refs)
    with pytest.raises(Unencodable, match=r'channel "table"\["k"\].*builtins:object'):
        rows.lanes.write({"table": {"k": object()}}, ["table"], {})
    said.append(message(40))
    assert sum(piece.count for piece in rows.put({"messages": said}, first.refs).pieces) == 1


def test_a_missing_piece_is_said_to_be_missing() -> None:
    rows = Rows()
    written = rows.put({"messages": messages(100), "table": {"k": LONG}})
    some = [piece for piece in rows.covering(written.spans) if piece.n == 0 and piece.lane == "messages"]
    with pytest.raises(Damaged, match='Element 64 of channel "messages" is missing'):
        rows.process().read({"messages": written.refs["messages"]}, some)
    with pytest.raises(Damaged, match='Element 0 of channel "table" is missing'):
        rows.process().read({"table": 0}, some)


VERSION = "00000000000000000000000000000012.0.7465113187382951"


def checkpoint(**more: Any) -> dict[str, Any]:
    return {
        "v": 4,
        "id": "c1",
        "ts": "2026-11-16T15:16:17.123456+00:00",
        "channel_values": {"messages": ["not in the head"]},
        "channel_versions": {"__start__": "0" * 31 + "1.0.1", "messages": VERSION, "branch:to:agent": VERSION},
        "versions_seen": {"__input__": {}, "agent": {"branch:to:agent": VERSION}},
        "updated_channels": ["messages"],
        **more,
    }


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"v": 1, "pending_sends": [{"x": (1, 2)}], "anything": {"a": {1}}},
        {"channel_versions": {"a": 1, "b": 1.0, "c": True, "d": "1"}},
        {"channel_versions": {"a": 3, "b": 3.0}, "updated_channels": None},
        {"channel_versions": {"a": "0" * 32 + ".x", "b": "0" * 31 + "7.0.10", "c": "0" * 31 + "7." + "0" * 16}},
        {"channel_versions": {"a": "٣" * 32 + ".0.1", "b": "-" + "0" * 30 + "1.0.1", "c": "0" * 32 + ".nan"}},
        {"versions_seen": {"n": {"a": ("tuple",)}}},
        {"id": "another than its name"},
        {"updated_channels": []},
    ],
)
def test_a_head_comes_back_as_it_was(odd: dict[str, Any]) -> None:
    place = Place("tenant", "home", "ns", "c1", "c0")
    codec = make_codec()
    given = checkpoint(**odd)
    refs: dict[str, Any] = {"messages": [0, 1000, 1005, 1006], "x": 7, "y": b"\x00\xc0"}
    metadata = {"source": "loop", "step": 3, "parents": {}, "odd": (1, float("inf"))}
    head = decode_head(codec, place, encode_head(codec, place, given, metadata, refs))
    assert head.checkpoint == {**given, "channel_values": {}}
    for name, version in given["channel_versions"].items():
        assert type(head.checkpoint["channel_versions"][name]) is type(version)
    assert (head.metadata, head.refs) == (metadata, refs)


def test_the_head_of_a_long_thread_is_short() -> None:
    rows = Rows()
    written = rows.put({"messages": messages(1000), "branch:to:agent": None})
    place = Place("tenant", "home", "", "c1", "c0")
    head = encode_head(rows.codec, place, checkpoint(), {"source": "loop", "step": 999, "parents": {}}, written.refs)
    assert len(head) < 350


def test_a_head_whose_metadata_cannot_be_stored_says_where() -> None:
    with pytest.raises(Unencodable, match=r'metadata\["x"\].*object'):
        encode_head(make_codec(), Place("t", "h", "", "c1"), checkpoint(), {"x": object()}, {})


def test_encrypted_elements_are_shared_too() -> None:
    rows = Rows(make_codec(KeyRing({"k1": b"k" * 32})))
    said: list[Any] = messages(100)
    first = rows.put({"messages": said})
    second = rows.put({"messages": [*said, message(100)]}, first.refs)
    assert sum(piece.count for piece in second.pieces) == 1
    assert all(LONG.encode() not in piece.data for piece in rows.pieces.values())
    assert rows.get(second)["messages"] == [*said, message(100)]


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    text: str


def test_elements_that_cannot_be_followed_are_compared_by_their_bytes() -> None:
    rows = Rows()
    items: list[Any] = [Slotted(f"{n} {LONG}") for n in range(20)]
    first = rows.put({"items": items})
    object.__setattr__(items[3], "text", "changed")
    second = rows.put({"items": [*items, Slotted("new")]}, first.refs)
    assert sum(piece.count for piece in second.pieces) == 2
    assert rows.get(second)["items"] == [*items, Slotted("new")]

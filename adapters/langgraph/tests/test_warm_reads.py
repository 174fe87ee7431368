"""What a process has written or read before is handed out again without the store, and is the same each time."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint

from stepfast import Damaged
from stepfast_langgraph import StepfastSaver

from .lanes_kit import Rows


def _messages(number: int) -> list[Any]:
    calls = [{"name": "look", "args": {"where": ["here", {"deep": [1]}]}, "id": "c", "type": "tool_call"}]
    return [
        AIMessage(f"answer {i}", id=f"a{i}", tool_calls=calls, additional_kwargs={"n": [i]})
        if i % 2
        else HumanMessage([{"type": "text", "text": f"question {i}"}], id=f"h{i}")
        for i in range(number)
    ]


def _spoil(value: Any) -> None:
    """Change everything inside that can be changed."""
    if isinstance(value, dict):
        for inner in list(value.values()):
            _spoil(inner)
        value["spoilt"] = True
    elif isinstance(value, list):
        for inner in value:
            _spoil(inner)
        value.append("spoilt")
    elif hasattr(value, "__dict__"):
        _spoil(vars(value))
        value.__pydantic_fields_set__.add("spoilt")
        _spoil(value.__pydantic_extra__)


def _exactly(value: Any) -> Any:
    if isinstance(value, list):
        return [_exactly(item) for item in value]
    return (type(value), repr(value), getattr(value, "__pydantic_fields_set__", None))


def test_what_is_done_to_a_value_never_comes_back() -> None:
    rows = Rows()
    written = rows.put({"messages": _messages(6), "notes": {"long": ["x" * 200]}})
    pieces = rows.covering(written.spans)
    wanted = {channel: _exactly(value) for channel, value in rows.get(written).items()}
    reader = rows.process()
    for lanes, given in (
        (rows.lanes, []),
        (rows.lanes, []),
        (reader, pieces),
        (reader, []),
        (reader, []),
        (reader, []),
    ):
        found = lanes.read(written.refs, given)
        assert {channel: _exactly(value) for channel, value in found.items()} == wanted
        _spoil(found)


def test_a_live_object_that_changed_since_it_was_stored_is_read_as_it_was_stored() -> None:
    rows = Rows()
    messages = _messages(4)
    written = rows.put({"messages": messages})
    wanted = _exactly(rows.get(written)["messages"])
    _spoil(messages)
    assert not rows.lanes.missing(written.refs)
    assert _exactly(rows.lanes.read(written.refs, [])["messages"]) == wanted


def test_only_what_another_process_added_is_missing() -> None:
    rows = Rows()
    first = rows.put({"messages": _messages(4)})
    other = rows.process()
    assert len(other.missing(first.refs)) == 1
    other.read(first.refs, rows.covering(first.spans))
    second = rows.put({"messages": [*_messages(4), HumanMessage("more", id="m")]}, first.refs)
    assert not other.missing(first.refs)
    more = [piece for piece in rows.pieces.values() if piece.n >= 4]
    found = other.read(second.refs, more)["messages"]
    assert _exactly(found) == _exactly(rows.get(second)["messages"])
    with pytest.raises(Damaged, match="missing"):
        rows.process().read(second.refs, more)


def _put(saver: StepfastSaver, thread: str, parent: Any, messages: list[Any]) -> Any:
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"messages": messages}
    checkpoint["channel_versions"] = {"messages": len(messages)}
    config = parent or {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    return saver.put(config, checkpoint, {"source": "loop", "step": 0, "parents": {}}, {"messages": len(messages)})


def test_spoilt_tuples_and_listings_leave_later_ones_alone(store_url: str) -> None:
    with StepfastSaver(store_url) as saver, StepfastSaver(store_url) as fresh:
        first = _put(saver, "t", None, _messages(5))
        second = _put(saver, "t", first, _messages(8))
        wanted = _exactly(fresh.get_tuple(second).checkpoint["channel_values"]["messages"])
        for _ in range(3):
            found = saver.get_tuple(second)
            listed = list(saver.list({"configurable": {"thread_id": "t"}}))
            assert _exactly(found.checkpoint["channel_values"]["messages"]) == wanted
            assert [_exactly(one.checkpoint["channel_values"]["messages"]) for one in listed] == [wanted, wanted[:5]]
            for one in (found, *listed):
                _spoil(one.checkpoint)


def test_a_thread_that_was_deleted_elsewhere_and_begun_again_is_read_anew(store_url: str) -> None:
    with StepfastSaver(store_url) as saver, StepfastSaver(store_url) as other:
        at = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        _put(saver, "t", None, _messages(5))
        assert len(saver.get_tuple(at).checkpoint["channel_values"]["messages"]) == 5
        other.delete_thread("t")
        # Begun again with the home of the old one, which this process still believes in.
        saver.put_writes({"configurable": {**at["configurable"], "checkpoint_id": "x"}}, [("c", 1)], "task")
        again = [HumanMessage(f"new {i}", id=f"n{i}") for i in range(5)]
        _put(other, "t", None, again)
        assert saver.get_tuple(at).checkpoint["channel_values"]["messages"] == again

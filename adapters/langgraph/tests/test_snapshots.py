"""Whether a stored object changed is told exactly: never "unchanged" of one whose bytes would differ."""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, deque
from typing import Any, NamedTuple

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from pydantic import BaseModel, ConfigDict, PrivateAttr

from stepfast_langgraph._snapshots import Part, part_of


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.StrEnum):
    LOW = "low"


@dataclasses.dataclass
class Note:
    text: str
    tags: list[Any]


class Pair(NamedTuple):
    left: Any
    right: Any


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    n: Any = 0
    _secret: dict[str, int] = PrivateAttr(default_factory=dict)


def ai(**fields: Any) -> AIMessage:
    return AIMessage(**{"content": "hello", "id": "a", **fields})


def assign(place: str, value: Any) -> Any:
    return lambda message: setattr(message, place, value)


CALL = {"name": "f", "args": {"deep": {"flag": True, "n": 1, "xs": [1, 2.0]}}, "id": "c", "type": "tool_call"}


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: ai(), assign("content", "other")),
        (lambda: ai(), assign("name", "x")),
        (lambda: ai(), assign("name", None)),  # only what was set by hand is different now
        (lambda: ai(), lambda m: m.additional_kwargs.update(a=1)),
        (lambda: ai(), lambda m: m.response_metadata.setdefault("a", None)),
        (lambda: ai(), assign("additional_kwargs", {})),
        (lambda: ai(tool_calls=[CALL]), lambda m: m.tool_calls[0]["args"]["deep"].update(flag=1)),
        (lambda: ai(tool_calls=[CALL]), lambda m: m.tool_calls[0]["args"]["deep"].update(n=True)),
        (lambda: ai(tool_calls=[CALL]), lambda m: m.tool_calls[0]["args"]["deep"].update(n=1.0)),
        (lambda: ai(tool_calls=[CALL]), lambda m: m.tool_calls[0]["args"]["deep"]["xs"].__setitem__(1, 2)),
        (lambda: ai(tool_calls=[CALL]), lambda m: m.tool_calls[0]["args"]["deep"]["xs"].reverse()),
        (lambda: ai(tool_calls=[CALL]), lambda m: m.tool_calls[0]["args"]["deep"].pop("flag")),
        (lambda: ai(tool_calls=[CALL]), lambda m: m.tool_calls[0].update(name=Level.LOW)),
        (lambda: ai(tool_calls=[CALL]), lambda m: m.tool_calls.append(m.tool_calls[0])),
        (lambda: ai(content=[{"type": "text", "text": "a"}]), lambda m: m.content[0].update(text="b")),
        (lambda: ai(), lambda m: setattr(m, "__class__", HumanMessage)),
        (lambda: ai(), lambda m: object.__setattr__(m, "__dict__", {**m.__dict__, "content": "x"})),
        (lambda: ai(), lambda m: object.__setattr__(m, "__pydantic_extra__", {"x": 1})),
        (lambda: ai(), lambda m: m.__pydantic_fields_set__.add("name")),
        (lambda: ai(extra_field=1), lambda m: setattr(m, "extra_field", True)),
        (lambda: Loose(), lambda m: m._secret.update(a=1)),
        (lambda: Loose(), lambda m: setattr(m, "_secret", {"b": 1})),
        (lambda: Loose(n=1), lambda m: setattr(m, "n", 1.0)),
        (lambda: Loose(n=0.0), lambda m: setattr(m, "n", -0.0)),
        (lambda: Loose(n="low"), lambda m: setattr(m, "n", Level.LOW)),
        (lambda: Loose(n=Color.RED), lambda m: setattr(m, "n", Color.BLUE)),
        (lambda: ToolMessage("x", tool_call_id="1", artifact={"a": [1]}), lambda m: m.artifact["a"].append(2)),
        (lambda: Document("x", metadata={"a": {1, 2}}), lambda d: d.metadata["a"].add(3)),
        (lambda: Document("x", metadata={"a": {1, 2}}), lambda d: d.metadata["a"].discard(2)),
        (lambda: Note("a", []), lambda n: n.tags.append(1)),
        (lambda: Note("a", []), lambda n: setattr(n, "more", 1)),
        (lambda: Note("a", []), lambda n: delattr(n, "text")),
        (lambda: Pair([1], 2), lambda p: p.left.append(2)),
        (lambda: {"a": 1, "b": 2}, lambda d: d.update(a=d.pop("a"))),  # another order
        (lambda: {"a": 1}, lambda d: (d.pop("a"), d.update(b=1))),
        (lambda: OrderedDict(a=1, b=2), lambda d: d.move_to_end("a")),
        (lambda: deque([1, 2]), lambda d: d.rotate(1)),
        (lambda: [[1], [2]], lambda x: (x[0].append(2), x[1].clear())),
        (lambda: [[1], [], [2]], lambda x: (x[1].append(x[2][0]), x[2].clear())),
        (lambda: ({"a": 1},), lambda x: x[0].clear()),
    ],
)
def test_every_change_in_place_is_noticed(make: Any, change: Any) -> None:
    value = make()
    part = part_of(value)
    assert part is not None
    assert part.holds()
    change(value)
    assert not part.holds()


def test_a_changed_one_among_many_is_noticed() -> None:
    messages = [ai(id=str(n)) for n in range(50)]
    parts = [part_of(message) for message in messages]
    whole = Part.joined([part for part in parts if part is not None])
    assert whole.holds()
    messages[31].response_metadata["late"] = True
    assert not whole.holds()
    assert [n for n, part in enumerate(parts) if part is not None and not part.holds()] == [31]


def test_what_moves_from_one_element_to_the_next_is_noticed() -> None:
    first, second = [object.__new__(Note) for _ in range(2)]
    first.__dict__.update(a=1, b=2)
    second.__dict__.update(c=3)
    whole = Part.joined([part for part in map(part_of, (first, second)) if part is not None])
    second.__dict__.clear()
    second.__dict__.update(b=first.__dict__.pop("b"), c=3)
    assert not whole.holds()


@pytest.mark.parametrize("value", [object(), bytearray(b"x"), [lambda: 1], Pair(1, object()), type("Slots", (), {})()])
def test_what_cannot_be_followed_is_said_to_be_so(value: Any) -> None:
    assert part_of(value) is None


def test_a_value_that_contains_itself_is_not_followed_for_ever() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert part_of(loop) is None


def test_no_equality_of_the_users_is_asked() -> None:
    class Loud:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("asked")

        __hash__ = None  # type: ignore[assignment]

    note = Note("a", [1])
    part = part_of(note)
    assert part is not None
    note.tags[0] = Loud()
    assert not part.holds()

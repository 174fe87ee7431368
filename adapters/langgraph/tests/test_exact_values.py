"""What is put into a channel or a write comes back as it was, or is refused with its channel and type."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import ipaddress
import math
import re
import sys
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import SimpleNamespace
from typing import Any, Generic, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pydantic
import pytest
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.prompt_values import ChatPromptValue, StringPromptValue
from langgraph.graph.message import add_messages
from langgraph.store.base import Item, SearchItem
from langgraph.types import Command, Interrupt, Overwrite, Send

from adapters.langgraph.tests.lanes_kit import Rows
from stepfast import Unencodable, register
from stepfast_langgraph._heads import Place, decode_write, encode_write
from stepfast_langgraph._types import make_codec

T = TypeVar("T")
MORE: dict[str, Any] = {"more": (1, [2])}
PLACE = Place("tenant", "home", "", "c1")


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    HI = "hi"


class Bits(enum.Flag):
    A = 1
    B = 2


@dataclasses.dataclass
class Plain:
    a: int
    b: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: tuple[int, ...]


class Pair(NamedTuple):
    left: Any
    right: Any


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: Any = 0
    when: datetime | None = None
    _private: int = pydantic.PrivateAttr(default=1)


class Box(pydantic.BaseModel, Generic[T]):
    item: T


class Root(pydantic.RootModel[list[int]]):
    pass


class Old(dict[str, Any]):
    """A dict that is not quite a dict."""


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}
CALL = {"name": "search", "args": {"q": "x", "n": 1, "deep": {"a": [1.5, None]}}, "id": "call_1", "type": "tool_call"}
USAGE = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "input_token_details": {"cache_read": 0}}

MESSAGES: list[Any] = [
    HumanMessage("hello", id="1"),
    HumanMessage([{"type": "text", "text": "look"}, IMAGE], name="ann"),
    HumanMessage("", additional_kwargs={"tags": {"a", "b"}, "t": (1, 2)}),
    SystemMessage("be kind"),
    AIMessage("", tool_calls=[CALL], usage_metadata=USAGE, response_metadata={"logprobs": [-0.1, float("-inf")]}),
    AIMessage(
        "x", invalid_tool_calls=[{"name": "f", "args": "{", "id": "2", "error": "bad", "type": "invalid_tool_call"}]
    ),
    AIMessage([{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "a", "annotations": []}]),
    AIMessageChunk(content="par", id="3", tool_call_chunks=[{"name": "f", "args": "{", "id": "1", "index": 0}]),
    ToolMessage("42", tool_call_id="call_1", artifact={"raw": b"\x00\xff", "doc": Document("d")}, status="error"),
    ToolMessage([{"type": "text", "text": "a"}], tool_call_id="call_2"),
    FunctionMessage("r", name="f"),
    ChatMessage("c", role="critic"),
    RemoveMessage(id="1"),
    Document("text", id="7", metadata={"page": 1, "at": datetime(2026, 1, 1, tzinfo=UTC)}),
    ChatPromptValue(messages=[HumanMessage("a")]),
    StringPromptValue(text="a"),
]

GRAPH: list[Any] = [
    Send("node", {"i": 1, "m": HumanMessage("x")}),
    [Send("node", 1), Send("node", (2,))],
    Command(update={"a": 1}, goto=[Send("x", None), "y"], resume={"k": (1,)}),
    Command(graph=Command.PARENT, goto="x"),
    (Interrupt(value={"q": [1]}, id="abc"),),
    Overwrite([1, 2]),
    Item(value={"a": (1,)}, key="k", namespace=("a", "b"), created_at=datetime.now(UTC), updated_at=datetime.now(UTC)),
    SearchItem(("a",), "k", {"v": 1}, datetime.now(UTC), datetime.now(UTC), score=0.5),
]

PYTHON: list[Any] = [
    *(None, True, False, 0, -1, 1 << 63, -(1 << 200), 1 << 4000, 1.5, 0.0, -0.0, float("inf"), float("-inf")),
    *("", "a\x00b", "\ud800 alone", "é😀", b"\x00\xff", bytearray(b"x"), 1 + 2j),
    *((), (1, (2, [3])), [], [1, "a", None], set(), {1, "a"}, frozenset((1, 2)), {}, {"a": {"b": []}}),
    *({1: "a", (2, 3): "b", None: "c", False: "d"}, {b"x": 1, 1.5: 2}, OrderedDict(b=1, a=2), Counter("aab")),
    *(defaultdict(list, a=[1]), deque([1, 2], 5), range(1, 9, 2)),
    *(Decimal("1.10"), Decimal("NaN"), Fraction(1, 3), uuid.uuid4(), date(2026, 1, 2), time(1, 2, 3, 4, fold=1)),
    *(
        datetime.fromisoformat("2026-01-02T03:00"),
        datetime(2026, 1, 2, tzinfo=ZoneInfo("Europe/Berlin")),
        timedelta(-1, 2, 3),
    ),
    *(timezone(timedelta(hours=2), "x"), UTC, Path("/a/../b"), PurePosixPath("a"), PureWindowsPath("c:\\x")),
    *(re.compile("a+", re.I | re.M), re.compile(b"a"), SimpleNamespace(a=[1]), ipaddress.ip_address("::1")),
    *(ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_interface("10.0.0.1/8")),
    *(Color.RED, Level.LOW, Word.HI, Bits.A | Bits.B, [Color.RED, {Word.HI: Level.LOW}]),
    *(Plain(1, [Plain(2)]), Frozen((1, 2)), Pair(1, [2]), Pair(Pair(1, 2), None)),
    *(
        Model(a={1, 2}, when=datetime.fromisoformat("2026-01-01"), **MORE),
        Model.model_construct(a=1),
        Box[int](item=1),
    ),
    *(Root([1, 2]), Box[Model](item=Model(a=1))),
]

NUMPY: list[Any] = [
    *(np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.zeros((0, 3)), np.array(3)),
    *(np.array(["a", "bc"]), np.array(["2020-01-01"], dtype="M8[ns]"), np.array([True]), np.array([1 + 2j])),
    *(np.zeros(2, dtype=[("a", "<i4"), ("b", "<f8", (2,))]), np.arange(4, dtype=">i2"), np.array([np.nan, np.inf])),
    *(np.float32(1.5), np.float64(0.1), np.int8(-3), np.uint64(1 << 63), np.bool_(True), np.str_("x"), np.bytes_(b"x")),
    *(np.datetime64("2020-01-01"), np.timedelta64(3, "s"), np.dtype("f4")),
]

PANDAS: list[Any] = [
    pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": [1.5, np.nan]}),
    pd.DataFrame(),
    pd.DataFrame([[1, 2]], columns=["a", "a"], index=["row"]),
    pd.DataFrame(
        {"c": pd.Categorical(["x", "y", "x"]), "t": pd.date_range("2020", periods=3, tz="Europe/Berlin")},
        index=pd.date_range("2020", periods=3),
    ),
    *(pd.Series([1, 2, None], dtype="Int64", name="s"), pd.Series([True, None], dtype="boolean")),
    *(pd.Series(["a", None], dtype="string"), pd.Series([{"a": 1}, (1, 2), None]), pd.Index([1, 2], name="i")),
    pd.MultiIndex.from_tuples([(1, "a"), (2, "b")], names=["x", "y"]),
    *(pd.Timestamp("2020-01-01 01:02:03.000000004"), pd.Timestamp("2020-01-01", tz="Europe/Berlin")),
    *(pd.Timedelta("1 day 3 ns"), pd.NaT, pd.NA),
]


def same(found: Any, given: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(found) is not type(given):
        return False
    if isinstance(given, pd.DataFrame | pd.Series | pd.Index):
        return bool(found.equals(given)) and str(getattr(found, "dtypes", "")) == str(getattr(given, "dtypes", ""))
    if isinstance(given, np.ndarray):
        alike = found.dtype == given.dtype and found.shape == given.shape and found.tobytes() == given.tobytes()
        return alike and found.flags.writeable and found.flags.f_contiguous == given.flags.f_contiguous
    if given is pd.NA or given is pd.NaT:
        return found is given
    if isinstance(given, float):
        return (math.isnan(found) and math.isnan(given)) or (found == given and repr(found) == repr(given))
    if isinstance(given, Decimal):
        return str(found) == str(given)
    if isinstance(given, dict):
        pairs = zip(found.items(), given.items(), strict=True)
        return len(found) == len(given) and all(same(f[0], g[0]) and same(f[1], g[1]) for f, g in pairs)
    if isinstance(given, tuple | list | deque):
        return len(found) == len(given) and all(map(same, found, given))
    if isinstance(given, pydantic.BaseModel):
        slots = ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
        return same(found.__dict__, given.__dict__) and all(getattr(found, s) == getattr(given, s) for s in slots)
    if isinstance(given, SearchItem):
        return found.dict() == given.dict() and found.score == given.score
    return bool(found == given)


# DeltaChannel's snapshots, where this langgraph has them.
_serde: Any = importlib.import_module("langgraph.checkpoint.serde.types")
if hasattr(_serde, "_DeltaSnapshot"):
    GRAPH += [_serde._DeltaSnapshot([HumanMessage("a"), 1]), _serde._DeltaSnapshot({"k": (1,)})]


@pytest.mark.parametrize("value", PYTHON + MESSAGES + GRAPH + NUMPY + PANDAS, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    rows = Rows()
    padded = {"whole": value, "inside": {"pad": "x" * 200, "it": [value]}, "listed": ["x" * 200, value]}
    written = rows.put(padded)
    history = rows.history()
    for found in (rows.get(written), *(history.values(written.refs) for _ in range(3))):
        assert same(found["whole"], value)
        assert same(found["inside"]["it"][0], value)
        assert same(found["listed"][1], value)
    codec = make_codec()
    data = encode_write(codec, PLACE, "t", 0, "x", value)
    assert same(decode_write(codec, PLACE, "t", 0, "x", data), value)


def test_nan_stays_nan() -> None:
    rows = Rows()
    assert math.isnan(rows.get(rows.put({"x": float("nan")}))["x"])


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="pydantic.v1 does not work on Python 3.14")
def test_a_model_of_pydantic_1_comes_back_as_it_was() -> None:
    from adapters.langgraph.tests import old_models

    rows = Rows()
    given = old_models.Order(id=1, lines=[old_models.Line(sku="a" * 200)], **MORE)
    given._seen = {"x"}
    found = rows.get(rows.put({"order": given, "orders": [given, given.copy(update={"id": 2})]}))
    assert found["order"] == given
    assert (found["order"].__fields_set__, found["order"]._seen) == (given.__fields_set__, {"x"})
    assert type(found["order"].lines[0]) is old_models.Line
    assert found["orders"][1].id == 2


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Old(a=1), "Old"),
        (object(), "builtins:object"),
        (lambda: 1, "builtins:function"),
        (np.array([None]), "numpy:ndarray"),
        (type("Text", (str,), {})("a"), "Text"),
        (pydantic.SecretStr("hush"), "SecretStr"),
        (pd.period_range("2020", periods=2), "PeriodIndex"),
        (iter([1]), "iterator"),
    ],
)
def test_what_would_not_come_back_exactly_is_refused_with_its_channel_and_type(value: Any, name: str) -> None:
    rows = Rows()
    for channels in ({"x": value}, {"x": {"y": [value]}}, {"x": ["a" * 200, value]}):
        with pytest.raises(Unencodable, match=f'channel "x".*{name}'):
            rows.put(channels)
    with pytest.raises(Unencodable, match=f'write to "x".*{name}') as caught:
        encode_write(make_codec(), PLACE, "t", 0, "x", value)
    assert "hush" not in str(caught.value)
    assert rows.pieces == {}


class Refused(Exception):
    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"refused with {code}")
        self.code = code
        self.hint = hint


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x", {"a": (1,)}),
        KeyError(1),
        FileNotFoundError(2, "gone", "/x"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        Refused(7, hint="later"),
        ExceptionGroup("many", [ValueError(1), Refused(8, hint="no")]),
        KeyboardInterrupt(),
        StopIteration(5),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_tasks_exception_comes_back_as_what_it_was(error: BaseException) -> None:
    codec = make_codec()
    error.add_note("seen")
    found = decode_write(codec, PLACE, "t", -1, "__error__", encode_write(codec, PLACE, "t", -1, "__error__", error))
    assert type(found) is type(error)
    assert (repr(found), str(found), found.__notes__) == (repr(error), str(error), ["seen"])
    assert vars(found) == vars(error)
    for name in ("errno", "filename", "object", "value"):
        assert getattr(found, name, None) == getattr(error, name, None)


def test_an_exception_that_cannot_be_stored_comes_back_as_its_repr() -> None:
    class Local(Exception):
        pass

    codec = make_codec()
    for error in (Local("x"), ValueError(object)):
        data = encode_write(codec, PLACE, "t", -1, "__error__", error)
        assert decode_write(codec, PLACE, "t", -1, "__error__", data) == repr(error)


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


def test_what_was_registered_for_all_of_stepfast_is_known_here() -> None:
    codec = make_codec()
    with pytest.raises(Unencodable):
        codec.encode(Money(1))
    register(Money, to=lambda money: money.cents, build=Money)
    assert codec.decode(codec.encode(Money(7))).cents == 7


def test_messages_that_were_read_go_on_through_the_reducer() -> None:
    rows = Rows()
    said: list[AnyMessage] = [HumanMessage("a", id="1"), AIMessage("b" * 300, id="2")]
    found = rows.get(rows.put({"messages": said}))["messages"]
    merged = add_messages(found, [AIMessage("changed", id="2"), RemoveMessage(id="1")])
    assert merged == [AIMessage("changed", id="2")]

"""Bytes decide nothing about what runs: no constructor, no validator, no hook, no import."""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from msgspec import msgpack
from msgspec.msgpack import Ext
from pydantic import BaseModel, field_validator, model_validator

from stepfast.codec import Codec, TypeRegistry, _envelope
from stepfast.codec import _marks as m
from stepfast.errors import CodecError, Damaged, UnknownFormat, UnknownType
from tests.codec import zoo

codec = Codec()
ran: list[str] = []
reading = False


def note(what: str) -> None:
    if reading:
        ran.append(what)


@pytest.fixture(autouse=True)
def _nothing_ran() -> Iterator[None]:
    ran.clear()
    yield
    assert ran == []


def read(data: bytes, using: Codec = codec) -> Any:
    global reading
    reading = True
    try:
        return using.decode(data)
    finally:
        reading = False


def typed(tree: Any) -> bytes:
    """Bytes with a sound checksum around whatever an attacker likes."""
    return _envelope.wrap(msgpack.encode(tree), True, b"", None, 1 << 30, 1 << 30)


def node(code: int, *parts: Any) -> list[Any]:
    return [m.MARK[code], *parts]


@dataclass
class Loud:
    value: int
    made: int = field(init=False, default=0)

    def __new__(cls, *args: Any) -> Loud:
        note("__new__")
        return super().__new__(cls)

    def __init__(self, value: int) -> None:
        note("__init__")
        self.value = value

    def __post_init__(self) -> None:
        note("__post_init__")

    def __setattr__(self, name: str, value: Any) -> None:
        note("__setattr__")
        super().__setattr__(name, value)

    def __getattribute__(self, name: str) -> Any:
        note("__getattribute__")
        return super().__getattribute__(name)

    def __setstate__(self, state: Any) -> None:
        note("__setstate__")

    def __reduce__(self) -> Any:
        note("__reduce__")
        return super().__reduce__()

    def __eq__(self, other: object) -> bool:
        note("__eq__")
        return True

    __hash__ = None  # type: ignore[assignment]


class LoudModel(BaseModel):
    value: int
    _private: int = 0

    def __init__(self, **data: Any) -> None:
        note("__init__")
        super().__init__(**data)

    def model_post_init(self, context: Any, /) -> None:
        note("model_post_init")

    def __setattr__(self, name: str, value: Any) -> None:
        note("__setattr__")
        super().__setattr__(name, value)

    @field_validator("value")
    @classmethod
    def check(cls, value: int) -> int:
        note("validator")
        return value

    @model_validator(mode="after")
    def check_all(self) -> LoudModel:
        note("model validator")
        return self


class LoudTuple(NamedTuple):
    value: int


def _loud_new(cls: type, *args: Any) -> Any:
    note("__new__")
    return tuple.__new__(cls, args)


LoudTuple.__new__ = _loud_new  # type: ignore[assignment, method-assign]


class LoudEnum(enum.Enum):
    A = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        note("_missing_")
        return cls.A


class LoudFlag(enum.IntFlag):
    A = 1
    B = 2

    @classmethod
    def _missing_(cls, value: object) -> Any:
        note("_missing_")
        return super()._missing_(value)


def test_no_code_of_a_class_runs_on_read() -> None:
    loud = read(codec.encode(Loud(5)))
    assert (type(loud), loud.value) == (Loud, 5)
    model = read(codec.encode(LoudModel(value=5)))
    assert (type(model), model.value, model._private) == (LoudModel, 5, 0)
    assert read(codec.encode(LoudTuple(5))).value == 5
    assert read(codec.encode(LoudEnum.A)) is LoudEnum.A
    both = codec.encode(LoudFlag.A | LoudFlag.B)
    LoudFlag._value2member_map_.pop(3)
    assert read(both) == 3
    with pytest.raises(UnknownType, match="has no member 'B'"):
        read(typed(node(m.ENUM, f"{__name__}:LoudEnum", "B")))


class Trap(types.ModuleType):
    """A module that runs code when asked for something it does not have, as lazy packages do."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            note(f"module __getattr__({name})")
        raise AttributeError(name)


def test_looking_up_a_class_runs_no_code_of_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trap", Trap("trap"))
    with pytest.raises(UnknownType, match="'trap' has no class 'Anything'"):
        read(typed(node(m.OBJECT, "trap:Anything", 1, {})))


def test_no_module_is_imported_because_bytes_name_it() -> None:
    assert "pyclbr" not in sys.modules
    with pytest.raises(UnknownType) as caught:
        read(typed(node(m.OBJECT, "pyclbr:readmodule", 1, {})))
    assert "pyclbr" not in sys.modules
    assert "no module 'pyclbr' is loaded" in caught.value.message
    assert 'register it with aliases=["pyclbr:readmodule"]' in caught.value.message
    assert caught.value.details["type"] == "pyclbr:readmodule"


FORBIDDEN = [
    "os:system", "builtins:eval", "builtins:object", "builtins:type", "subprocess:Popen", "subprocess:CompletedProcess",
    "types:MappingProxyType", "collections:OrderedDict", "enum:Enum", "http:HTTPStatus", "inspect:Parameter",
    "sys:modules", "sys:stdin.close", "tests.codec.zoo:Opaque", "tests.codec.zoo:Opaque.__init__",
    "tests.codec.zoo:difference", "tests.codec.zoo:sys", "tests.codec.zoo:enum", "tests.codec.zoo:BaseModel.__mro__",
    "tests.codec.zoo:", ":", "", "tests.codec.zoo", "tests.codec.zoo:Point.x", "tests.codec.zoo:NoSuch[int]",
    "tests.codec.zoo:Page[NoSuch]", "tests.codec.zoo:made.<locals>.Local",
    f"{__name__}:dataclass", f"{__name__}:reading",
]  # fmt: skip


@pytest.mark.parametrize("name", FORBIDDEN)
@pytest.mark.parametrize("code", [m.OBJECT, m.ENUM, m.CUSTOM, m.FLAG])
def test_a_name_reaches_nothing_but_classes_that_say_what_they_are(name: str, code: int) -> None:
    parts = {m.OBJECT: (1, {"args": ["x"]}), m.ENUM: ("OK",), m.CUSTOM: (1, "x"), m.FLAG: (0, "OK")}
    with pytest.raises(UnknownType):
        read(typed(node(code, name, *parts[code])))


def test_a_standard_class_is_not_reached_through_a_module_that_imports_it() -> None:
    import http

    zoo.HTTPStatus = http.HTTPStatus  # type: ignore[attr-defined]
    try:
        with pytest.raises(UnknownType, match="standard library"):
            read(typed(node(m.ENUM, "tests.codec.zoo:HTTPStatus", "OK")))
    finally:
        del zoo.HTTPStatus  # type: ignore[attr-defined]


def test_a_class_is_found_where_it_was_stored_though_it_moved_and_is_imported_there() -> None:
    sys.modules[__name__].__dict__["Point"] = zoo.Point
    assert read(typed(node(m.OBJECT, f"{__name__}:Point", 1, {"x": 1, "y": 2}))) == zoo.Point(1, 2)


MALFORMED: dict[str, Any] = {
    "object with nothing": node(m.OBJECT), "object with a number for a name": node(m.OBJECT, 5, 1, {}),
    "object with a list for a name": node(m.OBJECT, [1], 1, {}),
    "object with a list for fields": node(m.OBJECT, "tests.codec.zoo:Point", 1, [1, 2]),
    "object with a text for a version": node(m.OBJECT, "tests.codec.zoo:Point", "x", {"x": 1, "y": 2}),
    "object with a list for state": node(m.OBJECT, "tests.codec.zoo:Point", 1, {"x": 1, "y": 2}, [1]),
    "object with text for attributes": node(m.OBJECT, "tests.codec.zoo:Point", 1, {"x": 1, "y": 2}, {"attrs": "x"}),
    "object with a number in its set": node(m.OBJECT, "tests.codec.zoo:User", 1, {"id": 1}, {"set": 5}),
    "odd dict": node(m.DICT, 1), "unhashable key": node(m.DICT, [1], 2), "unhashable member": node(m.SET, {}),
    "unknown container": node(m.STD, "bomb", None), "short container": node(m.STD),
    "unknown factory": node(m.STD, "defaultdict", "eval"), "wrong range": node(m.STD, "range", None, "a"),
    "negative deque": node(m.STD, "deque", -1), "flag of text": node(m.FLAG, "tests.codec.zoo:Rights", "x"),
    "flag that is no flag": node(m.FLAG, "tests.codec.zoo:Point", 1),
    "enum that is no enum": node(m.ENUM, "tests.codec.zoo:Point", "x"),
    "custom that is none": node(m.CUSTOM, "tests.codec.zoo:Point", 1, {}), "stray mark": [1, m.MARK[m.TUPLE]],
    "unknown leaf": Ext(99, b""), "unknown node": [Ext(77, b""), 1], "short date": Ext(m.DATE, b"\0"),
    "wrong date": Ext(m.DATE, b"\0\0\0\0"), "wrong decimal": Ext(m.DECIMAL, b"one"), "short uuid": Ext(m.UUID, b"1"),
    "wrong zone": Ext(m.ZONE, b"?x"), "zone outside": Ext(m.ZONE, b"z../../etc/passwd"),
    "zone nowhere": Ext(m.ZONE, b"zMars/Olympus"), "folder for a zone": Ext(m.ZONE, b"zEurope"),
    "wrong path": Ext(m.PATH, b"?x"), "path of another system": Ext(m.PATH, b"Wx"),
    "wrong str": Ext(m.ODD_STR, b"\xff"),
    "time stamp": Ext(-1, b"\xff" * 12), "fingerprint leaf": Ext(m.BUFFER, b""), "fingerprint node": node(m.NAMED, "x"),
}  # fmt: skip


@pytest.mark.parametrize("tree", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_trees_are_codec_errors(tree: Any) -> None:
    for wrapped in (tree, [tree], {"a": {"b": tree}}, node(m.TUPLE, tree), node(m.DICT, 1, tree)):
        with pytest.raises(CodecError):
            read(typed(wrapped))
        assert isinstance(codec.describe(typed(wrapped)), str)


def test_typed_parts_in_plain_bytes_are_refused() -> None:
    data = _envelope.wrap(msgpack.encode([m.MARK[m.TUPLE], 1]), False, b"", None, 1 << 30, 1 << 30)
    with pytest.raises(Damaged):
        read(data)


@pytest.mark.parametrize("levels", [201, 500, 100_000])
def test_bytes_nested_too_deep_are_damaged(levels: int) -> None:
    for payload in (b"\x91" * levels + b"\xc0", b"\x92\xc7\x00\x20" * levels + b"\xc0"):
        with pytest.raises(CodecError, match="nested"):
            read(_envelope.wrap(payload, True, b"", None, 1 << 30, 1 << 30))
    with pytest.raises(CodecError, match="nested") if levels > 900 else pytest.MonkeyPatch.context():
        read(_envelope.wrap(b"\x91" * levels + b"\xc0", False, b"", None, 1 << 30, 1 << 30))


def test_the_build_function_is_the_one_thing_that_runs() -> None:
    calls: list[Any] = []

    def build(value: Any) -> zoo.Opaque:
        calls.append(value)
        return zoo.Opaque(value)

    registry = TypeRegistry()
    registry.register(zoo.Opaque, name="opaque", to=lambda o: o.value, build=build)
    own = Codec(registry=registry)
    data = own.encode(zoo.Opaque(5))
    assert own.describe(data) == "opaque(5)"
    assert calls == []
    own.decode(data)
    assert calls == [5]


def test_a_part_of_a_newer_kind_says_so() -> None:
    with pytest.raises(UnknownFormat, match="newer"):
        read(typed([Ext(99, b"")]))

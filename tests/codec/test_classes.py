"""Objects of user classes: stored by their fields, refused where they would come back as something else."""

from __future__ import annotations

import copy
import enum
import http
import subprocess
import sys
import textwrap
import threading
import types
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass
from datetime import datetime, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from stepfast.codec import Codec, TypeRegistry
from stepfast.codec import register as register_by_default
from stepfast.errors import InvalidInput, Unencodable, UnknownType
from tests.codec import zoo
from tests.codec.zoo import difference

codec = Codec()


def round_trip(value: Any) -> Any:
    return codec.decode(codec.encode(value))


def touched(value: Any) -> Any:
    """A profile with all that a model can carry: extra fields, private attributes, a cached property."""
    profile = zoo.Profile(user=zoo.User(id=1), extra_field=(1, 2))  # type: ignore[call-arg]
    profile._cache["when"] = value
    assert profile.label == "NOBODY"
    return profile


IntPage = zoo.Page[int]

OBJECTS: list[Any] = [
    zoo.Point(1, (2, 3)), zoo.FrozenPoint(Decimal("1.10")), zoo.SlottedPoint(x=[zoo.Point(1, 2)]),
    zoo.Derived("d", ["a", "b"], secret="s", seen=3), zoo.Undecorated("u"), zoo.Box[int](7), zoo.Box([1]),
    zoo.WithOptions(3), zoo.SlottedDerived(1, (2,)), zoo.Checked(3), zoo.Planet.MARS, IntPage(items=[1]),
    zoo.Nested(zoo.Nested.Inner({1: 2})), zoo.Colour.RED, zoo.Colour.BLUE, zoo.Colour.ALIAS, zoo.Size.LARGE,
    zoo.Mood.GOOD, zoo.Rights.READ, zoo.Rights.READ | zoo.Rights.RUN, zoo.Rights(0), ~zoo.Rights.WRITE,
    zoo.Rights.ALL, zoo.Bits.A | zoo.Bits.B, zoo.Bits(0), zoo.Bits(64), zoo.Bits(2**70), ~zoo.Bits.A,
    zoo.Place("Rome", 1), zoo.OldPlace("a", ("b",)), zoo.User(id=1), zoo.User(id=1, tags=["x"]),
    zoo.User.model_construct(id="not an int"), zoo.User.model_construct(), touched((1,)),
    zoo.Numbers([1, 2]), zoo.PrivateNumbers([1]), zoo.UserPage(items=[zoo.User(id=2)]), zoo.Item("pen", 1.5, ["a"]),
    zoo.FrozenItem(a=(1,), b={2}),
]  # fmt: skip


@pytest.mark.parametrize("value", OBJECTS, ids=lambda v: f"{type(v).__name__}")
def test_an_object_comes_back_equal_and_of_its_class(value: Any) -> None:
    for wrapped in (value, [value], {"k": (value,)}):
        assert difference(round_trip(wrapped), wrapped) is None


def test_attributes_that_are_no_fields_come_back_and_cached_properties_are_computed_again() -> None:
    value = zoo.Extended(2.0)
    assert value.doubled == 4.0
    back = round_trip(value)
    assert back.note == value.note
    assert "doubled" not in vars(back)
    assert back.doubled == 4.0
    place = zoo.PlaceWithMethods("a", "b")
    place.note = (1,)  # type: ignore[attr-defined]
    assert vars(round_trip(place)) == {"note": (1,)}


def test_a_field_that_was_never_set_stays_unset() -> None:
    value = object.__new__(zoo.Derived)
    value.name = "half made"
    back = round_trip(value)
    assert vars(back) == {"name": "half made"}
    slotted = object.__new__(zoo.SlottedPoint)
    object.__setattr__(slotted, "x", 1)
    assert not hasattr(round_trip(slotted), "y")


def test_a_model_knows_which_fields_were_given() -> None:
    assert round_trip(zoo.User(id=1)).model_fields_set == {"id"}
    assert round_trip(zoo.User(id=1, name="n", tags=[])).model_fields_set == {"id", "name", "tags"}
    profile = round_trip(touched(1))
    assert profile.model_fields_set == {"user", "extra_field"}
    assert profile.model_extra == {"extra_field": (1, 2)}
    assert profile._cache == {"when": 1}
    with pytest.raises(AttributeError):
        _ = profile._unset


def test_a_model_that_was_read_still_works() -> None:
    back = round_trip(touched(1))
    assert back == touched(1)
    assert back.model_copy(update={"when": 2}).when == 2
    assert back.model_dump()["user"] == {"id": 1, "name": "nobody", "tags": []}
    with pytest.raises(pydantic.ValidationError):
        zoo.User(id="x")  # type: ignore[arg-type]
    assert copy.deepcopy(round_trip(zoo.SlottedPoint(x=1))) == zoo.SlottedPoint(x=1)


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Fraction(float):
    pass


class Rows(list[Any]):
    pass


class Table(dict[str, Any]):
    pass


class Triple(tuple[int, int, int]):
    __slots__ = ()


class Moment(datetime):
    pass


class OddZone(tzinfo):
    def utcoffset(self, dt: Any) -> None:
        return None

    dst = tzname = utcoffset


@dataclass
class Sneaky:
    value: int

    @property  # type: ignore[no-redef]
    def value(self) -> int:
        return 1

    @value.setter
    def value(self, value: int) -> None:
        pass


@dataclass
class Dying:
    value: int

    def __del__(self) -> None:
        pass


class Checked(msgspec.Struct):
    value: int

    def __post_init__(self) -> None:
        pass


class Slotted:
    __slots__ = ("hidden",)


@dataclass
class HalfSlotted(Slotted):
    value: int


def made_in_a_function() -> Any:
    @dataclass
    class Local:
        value: int

    return Local(1)


REFUSED: dict[str, Any] = {
    "str subclass": Text("a"), "int subclass": Number(1), "float subclass": Fraction(1.0), "list subclass": Rows(),
    "dict subclass": Table(), "tuple subclass": Triple((1, 2, 3)), "datetime subclass": Moment(2024, 1, 1),
    "UserDict": UserDict(), "defaultdict with a lambda": defaultdict(lambda: 1), "function": textwrap.dedent,
    "class": zoo.Point, "module": sys, "lock": threading.Lock(), "object": object(), "opaque": zoo.Opaque(),
    "generator": iter([1]), "memoryview": memoryview(b"x"), "dict view": {}.keys(),
    "mapping proxy": types.MappingProxyType({}), "ellipsis": ..., "raw ext": msgspec.msgpack.Ext(32, b""),
    "raw msgspec": msgspec.Raw(b"\x01"), "dataclass with a property": Sneaky(1),
    "dataclass with __del__": Dying(1), "struct with __post_init__": Checked(1), "slot without a field": HalfSlotted(1),
    "local class": made_in_a_function(), "standard enum": http.HTTPStatus.OK, "zone of another library": OddZone(),
    "time with such a zone": datetime(2024, 1, 1, tzinfo=OddZone()),
    "stat result": Path(__file__).stat(), "secret": pydantic.SecretStr("x"),
}  # fmt: skip


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
def test_what_would_not_come_back_exactly_is_refused_by_name(value: Any) -> None:
    for wrapped, where in (
        (value, "value"),
        ([value], "value[0]"),
        ({"k": value}, 'value["k"]'),
        ({"rows": [0, {"n": value}]}, 'value["rows"][1]["n"]'),
        ([*range(30), value], "value[30]"),
        ([(value,)], "value[0][0]"),
        ([2**70, value], "value[1]"),
    ):
        with pytest.raises(Unencodable) as caught:
            codec.encode(wrapped)
        assert caught.value.details["path"] == where
        assert caught.value.message.startswith(where + " is of type ")
        assert caught.value.details["type"] in caught.value.message
        assert caught.value.message.endswith(".")


def test_an_error_says_where_what_and_what_to_do() -> None:
    with pytest.raises(Unencodable) as caught:
        codec.encode({"rows": [zoo.Point(1, 2), zoo.Point(zoo.Opaque(), 2)]}, label="result")
    assert caught.value.message == (
        'result["rows"][1].x is of type tests.codec.zoo:Opaque, which cannot be stored exactly: it is no '
        "dataclass, pydantic model, NamedTuple, Enum or msgspec.Struct. Use plain data, a dataclass or a pydantic "
        "model instead, or stepfast.register(Opaque, to=..., build=...)."
    )


PATHS: list[tuple[Any, str]] = [
    ({1: Rows()}, "value[1]"),
    ({(1,): Rows()}, "value[<tuple>]"),
    ({'quo"te': Rows()}, "value['quo\"te']"),
    ({"\u202e": Rows()}, r'value["\u202e"]'),
    (OrderedDict(a=[Rows()]), 'value["a"][0]'),
    ({frozenset({Text("x")})}, "value{…}{…}"),
    ({Text("x"): 1}, "value.keys()"),
    (zoo.Profile.model_construct(user=Rows()), "value.user"),
    (zoo.Place("x", Rows()), "value.zip_code"),  # type: ignore[arg-type]
    (defaultdict(list, a=[1, Rows()]), 'value["a"][1]'),
    ([2**100, Rows()], "value[1]"),
]


@pytest.mark.parametrize(("value", "path"), PATHS, ids=[path for _, path in PATHS])
def test_a_path_leads_to_the_trouble(value: Any, path: str) -> None:
    with pytest.raises(Unencodable) as caught:
        codec.encode(value)
    assert caught.value.details["path"] == path


def cycle_of_lists() -> Any:
    value: list[Any] = [1]
    value.append({"again": value})
    return value


def cycle_of_objects() -> Any:
    value = zoo.Point(1, [])
    value.y.append((value, value))
    return value


def cycle_of_pairs() -> Any:
    value: dict[Any, Any] = {}
    value[(1,)] = [value, value]
    return value


@pytest.mark.parametrize("make", [cycle_of_lists, cycle_of_objects, cycle_of_pairs])
def test_a_value_that_contains_itself_is_refused(make: Any) -> None:
    with pytest.raises(Unencodable, match="contains itself"):
        codec.encode(make())


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), zoo.Box, lambda v: {"k": v}, lambda v: {1: v}])
def test_more_than_two_hundred_levels_are_refused(wrap: Any) -> None:
    value: Any = 1
    for _ in range(200):
        value = wrap(value)
    codec.encode(value)
    for _ in range(2000):
        value = wrap(value)
    with pytest.raises(Unencodable, match="nested more than 200 levels deep"):
        codec.encode(value)
    with pytest.raises(Unencodable, match="nested more than 200 levels deep"):
        codec.encode([value, (1,)])


def test_a_value_that_changes_meanwhile_is_refused() -> None:
    registry = TypeRegistry()
    trouble: dict[Any, Any] = {}

    def grow(_: Any) -> int:
        trouble[len(trouble)] = 1
        return 1

    registry.register(zoo.Opaque, to=grow, build=zoo.Opaque)
    trouble["a"] = zoo.Opaque()
    with pytest.raises(Unencodable, match="changed while it was being stored"):
        Codec(registry=registry).encode(trouble)


def test_a_class_that_was_replaced_is_refused_when_stored() -> None:
    old = zoo.Point
    value = old(1, 2)
    try:
        zoo.Point = dataclass(type("Point", (), {"__module__": zoo.__name__, "__annotations__": {}}))  # type: ignore[misc]
        with pytest.raises(Unencodable, match="another class now"):
            codec.encode(value)
    finally:
        zoo.Point = old  # type: ignore[misc]


def test_a_registered_function_pair_stores_any_class() -> None:
    registry = TypeRegistry()
    registry.register(zoo.Opaque, name="opaque", to=lambda o: {"v": o.value}, build=lambda d: zoo.Opaque(d["v"]))
    own = Codec(registry=registry)
    back = own.decode(own.encode([zoo.Opaque((1, 2)), {zoo.Mood.BAD: zoo.Opaque(zoo.Opaque(3))}]))
    assert back[0].value == (1, 2)
    assert back[1][zoo.Mood.BAD].value.value == 3


def test_a_to_function_that_fails_or_returns_the_same_type_is_told() -> None:
    registry = TypeRegistry()
    own = Codec(registry=registry)
    registry.register(zoo.Opaque, to=lambda o: o, build=zoo.Opaque)
    with pytest.raises(Unencodable, match="returned the same type"):
        own.encode(zoo.Opaque())
    registry.register(zoo.Opaque, to=lambda o: 1 / 0, build=zoo.Opaque)
    with pytest.raises(Unencodable, match="ZeroDivisionError"):
        own.encode(zoo.Opaque())
    registry.register(zoo.Opaque, to=lambda o: [object()], build=zoo.Opaque)
    with pytest.raises(Unencodable) as caught:
        own.encode({"a": zoo.Opaque()})
    assert caught.value.details["path"] == 'value["a"]→to()[0]'


def test_a_standard_class_and_a_local_one_are_stored_once_registered() -> None:
    registry = TypeRegistry()
    registry.register(http.HTTPStatus)
    local = made_in_a_function()
    registry.register(type(local), name="local")
    own = Codec(registry=registry)
    assert own.decode(own.encode(http.HTTPStatus.OK)) is http.HTTPStatus.OK
    assert own.decode(own.encode(local)) == local


def test_a_strict_codec_stores_and_reads_registered_classes_only() -> None:
    registry = TypeRegistry()
    registry.register(zoo.Point, name="point")
    strict = Codec(registry=registry, strict=True)
    assert strict.decode(strict.encode(zoo.Point(1, 2))) == zoo.Point(1, 2)
    with pytest.raises(Unencodable, match="strict"):
        strict.encode(zoo.FrozenPoint(1))
    with pytest.raises(Unencodable, match="strict"):
        strict.encode(zoo.Mood.GOOD)
    with pytest.raises(UnknownType, match="strict"):
        strict.decode(codec.encode(zoo.FrozenPoint(1)))
    # Rows that were written before the class had a name of its own.
    assert strict.decode(codec.encode(zoo.Point(1, 2))) == zoo.Point(1, 2)


def test_registering_works_as_a_decorator() -> None:
    @register_by_default(name="decorated", version=2)
    @dataclass
    class Decorated:
        value: int

    @register_by_default
    class Plain(enum.Enum):
        A = 1

    assert codec.decode(codec.encode(Decorated(1))) == Decorated(1)
    assert codec.decode(codec.encode(Plain.A)) is Plain.A


Pair = namedtuple("Pair", "a b")

WRONG: dict[str, tuple[Any, dict[str, Any]]] = {
    "no class": (1, {}),
    "a built-in": (dict, {"to": list, "build": dict}),
    "to without build": (Pair, {"to": list}),
    "no fields": (zoo.Opaque, {}),
    "version 0": (Pair, {"version": 0}),
    "aliases in one string": (Pair, {"aliases": "__main__:Pair"}),
    "a taken name": (Pair, {"name": "taken"}),
    "a taken alias": (Pair, {"aliases": ["taken"]}),
}


@pytest.mark.parametrize(("cls", "options"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_registration_is_refused(cls: Any, options: dict[str, Any]) -> None:
    registry = TypeRegistry()
    registry.register(zoo.Point, name="taken")
    with pytest.raises(InvalidInput):
        registry.register(cls, **options)
    assert repr(registry) == "TypeRegistry(['taken'])"


def test_a_class_made_again_takes_the_place_of_the_old_one() -> None:
    registry = TypeRegistry()
    own = Codec(registry=registry)
    registry.register(type(made_in_a_function()), name="local")
    data = own.encode(registry.for_name("local", strict=True).cls(5))
    again = type(made_in_a_function())
    registry.register(again, name="local")
    assert type(own.decode(data)) is again


def test_importing_the_codec_loads_nothing_heavy() -> None:
    program = (
        "import sys, stepfast.codec as c; k = c.Codec(); k.decode(k.encode({'a': (1,)})); "
        "print([m for m in ('zstandard', 'cryptography', 'pydantic', 'pathlib', 'zoneinfo') if m in sys.modules])"
    )
    # As a package on its own, so that the rest of the library does not count.
    src = Path(sys.modules["stepfast.codec"].__file__ or "").parents[2]
    blank = f"import sys, types; p = types.ModuleType('stepfast'); p.__path__ = [{str(src / 'stepfast')!r}]; "
    blank += "sys.modules['stepfast'] = p; "
    done = subprocess.run([sys.executable, "-I", "-c", blank + program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

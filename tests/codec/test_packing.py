"""Packing values without their envelope, registries that share, and models of pydantic 1."""

from __future__ import annotations

import sys
import types
from typing import Any

import pydantic
import pytest

from stepfast import Codec, Damaged, TypeRegistry, Unencodable, UnknownFormat, UnknownType, register
from tests.codec import zoo
from tests.codec.zoo import difference

VALUES = [
    *(None, True, 1, 1 << 80, 0.5, "a", "\ud800", b"x", [], {}, (), [1, (2,)], {"a": {1}}, {(1,): 2}),
    *(zoo.Point(1, [2]), zoo.SlottedPoint(x=1), zoo.Derived("n", ["t"]), zoo.Box(zoo.Point(1, 2))),
]


class Point(pydantic.BaseModel):
    x: int
    tags: list[str] = []


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


class Shade:
    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_what_is_packed_is_unpacked(value: Any) -> None:
    codec = Codec()
    packed = codec.pack(value)
    found = codec.unpack(packed)
    assert difference(found, value) is None
    assert codec.pack(found) == packed
    assert codec.pack(codec.unpack_all([packed, packed])[1]) == packed


def test_equal_values_pack_equally_and_others_do_not() -> None:
    codec = Codec()
    assert codec.pack({"a": {3, 1, 2}}) == codec.pack({"a": {2, 3, 1}})
    packed = {codec.pack(value) for value in (1, 1.0, True, "1", [1], (1,), {1}, {1: 1}, None)}
    assert len(packed) == 9


@pytest.mark.parametrize("packed", [b"", b"\x02\xc0", b"\xc0"])
def test_what_was_not_packed_is_refused(packed: bytes) -> None:
    with pytest.raises(UnknownFormat):
        Codec().unpack(packed)


@pytest.mark.parametrize("packed", [b"\x00", b"\x01", b"\x00\xc1", b"\x01\x92\xc7\x00\x24\xa1x", b"\x00\xc7\x00\x24"])
def test_what_is_packed_wrongly_is_damaged(packed: bytes) -> None:
    with pytest.raises(Damaged):
        Codec().unpack(packed)


def test_packing_names_what_cannot_be_stored() -> None:
    with pytest.raises(Unencodable, match=r'the cart\["x"\].*object'):
        Codec().pack({"x": object()}, label="the cart")


def test_a_shared_registry_knows_what_is_known_to_all_and_the_others_do_not_know_its_own() -> None:
    shared, alone = TypeRegistry(shared=True), TypeRegistry()
    register(Money, to=lambda money: money.cents, build=Money)
    shared.register(Shade, to=lambda shade: shade.name, build=Shade)
    codec = Codec(registry=shared)
    assert codec.decode(codec.encode(Money(5))).cents == 5
    assert codec.decode(codec.encode(Shade("red"))).name == "red"
    for unknowing, value in ((alone, Money(5)), (None, Shade("red"))):
        with pytest.raises(Unencodable):
            Codec(registry=unknowing).encode(value)


def test_a_registration_after_the_first_use_is_heeded() -> None:
    registry = TypeRegistry()
    codec = Codec(registry=registry)
    old = codec.encode(Point(x=1))
    assert codec.decode(old) == Point(x=1)
    registry.register(Point, name="point", version=2, upcast=lambda fields, _version: {**fields, "x": fields["x"] + 1})
    assert b"point" in codec.encode(Point(x=1))
    assert codec.decode(old) == Point(x=2)


def test_a_class_that_left_its_module_is_not_found_again() -> None:
    module = types.ModuleType("a_module_that_changes")
    sys.modules[module.__name__] = module
    try:
        made: Any = pydantic.create_model("Thing", __module__=module.__name__, x=(int, 1))
        module.Thing = made  # type: ignore[attr-defined]
        codec = Codec()
        data = codec.encode(made())
        assert type(codec.decode(data)) is made
        remade: Any = pydantic.create_model("Thing", __module__=module.__name__, x=(int, 1))
        module.Thing = remade  # type: ignore[attr-defined]
        assert type(codec.decode(data)) is remade
        with pytest.raises(Unencodable, match="another class now"):
            codec.encode(made())
        del module.Thing
        with pytest.raises(UnknownType):
            codec.decode(data)
    finally:
        del sys.modules[module.__name__]


def test_a_registry_may_learn_a_class_when_it_is_met() -> None:
    class Curious(TypeRegistry):
        def missing_class(self, cls: type) -> None:
            if cls is Shade:
                self.register(Shade, to=lambda shade: shade.name, build=Shade)

        def missing_name(self, name: str) -> None:
            if name.endswith(":Shade"):
                self.missing_class(Shade)

    data = Codec(registry=Curious()).encode(Shade("red"))
    assert Codec(registry=Curious()).decode(data).name == "red"


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="pydantic.v1 does not work on Python 3.14")
def test_a_model_of_pydantic_1_comes_back_as_it_was() -> None:
    from tests.codec import old_models

    codec = Codec()
    given = old_models.Order(id=1, lines=[old_models.Line(sku="a")], more=(1, 2))
    given._seen = {"x"}
    found = codec.decode(codec.encode(given))
    assert type(found) is old_models.Order
    assert (found, found.__fields_set__, found._seen) == (given, given.__fields_set__, {"x"})
    assert old_models.Order.__init_calls__ == 1
    bare = old_models.Order.construct(id=2)
    assert codec.decode(codec.encode(bare)).__fields_set__ == {"id"}

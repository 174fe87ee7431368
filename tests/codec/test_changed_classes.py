"""Code changes while runs wait: a class that changed reads its old rows, or says what to do."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import Any

import pytest

from stepfast.codec import Codec, TypeRegistry
from stepfast.errors import CodecError, UnknownType
from tests.codec import zoo

HEAD = """
from __future__ import annotations
import enum
from dataclasses import dataclass, field
from typing import Any, NamedTuple
import msgspec
from pydantic import BaseModel, Field, PrivateAttr
"""

Deploy = Callable[..., Any]


@pytest.fixture
def deploy() -> Iterator[Deploy]:
    """Load a version of a module, in the place of the one before."""
    loaded: set[str] = set()

    def load(source: str, name: str = "shop") -> Any:
        module = types.ModuleType(name)
        sys.modules[name] = module
        loaded.add(name)
        exec(compile(HEAD + dedent(source), name, "exec", dont_inherit=True), vars(module))
        return module

    yield load
    for name in loaded:
        sys.modules.pop(name, None)


KINDS = {
    "dataclass": "@dataclass\nclass Order:\n{}",
    "slots": "@dataclass(slots=True, frozen=True)\nclass Order:\n{}",
    "model": "class Order(BaseModel):\n{}",
    "tuple": "class Order(NamedTuple):\n{}",
    "struct": "class Order(msgspec.Struct):\n{}",
}


def order(kind: str, *fields: str) -> str:
    return KINDS[kind].format("".join(f"    {line}\n" for line in fields) or "    pass\n")


every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_a_new_field_with_a_default_gets_it(deploy: Deploy, kind: str) -> None:
    codec = Codec()
    data = codec.encode(deploy(order(kind, "id: int")).Order(id=1))
    shop = deploy(order(kind, "id: int", "state: str = 'new'"))
    assert codec.decode(data) == shop.Order(id=1, state="new") or kind == "model"
    assert codec.decode(data).state == "new"


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        ("dataclass", "tags: list = field(default_factory=lambda: ['made'])"),
        ("slots", "tags: list = field(default_factory=lambda: ['made'])"),
        ("model", "tags: list = Field(default_factory=lambda: ['made'])"),
        ("model", "tags: list = Field(default_factory=lambda data: ['made'] * data['id'])"),
        ("model", "tags: list = ['made']"),
        ("struct", "tags: list = msgspec.field(default_factory=lambda: ['made'])"),
    ],
)
def test_a_default_factory_is_called_for_each_object(deploy: Deploy, kind: str, declared: str) -> None:
    codec = Codec()
    old = deploy(order(kind, "id: int"))
    data = codec.encode([old.Order(id=1), old.Order(id=1)])
    deploy(order(kind, "id: int", declared))
    one, two = codec.decode(data)
    assert one.tags == two.tags == ["made"]
    assert one.tags is not two.tags


def test_a_new_field_of_a_model_does_not_count_as_given(deploy: Deploy) -> None:
    codec = Codec()
    data = codec.encode(deploy(order("model", "id: int")).Order(id=1))
    deploy(order("model", "id: int", "state: str = 'new'", "_p: int = 5"))
    back = codec.decode(data)
    assert back.model_fields_set == {"id"}
    assert back._p == 5


@every_kind
def test_a_new_field_without_a_default_is_named_with_the_remedy(deploy: Deploy, kind: str) -> None:
    codec = Codec()
    data = codec.encode([deploy(order(kind, "id: int")).Order(id=1)])
    deploy(order(kind, "id: int", "price: int"))
    with pytest.raises(UnknownType) as caught:
        codec.decode(data)
    assert caught.value.details == {"type": "shop:Order", "field": "price"}
    assert "no field 'price'" in caught.value.message
    assert "default" in caught.value.message


@every_kind
def test_a_field_that_is_gone_is_named_and_dropped_only_on_request(deploy: Deploy, kind: str) -> None:
    codec = Codec()
    data = codec.encode(deploy(order(kind, "id: int", "old: int")).Order(id=1, old=2))
    shop = deploy(order(kind, "id: int"))
    with pytest.raises(UnknownType) as caught:
        codec.decode(data)
    assert caught.value.details == {"type": "shop:Order", "field": "old"}
    registry = TypeRegistry()
    registry.register(shop.Order, ignore_extra=True)
    assert Codec(registry=registry).decode(data) == shop.Order(id=1)


@every_kind
def test_a_renamed_field_is_read_under_its_new_name(deploy: Deploy, kind: str) -> None:
    codec = Codec()
    data = codec.encode(deploy(order(kind, "id: int", "cost: int")).Order(id=1, cost=2))
    shop = deploy(order(kind, "id: int", "price: int"))
    registry = TypeRegistry()
    registry.register(shop.Order, renames={"cost": "price"})
    back = Codec(registry=registry).decode(data)
    assert back == shop.Order(id=1, price=2)
    # A row of today has no old name, and is not touched.
    own = Codec(registry=registry)
    assert own.decode(own.encode(back)) == back


def test_the_fields_given_to_a_model_are_renamed_too(deploy: Deploy) -> None:
    codec = Codec()
    data = codec.encode(deploy(order("model", "id: int = 0", "cost: int = 0")).Order(cost=2))
    shop = deploy(order("model", "id: int = 0", "price: int = 0"))
    registry = TypeRegistry()
    registry.register(shop.Order, renames={"cost": "price"})
    assert Codec(registry=registry).decode(data).model_fields_set == {"price"}


@every_kind
def test_an_upcast_makes_the_present_version_of_an_older_one(deploy: Deploy, kind: str) -> None:
    codec = Codec()
    data = codec.encode(deploy(order(kind, "id: int", "euros: int")).Order(id=1, euros=2))
    shop = deploy(order(kind, "id: int", "cents: int"))
    seen = []

    def upcast(fields: dict[str, Any], version: int) -> dict[str, Any]:
        seen.append(version)
        return {"id": fields["id"], "cents": fields["euros"] * 100}

    registry = TypeRegistry()
    registry.register(shop.Order, version=2, upcast=upcast)
    own = Codec(registry=registry)
    assert own.decode(data) == shop.Order(id=1, cents=200)
    assert own.decode(own.encode(shop.Order(id=1, cents=5))) == shop.Order(id=1, cents=5)
    assert seen == [1]


def test_a_newer_version_than_this_process_knows_is_refused(deploy: Deploy) -> None:
    shop = deploy(order("dataclass", "id: int"))
    newer, older = TypeRegistry(), TypeRegistry()
    newer.register(shop.Order, version=3)
    older.register(shop.Order, version=2)
    data = Codec(registry=newer).encode(shop.Order(id=1))
    with pytest.raises(UnknownType, match="has version 3, and this process knows version 2"):
        Codec(registry=older).decode(data)


def test_a_moved_class_is_read_through_an_alias(deploy: Deploy) -> None:
    source = order("dataclass", "id: int")
    data = Codec().encode(deploy(source, "__stepfast_main__").Order(id=1))
    del sys.modules["__stepfast_main__"]
    with pytest.raises(UnknownType, match="no module '__stepfast_main__' is loaded"):
        Codec().decode(data)
    shop = deploy(source)
    registry = TypeRegistry()
    registry.register(shop.Order, aliases=["__stepfast_main__:Order"])
    assert Codec(registry=registry).decode(data) == shop.Order(id=1)
    assert Codec(registry=registry, strict=True).decode(data) == shop.Order(id=1)


def test_a_registered_name_outlives_the_name_of_the_class(deploy: Deploy) -> None:
    before, after = TypeRegistry(), TypeRegistry()
    before.register(deploy(order("dataclass", "id: int")).Order, name="order")
    data = Codec(registry=before).encode(before.for_name("order", strict=True).cls(id=1))
    shop = deploy("@dataclass\nclass Purchase:\n    id: int")
    after.register(shop.Purchase, name="order")
    assert Codec(registry=after).decode(data) == shop.Purchase(id=1)


@pytest.mark.parametrize("now", KINDS)
@every_kind
def test_a_class_may_become_another_kind_with_the_same_fields(deploy: Deploy, kind: str, now: str) -> None:
    codec = Codec()
    data = codec.encode(deploy(order(kind, "id: int")).Order(id=1))
    shop = deploy(order(now, "id: int"))
    assert codec.decode(data) == shop.Order(id=1)


def test_an_attribute_that_became_a_field_keeps_its_value(deploy: Deploy) -> None:
    codec = Codec()
    old = deploy(order("dataclass", "id: int")).Order(id=1)
    old.note = "mine"
    data = codec.encode(old)
    shop = deploy(order("slots", "id: int", "note: str = ''"))
    assert codec.decode(data) == shop.Order(id=1, note="mine")
    deploy(order("slots", "id: int"))
    with pytest.raises(UnknownType, match="the attribute 'note', and the class has slots now"):
        codec.decode(data)


def test_private_and_extra_parts_of_a_model_that_are_gone_are_named(deploy: Deploy) -> None:
    codec = Codec()
    shop = deploy(
        """
        class Order(BaseModel):
            model_config = {"extra": "allow"}
            _p: int = 1
        """
    )
    with_extra, with_private = codec.encode(shop.Order(x=1)), codec.encode(shop.Order())
    deploy("class Order(BaseModel):\n    _p: int = 1")
    with pytest.raises(UnknownType, match="the extra field 'x'"):
        codec.decode(with_extra)
    shop = deploy("class Order(BaseModel):\n    pass")
    with pytest.raises(UnknownType, match="the private attribute '_p'"):
        codec.decode(with_private)
    registry = TypeRegistry()
    registry.register(shop.Order, ignore_extra=True)
    assert Codec(registry=registry).decode(with_extra) == shop.Order()


def test_an_enum_keeps_its_members_by_name(deploy: Deploy) -> None:
    codec = Codec()
    shop = deploy("class State(enum.Enum):\n    A = enum.auto()\n    B = enum.auto()")
    data = codec.encode([shop.State.A, shop.State.B])
    shop = deploy("class State(enum.Enum):\n    A = enum.auto()\n    NEW = enum.auto()\n    B = enum.auto()")
    assert codec.decode(data) == [shop.State.A, shop.State.B]
    shop = deploy("class State(enum.Enum):\n    A = 1\n    C = 2")
    with pytest.raises(UnknownType) as caught:
        codec.decode(data)
    assert "has no member 'B'" in caught.value.message
    assert "renames" in caught.value.message
    registry = TypeRegistry()
    registry.register(shop.State, renames={"B": "C"})
    assert Codec(registry=registry).decode(data) == [shop.State.A, shop.State.C]


def test_a_flag_keeps_its_members_by_name(deploy: Deploy) -> None:
    codec = Codec()
    shop = deploy("class Can(enum.Flag):\n    A = enum.auto()\n    B = enum.auto()")
    data = codec.encode(shop.Can.A | shop.Can.B)
    shop = deploy("class Can(enum.Flag):\n    B = enum.auto()\n    C = enum.auto()\n    A = enum.auto()")
    assert codec.decode(data) == shop.Can.A | shop.Can.B
    before, after = TypeRegistry(), TypeRegistry()
    before.register(zoo.Bits, name="can")
    after.register(shop.Can, name="can")
    with pytest.raises(UnknownType, match="no member with the bits 0x40"):
        Codec(registry=after).decode(Codec(registry=before).encode(zoo.Bits(64)))


def test_a_class_may_move_between_fields_and_functions_with_an_upcast(deploy: Deploy) -> None:
    codec = Codec()
    shop = deploy(order("dataclass", "id: int"))
    by_fields = codec.encode(shop.Order(id=1))
    functions = TypeRegistry()
    functions.register(shop.Order, to=lambda o: o.id, build=lambda i: shop.Order(id=i))
    with pytest.raises(UnknownType):
        Codec(registry=functions).decode(by_fields)
    functions.register(
        shop.Order, to=lambda o: o.id, build=lambda i: shop.Order(id=i), version=2, upcast=lambda f, v: f["id"]
    )
    assert Codec(registry=functions).decode(by_fields) == shop.Order(id=1)
    by_functions = Codec(registry=functions).encode(shop.Order(id=2))
    fields = TypeRegistry()
    fields.register(shop.Order, version=2)
    with pytest.raises(UnknownType):
        Codec(registry=fields).decode(by_functions)
    fields.register(shop.Order, version=3, upcast=lambda stored, v: {"id": stored})
    assert Codec(registry=fields).decode(by_functions) == shop.Order(id=2)


@pytest.mark.parametrize("broken", ["upcast", "build", "default"])
def test_a_function_of_the_user_that_fails_is_named(deploy: Deploy, broken: str) -> None:
    shop = deploy(order("dataclass", "id: int"))
    data = Codec().encode(shop.Order(id=1))
    registry = TypeRegistry()

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("oh")

    if broken == "upcast":
        registry.register(shop.Order, version=2, upcast=fail)
    elif broken == "build":
        registry.register(shop.Order, to=lambda o: o.id, build=fail)
        data = Codec(registry=registry).encode(shop.Order(id=1))
    else:
        shop = deploy(order("dataclass", "id: int", "x: int = field(default_factory=lambda: 1 / 0)"))
    with pytest.raises(CodecError, match=f"{broken}.* failed: ZeroDivisionError"):
        Codec(registry=registry).decode(data)


def test_a_process_that_lacks_the_class_still_shows_the_value(deploy: Deploy) -> None:
    data = Codec().encode(deploy(order("dataclass", "id: int")).Order(id=1))
    del sys.modules["shop"]
    assert Codec().describe(data) == "shop:Order(id=1)"

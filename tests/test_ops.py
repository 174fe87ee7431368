"""Operations travel: each survives the wire, and each has its plan."""

from __future__ import annotations

from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast import ops
from stepfast.stores.plans import plan_for
from stepfast.stores.sql import Notify, Query

EVERY = sorted(get_args(ops.AnyOp), key=lambda op: op.__name__)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=50),
    NoneType: st.none(),
    None: st.none(),
    Any: st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=5,
    ),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that a message holds."""
    if kind in PLAIN:
        return PLAIN[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of([values(argument) for argument in arguments])
    if origin is list:
        return st.lists(values(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    fields = {field.name: values(field.type) for field in msgspec.structs.fields(kind)}
    return st.builds(kind, **fields)


def result_of(op: Any) -> Any:
    """The R of an Op[R]."""
    [base] = [base for base in op.__orig_bases__ if get_origin(base) is ops.Op]
    return get_args(base)[0]


def test_every_operation_of_the_module_is_in_the_union_of_all() -> None:
    defined = {
        thing
        for thing in vars(ops).values()
        if isinstance(thing, type) and issubclass(thing, ops.Op) and thing is not ops.Op
    }
    assert defined == set(EVERY)


@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.__name__)
@settings(max_examples=10)
@given(data=st.data())
def test_an_operation_survives_the_wire(op: Any, data: st.DataObject) -> None:
    sent = data.draw(values(op))
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=ops.AnyOp)
    assert type(received) is op
    assert received == sent
    assert msgspec.json.decode(msgspec.json.encode(sent), type=ops.AnyOp) == sent


@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.__name__)
@settings(max_examples=10)
@given(data=st.data())
def test_a_result_survives_the_wire(op: Any, data: st.DataObject) -> None:
    kind = result_of(op)
    sent = data.draw(values(kind))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=kind) == sent


@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.__name__)
@settings(max_examples=2)
@given(data=st.data())
def test_an_operation_has_a_plan(op: Any, data: st.DataObject) -> None:
    plan = plan_for(data.draw(values(op)))
    assert hasattr(plan, "send")
    plan.close()


@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.__name__)
def test_an_operation_is_told_by_its_name_on_the_wire(op: Any) -> None:
    assert op.__struct_config__.tag == op.__name__


@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.__name__)
def test_an_operation_is_frozen_and_says_what_it_is_for(op: Any) -> None:
    assert op.__struct_config__.frozen
    assert isinstance(op.reads, bool)


def test_only_reads_are_marked_as_reads() -> None:
    words = ("Count", "Due", "Find", "Get", "List", "Measure", "Next", "Read", "Recent")
    reads = {op.__name__ for op in EVERY if op.reads}
    assert {op.__name__ for op in EVERY if op.__name__.startswith(words)} == reads


def test_an_operation_with_a_field_too_many_or_too_few_is_refused() -> None:
    whole = msgspec.to_builtins(ops.Sweep(limit=5))
    assert msgspec.convert(whole, type=ops.AnyOp) == ops.Sweep(limit=5)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"type": "GetProgress"}, type=ops.AnyOp)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"type": "NoSuchThing"}, type=ops.AnyOp)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"type": "Sweep", "limit": "many"}, type=ops.AnyOp)


def test_a_plan_speaks_only_in_names_of_queries() -> None:
    asked = next(plan_for(ops.ReadJournal(journal_id="j")))
    assert isinstance(asked, Query | Notify)
    assert isinstance(asked, Query)
    assert asked.params["journal_id"] == "j"

"""Which requests share a transaction, and how their plans travel together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from stepfast.intents import Status
from stepfast.ops import (
    AnswerDecision,
    AppendEvent,
    Claim,
    CreateIntent,
    FinishIntent,
    Lease,
    Op,
    OpenIntent,
    RecordStep,
    ReleaseIntent,
    RenewLease,
    Sweep,
)
from stepfast.stores.group import Request
from stepfast.stores.postgres_bulk import is_step, steps_params, written_steps
from stepfast.stores.postgres_courses import waves
from stepfast.stores.postgres_link import Packed, Statement, pack_bytes, pack_ints, pack_texts
from tests.stores.kit import new_intent, step


def request(*ops: Op[Any], tenant: str = "local") -> Request:
    return Request(ops, tenant, None)


def a_step(intent: str, number: int = 1) -> RecordStep:
    return RecordStep(lease=Lease(intent, 1, "t"), journal_id=intent, step=step(number))


def ending(intent: str) -> FinishIntent:
    return FinishIntent(intent_id=intent, status=Status.COMPLETED, lease=Lease(intent, 1, "t"))


def opening(run: str) -> OpenIntent:
    return OpenIntent(token="t", owner="o", lease_seconds=1, new=new_intent(run_id=run))


def claiming() -> Claim:
    return Claim(to_agent="a", token="t", owner="o", lease_seconds=1)


def numbers(group: Sequence[Request]) -> list[list[int]]:
    return [[group.index(member) for member in wave] for wave in waves(group)]


def test_requests_for_different_intents_share_a_transaction() -> None:
    assert numbers([request(a_step("a")), request(ending("b")), request(opening("r"))]) == [[0, 1, 2]]


def test_steps_of_one_run_share_a_transaction() -> None:
    assert numbers([request(a_step("a", n)) for n in range(3)]) == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (a_step("a"), ending("a")),
        (ending("a"), a_step("a")),
        (ending("a"), ReleaseIntent(lease=Lease("a", 1, "t"), reason="")),
        (opening("r"), opening("r")),
        (CreateIntent(new=new_intent(idempotency_key="k")), CreateIntent(new=new_intent(idempotency_key="k"))),
        (ending("a"), AppendEvent(intent_id="a", lease=None, note_id="n", event_type="intent.note")),
    ],
)
def test_requests_for_the_same_thing_go_one_after_the_other(first: Op[Any], second: Op[Any]) -> None:
    assert numbers([request(first), request(a_step("other")), request(second)]) == [[0, 1], [2]]


def test_another_tenants_intent_of_the_same_name_is_another() -> None:
    assert numbers([request(ending("a")), request(ending("a"), tenant="other")]) == [[0, 1]]


@pytest.mark.parametrize(
    "op",
    [
        claiming(),
        Sweep(),
        AnswerDecision(journal_id="a", key="k", outcome="yes"),
        RenewLease(lease=Lease("a", 1, "t"), lease_seconds=1),
    ],
)
def test_what_may_touch_any_intent_goes_alone_and_is_not_overtaken(op: Op[Any]) -> None:
    assert numbers([request(a_step("a")), request(op), request(a_step("b"))]) == [[0], [1], [2]]


def test_nobody_overtakes_a_request_that_waits_for_the_same_intent() -> None:
    group = [request(ending("a")), request(a_step("a"), ending("b")), request(a_step("b"))]

    assert numbers(group) == [[0], [1], [2]]


def test_a_request_of_several_operations_claims_all_they_touch() -> None:
    assert numbers([request(a_step("a"), ending("b")), request(a_step("c")), request(ending("a"))]) == [[0, 1], [2]]


# --- the wire ----------------------------------------------------------------------------------------


def test_a_statement_is_named_after_its_text() -> None:
    one = Statement("SELECT %(a)s, %(b)s, %(a)s")

    assert one.text == b"SELECT $1, $2, $1"
    assert one.names == ("a", "b")
    assert one.name == Statement("SELECT %(a)s, %(b)s, %(a)s").name
    assert one.name != Statement("SELECT %(b)s, %(a)s").name


def test_values_go_over_the_wire_with_their_length() -> None:
    values, formats = Statement("%(a)s %(b)s %(c)s %(d)s %(e)s").bind(
        {"a": "é\0", "b": 7, "c": b"\0", "d": None, "e": Status.FAILED}
    )

    assert values == ["é\0".encode(), b"7", b"\0", None, b"FAILED"]
    assert formats == [1, 0, 1, 0, 1]
    with pytest.raises(TypeError, match="a: a query cannot take a float"):
        Statement("%(a)s").bind({"a": 1.5})


def test_arrays_are_packed_whether_their_items_differ_or_not() -> None:
    head = bytes.fromhex("00000001 00000000 00000019 00000002 00000001")
    assert pack_texts(["a", "bc"]) == Packed(head + b"\0\0\0\x01a\0\0\0\x02bc", 1)
    assert pack_texts(["a", "a"]) == Packed(head + b"\0\0\0\x01a" * 2, 1)
    assert pack_bytes([None, b"x"]).data == bytes.fromhex(
        "00000001 00000001 00000011 00000002 00000001 ffffffff 00000001 78"
    )
    assert pack_bytes([None, None]).data.endswith(b"\xff" * 8)
    assert pack_ints([1, None, -3]) == Packed(b"{1,NULL,-3}", 0)
    assert pack_ints([4, 4]) == Packed(b"{4,4}", 0)
    assert pack_ints([None, None]) == Packed(b"{NULL,NULL}", 0)


def test_of_two_requests_for_one_place_neither_counts_as_written() -> None:
    group = [request(a_step("a", 1)), request(a_step("a", 1)), request(a_step("b", 2)), request(a_step("c", 3))]
    rows = [("local", "a", "f#1", 0), ("local", "b", "f#2", 0)]

    assert all(map(is_step, group))
    assert written_steps(group, rows) == [group[2]]
    assert written_steps(group[2:], [rows[1], ("local", "c", "f#3", 0)]) == group[2:]
    assert not is_step(request(a_step("a"), a_step("b")))


def test_steps_are_sent_in_the_order_of_their_intents() -> None:
    params = steps_params([request(a_step("b")), request(a_step("a"))])

    assert params["intent_id_s"] == pack_texts(["a", "b"])

"""Policies: declared, marked, named by patterns, hinted, and the one for tools that say nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stepfast import InvalidInput
from stepfast.adapters import (
    ASK,
    COMPOSITE,
    FAIL,
    ONCE,
    RETRY,
    Policies,
    Policy,
    composite,
    declared,
    hinted,
    idempotent,
    mark,
    once,
    policies,
    policy_from,
)


def charge(amount: int, *, currency: str = "EUR") -> str:
    """Charge."""
    return f"{amount} {currency}"


class Tool:
    def __init__(self, name: str, **more: Any) -> None:
        self.name = name
        self.__dict__.update(more)

    def act(self, amount: int) -> str:
        return f"{self.name} {amount}"


def test_a_tool_that_says_nothing_is_asked_about() -> None:
    assert Policies().of("charge", charge) == ASK


def test_words_and_probes() -> None:
    found = {
        word: policy_from("policies", word) for word in ("ask", "once", "retry", "idempotent", "fail", "composite")
    }
    assert found == {
        "ask": ASK,
        "once": ONCE,
        "retry": RETRY,
        "idempotent": RETRY,
        "fail": FAIL,
        "composite": COMPOSITE,
    }
    assert policy_from("policies", charge) == Policy("probe", charge)
    with pytest.raises(InvalidInput, match=r"policies\['x'\]: must be one of 'ask', 'once', .* or a probe, not 'rety'"):
        Policies({"x": "rety"})  # type: ignore[dict-item]
    with pytest.raises(
        InvalidInput, match=r"on_in_doubt: must be one of 'ask', 'retry', 'fail' or a probe, not 'once'"
    ):
        Policies(on_in_doubt="once")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="policies: must map names"):
        Policies(["x"])  # type: ignore[arg-type]


def test_a_mark_is_on_a_copy() -> None:
    marked = once(charge)
    assert declared(charge) is None
    assert declared(marked) == ONCE
    assert marked(3, currency="USD") == "3 USD"
    assert (marked.__name__, marked.__doc__, marked.__code__) == ("charge", "Charge.", charge.__code__)
    tool = Tool("a")
    again = idempotent(tool)
    assert (again.name, declared(again), declared(tool)) == ("a", RETRY, None)
    method = composite(tool.act)
    assert (method(2), declared(method), declared(tool.act)) == ("a 2", COMPOSITE, None)


def test_once_takes_a_probe_and_works_as_a_decorator_with_options() -> None:
    def probe(amount: int) -> None: ...

    @once(reconcile=probe, on_error="show")
    def pay(amount: int) -> str:
        return "paid"

    assert declared(pay) == Policy("probe", probe, "show")
    with pytest.raises(InvalidInput, match="on_error: must be one of 'ask', 'show', not 'shown'"):
        once(charge, on_error="shown")  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="reconcile: must be a function"):
        once(charge, reconcile="probe")  # type: ignore[call-overload]


def test_what_cannot_carry_a_mark_is_named() -> None:
    with pytest.raises(InvalidInput, match="a int cannot carry a policy"):
        mark(5, RETRY)


def test_the_most_particular_word_counts() -> None:
    named = Policies({"*": "fail", "search_*": "retry", "search_and_buy*": "ask", "lookup": "retry"})
    assert named.of("other") == FAIL
    assert named.of("search_web") == RETRY
    assert named.of("search_and_buy_now") == ASK
    assert named.of("lookup", once(charge)) == RETRY  # its own name in policies
    assert named.of("search_web", once(charge)) == ONCE  # a mark is on this one tool, a pattern on many
    assert named.of("ask_agent", None, COMPOSITE) == COMPOSITE  # a wildcard must not memoise an agent
    assert named.of("read", SimpleNamespace(readOnlyHint=True)) == FAIL  # the user's word, not the server's
    assert Policies(on_in_doubt="retry").of("other") == RETRY
    assert Policies(on_in_doubt="retry").of("other", SimpleNamespace(destructiveHint=True)) == ASK


@pytest.mark.parametrize(
    ("hints", "policy"),
    [
        ({"readOnlyHint": True}, RETRY),
        ({"idempotentHint": True}, RETRY),
        ({"read_only_hint": True, "destructive_hint": False}, RETRY),
        ({"idempotent_hint": True, "destructive_hint": True}, ASK),
        ({"destructiveHint": True}, ASK),
        ({"idempotentHint": True, "destructiveHint": True}, ASK),
        ({"readOnlyHint": False, "idempotentHint": None}, None),
        ({"readOnlyHint": "yes"}, None),
    ],
)
def test_hints_are_read_wherever_frameworks_put_them(hints: dict[str, Any], policy: Policy | None) -> None:
    for tool in (
        SimpleNamespace(**hints),
        Tool("a", annotations=SimpleNamespace(**hints)),
        Tool("a", annotations=hints),
        Tool("a", metadata=hints),
    ):
        assert hinted(tool) == policy
    assert hinted(charge) is None


@pytest.fixture
def _nothing_announced() -> Iterator[None]:
    kept = set(policies._announced)
    policies._announced.clear()
    yield
    policies._announced.clear()
    policies._announced.update(kept)


@pytest.mark.usefixtures("_nothing_announced")
def test_one_line_names_the_tools_without_a_policy(caplog: pytest.LogCaptureFixture) -> None:
    tools = [
        ("charge", charge, None),
        ("mail", Tool("mail"), None),
        ("pay", once(charge), None),
        ("search_web", None, None),
        ("agent", None, COMPOSITE),
        ("read", Tool("read", annotations={"readOnlyHint": True}), None),
    ]
    with caplog.at_level(logging.WARNING, "stepfast"):
        Policies({"search_*": "retry"}).announce(tools)
        Policies({"search_*": "retry"}).announce(tools)
    [line] = caplog.records
    assert line.getMessage().startswith("tools without a policy: charge, mail. ")
    assert "idempotent(tool)" in line.getMessage()


@pytest.mark.usefixtures("_nothing_announced")
@pytest.mark.parametrize("said", [Policies({"*": "ask"}), Policies(on_in_doubt="fail"), Policies(on_in_doubt=charge)])
def test_who_has_said_something_is_not_warned(said: Policies, caplog: pytest.LogCaptureFixture) -> None:
    said.announce([("charge", charge, None)])
    assert not caplog.records

"""Keys: the same call gets the same name every time, and no two calls share one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.errors import InvalidInput
from stepfast.journal import Keys, Step, StepStatus, join_scope, seal_parts

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ODD = st.sampled_from(["a", "a#1", "a@00#1", "a/b", "tool:a", "a%23", "%", "é", "e\u0301", " ", "#", "@", "/", "a b"])
NAMES = ODD | TEXT
SCOPES = st.sampled_from(["", "team", "team/agent", "task:2", "flow/method:x#3", "a", "a#1", "a@00#1"])
KINDS = st.sampled_from(["step", "once", "tool", "model"])
PRINTS = st.binary(min_size=16, max_size=16) | st.sampled_from([bytes(16), b"\x01" * 16])
CALLS = st.one_of(
    st.tuples(st.just("explicit"), SCOPES, NAMES.filter(bool)),
    st.tuples(st.just("ordinal"), SCOPES, KINDS, NAMES),
    st.tuples(st.just("by_input"), SCOPES, KINDS, NAMES, PRINTS),
)


def derive(calls: list[tuple[Any, ...]]) -> list[str]:
    """The keys a run gives its calls."""
    scopes: dict[str, Keys] = {}
    return [getattr(scopes.setdefault(scope, Keys(scope)), form)(*arguments) for form, scope, *arguments in calls]


@given(st.lists(CALLS, max_size=20))
def test_no_two_derived_keys_are_equal_and_an_explicit_one_equals_only_itself(calls: list[tuple[Any, ...]]) -> None:
    keys = derive(calls)
    named = [("explicit", call[1], call[2]) if call[0] == "explicit" else index for index, call in enumerate(calls)]
    assert len(set(keys)) == len(set(named))


@given(st.lists(CALLS, max_size=20))
def test_the_same_calls_get_the_same_keys_again(calls: list[tuple[Any, ...]]) -> None:
    assert derive(calls) == derive(calls)


@given(SCOPES, st.lists(st.tuples(KINDS, NAMES, PRINTS), max_size=12, unique=True), st.randoms())
def test_keys_by_input_do_not_depend_on_who_came_first(scope: str, calls: list[Any], order: Any) -> None:
    mixed = list(calls)
    order.shuffle(mixed)
    first, second = Keys(scope), Keys(scope)
    assert {first.by_input(*call) for call in calls} == {second.by_input(*call) for call in mixed}


@given(SCOPES, st.lists(CALLS, max_size=15))
def test_calls_in_another_scope_do_not_move_the_ordinals(scope: str, others: list[tuple[Any, ...]]) -> None:
    mine = [("ordinal", scope, "step", "work")] * 3
    alone = derive(mine)
    apart = [call for call in others if call[1] != scope]
    assert derive([mine[0], *apart, *mine[1:]])[0] == alone[0]
    assert derive([mine[0], *apart, *mine[1:]])[-2:] == alone[1:]


@given(SCOPES, st.lists(st.tuples(KINDS, NAMES), min_size=1, max_size=10), st.data())
def test_a_scope_that_is_rewound_goes_on_from_what_was_kept(scope: str, calls: list[Any], data: st.DataObject) -> None:
    keys = Keys(scope)
    first = [keys.ordinal(*call) for call in calls]
    kept = data.draw(st.integers(0, len(first)))
    keys.restart(first[:kept])
    assert [keys.ordinal(*call) for call in calls[kept:]] == first[kept:]


def test_a_key_says_where_it_stands_and_which_call_it_is() -> None:
    keys = Keys("team/agent")
    assert keys.ordinal("step", "plan") == "team/agent/plan#1"
    assert keys.ordinal("step", "plan") == "team/agent/plan#2"
    assert keys.ordinal("tool", "search web") == "team/agent/tool:search web#1"
    assert keys.by_input("tool", "fetch", bytes(range(16))) == "team/agent/tool:fetch@0001020304050607#1"
    assert keys.explicit("send#mail/7") == "team/agent/send%23mail%2F7"
    assert Keys("").explicit("send") == "send"


@pytest.mark.parametrize("key", ["", "x" * 513], ids=["empty", "too_long"])
def test_a_key_that_is_no_use_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match="key"):
        Keys("s").explicit(key)


def test_an_explicit_key_may_have_512_characters() -> None:
    assert Keys("").explicit("x" * 512) == "x" * 512


def test_a_key_of_broken_text_can_be_stored_and_is_still_its_own() -> None:
    broken = ["half \ud83e", "half \udd80", "half \ufffd", "half ?", "half "]
    keys = {Keys("").explicit(text) for text in broken} | {Keys("").ordinal("step", text) for text in broken}
    assert len(keys) == 2 * len(broken)
    assert all(key.encode() for key in keys)


def test_scopes_join_with_a_slash() -> None:
    assert (join_scope("", "a"), join_scope("a", "b")) == ("a", "a/b")


STEP = Step("k", 0, 1, "step", "n", "s", StepStatus.FINISHED, b"i", b"p", b"r", None, "b", 1, 10, 20, b"seal")


@pytest.mark.parametrize("field", [f.name for f in msgspec.structs.fields(Step)])
def test_a_seal_covers_every_column_that_a_resumed_run_relies_on(field: str) -> None:
    value = getattr(STEP, field)
    if isinstance(value, bool):
        other: Any = not value
    elif isinstance(value, StepStatus):
        other = StepStatus.FAILED
    elif isinstance(value, int):
        other = value + 1
    elif isinstance(value, str):
        other = value + "x"
    else:
        other = (value or b"") + b"x"
    changed = msgspec.structs.replace(STEP, **{field: other})
    uncovered = {"seal", "voided"}  # the seal itself; and a voided step keeps the record it had
    assert (seal_parts(changed) == seal_parts(STEP)) == (field in uncovered)

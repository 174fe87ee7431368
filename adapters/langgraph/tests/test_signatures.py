"""The signatures that an editor shows: every option by its name, ours and LangGraph's, and checked by type checkers."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from langgraph.pregel import Pregel

from stepfast import InvalidInput
from stepfast_langgraph import Durable, calls, durable
from tests.typing_kit import ROOT, check_program

SHARED = ["on_in_doubt", "policies", "on_drift", "on_wait", "labels"]
PAIRS = [("run", "invoke"), ("arun", "ainvoke"), ("stream", "stream"), ("astream", "astream")]


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def test_durable_has_the_words_of_every_adapter() -> None:
    assert list(parameters(durable))[:8] == ["graph", "run_id", "store", *SHARED]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_every_option_of_the_graph_is_spelled_out(ours: str, theirs: str) -> None:
    own, graph = parameters(getattr(Durable, ours)), parameters(getattr(Pregel, theirs))
    assert all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in own.values())
    # A run returns the final state; what it streams is for stream.
    left_out = {"stream_mode", "version", "kwargs"} if "run" in ours else {"kwargs"}
    assert set(graph) - left_out <= set(own)


def test_a_wrong_option_of_a_call_is_refused_where_it_is_given() -> None:
    for wrong in (
        {"key": 5},
        {"name": ""},
        {"retry": "often"},
        {"record_errors": "all"},
        {"on_drift": "acept"},
        {"on_in_doubt": "maybe"},
        {"retry_on": ["error"]},
    ):
        with pytest.raises(InvalidInput, match=f"^{next(iter(wrong))}: "):
            calls.options(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"retry: is an option of run\.step"):
        calls.options(retry=3).once(print)
    with pytest.raises(InvalidInput, match=r"on_in_doubt: is an option of run\.once"):
        calls.options(on_in_doubt="fail").step(print)


PROGRAM = """
from collections.abc import Callable

from stepfast import DID_NOT_HAPPEN
from stepfast_langgraph import calls, durable, idempotent, once


def charge(amount: int, key: str = "") -> str:
    return key * amount


async def fetch(url: str) -> bytes:
    return url.encode()


def was_it_charged(amount: int) -> object:
    return None if amount else DID_NOT_HAPPEN


safe = idempotent(charge)
marked = once(reconcile=was_it_charged)(charge)


async def node(graph: object) -> None:
    reveal_type(calls.step(charge, 1, key="belongs to charge"))  # expect: str
    reveal_type(await calls.options(key="k", retry=3).step(fetch, "url"))  # expect: bytes
    reveal_type(calls.options(on_in_doubt="fail").once(charge, 1))  # expect: str
    calls.once(charge, "one")  # expect: int|amount
    calls.options(kee="k")  # expect: kee
    runs = durable(graph, "r", "sqlite:///runs.db", policies={"search_*": "retry"}, on_wait="return", labels={"a": "b"})
    runs.run({"x": 1}, run_id="r", durability="async", interrupt_before=["pay"])
    await runs.arun({"x": 1}, run_id="r", stream_mode="values")  # expect: stream_mode
    runs.run({"x": 1}, run_id=5)  # expect: run_id|int
    runs.run({"x": 1}, on_wait="suspended")  # expect: on_wait|suspended
    durable(graph, on_drift="acept")  # expect: on_drift|acept
    durable(graph, policies={"search": "rety"})  # expect: rety|policies
    function: Callable[[int, str], str] = safe
    function = marked
    function(1, "")
"""


@pytest.mark.timeout(600)
def test_type_checkers_know_every_option(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    check_program(program, [ROOT / "src", ROOT / "adapters" / "langgraph" / "src"])

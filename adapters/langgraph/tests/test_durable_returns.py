"""``on_wait="return"``: a run that waits returns its state and all that is asked, each time it is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Interrupt, interrupt

from adapters.langgraph.tests.durable_kit import Log, World
from stepfast import Stepfast, Suspended, current_run
from stepfast_langgraph import calls, durable

GIVEN: Any = {"log": ["in"]}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def sf(world: World) -> Iterator[Stepfast]:
    with Stepfast(world.url) as opened:
        yield opened


def asking(*names: str) -> Any:
    """Nodes side by side that ask, after one that does not."""
    graph = StateGraph(Log)
    graph.add_node("first", lambda _: {"log": ["first"]})
    graph.add_edge(START, "first")
    for name in names:
        graph.add_node(name, lambda _, name=name: {"log": [f"{name}: {interrupt({'question': f'{name}?'})}"]})
        graph.add_edge("first", name)
    return graph


@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "async"])
async def test_each_start_returns_what_is_asked(sf: Stepfast, awaited: bool) -> None:
    made = durable(asking("one", "two").compile(), store=sf, on_wait="return")

    async def start(given: Any = None) -> Any:
        return await made.arun(given, "r") if awaited else made.run(given, "r")

    first = await start(GIVEN)
    assert first["log"] == ["in", "first"]
    assert all(isinstance(each, Interrupt) for each in first["__interrupt__"])
    assert sorted(each.value["question"] for each in first["__interrupt__"]) == ["one?", "two?"]
    assert await start() == await start(GIVEN) == first
    assert {each["key"] for each in sf.decisions("r")} == {f"ask:interrupt:{i.id}" for i in first["__interrupt__"]}

    one, two = sorted(first["__interrupt__"], key=lambda each: each.value["question"])
    sf.answer("r", "approved", f"ask:interrupt:{one.id}")
    left = await start()
    assert left == {"log": ["in", "first"], "__interrupt__": [two]}, "what is answered is asked no more"
    ended = await start(Command(resume={two.id: "no"}))
    assert sorted(ended["log"]) == ["first", "in", "one: True", "two: no"]
    assert "__interrupt__" not in ended
    assert await start() == ended


def test_one_call_may_return_and_another_raise(sf: Stepfast) -> None:
    made = durable(asking("one").compile(), store=sf)
    with pytest.raises(Suspended) as raised:
        made.run(GIVEN, "r")
    assert isinstance(raised.value, Exception)
    (asked,) = made.run(GIVEN, "r", on_wait="return")["__interrupt__"]
    assert raised.value.decisions == [f"ask:interrupt:{asked.id}"]


def test_questions_that_are_no_interrupts_are_returned_like_them(sf: Stepfast) -> None:
    def node(_: Any) -> Any:
        run: Any = current_run()
        return {"log": [run.ask("Which one?", key="which", outcomes=["left", "right"]).outcome]}

    graph: Any = StateGraph(Log)
    graph.add_node("choose", node)
    graph.add_edge(START, "choose")
    made = durable(graph.compile(interrupt_before=["choose"]), store=sf, on_wait="return")
    first = made.run(GIVEN, "r")
    (stop,) = first["__interrupt__"]
    assert (stop.value["outcomes"], stop.value["evidence"]["nodes"]) == (["continue"], "choose")
    assert made.run(None, "r") == first
    sf.answer("r", "continue", stop.value["decision"])
    (asked,) = made.run(None, "r")["__interrupt__"]
    assert (asked.value["question"], asked.value["decision"]) == ("Which one?", "ask:which")
    sf.answer("r", "left", "ask:which")
    assert made.run(None, "r")["log"] == ["in", "left"]


def test_a_call_in_doubt_is_among_them(sf: Stepfast) -> None:
    class Lost(BaseException):
        pass

    happened = []

    def pay() -> str:
        happened.append("paid")
        raise Lost

    graph: Any = StateGraph(Log)
    graph.add_node("pay", lambda _: {"log": [calls.once(pay)]})
    graph.add_edge(START, "pay")
    made = durable(graph.compile(), store=sf, on_wait="return")
    with pytest.raises(Lost):
        made.run(GIVEN, "r")
    first = made.run(GIVEN, "r")
    (stop,) = first["__interrupt__"]
    assert (stop.value["kind"], stop.value["name"]) == ("in_doubt", "pay")
    assert made.run(GIVEN, "r") == first
    assert made.run(Command(resume={stop.id: {"outcome": "done", "value": "receipt"}}), "r")["log"] == ["in", "receipt"]
    assert happened == ["paid"]


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("mode", ["updates", "values", ["updates", "values"]], ids=str)
def test_a_stream_ends_with_what_is_asked(sf: Stepfast, mode: Any, version: str) -> None:
    made = durable(asking("one").compile(), store=sf, on_wait="return")
    first = list(made.stream(GIVEN, "r", stream_mode=mode, version=version))
    again = list(made.stream(None, "r", stream_mode=mode, version=version))
    assert again == list(made.stream(None, "r", stream_mode=mode, version=version))
    assert again
    found = [str(chunk) for chunk in again if "__interrupt__" in str(chunk) or "interrupts" in str(chunk)]
    assert found
    assert "one?" in found[0]
    if mode != "values":
        assert str(found[0]) in [str(chunk) for chunk in first], "the same chunk as at first"

"""Runs of graphs whose processes are killed: they go on at the unfinished superstep, and nothing is applied twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from adapters.langgraph.tests.durable_kit import (
    World,
    asking,
    attempt,
    chain,
    fan,
    functional,
    links,
    nested,
    outcome,
    sends,
)
from stepfast import Stepfast, _failpoints
from stepfast.testing.processes import Child, Note
from stepfast_langgraph import _trip, durable

KILLED = -signal.SIGKILL
GIVEN = {"log": ["in"]}
both = pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def three(world: World, saver: Any) -> Any:
    return chain(world, saver, "one", "two", "three", dies="two")


@both
def test_a_killed_run_goes_on_at_its_unfinished_node(world: World, on_loop: bool) -> None:
    assert attempt(world, three, GIVEN, on_loop=on_loop).code == KILLED
    assert outcome(attempt(world, three, GIVEN, on_loop=on_loop)) == {"result": {"log": ["in", "one", "two", "three"]}}
    assert world.effects.lines() == ["one", "two", "two", "three"]


def test_a_run_that_was_begun_on_an_event_loop_goes_on_in_threads(world: World) -> None:
    assert attempt(world, three, GIVEN, on_loop=True).code == KILLED
    assert outcome(attempt(world, three, None, on_loop=False))["result"]["log"] == ["in", "one", "two", "three"]
    assert world.effects.counts()["one"] == 1


@pytest.mark.parametrize("make", [fan, sends, nested, functional], ids=lambda make: make.__name__)
@both
def test_what_finished_beside_or_inside_is_not_repeated(world: World, make: Any, on_loop: bool) -> None:
    """Parallel branches, Send, a graph inside a node, tasks of the functional API."""
    assert attempt(world, make, GIVEN, on_loop=on_loop).code == KILLED
    result = outcome(attempt(world, make, GIVEN, on_loop=on_loop))["result"]
    effects = world.effects.counts()
    (killed,) = [name for name, count in effects.items() if count == 2]
    assert killed in {"right", "part c", "inner 2", "three"}
    assert set(effects.values()) == {1, 2}
    # The inner graph gives back the log that it was given, too, and it is added once more: so LangGraph has it.
    again = ["in", "first"] if make is nested else []
    assert sorted(result["log"]) == sorted(["in", *effects, *again])


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_every_durability_of_langgraph_ends_right(world: World, durability: str) -> None:
    assert attempt(world, three, GIVEN, durability=durability).code == KILLED
    ended = attempt(world, three, GIVEN, durability=durability)
    assert outcome(ended)["result"]["log"] == ["in", "one", "two", "three"]
    # Only what LangGraph has stored is not done again: as it goes, somewhat later, or not before its exit.
    assert world.effects.counts()["one"] in {"sync": [1], "async": [1, 2], "exit": [2]}[durability]
    assert world.effects.counts()["three"] == 1


@pytest.mark.parametrize("where", ["run.before_finish", "run.finished"])
def test_a_graph_that_finished_is_completed_and_not_run_again(world: World, where: str) -> None:
    def plain(world: World, saver: Any) -> Any:
        return chain(world, saver, "one", "two")

    def killed_at_the_end(_note: Note) -> None:
        _failpoints.install(lambda name: world.die(name) if name == where else None)
        durable(plain(world, world.saver())).run(GIVEN, "r")

    assert Child(killed_at_the_end).wait(60).code == KILLED
    assert outcome(attempt(world, plain, GIVEN)) == {"result": {"log": ["in", "one", "two"]}}
    assert world.effects.lines() == ["one", "two"]
    with Stepfast(world.url) as sf:
        assert sf.get_intent("r")["status"] == "COMPLETED"


def test_a_second_run_on_a_thread_that_was_killed_before_its_first_checkpoint_gets_its_input(world: World) -> None:
    thread = {"configurable": {"thread_id": "shared"}}

    def plain(world: World, saver: Any) -> Any:
        return chain(world, saver, "one")

    def killed_at_the_start(world: World, saver: Any) -> Any:
        put = saver.put
        saver.put = lambda *args: (world.die("first put"), put(*args))[1]
        return plain(world, saver)

    assert outcome(attempt(world, plain, {"log": ["a"]}, "first", config=thread))["result"]["log"] == ["a", "one"]
    assert attempt(world, killed_at_the_start, {"log": ["b"]}, "second", config=thread).code == KILLED
    ended = attempt(world, plain, {"log": ["b"]}, "second", config=thread)
    assert outcome(ended)["result"]["log"] == ["a", "one", "b", "one"]
    # The first is what it was, although its thread went on.
    assert outcome(attempt(world, plain, {"log": ["a"]}, "first", config=thread))["result"]["log"] == ["a", "one"]
    assert world.effects.lines() == ["one", "one"]


def test_the_input_is_not_applied_again_after_the_state_was_changed_between_attempts(world: World) -> None:
    assert attempt(world, three, GIVEN).code == KILLED
    with world.saver() as saver:
        three(world, saver).update_state({"configurable": {"thread_id": "r"}}, {"log": ["edited"]}, as_node="one")
    result = outcome(attempt(world, three, GIVEN))["result"]
    assert result["log"] == ["in", "one", "edited", "two", "three"]


def test_time_travel_between_attempts_is_gone_along_with(world: World) -> None:
    assert attempt(world, three, GIVEN).code == KILLED
    with world.saver() as saver:
        graph = three(world, saver)
        config = {"configurable": {"thread_id": "r"}}
        (begin,) = [each for each in graph.get_state_history(config) if each.next == ("one",)]
        graph.update_state(begin.config, {"log": ["other"]}, as_node="one")
        changed = graph.get_state(config).values["log"]
    assert changed[-1] == "other"
    assert outcome(attempt(world, three, GIVEN))["result"]["log"] == [*changed, "two", "three"]
    assert world.effects.counts()["one"] == 1


@both
def test_an_answer_survives_the_process_that_got_it(world: World, on_loop: bool) -> None:
    def make(world: World, saver: Any) -> Any:
        return asking(world, saver, dies=True)

    assert outcome(attempt(world, make, GIVEN, on_loop=on_loop))["waits"]
    assert outcome(attempt(world, make, GIVEN, on_loop=on_loop))["waits"]
    with Stepfast(world.url) as sf:
        sf.answer("r", "answered", value="yes")
    assert attempt(world, make, GIVEN, on_loop=on_loop).code == KILLED
    result = outcome(attempt(world, make, GIVEN, on_loop=on_loop))["result"]
    assert result["log"] == ["in", "draft", "answer yes", "send"]
    assert world.effects.lines() == ["draft", "answered yes", "answered yes", "send"]


@pytest.mark.parametrize("where", ["ask.asked", "ask.suspended"])
def test_a_process_killed_while_it_asks_asks_once(world: World, where: str) -> None:
    def killed_while_asking(_note: Note) -> None:
        _failpoints.install(lambda name: world.die(name) if name == where else None)
        durable(asking(world, world.saver())).run(GIVEN, "r")

    assert Child(killed_while_asking).wait(60).code == KILLED
    assert outcome(attempt(world, asking, GIVEN))["waits"]
    with Stepfast(world.url) as sf:
        (asked,) = sf.decisions("r")
        sf.answer("r", "approved", asked["key"])
    assert outcome(attempt(world, asking, GIVEN))["result"]["log"] == ["in", "draft", "answer True", "send"]
    assert world.effects.lines() == ["draft", "answered True", "send"]


def test_a_process_killed_at_a_breakpoint_asks_before_it_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(world: World, saver: Any) -> Any:
        return links(world, "one", "two", "three").compile(checkpointer=saver, interrupt_after=["two"])

    pose = _trip.Trip._pose
    monkeypatch.setattr(_trip.Trip, "_pose", lambda self, asked: (world.die("pose"), pose(self, asked))[1])
    assert attempt(world, make, GIVEN).code == KILLED
    assert outcome(attempt(world, make, GIVEN))["waits"]
    assert world.effects.lines() == ["one", "two"]
    with Stepfast(world.url) as sf:
        sf.answer("r", "continue")
    assert outcome(attempt(world, make, GIVEN))["result"]["log"] == ["in", "one", "two", "three"]
    assert world.effects.lines() == ["one", "two", "three"]


def test_a_process_that_was_stopped_and_overtaken_writes_nothing_when_it_wakes(world: World) -> None:
    def stops(_state: Any) -> Any:
        world.effects.record("stops")
        if world.effects.counts()["stops"] == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return {"log": ["stops"]}

    def body(note: Note) -> None:
        graph = links(world, "one")
        graph.add_node("stops", stops)
        graph.add_node("last", world.node("last"))
        graph.add_edge("one", "stops")
        graph.add_edge("stops", "last")
        note(durable(graph.compile(), store=world.url, lease_seconds=1, wait=60).run(GIVEN, "r"))

    zombie = Child(body)
    assert zombie.stopped(60)
    done = {"log": ["in", "one", "stops", "last"]}
    assert outcome(Child(body).wait(60)) == done
    zombie.resume()
    ended = zombie.wait(60)
    assert ended.code == 1
    assert "Fenced" in ended.error or "RunFailed" in ended.error
    assert world.effects.lines() == ["one", "stops", "stops", "last"]
    with world.saver() as saver:
        found = saver.get_tuple({"configurable": {"thread_id": "r"}})
    assert found is not None
    assert found.checkpoint["channel_values"]["log"] == done["log"]


def test_a_run_that_kills_every_process_is_failed_in_the_end(world: World) -> None:
    def body(_note: Note) -> None:
        def node(_state: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        graph = links(world, "one")
        graph.add_node("poison", node)
        graph.add_edge("one", "poison")
        durable(graph.compile(), store=world.url, max_delivery_attempts=2).run(GIVEN, "r")

    # The first gets on as far as one finished node, and may be killed just before that is on record.
    lives = [Child(body).wait(60)]
    while lives[-1].code == KILLED and len(lives) < 5:
        lives.append(Child(body).wait(60))
    assert len(lives) in (3, 4)
    assert lives[-1].code == 1
    assert "RunFailed" in lives[-1].error

"""Graphs delivered to workers: sent as intents, run on another machine, taken over when their worker dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START
from langgraph.types import Command

from adapters.langgraph.tests.durable_kit import World, asking, chain, links
from stepfast import AsyncStepfast, GiveUp, RunFailed, Stepfast, Suspended
from stepfast.testing.processes import Child, Note
from stepfast_langgraph import StepfastSaver, durable

ADDRESS = "agent://acme/prod/graph"
GIVEN = {"log": ["in"]}
DONE = {"log": ["in", "one", "two", "three"]}
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def sf(world: World) -> Iterator[Stepfast]:
    with Stepfast(world.url) as client:
        yield client


def send(sf: Stepfast, payload: Any = GIVEN, **more: Any) -> str:
    intent = {"intent_type": "graph.v1", "to_agent": ADDRESS, "payload": payload, **more}
    return sf.send_intent(intent)


def test_a_worker_runs_the_graph_on_the_payload(world: World, sf: Stepfast) -> None:
    worker = durable(chain(world, None, "one", "two", "three")).worker(sf, ADDRESS, concurrency=2)
    worker.start()
    sent = [send(sf), send(sf, labels={"thread_id": "t"}), send(sf, {"log": ["more"]}, labels={"thread_id": "u"})]
    assert [sf.wait_for(each, timeout=30)["result"]["log"][0] for each in sent] == ["in", "in", "more"]
    seen = sf.describe(sent[0])
    assert (seen["status"], seen["step"], seen["last_step"]) == ("COMPLETED", 3, "three")
    worker.stop()
    with StepfastSaver(sf) as saver:
        threads = {thread for thread in ("t", "u", sent[0]) if saver.get_tuple({"configurable": {"thread_id": thread}})}
    assert threads == {"t", "u", sent[0]}


async def test_a_worker_on_an_event_loop_does_the_same(world: World) -> None:
    async with AsyncStepfast(world.url) as sf:
        worker = durable(chain(world, None, "one", "two", "three")).worker(sf, ADDRESS, concurrency=5)
        worker.start()
        sent = [
            await sf.send_intent({"intent_type": "graph.v1", "to_agent": ADDRESS, "payload": GIVEN}) for _ in range(5)
        ]
        assert [(await sf.wait_for(each, timeout=30))["result"] for each in sent] == [DONE] * 5
        await worker.stop()


def test_an_intent_waits_at_an_interrupt_without_keeping_a_worker(world: World, sf: Stepfast) -> None:
    worker = durable(asking(world, None)).worker(sf, ADDRESS)
    worker.start()
    first, second = send(sf), send(sf)
    for each in (first, second):  # with one slot: the first does not keep it
        events = sf.observe(each)
        assert any(event["event_type"] == "intent.waiting" for event in events)
    sf.answer(second, "answered", value="yes")
    assert sf.wait_for(second, timeout=30)["result"]["log"] == ["in", "draft", "answer yes", "send"]
    assert sf.get_intent(first)["status"] == "WAITING"
    worker.stop()


def test_what_a_node_raises_is_tried_again_where_it_stopped(world: World, sf: Stepfast) -> None:
    def flaky(_state: Any) -> Any:
        world.effects.record("flaky")
        if world.effects.counts()["flaky"] == 1:
            raise ConnectionError("down")
        return {"log": ["flaky"]}

    graph = links(world, "one")
    graph.add_node("flaky", flaky)
    graph.add_edge("one", "flaky")
    worker = durable(graph.compile()).worker(sf, ADDRESS, retry_seconds=0.01)
    worker.start()
    assert sf.wait_for(send(sf), timeout=30)["result"] == {"log": ["in", "one", "flaky"]}
    worker.stop()
    assert world.effects.lines() == ["one", "flaky", "flaky"]


def test_an_intent_that_failed_shows_how_far_it_came(world: World, sf: Stepfast) -> None:
    def give_up(_state: Any) -> Any:
        raise GiveUp("there is no such customer")

    graph = links(world, "one", "two")
    graph.add_node("give up", give_up)
    graph.add_edge("two", "give up")
    worker = durable(graph.compile()).worker(sf, ADDRESS)
    worker.start()
    intent_id = send(sf)
    assert sf.wait_for(intent_id, timeout=30)["status"] == "FAILED"
    worker.stop()
    seen = sf.describe(intent_id)
    assert (seen["step"], seen["last_step"]) == (2, "two")


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_a_killed_workers_run_goes_on_at_the_same_superstep_in_another(world: World, on_loop: bool) -> None:
    with Stepfast(world.url) as sf:
        intent_id = send(sf)

    def serve(_note: Note) -> None:
        made = durable(chain(world, None, "one", "two", "three", dies="two"))

        async def on_a_loop() -> None:
            async with AsyncStepfast(world.url) as sf:
                made.worker(sf, ADDRESS).start()
                await sf.wait_for(intent_id)

        if on_loop:
            import asyncio

            asyncio.run(on_a_loop())
            return
        with Stepfast(world.url) as sf:
            made.worker(sf, ADDRESS).start()
            sf.wait_for(intent_id)

    assert Child(serve).wait(60).code == -signal.SIGKILL
    ended = Child(serve).wait(60)
    assert ended.code == 0, ended.why
    with Stepfast(world.url) as sf:
        seen = sf.describe(intent_id)
    # The lost delivery had finished a node, so it does not count.
    assert (seen["status"], seen["result"], seen["delivery_attempt"]) == ("COMPLETED", DONE, 2)
    assert (seen["lost_deliveries"], seen["step"], seen["last_step"]) == (0, 3, "three")
    assert world.effects.lines() == ["one", "two", "two", "three"]


NODES = ["one", "two", "three", "four", "five", "six"]


def life(world: World, on_loop: bool, dies: str = "", progress: int = 0) -> Any:
    """A life of a run. The node that it dies in waits until as much progress is on record."""

    def wait_for_progress() -> None:
        with Stepfast(world.url) as sf:
            while len(sf.steps("r")) < progress:
                time.sleep(0.005)

    def live(_note: Note) -> None:
        graph = links(world, *NODES[: NODES.index(dies)]) if dies else links(world, *NODES)
        if dies:
            ends = world.node(dies, dies=True, before=wait_for_progress)
            graph.add_node(dies, ends)
            graph.add_edge(NODES[NODES.index(dies) - 1] if dies != NODES[0] else START, dies)
        made = durable(graph.compile(), "r", world.url)
        if on_loop:
            import asyncio

            asyncio.run(made.arun(GIVEN))
        else:
            made.run(GIVEN)

    return live


def kill(world: World, on_loop: bool, dies: str, progress: int) -> None:
    (world.folder / f"died-{dies}").unlink(missing_ok=True)
    assert Child(life(world, on_loop, dies, progress)).wait(60).code == -signal.SIGKILL


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_a_graph_that_gets_on_in_each_life_survives_five_kills(world: World, sf: Stepfast, on_loop: bool) -> None:
    for number in range(1, 6):
        kill(world, on_loop, NODES[number], progress=number)
    ended = Child(life(world, on_loop)).wait(60)
    assert ended.code == 0, ended.why
    seen = sf.describe("r")
    assert (seen["status"], seen["delivery_attempt"], seen["lost_deliveries"]) == ("COMPLETED", 6, 0)
    assert seen["step"] == 6
    assert world.effects.counts() == {"one": 1, **dict.fromkeys(NODES[1:], 2)}


@pytest.mark.parametrize("dies", [NODES[0], NODES[2]])
@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_a_graph_that_does_not_get_on_is_failed_after_three_kills(
    world: World, sf: Stepfast, on_loop: bool, dies: str
) -> None:
    kills = 3 if dies == NODES[0] else 4  # the first of these lives finishes nodes
    for _ in range(kills):
        kill(world, on_loop, dies, progress=kills - 3)
    with pytest.raises(RunFailed, match="3 of 3 deliveries were lost in a row without a newly finished step"):
        durable(chain(world, None, *NODES), "r", sf).run(GIVEN)
    assert world.effects.counts()[dies] == kills


# --- on every kind of store ----------------------------------------------------------------------------


async def test_runs_wait_are_answered_and_complete_on_every_store(store_url: str, tmp_path: Path) -> None:
    world = World(tmp_path, store_url)
    name = f"run-{tmp_path.name}"
    with Stepfast(store_url) as sf:
        made = durable(asking(world, None), store=sf)
        with pytest.raises(Suspended):
            made.run(GIVEN, name)
        assert sf.describe(name)["last_step"] == "draft"
        result = await made.arun(Command(resume="yes"), name)
        assert result["log"] == ["in", "draft", "answer yes", "send"]
        assert made.run(GIVEN, name) == result
        seen = sf.describe(name)
    assert (seen["status"], seen["step"], seen["last_step"]) == ("COMPLETED", 3, "send")
    assert world.effects.lines() == ["draft", "answered yes", "send"]


def program(world: World, *command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "EFFECTS": str(world.folder), "STEPFAST_URL": world.url}
    return subprocess.run(
        [sys.executable, *command], cwd=PROGRAMS, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_killed_run_goes_on_in_another_process_through_a_server(
    http_over_postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPFAST_API_KEY", tmp_path.name.encode().hex())
    world = World(tmp_path, http_over_postgres)
    run = ("served_graph.py", world.url, "r")
    assert program(world, *run).returncode == -signal.SIGKILL
    again = program(world, *run)
    assert again.stdout.strip() == str(DONE["log"]), again.stderr
    assert world.effects.lines() == ["one", "two", "two", "three"]


def test_the_command_line_serves_a_graph(world: World, sf: Stepfast) -> None:
    intent_id = send(sf)
    (world.folder / "died-two").touch()
    command = [sys.executable, "-m", "stepfast", "worker", "served_graph:agent", "--agent", ADDRESS]
    env = {**os.environ, "EFFECTS": str(world.folder), "STEPFAST_URL": world.url}
    with subprocess.Popen(command, cwd=PROGRAMS, env=env, stderr=subprocess.DEVNULL) as worker:
        try:
            assert sf.wait_for(intent_id, timeout=60)["result"] == DONE
        finally:
            worker.terminate()

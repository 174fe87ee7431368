"""DeltaChannel: channels that are rebuilt from their writes, through everything that deletes, copies or forks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Overwrite, Send

from adapters.langgraph.tests.kit import CountingStore, on
from adapters.langgraph.tests.scenarios import whole
from stepfast import open_store
from stepfast_langgraph import StepfastSaver

delta = pytest.importorskip("langgraph.channels.delta", reason="this LangGraph has no DeltaChannel yet")


def joined(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    """Order matters, so that writes in a wrong order show."""
    return (state or []) + [item for write in writes for item in write]


def merged(state: dict[str, int], writes: Sequence[dict[str, int]]) -> dict[str, int]:
    found = dict(state or {})
    for write in writes:
        found.update(write)
    return found


def delta_graph(saver: Any, frequency: int = 4, steps: int = 3) -> Any:
    log = Annotated[list[str], delta.DeltaChannel(joined, snapshot_frequency=frequency)]
    last = Annotated[dict[str, int], delta.DeltaChannel(merged, snapshot_frequency=frequency + 3)]
    schema: Any = TypedDict("schema", {"log": log, "last": last, "n": int})

    def work(state: Any) -> dict[str, Any]:
        n = state.get("n", 0) + 1
        return {"log": [f"work {n}"], "n": n, "last": {"n": n}}

    graph: Any = StateGraph(schema)
    graph.add_node("work", work)
    for side in ("b", "a"):
        graph.add_node(side, lambda state, side=side: {"log": [f"{side} {state['n']}"]})
        graph.add_edge("work", side)
    graph.add_node("join", lambda state: {})
    graph.add_edge(START, "work")
    # Not as one edge from both: LangGraph hands that edge's own state over while it still changes it.
    graph.add_edge("a", "join")
    graph.add_edge("b", "join")
    graph.add_conditional_edges("join", lambda state: END if state["n"] % steps == 0 else "work")
    return graph.compile(checkpointer=saver)


def told(graph: Any, config: Any) -> Any:
    return [(one.values, one.next, one.metadata["source"]) for one in graph.get_state_history(config)]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("half", ["sync", "async"])
def test_a_delta_graph_ends_as_in_memory(saver: StepfastSaver, half: str, durability: str) -> None:
    from adapters.langgraph.tests.test_runtime import told_with

    def story(saver: Any, drive: Any) -> Any:
        graph, config = drive(delta_graph(saver)), on("t")
        graph.invoke({"log": ["in"]}, config, past=True)
        graph.invoke({"log": ["in again"]}, config)
        graph.update(config, {"log": ["by hand"]}, as_node="join")
        old = next(one for one in graph.history(config) if set(one.next) == {"a", "b"})
        graph.invoke(None, old.config)
        graph.update(old.config, {"log": ["forked"]}, as_node="work")
        graph.invoke(None, config)
        graph.invoke({"log": Overwrite(["anew"])}, config)
        graph.invoke({"log": ["on"]}, config)
        return whole(graph, config)

    expected = told_with(InMemorySaver(), story, half, durability)
    assert told_with(saver, story, half, durability) == expected


def test_the_history_is_what_walking_the_parents_gives(any_saver: StepfastSaver) -> None:
    graph, config = delta_graph(any_saver), on()
    graph.invoke({"log": ["in"]}, config)
    graph.invoke({"log": ["in again"]}, config)
    channels = ["log", "last", "n", "not a channel"]
    for state in graph.get_state_history(config):
        ours = any_saver.get_delta_channel_history(config=state.config, channels=channels)
        assert ours == BaseCheckpointSaver.get_delta_channel_history(any_saver, config=state.config, channels=channels)
    assert any_saver.get_delta_channel_history(config=config, channels=["log"])["log"]["writes"]
    assert any_saver.get_delta_channel_history(config=config, channels=[]) == {}
    assert any_saver.get_delta_channel_history(config=on(), channels=["log"]) == {"log": {"writes": []}}


def test_the_history_takes_one_batch_and_one_more_for_a_stored_value(tmp_path: Path) -> None:
    with CountingStore(open_store(tmp_path / "a.db")) as store:
        saver = StepfastSaver(store)
        graph, config = delta_graph(saver, frequency=50, steps=12), on("t")
        graph.invoke({"log": ["in"]}, {**config, "recursion_limit": 100})
        newest = saver.get_tuple(config)
        assert newest is not None
        store.batches.clear()
        saver.get_delta_channel_history(config=newest.config, channels=["log", "last"])
        assert len(store.batches) <= 2


@pytest.mark.parametrize("keep_last", [None, 3])
def test_prune_keeps_the_state_of_what_stays(any_saver: StepfastSaver, keep_last: int | None) -> None:
    graph, config = delta_graph(any_saver, frequency=7), on()
    twin = on()
    for run in range(3):
        graph.invoke({"log": [f"in {run}"]}, config)
    before = told(graph, config)
    any_saver.copy_thread(config["configurable"]["thread_id"], twin["configurable"]["thread_id"])
    any_saver.prune([config["configurable"]["thread_id"]], keep_last=keep_last)
    assert told(graph, config) == before[: keep_last or 1]
    any_saver.prune([config["configurable"]["thread_id"]], keep_last=keep_last)  # again: nothing more goes
    assert told(graph, config) == before[: keep_last or 1]
    assert told(graph, twin) == before

    after, whole_after = (graph.invoke({"log": ["on"]}, one) for one in (config, twin))
    assert after == whole_after
    any_saver.prune([config["configurable"]["thread_id"]])  # what was kept is handed on
    assert graph.get_state(config).values == after
    assert graph.invoke({"log": ["on"]}, config) == graph.invoke({"log": ["on"]}, twin)


def test_prune_frees_what_it_deletes(saver: StepfastSaver) -> None:
    graph, config = delta_graph(saver, steps=30), on("t")
    graph.invoke({"log": ["in"]}, {**config, "recursion_limit": 200})
    before = saver.threads.get("t")
    saver.prune(["t"])
    after = saver.threads.get("t")
    assert after.checkpoints == 1 < before.checkpoints
    assert after.size_bytes < before.size_bytes / 5


def test_deleting_a_run_keeps_the_state_of_those_after_it(any_saver: StepfastSaver) -> None:
    graph, config = delta_graph(any_saver, frequency=9), on()
    runs = [f"{on()['configurable']['thread_id']}" for _ in range(3)]
    for run in runs:
        graph.invoke({"log": [f"in {run}"]}, {**config, "metadata": {"run_id": run}})
    last = [one for one in graph.get_state_history(config) if one.metadata["run_id"] == runs[2]]
    any_saver.delete_for_runs([runs[1]])
    left = list(graph.get_state_history(config))
    assert {one.metadata["run_id"] for one in left} == {runs[0], runs[2]}
    assert [one.values for one in left if one.metadata["run_id"] == runs[2]] == [one.values for one in last]
    any_saver.delete_for_runs([runs[0]])
    assert [one.values for one in graph.get_state_history(config)] == [one.values for one in last]
    graph.invoke({"log": ["on"]}, config)
    assert graph.get_state(config).values["log"][: len(last[0].values["log"])] == last[0].values["log"]


def test_forks_of_a_copy_keep_to_their_own_branch(saver: StepfastSaver) -> None:
    graph, config = delta_graph(saver), on("t")
    graph.invoke({"log": ["in"]}, config)
    old = next(one for one in graph.get_state_history(config) if set(one.next) == {"a", "b"})
    saver.copy_thread("t", "copy")
    on_copy = on("copy", checkpoint_id=old.config["configurable"]["checkpoint_id"], checkpoint_ns="")
    forked = graph.invoke(None, on_copy)
    again = graph.invoke(None, old.config)
    assert forked["log"] == again["log"]
    saver.prune(["copy"])
    assert graph.get_state(on("copy")).values == forked
    saver.delete_thread("t")
    assert graph.get_state(on("copy")).values == forked


def test_sends_to_a_delta_channel_replay_in_the_order_they_were_applied(any_saver: StepfastSaver) -> None:
    class State(TypedDict):
        log: Annotated[list[str], delta.DeltaChannel(joined, snapshot_frequency=100)]
        n: int

    graph: Any = StateGraph(State)
    graph.add_node("work", lambda state: {"log": [f"sent {state['n']}"]})
    graph.add_conditional_edges(START, lambda state: [Send("work", {"n": n}) for n in range(12)])
    config = on()
    made = graph.compile(checkpointer=any_saver)
    ended = made.invoke({"log": ["in"]}, config)
    assert ended["log"] == ["in", *(f"sent {n}" for n in range(12))]
    assert made.get_state(config).values["log"] == ended["log"]

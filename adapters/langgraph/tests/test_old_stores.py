"""Threads, runs, memory and cached nodes that an older version wrote are read and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Command

from adapters.langgraph.tests import old_graphs as graphs
from adapters.langgraph.tests.kit import on
from stepfast import Stepfast, Suspended
from stepfast_langgraph import StepfastCache, StepfastSaver, StepfastStore, calls, durable, durable_tool
from tests.old_stores import KINDS, OldStore, copy_of, missing, shop

CHATS = ("achat", "chat", "copy", "forked", "pruned")


@pytest.fixture(params=KINDS)
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OldStore:
    return copy_of("langgraph", request.param, tmp_path, monkeypatch, request)


@pytest.fixture
def done() -> list[str]:
    """What was done now, not by the old version."""
    return []


def _builders(done: list[str]) -> dict[str, Any]:
    effect = done.append
    chat, three, asking = graphs.chat(effect), graphs.three(effect), graphs.asking(effect)
    calling = graphs.calling(effect, calls.step, calls.once)
    return {
        **dict.fromkeys(CHATS, chat),
        **dict.fromkeys(("killed", "run-killed", "run-akilled", "run-done"), three),
        **dict.fromkeys(("asking", "run-asking", "run-answered"), asking),
        **dict.fromkeys(("calling", "run-calling"), calling),
        "branches": graphs.branches(effect),
        "nested": graphs.nested(effect),
        "tools": graphs.tools(effect, durable_tool),
    }


def test_everything_reads_as_the_old_version_read_it(old: OldStore, done: list[str]) -> None:
    found: dict[str, Any] = {"items": {}}
    with StepfastSaver(old.url) as saver:
        found["threads"] = {
            name: graphs.history(builder.compile(checkpointer=saver), on(name))
            for name, builder in _builders(done).items()
        }
        found["listed"] = sorted([t.thread_id, t.checkpoints, t.status] for t in saver.threads.list(limit=100))
    with StepfastStore(old.url) as store:
        for item in store.search((), limit=100):
            when = [str(item.created_at), str(item.updated_at)]
            found["items"]["/".join([*item.namespace, item.key])] = [graphs.plain(item.value), *when]

    assert found["threads"].keys() == old.expected["threads"].keys()
    assert found["items"].keys() == old.expected["items"].keys()
    assert missing(old.expected, json.loads(json.dumps(found))) == []
    assert done == []


def test_values_of_a_thread_are_what_they_were(old: OldStore, done: list[str]) -> None:
    with StepfastSaver(old.url) as saver:
        state = graphs.chat(done.append).compile(checkpointer=saver).get_state(on("chat")).values
    data, wanted = state["data"], graphs.data()

    assert (data["array"] == wanted["array"]).all()
    assert data["array"].dtype == wanted["array"].dtype
    assert data["frame"].equals(wanted["frame"])
    assert (type(data["error"]), data["error"].args) == (ValueError, ("no", 3))
    rest = ("order", "tuple", "set", "when", "long")
    assert {name: data[name] for name in rest} == {name: wanted[name] for name in rest}
    assert state["notes"] == [("note", 1), ("note", 3), ("note", 5)]


@pytest.mark.parametrize("thread", CHATS)
def test_a_thread_goes_on(old: OldStore, done: list[str], thread: str) -> None:
    with StepfastSaver(old.url) as saver:
        graph = graphs.chat(done.append).compile(checkpointer=saver)
        before = graph.get_state(on(thread)).values["messages"]
        after = graph.invoke(graphs.said(9), on(thread))["messages"]

    assert after[: len(before)] == before
    assert [message.id for message in after[len(before) :]] == ["human-9", f"ai-{len(before) + 1}"]
    assert done == [f"answer {len(before) + 1}"]


async def test_a_thread_goes_on_from_an_old_checkpoint(old: OldStore, done: list[str]) -> None:
    async with StepfastSaver(old.url) as saver:
        graph = graphs.chat(done.append).compile(checkpointer=saver)
        states = [state async for state in graph.aget_state_history(on("chat"))]
        past = next(state for state in states if state.next == ("answer",) and len(state.values["messages"]) == 3)
        after = await graph.ainvoke(None, past.config)

    assert [message.id for message in after["messages"]] == ["human-0", "ai-1", "human-1", "ai-3"]
    assert done == ["answer 3"]


def test_a_thread_that_asks_is_answered(old: OldStore, done: list[str]) -> None:
    with StepfastSaver(old.url) as saver:
        asking = graphs.asking(done.append).compile(checkpointer=saver)
        [task] = asking.get_state(on("asking")).tasks
        assert task.interrupts[0].value == {"ask": "Publish it?", "order": shop.Order("8", 8)}
        assert asking.invoke(Command(resume="yes"), on("asking"))["log"] == ["tea", "draft", "published: yes"]
        branches = graphs.branches(done.append).compile(checkpointer=saver)
        assert branches.invoke(Command(resume="yes"), on("branches"))["log"] == ["tea", "quick", "slow: yes", "join"]
        nested = graphs.nested(done.append).compile(checkpointer=saver)
        assert nested.invoke(Command(resume="yes"), on("nested"))["log"][-2:] == ["published: yes", "after"]

    assert done == ["publish", "slow", "join", "publish", "after"]


def test_a_killed_thread_goes_on_at_its_unfinished_superstep(old: OldStore, done: list[str]) -> None:
    with StepfastSaver(old.url) as saver:
        killed = graphs.three(done.append).compile(checkpointer=saver)
        assert killed.invoke(None, on("killed"))["log"] == ["tea", "first", "second", "third"]

    assert done == ["second", "third"]


def test_a_one_shot_call_in_doubt_is_asked_for(old: OldStore, done: list[str]) -> None:
    with StepfastSaver(old.url) as saver:
        calling = graphs.calling(done.append, calls.step, calls.once).compile(checkpointer=saver)
        [stop] = calling.invoke(None, on("calling"))["__interrupt__"]
        assert "charge" in str(stop.value)
        answer = {"outcome": "done", "value": "receipt 7"}
        assert calling.invoke(Command(resume={stop.id: answer}), on("calling"))["log"] == ["tea", "receipt 7"]
        tools = graphs.tools(done.append, durable_tool).compile(checkpointer=saver)
        [stop] = tools.invoke(None, on("tools"))["__interrupt__"]
        assert done == []
        ended = tools.invoke(Command(resume={stop.id: "retry"}), on("tools"))

    assert [message.content for message in ended["messages"]] == ["hello 0", "", "did a", "All done."]
    assert done == ["act a", "model at the end"]


def test_runs_go_on_where_they_stopped(old: OldStore, done: list[str]) -> None:
    runs = durable(graphs.three(done.append).compile(), store=old.url)
    for name in ("run-done", "run-killed", "run-akilled"):
        assert runs.run({"log": ["tea"]}, run_id=name) == {"log": ["tea", "first", "second", "third"]}

    assert done == ["second", "third"] * 2


async def test_a_run_goes_on_on_an_event_loop(old: OldStore, done: list[str]) -> None:
    runs = durable(graphs.three(done.append).compile(), store=old.url)

    assert await runs.arun({"log": ["tea"]}, run_id="run-killed") == {"log": ["tea", "first", "second", "third"]}
    assert done == ["second", "third"]


def test_runs_that_ask_are_answered(old: OldStore, done: list[str]) -> None:
    with Stepfast(old.url) as sf:
        asking = durable(graphs.asking(done.append).compile(), store=sf)
        answered = asking.run({"log": ["tea"]}, run_id="run-answered")
        assert answered["log"][-1] == "published: {'to': 'ada'}"
        with pytest.raises(Suspended):
            asking.run({"log": ["tea"]}, run_id="run-asking")
        sf.answer("run-asking", "approved", actor="maria")
        assert asking.run({"log": ["tea"]}, run_id="run-asking")["log"] == ["tea", "draft", "published: True"]

    assert done == ["publish", "publish"]


def test_a_run_with_a_one_shot_call_in_doubt_is_asked_about(old: OldStore, done: list[str]) -> None:
    with Stepfast(old.url) as sf:
        calling = durable(graphs.calling(done.append, calls.step, calls.once).compile(), store=sf)
        with pytest.raises(Suspended):
            calling.run({"log": ["tea"]}, run_id="run-calling")
        [decision] = sf.decisions("run-calling")
        sf.answer("run-calling", "done", decision["key"], value="receipt 7")
        assert calling.run({"log": ["tea"]}, run_id="run-calling") == {"log": ["tea", "receipt 7"]}

    assert done == []


def test_memory_is_searched_and_changed(old: OldStore) -> None:
    with StepfastStore(old.url, index={"embed": graphs.embed, "dims": 3, "fields": ["text"]}) as store:
        kept = store.get(("users", "ann"), "prefs")
        assert kept is not None
        assert kept.value == {"theme": "dark", "sizes": (38, 40), "order": shop.Order("1", 1)}
        assert store.get(("users", "bob"), "gone") is None
        best = store.search(("users",), query="bananas", limit=1)
        assert [item.value for item in best] == [{"text": "banana"}]
        store.put(("users", "ann"), "prefs", {"theme": "light"})
        changed = store.get(("users", "ann"), "prefs")
        assert changed is not None
        assert (changed.value, changed.created_at) == ({"theme": "light"}, kept.created_at)


def test_a_cached_node_is_not_run_again(old: OldStore, done: list[str]) -> None:
    with StepfastCache[Any](old.url) as cache:
        graph = graphs.cached(done.append).compile(cache=cache)
        assert graph.invoke({"log": ["tea"]}) == {"log": ["tea", "teatea"]}

    assert done == []

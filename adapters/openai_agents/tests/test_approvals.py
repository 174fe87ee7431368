"""Approvals are decisions of the run: they wait in the store, and are answered from anywhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import Agent, RunState, function_tool

from adapters.openai_agents.tests.kit import Scripted, answer_when_asked, call, in_turns, outputs, text
from stepfast import AsyncStepfast, Stepfast
from stepfast_openai_agents import DurableRunner, Suspended


def summing(items: list[Any]) -> list[Any]:
    return [text("Sum: " + ", ".join(outputs(items)))]


class Desk:
    def __init__(self, *calls: Any) -> None:
        self.done: list[str] = []

        @function_tool(needs_approval=True)
        async def delete(path: str) -> str:
            self.done.append(path)
            return f"deleted {path}"

        self.model = Scripted(in_turns(list(calls or [call("delete", path="a")]), summing))
        self.agent = Agent(name="desk", model=self.model, tools=[delete])


async def test_a_run_stops_for_an_approval_with_the_sdks_own_result(url: str) -> None:
    desk = Desk()
    result = await DurableRunner.run(desk.agent, "go", run_id="r", store=url)
    (item,) = result.interruptions
    assert item.agent is desk.agent
    assert result.final_output is None
    async with AsyncStepfast(url) as sf:
        assert (await sf.get_intent("r"))["status"] == "WAITING"
        (asked,) = await sf.decisions("r")
        assert asked["question"] == "May agent desk call delete?"
        assert asked["evidence"]["arguments"] == {"path": "a"}


@pytest.mark.parametrize(
    ("outcome", "comment", "said"), [("approved", None, "deleted a"), ("rejected", "not now", "not now")]
)
async def test_the_answer_comes_from_another_client(url: str, outcome: str, comment: str | None, said: str) -> None:
    desk = Desk()
    await DurableRunner.run(desk.agent, "go", run_id="r", store=url)
    with Stepfast(url) as sf:
        sf.answer("r", outcome, comment=comment, actor="maria")
    result = await DurableRunner.run(desk.agent, "go", run_id="r", store=url)
    assert result.final_output == f"Sum: {said}"
    assert desk.done == (["a"] if outcome == "approved" else [])
    assert desk.model.calls == 2


async def test_a_pause_ends_when_all_its_calls_are_answered(url: str) -> None:
    desk = Desk(call("delete", path="a"), call("delete", path="b"))
    await DurableRunner.run(desk.agent, "go", run_id="r", store=url)
    with Stepfast(url) as sf:
        first, second = sf.decisions("r")
        sf.answer("r", "approved", first["key"])
        result = await DurableRunner.run(desk.agent, "go", run_id="r", store=url)
        assert len(result.interruptions) == 2
        assert desk.done == []
        sf.answer("r", "rejected", second["key"], comment="no")
    result = await DurableRunner.run(desk.agent, "go", run_id="r", store=url)
    assert len(desk.done) == 1
    assert "no" in result.final_output
    assert desk.model.calls == 2


@pytest.mark.parametrize("on_wait", [None, "return"])
async def test_each_call_returns_the_same_interruptions_until_they_are_answered(url: str, on_wait: Any) -> None:
    desk = Desk(call("delete", path="a"), call("look"), call("delete", path="b"))
    looks: list[str] = []

    @function_tool
    async def look() -> str:
        looks.append("x")
        return "seen"

    desk.agent.tools.append(look)
    options: dict[str, Any] = {"run_id": "r", "store": url, "on_wait": on_wait}
    async with AsyncStepfast(url) as sf:
        results = [await DurableRunner.run(desk.agent, "go", **options) for _ in range(3)]
        seen, asked = await sf.events("r"), await sf.decisions("r")
        assert len(asked) == 2
        for result in results:
            assert [item.raw_item.call_id for item in result.interruptions] == [d["evidence"]["call_id"] for d in asked]
            assert all(item.agent is desk.agent for item in result.interruptions)
            assert [type(item).__name__ for item in result.new_items] == [
                type(item).__name__ for item in results[0].new_items
            ]
        assert (await sf.events("r"), desk.model.calls, looks, desk.done) == (seen, 1, ["x"], [])
        assert [e["event_type"] for e in seen].count("intent.waiting") == 1
    # The result of any of them is good to go on from, in the SDK's own way.
    state: Any = results[-1].to_state()
    for item in state.get_interruptions():
        state.approve(item)
    done = await DurableRunner.run(desk.agent, state, **options)
    assert done.final_output.startswith("Sum: ")
    assert sorted(desk.done) == ["a", "b"]
    assert (desk.model.calls, looks) == (2, ["x"])


async def test_a_web_handler_sees_that_a_run_waits(url: str) -> None:
    desk = Desk()

    async def handle() -> str:
        try:
            result = await DurableRunner.run(desk.agent, "go", run_id="r", store=url, on_wait="suspend")
        except Exception as error:
            return type(error).__name__
        return str(result.final_output)

    assert [await handle() for _ in range(2)] == ["Suspended", "Suspended"]
    with Stepfast(url) as sf:
        sf.answer("r", "approved")
    assert await handle() == "Sum: deleted a"


@pytest.mark.parametrize("stored", [False, True])
async def test_users_of_run_state_keep_their_way(url: str, stored: bool) -> None:
    desk = Desk()
    result = await DurableRunner.run(desk.agent, "go", run_id="r", store=url)
    state: Any = result.to_state()
    if stored:
        state = await RunState.from_string(desk.agent, state.to_string())
    state.approve(state.get_interruptions()[0])
    done = await DurableRunner.run(desk.agent, state, run_id="r", store=url)
    assert done.final_output == "Sum: deleted a"
    assert desk.done == ["a"]
    again = await DurableRunner.run(desk.agent, "go", run_id="r", store=url)
    assert again.final_output == "Sum: deleted a"
    assert desk.done == ["a"]


async def test_a_rejection_in_a_run_state_keeps_its_words(url: str) -> None:
    desk = Desk()
    result = await DurableRunner.run(desk.agent, "go", run_id="r", store=url)
    state = result.to_state()
    state.reject(result.interruptions[0], rejection_message="never")
    done = await DurableRunner.run(desk.agent, state, run_id="r", store=url)
    assert done.final_output == "Sum: never"


async def test_approvals_inside_an_agent_as_a_tool(url: str) -> None:
    desk = Desk()
    outer_model = Scripted(in_turns([call("ask_desk", input="go")], summing))
    outer = Agent(name="outer", model=outer_model, tools=[desk.agent.as_tool("ask_desk", "Ask")])
    result = await DurableRunner.run(outer, "go", run_id="r", store=url)
    assert len(result.interruptions) == 1
    with Stepfast(url) as sf:
        sf.answer("r", "approved")
    result = await DurableRunner.run(outer, "go", run_id="r", store=url)
    assert result.final_output == "Sum: Sum: deleted a"
    assert (outer_model.calls, desk.model.calls, desk.done) == (2, 2, ["a"])


async def test_where_it_is_wanted_the_run_suspends(url: str) -> None:
    desk = Desk()
    with pytest.raises(Suspended):
        await DurableRunner.run(desk.agent, "go", run_id="r", store=url, on_wait="suspend")


async def test_where_it_is_wanted_the_run_waits_in_its_process(url: str) -> None:
    desk = Desk()

    answering = asyncio.create_task(answer_when_asked(url, "r", "approved"))
    result = await DurableRunner.run(desk.agent, "go", run_id="r", store=url, on_wait="block")
    await answering
    assert result.final_output == "Sum: deleted a"


async def test_an_approval_that_stands_for_later_calls_is_not_asked_again(url: str) -> None:
    desk = Desk()
    desk.model.script = in_turns([call("delete", path="a")], [call("delete", path="b")], summing)
    await DurableRunner.run(desk.agent, "go", run_id="r", store=url)
    with Stepfast(url) as sf:
        sf.answer("r", "approved", value={"always": True})
    result = await DurableRunner.run(desk.agent, "go", run_id="r", store=url)
    assert result.final_output == "Sum: deleted a, deleted b"

"""Streamed runs: finished turns come again as events or are left out, and the rest comes live."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, MaxTurnsExceeded, Runner, RunResultStreaming, function_tool

from adapters.openai_agents.tests.kit import Scripted, call, in_turns, outputs, text
from stepfast import AsyncStepfast, Stepfast, Suspended
from stepfast_openai_agents import DurableRunner, once, replayed


class Boom(Exception):
    """What a user's code raises."""


def summing(items: list[Any]) -> list[Any]:
    return [text("The sum is " + ", ".join(outputs(items)))]


@function_tool
def add(a: int, b: int) -> int:
    return a + b


def calculator(model: Scripted | None = None) -> Agent[Any]:
    answers = in_turns([call("add", a=1, b=2)], summing)
    return Agent(name="calculator", instructions="Add.", model=model or Scripted(answers), tools=[add])


async def events_of(streamed: RunResultStreaming) -> list[Any]:
    return [event async for event in streamed.stream_events()]


def kinds(events: list[Any]) -> list[str]:
    return [getattr(e, "name", e.type) for e in events if e.type != "raw_response_event"]


def words(events: list[Any]) -> str:
    raw = [e.data for e in events if e.type == "raw_response_event"]
    return " ".join(data.delta for data in raw if data.type == "response.output_text.delta")


async def test_a_stream_gives_the_events_and_the_result_of_the_bare_sdk(url: str) -> None:
    bare = Runner.run_streamed(calculator(), "add")
    expected = await events_of(bare)
    agent = calculator()
    streamed = DurableRunner.run_streamed(agent, "add", run_id="r", store=url)
    assert isinstance(streamed, RunResultStreaming)
    assert not streamed.is_complete
    events = await events_of(streamed)
    assert [e.type for e in events] == [e.type for e in expected]
    assert words(events) == words(expected) == "The sum is 3"
    assert streamed.final_output == bare.final_output
    assert streamed.is_complete
    assert streamed.last_agent is agent
    assert streamed.context_wrapper.usage == bare.context_wrapper.usage
    assert len(streamed.to_input_list()) == len(bare.to_input_list())
    assert not any(replayed(e) for e in events)


@pytest.mark.parametrize("before", ["run", "run_streamed"])
async def test_a_finished_run_is_told_again_as_events(url: str, before: str) -> None:
    model = Scripted(in_turns([call("add", a=1, b=2)], summing))
    if before == "run":
        await DurableRunner.run(calculator(model), "add", run_id="r", store=url)
    else:
        await events_of(DurableRunner.run_streamed(calculator(model), "add", run_id="r", store=url))
    streamed = DurableRunner.run_streamed(calculator(model), "add", run_id="r", store=url)
    events = await events_of(streamed)
    assert model.calls == 2
    assert words(events) == "The sum is 3"
    assert kinds(events) == ["agent_updated_stream_event", "tool_called", "tool_output", "message_output_created"]
    assert all(replayed(e) for e in events)
    assert streamed.final_output == "The sum is 3"


async def test_a_streamed_run_may_end_without_streaming(url: str) -> None:
    model = Scripted(in_turns([call("add", a=1, b=2)], summing))
    first = DurableRunner.run_streamed(calculator(model), "add", run_id="r", store=url)
    await events_of(first)
    again = await DurableRunner.run(calculator(model), "add", run_id="r", store=url)
    assert again.final_output == "The sum is 3"
    assert again.context_wrapper.usage == first.context_wrapper.usage
    assert model.calls == 2


class Halves:
    """A run that stops after its first turn, once."""

    def __init__(self) -> None:
        self.broken = True

        @function_tool(failure_error_function=None)
        def pay() -> str:
            if self.broken:
                raise Boom
            return "paid"

        self.model = Scripted(in_turns([call("add", a=1, b=2)], [call("pay")], summing))
        self.agent = Agent(name="a", model=self.model, tools=[add, pay])


@pytest.mark.parametrize("replay", [True, False])
async def test_a_resumed_stream_tells_finished_turns_or_leaves_them_out(url: str, replay: bool) -> None:
    halves = Halves()
    with pytest.raises(Exception, match=r"Boom|running tool"):
        await events_of(DurableRunner.run_streamed(halves.agent, "go", run_id="r", store=url))
    halves.broken = False
    streamed = DurableRunner.run_streamed(halves.agent, "go", run_id="r", store=url, replay_events=replay)
    events = await events_of(streamed)
    assert halves.model.calls == 3
    assert streamed.final_output == "The sum is 3, paid"
    items = [(e.name, replayed(e)) for e in events if e.type == "run_item_stream_event"]
    live = [("tool_output", False), ("message_output_created", False)]
    old = [("tool_called", True), ("tool_output", True), ("tool_called", True)]
    if replay:
        assert [i for i in items if i[0] != "tool_output"] == [old[0], old[2], live[1]]
        assert [i[1] for i in items].count(True) >= 3
    else:
        assert not any(i[1] for i in items)
        assert live[1] in items
    raw = [replayed(e) for e in events if e.type == "raw_response_event"]
    assert (True in raw) is replay


async def test_an_answer_is_recorded_before_its_last_event_is_handed_out(url: str) -> None:
    streamed = DurableRunner.run_streamed(calculator(), "add", run_id="r", store=url)
    seen = 0
    async with AsyncStepfast(url) as sf:
        async for event in streamed.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.completed":
                seen += 1
                models = [s for s in await sf.steps("r") if s["kind"] == "model"]
                assert len(models) >= seen
    assert seen == 2


async def test_an_error_comes_out_of_the_stream_as_in_the_bare_sdk(url: str) -> None:
    streamed = DurableRunner.run_streamed(calculator(), "add", run_id="r", store=url, max_turns=1)
    with pytest.raises(MaxTurnsExceeded):
        await events_of(streamed)
    done = DurableRunner.run_streamed(calculator(), "add", run_id="r", store=url)
    await events_of(done)
    assert done.final_output == "The sum is 3"


async def test_a_stream_stops_for_an_approval_and_goes_on_after_it(url: str) -> None:
    done: list[str] = []

    @function_tool(needs_approval=True)
    async def delete() -> str:
        done.append("deleted")
        return "deleted"

    model = Scripted(in_turns([call("delete")], summing))
    agent = Agent(name="a", model=model, tools=[delete])
    for _ in range(2):
        streamed = DurableRunner.run_streamed(agent, "go", run_id="r", store=url)
        await events_of(streamed)
        assert len(streamed.interruptions) == 1
    with Stepfast(url) as sf:
        sf.answer("r", "approved")
    streamed = DurableRunner.run_streamed(agent, "go", run_id="r", store=url)
    events = await events_of(streamed)
    assert streamed.final_output == "The sum is deleted"
    assert (done, model.calls) == (["deleted"], 2)
    assert kinds(events).count("tool_output") == 1


async def test_a_stream_with_a_one_shot_in_doubt_suspends(url: str) -> None:
    @once
    @function_tool
    async def charge() -> str:
        raise Boom

    agent = Agent(name="a", model=Scripted(in_turns([call("charge")], summing)), tools=[charge])
    with pytest.raises(Suspended):
        await events_of(DurableRunner.run_streamed(agent, "go", run_id="r", store=url))
    with Stepfast(url) as sf:
        sf.answer("r", "done", value="charged")
    streamed = DurableRunner.run_streamed(agent, "go", run_id="r", store=url)
    await events_of(streamed)
    assert streamed.final_output == "The sum is charged"


async def test_a_cancelled_stream_leaves_the_run_to_go_on_later(url: str) -> None:
    model = Scripted(in_turns([call("add", a=1, b=2)], summing))
    streamed = DurableRunner.run_streamed(calculator(model), "add", run_id="r", store=url)
    async for event in streamed.stream_events():
        if event.type == "run_item_stream_event":
            streamed.cancel()
    with Stepfast(url) as sf:
        assert sf.get_intent("r")["status"] == "IN_PROGRESS"
    again = DurableRunner.run_streamed(calculator(model), "add", run_id="r", store=url)
    await events_of(again)
    assert again.final_output == "The sum is 3"
    assert model.calls <= 3

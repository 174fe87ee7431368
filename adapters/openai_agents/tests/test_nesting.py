"""Runs inside runs, runs side by side, and conversations that a provider keeps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import Agent, MaxTurnsExceeded, Runner, function_tool

from adapters.openai_agents.tests.kit import Scripted, call, in_turns, outputs, text
from stepfast import AsyncStepfast, RunBusy
from stepfast_openai_agents import DurableRunner, composite


class Boom(Exception):
    """What a user's code raises."""


def summing(items: list[Any]) -> list[Any]:
    return [text("Sum: " + ", ".join(outputs(items)))]


@function_tool
async def add(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


def inner_agent(model: Scripted) -> Agent[Any]:
    return Agent(name="inner", instructions="I", model=model, tools=[add])


async def test_runs_side_by_side_with_the_same_agents_do_not_meet(url: str) -> None:
    model = Scripted(in_turns([call("add", a=1, b=2), call("add", a=3, b=4)], summing))
    agent = inner_agent(model)
    names = [f"r{n}" for n in range(8)]
    for _ in range(2):
        results = await asyncio.gather(*(DurableRunner.run(agent, n, run_id=n, store=url) for n in names))
        assert {r.final_output for r in results} == {"Sum: 3, 7"}
        assert [r.input for r in results] == names
    assert model.calls == 16


async def test_a_run_that_is_at_work_is_not_started_a_second_time(url: str) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    @function_tool
    async def wait() -> str:
        entered.set()
        await leave.wait()
        return "ok"

    agent = Agent(name="a", model=Scripted(in_turns([call("wait")], summing)), tools=[wait])
    first = asyncio.create_task(DurableRunner.run(agent, "go", run_id="r", store=url))
    await entered.wait()
    with pytest.raises(RunBusy):
        await DurableRunner.run(agent, "go", run_id="r", store=url)
    leave.set()
    assert (await first).final_output == "Sum: ok"


async def test_a_plain_function_that_runs_an_agent_in_its_thread(url: str) -> None:
    inner_model = Scripted(in_turns([call("add", a=1, b=2)], summing))
    inner = inner_agent(inner_model)
    broken = True

    @composite
    @function_tool(failure_error_function=None)
    def ask() -> str:
        loop = asyncio.new_event_loop()  # the SDK leaves the one it runs on open
        asyncio.set_event_loop(loop)
        try:
            answer = Runner.run_sync(inner, "go")
        finally:
            asyncio.set_event_loop(None)
            loop.close()
        if broken:
            raise Boom
        return str(answer.final_output)

    outer = Agent(name="outer", model=Scripted(in_turns([call("ask")], summing)), tools=[ask])
    with pytest.raises(Exception, match=r"Boom|running tool"):
        await DurableRunner.run(outer, "go", run_id="r", store=url)
    broken = False
    assert (await DurableRunner.run(outer, "go", run_id="r", store=url)).final_output == "Sum: Sum: 3"
    assert inner_model.calls == 2


async def test_a_tool_that_is_a_step_keeps_what_is_finished_inside_it(url: str) -> None:
    inner_model = Scripted(in_turns([call("add", a=1, b=2)], summing))
    inner = inner_agent(inner_model)
    tries: list[int] = []

    @function_tool(failure_error_function=None)
    async def ask() -> str:
        answer = await Runner.run(inner, "go")
        tries.append(1)
        if len(tries) == 1:
            raise Boom
        return str(answer.final_output)

    outer = Agent(name="outer", model=Scripted(in_turns([call("ask")], summing)), tools=[ask])
    with pytest.raises(Exception, match=r"Boom|running tool"):
        await DurableRunner.run(outer, "go", run_id="r", store=url)
    assert (await DurableRunner.run(outer, "go", run_id="r", store=url)).final_output == "Sum: Sum: 3"
    assert inner_model.calls == 2


async def test_agents_as_tools_side_by_side_and_the_same_one_twice(url: str) -> None:
    models = [Scripted(in_turns([call("add", a=n, b=0)], summing)) for n in range(2)]
    tools = [
        Agent(name=f"inner {n}", instructions="I", model=models[n], tools=[add]).as_tool(f"ask_{n}", "Ask")
        for n in range(2)
    ]
    calls = [call("ask_0", input="x"), call("ask_1", input="x"), call("ask_0", input="x")]
    outer_model = Scripted(in_turns(calls, summing))
    outer = Agent(name="outer", model=outer_model, tools=list(tools))
    for _ in range(2):
        result = await DurableRunner.run(outer, "go", run_id="r", store=url)
        assert result.final_output == "Sum: Sum: 0, Sum: 1, Sum: 0"
    assert (outer_model.calls, models[0].calls, models[1].calls) == (2, 4, 2)


async def test_an_agent_as_a_tool_may_stream(url: str) -> None:
    inner_model = Scripted(in_turns([call("add", a=1, b=2)], summing))
    seen: list[str] = []

    async def on_stream(event: Any) -> None:
        seen.append(event["event"].type)

    tool = inner_agent(inner_model).as_tool("ask", "Ask", on_stream=on_stream)
    outer = Agent(name="outer", model=Scripted(in_turns([call("ask", input="go")], summing)), tools=[tool])
    for _ in range(2):
        assert (await DurableRunner.run(outer, "go", run_id="r", store=url)).final_output == "Sum: Sum: 3"
    assert inner_model.calls == 2
    assert "run_item_stream_event" in seen


async def test_a_conversation_that_the_provider_keeps_is_taken_up_where_it_was(url: str) -> None:
    chained: list[Any] = []

    class Chained(Scripted):
        failed = False

        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            if self.calls == 1 and not self.failed:
                self.failed = True
                raise Boom
            chained.append((kwargs["previous_response_id"], len(args[1]) if args else len(kwargs["input"])))
            return await super().get_response(*args, **kwargs)

    model = Chained(lambda items, _: [text("done")] if outputs(items) else [call("add", a=1, b=2)])
    agent = inner_agent(model)
    with pytest.raises(Boom):
        await DurableRunner.run(agent, "go", run_id="r", store=url, auto_previous_response_id=True)
    result = await DurableRunner.run(agent, "go", run_id="r", store=url, auto_previous_response_id=True)
    assert result.final_output == "done"
    assert chained[0][0] is None
    assert chained[1] == (result.raw_responses[0].response_id, 1)


async def test_handlers_of_errors_are_the_sdks_own(url: str) -> None:
    model = Scripted(in_turns(*[[call("add", a=n, b=0)] for n in range(5)]))
    handlers: Any = {"max_turns": lambda data: "that is enough"}
    for _ in range(2):
        result = await DurableRunner.run(
            inner_agent(model), "go", run_id="r", store=url, max_turns=2, error_handlers=handlers
        )
        assert result.final_output == "that is enough"
    assert model.calls == 2
    with pytest.raises(MaxTurnsExceeded):
        await DurableRunner.run(inner_agent(model), "go", run_id="other", store=url, max_turns=2)


async def test_a_run_of_many_turns_is_read_at_once_and_makes_no_call(url: str) -> None:
    turns = 60
    model = Scripted(in_turns(*[[call("add", a=n, b=0)] for n in range(turns)], summing))
    agent = inner_agent(model)
    await DurableRunner.run(agent, "go", run_id="r", store=url, max_turns=turns + 5)
    async with AsyncStepfast(url) as sf:
        batches: list[int] = []
        submit = sf.store.submit

        def counted(ops: Any, *args: Any, **kwargs: Any) -> Any:
            batches.append(len(ops))
            return submit(ops, *args, **kwargs)

        sf.store.submit = counted  # type: ignore[method-assign]
        result = await DurableRunner.run(agent, "go", run_id="r", store=sf, max_turns=turns + 5)
    assert len(result.raw_responses) == turns + 1
    assert model.calls == turns + 1
    assert len(batches) <= 3

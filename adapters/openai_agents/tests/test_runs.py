"""Runs with the SDK's own results: what is the same as with the bare Runner, and what comes back after a stop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelResponse,
    OutputGuardrail,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    RunResult,
    function_tool,
    handoff,
)
from agents.models.interface import ModelProvider
from pydantic import BaseModel

from adapters.openai_agents.tests.kit import Scripted, call, in_turns, outputs, text
from stepfast import AsyncStepfast, Conflict, InvalidInput, Stepfast
from stepfast_openai_agents import DurableRunner, composite, idempotency_key


class Boom(Exception):
    """What a user's code raises."""


def summing(items: list[Any]) -> list[Any]:
    return [text("Sum: " + ", ".join(outputs(items)))]


@function_tool
def add(a: int, b: int) -> int:
    return a + b


def calculator(model: Scripted | None = None, **options: Any) -> Agent[Any]:
    answers = in_turns([call("add", a=1, b=2), call("add", a=3, b=4)], summing)
    return Agent(name="calculator", instructions="Add.", model=model or Scripted(answers), tools=[add], **options)


async def test_a_durable_run_gives_what_the_bare_runner_gives(url: str) -> None:
    bare = await Runner.run(calculator(), "add")
    agent = calculator()
    durable = await DurableRunner.run(agent, "add", run_id="r", store=url)
    assert type(durable) is RunResult
    assert durable.final_output == bare.final_output == "Sum: 3, 7"
    assert [type(item) for item in durable.new_items] == [type(item) for item in bare.new_items]
    assert [i.get("type") for i in durable.to_input_list()] == [i.get("type") for i in bare.to_input_list()]
    assert durable.context_wrapper.usage == bare.context_wrapper.usage
    assert durable.last_agent is agent
    assert all(item.agent is agent for item in durable.new_items)


async def test_a_finished_run_gives_its_result_again_without_a_call(url: str) -> None:
    model = Scripted(in_turns([call("add", a=1, b=2)], summing))
    first = await DurableRunner.run(calculator(model), "add", run_id="r", store=url)
    again = await DurableRunner.run(calculator(model), "add", run_id="r", store=url)
    assert again.final_output == first.final_output
    assert again.to_input_list() == first.to_input_list()
    assert again.context_wrapper.usage == first.context_wrapper.usage
    assert model.calls == 2


def test_run_sync_does_the_same(url: str) -> None:
    model = Scripted(in_turns([call("add", a=1, b=2)], summing))
    loop = asyncio.new_event_loop()  # the SDK leaves the one it runs on open
    asyncio.set_event_loop(loop)
    try:
        for _ in range(2):
            assert DurableRunner.run_sync(calculator(model), "add", run_id="r", store=url).final_output == "Sum: 3"
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    assert model.calls == 2


async def test_the_users_agent_is_not_touched(url: str) -> None:
    agent = calculator()
    before = dict(agent.__dict__)
    await DurableRunner.run(agent, "add", run_id="r", store=url)
    assert agent.__dict__ == before
    assert type(agent) is Agent


async def test_another_input_under_the_same_name_is_refused(url: str) -> None:
    await DurableRunner.run(calculator(), "add", run_id="r", store=url)
    with pytest.raises(Conflict):
        await DurableRunner.run(calculator(), "subtract", run_id="r", store=url)


async def test_a_run_without_a_name_is_refused_before_anything_happens(url: str) -> None:
    model = Scripted(in_turns([text("hello")]))
    with pytest.raises(InvalidInput, match="run_id"):
        await DurableRunner.run(calculator(model), "add", store=url)
    assert model.calls == 0


async def test_a_run_that_failed_goes_on_at_its_first_unfinished_step(url: str) -> None:
    broken = True
    done: list[str] = []

    @function_tool(failure_error_function=None)
    def first() -> str:
        done.append("first")
        return "1"

    @function_tool(failure_error_function=None)
    def second() -> str:
        if broken:
            raise Boom
        done.append("second")
        return "2"

    model = Scripted(in_turns([call("first")], [call("second")], summing))
    agent = Agent(name="a", model=model, tools=[first, second])
    with pytest.raises(Exception, match=r"Boom|running tool"):
        await DurableRunner.run(agent, "go", run_id="r", store=url)
    assert model.calls == 2
    broken = False
    result = await DurableRunner.run(agent, "go", run_id="r", store=url)
    assert result.final_output == "Sum: 1, 2"
    assert (done, model.calls) == (["first", "second"], 3)


async def test_a_run_goes_on_without_its_input_being_told_again(url: str) -> None:
    class Cut(Scripted):
        cut = True

        async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
            if self.cut and self.calls == 1:
                raise Boom
            return await super().get_response(*args, **kwargs)

    model = Cut(in_turns([call("add", a=1, b=2)], summing))
    with pytest.raises(Boom):
        await DurableRunner.run(calculator(model), "add", run_id="r", store=url)
    model.cut = False
    assert (await DurableRunner.run(calculator(model), run_id="r", store=url)).final_output == "Sum: 3"
    assert model.calls == 2


async def test_a_failed_model_call_records_nothing(url: str) -> None:
    class Failing(Scripted):
        async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
            raise Boom

    with pytest.raises(Boom):
        await DurableRunner.run(calculator(Failing(in_turns())), "add", run_id="r", store=url)
    async with AsyncStepfast(url) as sf:
        assert await sf.steps("r") == []


async def test_models_by_name_come_from_the_users_provider(url: str) -> None:
    model = Scripted(in_turns([call("add", a=1, b=2)], summing))

    class Provider(ModelProvider):
        def get_model(self, model_name: str | None) -> Scripted:
            assert model_name == "mine"
            return model

    agent = Agent(name="a", model="mine", tools=[add])
    for _ in range(2):
        config = RunConfig(model_provider=Provider())
        result = await DurableRunner.run(agent, "add", run_id="r", store=url, run_config=config)
        assert result.final_output == "Sum: 3"
    assert model.calls == 2


async def test_handoffs_in_a_circle_end(url: str) -> None:
    def here_or_there(items: list[Any], instructions: str | None) -> list[Any]:
        met = len(outputs(items))
        return [text("done")] if met == 3 else [call("transfer_to_b" if instructions == "A" else "transfer_to_a")]

    model = Scripted(here_or_there)
    a: Agent[Any] = Agent(name="a", instructions="A", model=model)
    b: Agent[Any] = Agent(name="b", instructions="B", model=model, handoffs=[a])
    seen: list[str] = []

    async def on_handoff(ctx: RunContextWrapper[Any]) -> None:
        seen.append("handed")

    a.handoffs = [handoff(b, on_handoff=on_handoff)]
    for _ in range(2):
        result = await DurableRunner.run(a, "go", run_id="r", store=url)
        assert result.final_output == "done"
        assert result.last_agent is b
    assert (model.calls, seen) == (4, ["handed", "handed"])


async def test_an_agent_as_a_tool_is_entered_again_and_its_usage_counts(url: str) -> None:
    inner_model = Scripted(in_turns([call("add", a=1, b=2)], summing))
    inner = Agent(name="inner", instructions="I", model=inner_model, tools=[add])
    outer_model = Scripted(in_turns([call("ask", input="one and two")], summing))
    outer = Agent(name="outer", instructions="O", model=outer_model, tools=[inner.as_tool("ask", "Ask")])
    first = await DurableRunner.run(outer, "go", run_id="r", store=url)
    again = await DurableRunner.run(outer, "go", run_id="r", store=url)
    assert first.final_output == again.final_output == "Sum: Sum: 3"
    assert first.context_wrapper.usage.total_tokens == again.context_wrapper.usage.total_tokens == 60
    assert (outer_model.calls, inner_model.calls) == (2, 2)


async def test_a_tool_of_ones_own_that_runs_agents_is_entered_again(url: str) -> None:
    inner_model = Scripted(in_turns([text("inside")]))
    inner = Agent(name="inner", model=inner_model)
    broken = True

    @composite
    @function_tool(failure_error_function=None)
    async def ask() -> str:
        answer = await Runner.run(inner, "hello")
        if broken:
            raise Boom
        return str(answer.final_output)

    outer = Agent(name="outer", model=Scripted(in_turns([call("ask")], summing)), tools=[ask])
    with pytest.raises(Exception, match=r"Boom|running tool"):
        await DurableRunner.run(outer, "go", run_id="r", store=url)
    broken = False
    assert (await DurableRunner.run(outer, "go", run_id="r", store=url)).final_output == "Sum: inside"
    assert inner_model.calls == 1


async def test_structured_outputs_come_back_as_their_type(url: str) -> None:
    class Weather(BaseModel):
        city: str
        degrees: int

    agent = Agent(name="a", model=Scripted(in_turns([text('{"city": "Oslo", "degrees": 3}')])), output_type=Weather)
    for _ in range(2):
        result = await DurableRunner.run(agent, "weather", run_id="r", store=url)
        assert result.final_output == Weather(city="Oslo", degrees=3)
    with Stepfast(url) as sf:
        assert sf.get_intent("r")["result"]["final_output"] == {"city": "Oslo", "degrees": 3}


async def test_a_tools_output_keeps_its_type(url: str) -> None:
    @function_tool
    def locate() -> list[int]:
        return [1, 2]

    agent = Agent(name="a", model=Scripted(in_turns([call("locate")])), tools=[locate], output_type=list[int])
    agent.tool_use_behavior = "stop_on_first_tool"
    for _ in range(2):
        assert (await DurableRunner.run(agent, "go", run_id="r", store=url)).final_output == [1, 2]


@dataclass
class Basket:
    items: list[str] = field(default_factory=list)
    owner: str = ""
    connection: Any = None


async def test_what_tools_changed_in_the_context_is_put_back(url: str) -> None:
    seen: list[list[str]] = []
    broken = True

    @function_tool
    def put(ctx: RunContextWrapper[Basket], item: str) -> str:
        ctx.context.items.append(item)
        return "ok"

    @function_tool(failure_error_function=None)
    def pay(ctx: RunContextWrapper[Basket]) -> str:
        seen.append(list(ctx.context.items))
        if broken:
            raise Boom
        return "paid"

    model = Scripted(in_turns([call("put", item="lamp"), call("put", item="desk")], [call("pay")], summing))
    agent = Agent[Basket](name="a", model=model, tools=[put, pay])
    with pytest.raises(Exception, match=r"Boom|running tool"):
        await DurableRunner.run(agent, "go", run_id="r", store=url, context=Basket(connection=object()))
    broken = False
    basket = Basket(connection=object())
    await DurableRunner.run(agent, "go", run_id="r", store=url, context=basket)
    assert seen == [["lamp", "desk"], ["lamp", "desk"]]
    assert basket.items == ["lamp", "desk"]


class Told(RunHooks[Any]):
    def __init__(self) -> None:
        self.told: list[str] = []

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        self.told.append("start")

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
        self.told.append("llm")

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        self.told.append("answered")

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        self.told.append(f"tool {tool.name}")

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        self.told.append(f"ended {tool.name}")

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        self.told.append("end")


async def test_hooks_tell_of_each_step_once_over_all_attempts(url: str) -> None:
    broken = True

    @function_tool(failure_error_function=None)
    def pay() -> str:
        if broken:
            raise Boom
        return "paid"

    model = Scripted(in_turns([call("add", a=1, b=2)], [call("pay")], summing))
    agent = Agent(name="a", model=model, tools=[add, pay])
    hooks = Told()
    with pytest.raises(Exception, match=r"Boom|running tool"):
        await DurableRunner.run(agent, "go", run_id="r", store=url, hooks=hooks)
    first = ["start", "llm", "answered", "tool add", "ended add", "llm", "answered", "tool pay"]
    assert hooks.told == first
    broken = False
    for _ in range(2):
        await DurableRunner.run(agent, "go", run_id="r", store=url, hooks=hooks)
        assert hooks.told == [*first, "tool pay", "ended pay", "llm", "answered", "end"]


async def test_hooks_tell_of_replayed_steps_too_where_that_is_wanted(url: str) -> None:
    for _ in range(2):
        hooks = Told()
        await DurableRunner.run(calculator(), "add", run_id="r", store=url, hooks=hooks, replay_hooks=True)
        assert hooks.told.count("answered") == 2


async def test_parallel_tools_run_side_by_side(url: str) -> None:
    meeting = asyncio.Barrier(2)

    @function_tool
    async def meet(who: str) -> str:
        await asyncio.wait_for(meeting.wait(), 10)
        return who

    model = Scripted(in_turns([call("meet", who="x"), call("meet", who="y")], summing))
    agent = Agent(name="a", model=model, tools=[meet])
    assert (await DurableRunner.run(agent, "go", run_id="r", store=url)).final_output == "Sum: x, y"


async def test_a_tools_error_is_shown_to_the_model_and_recorded(url: str) -> None:
    tries: list[int] = []

    @function_tool
    def fragile() -> str:
        tries.append(1)
        raise Boom

    model = Scripted(in_turns([call("fragile")], summing))
    agent = Agent(name="a", model=model, tools=[fragile])
    first = await DurableRunner.run(agent, "go", run_id="r", store=url)
    again = await DurableRunner.run(agent, "go", run_id="r", store=url)
    assert "error occurred" in first.final_output
    assert again.final_output == first.final_output
    assert len(tries) == 1


async def test_the_idempotency_key_is_the_same_on_every_attempt(url: str) -> None:
    keys: list[str] = []

    @function_tool(failure_error_function=None)
    async def post() -> str:
        keys.append(idempotency_key())
        if len(keys) == 1:
            raise Boom
        return "posted"

    agent = Agent(name="a", model=Scripted(in_turns([call("post")], summing)), tools=[post])
    with pytest.raises(Exception, match=r"Boom|running tool"):
        await DurableRunner.run(agent, "go", run_id="r", store=url)
    await DurableRunner.run(agent, "go", run_id="r", store=url)
    assert len(keys) == 2
    assert keys[0] == keys[1]


# --- guardrails, limits -------------------------------------------------------------------------


async def test_an_input_guardrail_trips_as_in_the_bare_sdk_and_again_on_resume(url: str) -> None:
    async def check(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    agent = calculator(input_guardrails=[InputGuardrail(guardrail_function=check)])
    for _ in range(2):
        with pytest.raises(InputGuardrailTripwireTriggered):
            await DurableRunner.run(agent, "add", run_id="r", store=url)


async def test_an_output_guardrail_trips_on_the_recorded_answer_without_a_new_call(url: str) -> None:
    strict = True

    async def check(ctx: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=strict)

    model = Scripted(in_turns([call("add", a=1, b=2)], summing))
    agent = calculator(model, output_guardrails=[OutputGuardrail(guardrail_function=check)])
    for _ in range(2):
        with pytest.raises(OutputGuardrailTripwireTriggered):
            await DurableRunner.run(agent, "add", run_id="r", store=url)
    strict = False
    assert (await DurableRunner.run(agent, "add", run_id="r", store=url)).final_output == "Sum: 3"
    assert model.calls == 2


async def test_too_many_turns_end_the_run_and_a_higher_limit_lets_it_go_on(url: str) -> None:
    model = Scripted(in_turns(*[[call("add", a=n, b=0)] for n in range(3)], summing))
    agent = calculator(model)
    for _ in range(2):
        with pytest.raises(MaxTurnsExceeded):
            await DurableRunner.run(agent, "add", run_id="r", store=url, max_turns=2)
    assert model.calls == 2
    result = await DurableRunner.run(agent, "add", run_id="r", store=url, max_turns=10)
    assert result.final_output == "Sum: 0, 1, 2"
    assert model.calls == 4

"""What a replayed turn would ask is compared with what was asked; and a poisoned step can be rewound."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    ModelSettings,
    OutputGuardrail,
    OutputGuardrailTripwireTriggered,
    function_tool,
)

from adapters.openai_agents.tests.kit import Scripted, call, in_turns, outputs, text
from stepfast import AsyncStepfast, Diverged, InvalidInput, RunFinished
from stepfast_openai_agents import DurableRunner, StepfastSession, once


class Boom(Exception):
    """What a user's code raises."""


def summing(items: list[Any]) -> list[Any]:
    return [text("Sum: " + ", ".join(outputs(items)))]


@function_tool
def add(a: int, b: int) -> int:
    return a + b


@function_tool
def subtract(a: int, b: int) -> int:
    return a - b


class Story:
    """A run whose second model call fails, so that there is something to go on from."""

    def __init__(self) -> None:
        story = self
        self.broken = True

        class Failing(Scripted):
            async def get_response(self, *args: Any, **kwargs: Any) -> Any:
                if story.broken and self.calls == 1:
                    raise Boom
                return await super().get_response(*args, **kwargs)

        self.model = Failing(in_turns([call("add", a=1, b=2)], summing))

    def agent(self, **changes: Any) -> Agent[Any]:
        given: dict[str, Any] = {"name": "a", "instructions": "Add.", "model": self.model, "tools": [add], **changes}
        return Agent(**given)

    async def run(self, url: str, agent: Agent[Any], **options: Any) -> Any:
        return await DurableRunner.run(agent, "go", run_id="r", store=url, **options)

    async def first(self, url: str) -> None:
        with pytest.raises(Boom):
            await self.run(url, self.agent())
        self.broken = False


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "instructions": ({"instructions": "Add well."}, "instructions: 'Add.' → 'Add well.'"),
    "a tool more": ({"tools": [add, subtract]}, "tools: subtract is new"),
    "a tool less": ({"tools": []}, "tools: add is gone"),
    "settings": ({"model_settings": ModelSettings(temperature=0.5)}, "settings: temperature is new"),
    "model": ({"model": Scripted(in_turns([text("no")]), model="other")}, "model: 'scripted' → 'other'"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_changed_request_is_shown_and_refused(url: str, change: str) -> None:
    story = Story()
    await story.first(url)
    changes, told = CHANGES[change]
    with pytest.raises(Diverged) as diverged:
        await story.run(url, story.agent(**changes))
    assert told in str(diverged.value)
    assert "model:0" in str(diverged.value)
    assert story.model.calls == 1


async def test_a_changed_request_is_accepted_by_policy(url: str, caplog: pytest.LogCaptureFixture) -> None:
    story = Story()
    await story.first(url)
    with caplog.at_level(logging.WARNING, "stepfast"):
        result = await story.run(url, story.agent(instructions="Add well."), on_drift="warn")
    assert result.final_output == "Sum: 3"
    assert "Add well." in caplog.text
    again = await story.run(url, story.agent(instructions="Other."), on_drift="accept")
    assert again.final_output == "Sum: 3"


async def test_a_change_inside_an_agent_as_a_tool_is_not_shown_to_the_model(url: str) -> None:
    story = Story()
    outer_model = Scripted(in_turns([call("ask", input="go")], summing))

    def outer(**changes: Any) -> Agent[Any]:
        return Agent(name="outer", model=outer_model, tools=[story.agent(**changes).as_tool("ask", "Ask")])

    story.broken = False
    await DurableRunner.run(outer(), "go", run_id="r", store=url)
    with pytest.raises(Diverged):
        await DurableRunner.run(outer(instructions="Other."), "go", run_id="r", store=url)


async def test_ids_do_not_count(url: str) -> None:
    story = Story()
    await story.first(url)
    assert (await story.run(url, story.agent())).final_output == "Sum: 3"


async def test_a_policy_for_drift_must_exist(url: str) -> None:
    with pytest.raises(InvalidInput, match="on_drift"):
        await DurableRunner.run(Story().agent(), "go", run_id="r", store=url, on_drift="rerun")


# --- rewinding -----------------------------------------------------------------------------------


async def test_an_answer_that_breaks_the_run_can_be_rewound(url: str) -> None:
    answers = iter(["bad", "good"])

    async def check(ctx: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=output == "bad")

    paid: list[str] = []

    @once
    @function_tool
    async def pay() -> str:
        paid.append("x")
        return "paid"

    model = Scripted(in_turns([call("pay")], lambda items: [text(next(answers))]))
    agent = Agent(name="a", model=model, tools=[pay], output_guardrails=[OutputGuardrail(guardrail_function=check)])
    for _ in range(2):
        with pytest.raises(OutputGuardrailTripwireTriggered):
            await DurableRunner.run(agent, "go", run_id="r", store=url)
    assert model.calls == 2
    assert await DurableRunner.rewind("r", "model:1", store=url) == 1
    assert (await DurableRunner.run(agent, "go", run_id="r", store=url)).final_output == "good"
    assert (model.calls, paid) == (3, ["x"])
    async with AsyncStepfast(url) as sf:
        assert [s["key"] for s in await sf.steps("r") if s["voided"]] == ["model:1"]


async def test_a_rewound_first_step_takes_all_after_it_along_but_one_shots(url: str) -> None:
    story = Story()
    await story.first(url)
    assert await DurableRunner.rewind("r", "model:0", store=url) == 1
    story.model.calls = 0
    assert (await story.run(url, story.agent(instructions="New."))).final_output == "Sum: 3"


async def test_what_rewound_turns_had_added_to_the_session_is_taken_out(url: str) -> None:
    said = iter(["bad", "good"])
    model = Scripted(in_turns([call("add", a=1, b=2)], lambda items: [call("note", words=next(said))], summing))
    broken = True

    @function_tool(failure_error_function=None)
    def note(words: str) -> str:
        return words

    class Failing(Scripted):
        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            if broken and self.calls == 2:
                raise Boom
            return await super().get_response(*args, **kwargs)

    model = Failing(model.script)
    agent = Agent(name="a", model=model, tools=[add, note])
    session = StepfastSession("s", store=url)
    with pytest.raises(Boom):
        await DurableRunner.run(agent, "go", run_id="r", store=url, session=session)
    assert len(await session.get_items()) == 5
    broken = False
    await DurableRunner.rewind("r", "model:1", store=url)
    assert len(await session.get_items()) == 3
    result = await DurableRunner.run(agent, "go", run_id="r", store=url, session=session)
    assert result.final_output == "Sum: 3, good"
    items = await session.get_items()
    assert [i["output"] for i in items if i.get("type") == "function_call_output"] == ["3", "good"]
    assert len(items) == 6


async def test_a_step_that_is_not_there_is_refused_with_those_that_are(url: str) -> None:
    story = Story()
    await story.first(url)
    with pytest.raises(InvalidInput, match="model:0"):
        await DurableRunner.rewind("r", "model:7", store=url)


async def test_a_finished_run_is_not_rewound(url: str) -> None:
    story = Story()
    story.broken = False
    await story.run(url, story.agent())
    with pytest.raises(RunFinished):
        await DurableRunner.rewind("r", "model:0", store=url)

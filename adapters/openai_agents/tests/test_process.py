"""The whole process durable, runs as intents, and what is seen of them from outside."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Agent, Runner, function_tool
from agents.run import get_default_agent_runner
from agents.tracing import TracingProcessor, set_trace_processors, set_tracing_disabled

from adapters.openai_agents.tests.kit import Scripted, call, in_turns, outputs, text
from stepfast import AsyncStepfast, InvalidInput, Stepfast, StepfastError
from stepfast_openai_agents import DurableRunner, agent_worker, durable_agents


def summing(items: list[Any]) -> list[Any]:
    return [text("Sum: " + ", ".join(outputs(items)))]


@function_tool
def add(a: int, b: int) -> int:
    return a + b


def calculator(model: Scripted | None = None) -> Agent[Any]:
    answers = in_turns([call("add", a=1, b=2)], summing)
    return Agent(name="calculator", model=model or Scripted(answers), tools=[add])


# --- the whole process ---------------------------------------------------------------------------


async def test_unmodified_calls_of_the_runner_become_durable(url: str) -> None:
    model = Scripted(in_turns([call("add", a=1, b=2)], summing))
    for _ in range(2):  # two processes, as far as the runs can tell
        with durable_agents("nightly", store=url):
            assert (await Runner.run(calculator(model), "add")).final_output == "Sum: 3"
            streamed = Runner.run_streamed(calculator(model), "add more")
            assert [e async for e in streamed.stream_events()]
            assert streamed.final_output == "Sum: 3"
    assert model.calls == 4
    with Stepfast(url) as sf:
        assert all(seen["run_id"].startswith("nightly/calculator.") for seen in sf.list_intents())
        assert len(sf.list_intents()) == 2


async def test_the_same_call_twice_in_a_process_is_two_runs(url: str) -> None:
    model = Scripted(in_turns([call("add", a=1, b=2)], summing))
    for expected in (4, 4):
        with durable_agents("nightly", store=url):
            await Runner.run(calculator(model), "add")
            await Runner.run(calculator(model), "add")
        assert model.calls == expected


async def test_after_disarming_runs_are_the_sdks_again(url: str) -> None:
    armed = durable_agents("nightly", store=url)
    with pytest.raises(InvalidInput, match="armed already"):
        durable_agents("nightly", store=url)
    armed.disarm()
    model = Scripted(in_turns([call("add", a=1, b=2)], summing))
    await Runner.run(calculator(model), "add")
    await Runner.run(calculator(model), "add")
    assert model.calls == 4


async def test_runs_need_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPFAST_RUN_ID", raising=False)
    with pytest.raises(InvalidInput, match="STEPFAST_RUN_ID"):
        durable_agents()


async def test_a_bare_run_is_not_changed_by_the_runner_in_place(url: str) -> None:
    await DurableRunner.run(calculator(), "add", run_id="r", store=url)
    assert type(get_default_agent_runner()).__name__ == "StepfastAgentRunner"
    model = Scripted(in_turns([call("add", a=1, b=2)], summing))
    assert (await Runner.run(calculator(model), "add")).final_output == "Sum: 3"
    assert model.calls == 2


# --- runs as intents -----------------------------------------------------------------------------


async def test_a_run_is_seen_with_its_agent_its_turn_and_its_tool(url: str) -> None:
    await DurableRunner.run(calculator(), "add", run_id="r", store=url, labels={"team": "ops"})
    async with AsyncStepfast(url) as sf:
        seen = await sf.get_intent("r")
        assert seen["labels"] == {"framework": "openai-agents", "agent": "calculator", "team": "ops"}
        assert seen["result"]["final_output"] == "Sum: 3"
        assert (seen["result"]["last_agent"], seen["result"]["turns"]) == ("calculator", 2)
        steps = [(s["name"], s["key"].partition(":")[0]) for s in await sf.steps("r")]
        assert steps == [("calculator", "model"), ("add", "tool"), ("calculator", "model")]


async def test_while_it_runs_it_shows_the_turn_the_agent_and_what_it_is_at(url: str) -> None:
    seen: list[tuple[int, str]] = []

    @function_tool
    async def peek() -> str:
        async with AsyncStepfast(url) as sf:
            shown = await sf.describe("r")
            seen.append((shown["step"], shown["last_step"]))
        return "ok"

    agent = Agent(name="desk", model=Scripted(in_turns([call("peek")], summing)), tools=[peek])
    await DurableRunner.run(agent, "go", run_id="r", store=url)
    assert seen == [(1, "desk: model call")]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_run_that_was_ended_from_outside_makes_no_further_call(url: str, streamed: bool) -> None:
    @function_tool
    async def end() -> str:
        async with AsyncStepfast(url) as sf:
            await sf.cancel("r", reason="enough")
        return "ok"

    model = Scripted(in_turns([call("end")], summing))
    agent = Agent(name="desk", model=model, tools=[end])

    async def stream() -> None:
        events = DurableRunner.run_streamed(agent, "go", run_id="r", store=url).stream_events()
        assert [e async for e in events]

    with pytest.raises(StepfastError):
        await (stream() if streamed else DurableRunner.run(agent, "go", run_id="r", store=url))
    assert model.calls == 1


async def test_an_intent_is_carried_out_by_an_agent(url: str) -> None:
    model = Scripted(in_turns([call("add", a=1, b=2)], summing))
    async with AsyncStepfast(url) as sf:
        worker = agent_worker(sf, "agent://calculator", calculator(model))
        worker.start()
        intent_id = await sf.send_intent(
            {"intent_type": "sum.v1", "to_agent": "agent://calculator", "payload": {"input": "add"}}
        )
        ended = await sf.wait_for(intent_id, timeout=30)
        assert ended["status"] == "COMPLETED"
        assert ended["result"]["final_output"] == "Sum: 3"
        await worker.stop()


async def test_a_workers_run_waits_for_an_approval_and_any_worker_goes_on(url: str) -> None:
    done: list[str] = []

    @function_tool(needs_approval=True)
    async def delete() -> str:
        done.append("x")
        return "deleted"

    model = Scripted(in_turns([call("delete")], summing))
    agent = Agent(name="desk", model=model, tools=[delete])
    async with AsyncStepfast(url) as sf:
        worker = agent_worker(sf, "agent://desk", agent)
        worker.start()
        intent_id = await sf.send_intent({"intent_type": "x.v1", "to_agent": "agent://desk", "payload": "go"})
        async for event in sf.observe(intent_id):
            if event["status"] == "WAITING":
                break
        (asked,) = await sf.decisions(intent_id)
        await sf.answer(intent_id, "approved", asked["key"])
        ended = await sf.wait_for(intent_id, timeout=30)
        assert ended["result"]["final_output"] == "Sum: deleted"
        await worker.stop()
    assert (done, model.calls) == (["x"], 2)


async def test_a_payload_that_no_agent_can_take_fails_at_once(url: str) -> None:
    async with AsyncStepfast(url) as sf:
        worker = agent_worker(sf, "agent://calculator", calculator())
        worker.start()
        intent_id = await sf.send_intent({"intent_type": "x.v1", "to_agent": "agent://calculator", "payload": 17})
        ended = await sf.wait_for(intent_id, timeout=30)
        assert ended["status"] == "FAILED"
        assert "payload" in ended["reason"]
        await worker.stop()


async def test_several_runs_of_agents_in_one_run_of_ones_own(url: str) -> None:
    model = Scripted(in_turns([call("add", a=1, b=2)], summing))
    for _ in range(2):
        async with AsyncStepfast(url) as sf, sf.run("mine") as run:
            first = await DurableRunner.run(calculator(model), "add", run=run)
            second = await DurableRunner.run(calculator(model), first.final_output, run=run)
            if not run.replaying:
                run.complete(second.final_output)
            assert second.final_output == "Sum: 3"
    assert model.calls == 4


# --- traces --------------------------------------------------------------------------------------


class Collected(TracingProcessor):
    def __init__(self) -> None:
        self.spans: list[Any] = []

    def on_trace_start(self, trace: Any) -> None: ...
    def on_trace_end(self, trace: Any) -> None: ...
    def on_span_start(self, span: Any) -> None: ...
    def on_span_end(self, span: Any) -> None:
        self.spans.append(span.span_data.export())

    def shutdown(self) -> None: ...
    def force_flush(self) -> None: ...


async def test_replayed_steps_are_marked_in_the_traces(url: str) -> None:
    collected = Collected()
    set_trace_processors([collected])
    set_tracing_disabled(False)
    try:
        await DurableRunner.run(calculator(), "add", run_id="r", store=url)
        live = list(collected.spans)
        await DurableRunner.run(calculator(), "add", run_id="r", store=url)
    finally:
        set_tracing_disabled(True)
        set_trace_processors([])
    again = collected.spans[len(live) :]
    marks = [span["data"]["step"].partition(":")[0] for span in again if span.get("name") == "stepfast.replayed"]
    assert not any(span.get("name") == "stepfast.replayed" for span in live)
    assert sorted(marks) == ["model", "model", "tool"]
    assert sorted(s["type"] for s in again if s.get("name") != "stepfast.replayed") == sorted(s["type"] for s in live)

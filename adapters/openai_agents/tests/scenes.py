"""One story for the kill matrix: parallel tools, a one-shot charge, a handoff with an effect, agents in a circle, an
agent as a tool, and a one-shot mail at the end."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    RunContextWrapper,
    Runner,
    function_tool,
    handoff,
)

from adapters.openai_agents.tests.kit import Log, Scripted, call, disable_tracing, outputs, text
from stepfast import Suspended, _failpoints
from stepfast_openai_agents import DurableRunner, idempotency_key, idempotent, once

RUN = "order-4711"


class Stage:
    """Where a child plays: it counts effects and model calls, tells each boundary it passes, and dies at one."""

    def __init__(self, folder: Path, kill: str | None) -> None:
        self.effects = Log(folder / "effects.log")
        self.models = Log(folder / "models.log")
        self.labels = Log(folder / "labels.log")
        self.kill = kill
        self.met: dict[str, int] = {}

    def point(self, name: str) -> None:
        self.met[name] = self.met.get(name, 0) + 1
        label = f"{name}#{self.met[name]}"
        self.labels.add(label)
        if label == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)

    def model_log(self, line: str) -> None:
        if line.startswith("model "):
            self.models.add(line)
        self.point(line)

    def effect(self, name: str) -> str:
        self.point(f"before {name}")
        self.effects.add(f"{name} {idempotency_key()}")
        self.point(f"after {name}")
        return f"{name} done"


def triage_script(items: list[Any], _: str | None) -> list[Any]:
    if not outputs(items):
        return [call("charge_card", amount=42), call("reserve", item="lamp")]
    return [call("transfer_to_shipping")]


def shipping_script(items: list[Any], _: str | None) -> list[Any]:
    done = [o for o in outputs(items) if not o.startswith("{")]
    if len(done) == 2:
        return [call("weigh"), call("ask_research", input="tariff")]
    if len(done) == 4:
        return [call("send_email", to="ada@example.org")]
    return [text("Shipped: " + "; ".join(done))]


def research_script(items: list[Any], _: str | None) -> list[Any]:
    done = outputs(items)
    return [call("look_up", topic="tariff")] if not done else [text(f"Tariff by {done[0]}")]


def guard_script(items: list[Any], _: str | None) -> list[Any]:
    return [text("fine")]


def build(stage: Stage, options: dict[str, Any]) -> Agent[Any]:
    def model(script: Any) -> Scripted:
        return Scripted(script, stage.model_log)

    @once
    @function_tool(needs_approval=bool(options.get("hitl")))
    async def charge_card(amount: int) -> str:
        return stage.effect("charge")

    @idempotent
    @function_tool
    async def reserve(item: str) -> str:
        await asyncio.sleep(0)
        return stage.effect("reserve")

    @idempotent
    @function_tool
    def weigh() -> str:
        return stage.effect("weigh")

    @idempotent
    @function_tool
    async def look_up(topic: str) -> str:
        return stage.effect("look_up")

    @once
    @function_tool
    async def send_email(to: str) -> str:
        return stage.effect("email")

    async def on_handoff(ctx: RunContextWrapper[Any]) -> None:
        stage.effect("handoff")

    research = Agent(name="research", instructions="R", model=model(research_script), tools=[look_up])
    shipping = Agent(
        name="shipping",
        instructions="S",
        model=model(shipping_script),
        tools=[weigh, send_email, research.as_tool("ask_research", "Ask research")],
    )
    guard = Agent(name="guard", instructions="G", model=model(guard_script))

    async def check(ctx: RunContextWrapper[Any], agent: Agent[Any], given: Any) -> GuardrailFunctionOutput:
        answer = await Runner.run(guard, given, context=ctx.context)
        return GuardrailFunctionOutput(output_info=answer.final_output, tripwire_triggered=False)

    triage = Agent(
        name="triage",
        instructions="T",
        model=model(triage_script),
        tools=[charge_card, reserve],
        handoffs=[handoff(shipping, on_handoff=on_handoff)],
        input_guardrails=[InputGuardrail(guardrail_function=check)] if options.get("guardrail") else [],
    )
    shipping.handoffs = [triage]
    return triage


def session_of(folder: Path, url: str, options: dict[str, Any]) -> Any:
    kind = options.get("session")
    if kind == "sqlite":
        from agents import SQLiteSession

        return SQLiteSession("s", folder / "session.db")
    if kind == "stepfast":
        from stepfast_openai_agents import StepfastSession

        return StepfastSession("s", store=url)
    return None


def play(folder: Path, url: str, options: dict[str, Any], kill: str | None) -> str:
    """In a child: the run, from wherever it is, to its end (``done: …``) or to where it waits (``waits``)."""
    disable_tracing()
    stage = Stage(folder, kill)
    _failpoints.install(stage.point)
    agent = build(stage, options)
    session = session_of(folder, url, options)

    async def main() -> str:
        common: dict[str, Any] = {"run_id": RUN, "store": url, "session": session, "max_delivery_attempts": 10}
        if options.get("streamed"):
            streamed = DurableRunner.run_streamed(agent, "Refund my lamp", **common)
            async for event in streamed.stream_events():
                stage.point(f"event {event.type}")
            result: Any = streamed
        else:
            result = await DurableRunner.run(agent, "Refund my lamp", **common)
        if result.interruptions:
            return "waits"
        assert result.last_agent.name == "shipping"
        return f"done: {result.final_output}"

    try:
        return asyncio.run(main())
    except Suspended:
        return "waits"

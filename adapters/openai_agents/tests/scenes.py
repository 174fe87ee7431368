"""One story for the crash matrix: parallel tools, a one-shot charge, a handoff with an effect, agents in a circle, an
agent as a tool, and a one-shot mail at the end."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    RunContextWrapper,
    Runner,
    SQLiteSession,
    function_tool,
    handoff,
)

from adapters.openai_agents.tests.kit import Scripted, call, disable_tracing, outputs, text
from stepfast import AsyncStepfast
from stepfast.testing import Stage, scene
from stepfast_openai_agents import DurableRunner, StepfastSession, idempotency_key, idempotent, once

disable_tracing()


def triage_script(items: list[Any]) -> list[Any]:
    if not outputs(items):
        return [call("charge_card", amount=42), call("reserve", item="lamp")]
    return [call("transfer_to_shipping")]


def shipping_script(items: list[Any]) -> list[Any]:
    done = [o for o in outputs(items) if not o.startswith("{")]
    if len(done) == 2:
        return [call("weigh"), call("ask_research", input="tariff")]
    if len(done) == 4:
        return [call("send_email", to="ada@example.org")]
    return [text("Shipped: " + "; ".join(done))]


def research_script(items: list[Any]) -> list[Any]:
    done = outputs(items)
    return [call("look_up", topic="tariff")] if not done else [text(f"Tariff by {done[0]}")]


def build(stage: Stage) -> Agent[Any]:
    def model(name: str, script: Any) -> Scripted:
        def answer(items: list[Any], _: str | None) -> list[Any]:
            with stage.model(name, items) as receipt:
                given = script(items)
                for number, item in enumerate(given):
                    setattr(item, "call_id" if item.type == "function_call" else "id", f"{receipt}_{number}")
                return given

        return Scripted(answer, lambda line: stage.boundary(line) if line.startswith("model.") else None)

    def effect(name: str) -> str:
        return stage.effect(name, key=idempotency_key())

    @once
    @function_tool(needs_approval=bool(stage.options.get("approval")))
    async def charge_card(amount: int) -> str:
        return effect("charge_card")

    @idempotent
    @function_tool
    async def reserve(item: str) -> str:
        await asyncio.sleep(0)
        return effect("reserve")

    @idempotent
    @function_tool
    def weigh() -> str:
        return effect("weigh")

    @idempotent
    @function_tool
    async def look_up(topic: str) -> str:
        return effect("look_up")

    @once
    @function_tool
    async def send_email(to: str) -> str:
        return effect("send_email")

    async def on_handoff(ctx: RunContextWrapper[Any]) -> None:
        effect("transfer_to_shipping")

    research = Agent(name="research", instructions="R", model=model("research", research_script), tools=[look_up])
    shipping = Agent(
        name="shipping",
        instructions="S",
        model=model("shipping", shipping_script),
        tools=[weigh, send_email, research.as_tool("ask_research", "Ask research")],
    )
    guard = Agent(name="guard", instructions="G", model=model("guard", lambda _: [text("fine")]))

    async def check(ctx: RunContextWrapper[Any], agent: Agent[Any], given: Any) -> GuardrailFunctionOutput:
        answer = await Runner.run(guard, given, context=ctx.context)
        return GuardrailFunctionOutput(output_info=answer.final_output, tripwire_triggered=False)

    triage = Agent(
        name="triage",
        instructions="T",
        model=model("triage", triage_script),
        tools=[charge_card, reserve],
        handoffs=[handoff(shipping, on_handoff=on_handoff)],
        input_guardrails=[InputGuardrail(guardrail_function=check)] if stage.options.get("guardrail") else [],
    )
    shipping.handoffs = [triage]
    return triage


async def play(stage: Stage) -> Any:
    kind = stage.options.get("session")
    async with AsyncStepfast(stage.url) as sf:
        session: Any = None
        if kind:
            local = stage.folder / "session.db"
            session = StepfastSession(stage.run_id, store=sf) if kind == "stepfast" else SQLiteSession("s", local)
        common: dict[str, Any] = {"store": sf, "session": session, "max_delivery_attempts": 20}
        if stage.options.get("streamed"):
            ended: Any = DurableRunner.run_streamed(build(stage), "Refund my lamp", run_id=stage.run_id, **common)
            async for event in ended.stream_events():
                stage.boundary(f"event {event.type}")
        else:
            ended = await DurableRunner.run(build(stage), "Refund my lamp", run_id=stage.run_id, **common)
        if ended.interruptions:
            return stage.waiting
        items = await session.get_items() if session else []
    # Without the ids that each real call gives anew.
    kept = [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in items]
    return [ended.last_agent.name, ended.final_output, kept]


@scene(once=["charge_card", "send_email"], at_once=2)
def order(stage: Stage) -> Any:
    return asyncio.run(play(stage))

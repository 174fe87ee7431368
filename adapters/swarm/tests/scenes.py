"""A story for the crash matrix: agents in a circle, one-shot tools, a tool that runs an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swarm import Agent
from swarm.types import Result

from adapters.swarm.tests.kit import FakeClient, call, outputs, say
from stepfast import idempotency_key
from stepfast.testing import Stage, scene
from stepfast.testing.scenes import approved_or_by_effect
from stepfast_swarm import DurableSwarm, composite, idempotent, once


def script(messages: list[dict[str, Any]]) -> dict[str, Any]:
    who, done = messages[0]["content"], outputs(messages)
    if who == "research":
        return say(f"tariff by {done[-1]}") if "look_up done" in done else call(("look_up", {"topic": "tariff"}))
    if who == "triage":
        if not done:
            return call(("charge_card", {"amount": 42}), ("reserve", {"item": "lamp"}))
        if len(done) == 2:
            return call(("to_shipping", {}))
        # Back again from shipping: the circle is closed.
        return say("Shipped: " + "; ".join(done))
    assert who == "shipping for ada, 42 paid"
    if len(done) == 3:
        return call(("weigh", {}), ("ask_research", {"topic": "tariff"}))
    if len(done) == 5:
        return call(("send_email", {"to": "ada"}))
    return call(("back", {}))


def build(stage: Stage, swarm: Callable[[], DurableSwarm]) -> Agent:
    def effect(name: str) -> str:
        return stage.effect(name, key=idempotency_key())

    @once
    def charge_card(amount: int, context_variables: dict[str, Any]) -> Any:
        context_variables["paid"] = amount  # in place, as many do
        return effect("charge_card")

    @idempotent
    def reserve(item: str) -> Any:
        return Result(value=effect("reserve"), context_variables={"items": [item]})

    @idempotent
    def to_shipping() -> Any:
        return Result(value="over to shipping", agent=shipping, context_variables={"at": "shipping"})

    @idempotent
    def weigh(context_variables: dict[str, Any]) -> str:
        assert context_variables["items"] == ["lamp"]
        return effect("weigh")

    @idempotent
    def look_up(topic: str) -> str:
        return effect("look_up")

    @composite
    def ask_research(topic: str) -> str:
        answer = swarm().run(research, [{"role": "user", "content": topic}])
        return str(answer.messages[-1]["content"])

    @once
    def send_email(to: str) -> str:
        return effect("send_email")

    def back() -> Agent:
        return triage

    def instructions(context_variables: dict[str, Any]) -> str:
        return f"shipping for {context_variables['customer']}, {context_variables['paid']} paid"

    research = Agent(name="research", instructions="research", functions=[look_up])
    shipping = Agent(name="shipping", instructions=instructions, functions=[weigh, ask_research, send_email, back])
    triage = Agent(name="triage", instructions="triage", functions=[charge_card, reserve, to_shipping])
    return triage


def with_variables(stage: Stage, question: dict[str, Any]) -> dict[str, Any]:
    """What Swarm keeps of a finished tool is its value and what it did to the context variables."""
    answer = approved_or_by_effect(stage, question)
    if "value" in answer:
        variables = {"paid": 42} if question["evidence"]["name"] == "charge_card" else {}
        answer["value"] = {"value": answer["value"], "context_variables": variables}
    return answer


@scene(once=["charge_card", "send_email"], answer=with_variables)
def order(stage: Stage) -> Any:
    streamed = bool(stage.options.get("streamed"))

    def answered(messages: list[dict[str, Any]]) -> dict[str, Any]:
        with stage.model(messages[0]["content"].split()[0], messages) as receipt:
            given = script(messages)
            for number, one in enumerate(given.get("tool_calls", ())):
                one["id"] = f"{receipt}_{number}"
            return given

    client = FakeClient(answered, stage.boundary)
    with DurableSwarm(client, store=stage.url, max_delivery_attempts=20) as swarm:
        agent = build(stage, lambda: swarm)
        asked = [{"role": "user", "content": "Refund my lamp"}]
        ended = swarm.run(agent, asked, {"customer": "ada"}, run_id=stage.run_id, stream=streamed)
        if streamed:
            for event in ended:
                stage.boundary(f"event {next(iter(event))}")
                if "response" in event:
                    ended = event["response"]
    assert ended.agent is agent
    return [ended.messages[-1]["content"], len(ended.messages), ended.context_variables]

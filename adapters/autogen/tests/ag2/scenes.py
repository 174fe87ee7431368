"""Scenes for the crash matrix: agents as users write them, with scripted models."""

from __future__ import annotations

import asyncio
from typing import Any

from ag2 import Agent, Context, TaskConfig, observer, tool
from ag2.events import ModelMessageChunk, ModelResponse, ToolResultEvent
from ag2.middleware import approval_required
from pydantic import BaseModel

from adapters.autogen.tests.ag2.kit import Scripted, asked, call, calls, outputs, said, say, wire
from stepfast import AsyncStepfast, Stepfast
from stepfast.testing import Stage, scene
from stepfast.testing.scenes import approved_or_by_effect
from stepfast_autogen.ag2 import DurableAgent, durable, idempotency_key, idempotent, once


def scripted(stage: Stage, name: str, script: Any) -> Scripted:
    """A model whose calls are counted; the ids of its tool calls, or its text, show the receipt."""

    def answer(messages: list[Any]) -> Any:
        with stage.model(name, repr(wire(messages)) + repr(ids(messages))) as receipt:
            made = script(messages)
            for number, each in enumerate(made.tool_calls.calls):
                each.id = f"{receipt}_{number}"
            return made

    return Scripted(answer)


def ids(messages: list[Any]) -> list[str]:
    return [each.id for m in messages if isinstance(m, ModelResponse) for each in m.tool_calls.calls]


def turns(stage: Stage) -> list[str]:
    return [stage.run_id, f"{stage.run_id}#2"]


def made(stage: Stage, agent: Agent[Any], **options: Any) -> DurableAgent:
    return durable(agent, stage.run_id, stage.url, max_delivery_attempts=20, **options)


def effect(stage: Stage, name: str) -> str:
    return stage.effect(name, key=idempotency_key())


class Order(BaseModel):
    """What an order comes to."""

    text: str


@scene(once=["charge", "mail"], at_once=3, runs=turns)
def order(stage: Stage) -> Any:
    """Two turns: parallel tools that are sync and async, variables, messages to the inbox, observers, typed output."""

    @idempotent
    @tool
    async def reserve(item: str, ctx: Context) -> str:
        await asyncio.sleep(0)
        ctx.variables["reserved"] = item
        ctx.enqueue("It is the last one.")
        return effect(stage, "reserve")

    @once
    @tool
    def charge(amount: int) -> str:
        return effect(stage, "charge")

    @tool
    async def mail(to: str, ctx: Context) -> str:
        assert ctx.variables["reserved"] == "lamp"
        return effect(stage, "mail")

    def script(messages: list[Any]) -> Any:
        done = outputs(messages)
        if not done:
            return calls(call("reserve", item="lamp"), call("charge", amount=42))
        if len(asked(messages)) == 2:
            return say(f'{{"text": "charged ({len(done)})"}}')
        return say("mailed") if len(done) == 3 else calls(call("mail", to="ada"))

    async def play() -> Any:
        seen: list[str] = []

        async def observe(event: ToolResultEvent) -> None:
            effect(stage, "observe")

        async def watch(event: ModelMessageChunk) -> None:
            seen.append(event.content)

        agent = Agent(
            "clerk",
            "Sell lamps.",
            config=scripted(stage, "clerk", script),
            tools=[reserve, charge, mail],
            observers=[observer(ToolResultEvent, observe), observer(ModelMessageChunk, watch)],
        )
        with made(stage, agent) as clerk:
            first = await clerk.ask("Sell me a lamp", response_schema=Order)
            content = await first.content()
            second = await first.ask("Now mail it")
            events = list(await second.history.get_events())
            told = [content.text, second.body, second.context.variables, wire(events)]
            return [*told, (await second.usage()).total.prompt_tokens]

    return asyncio.run(play())


@scene(once=["look_up"], at_once=3)
def delegation(stage: Stage) -> Any:
    """An agent as a tool, subtasks side by side, and an agent called by hand inside of a composite tool."""

    @tool
    async def look_up(topic: str) -> str:
        return effect(stage, f"look_up_{topic}")

    def researcher(messages: list[Any]) -> Any:
        topic = asked(messages)[0].split()[-1]
        return say(f"found {outputs(messages)[0]}") if outputs(messages) else calls(call("look_up", topic=topic))

    def lead(messages: list[Any]) -> Any:
        done = outputs(messages)
        if not done:
            return calls(call("task_expert", objective="find tariff"), call("run_subtasks", tasks=["find a", "find b"]))
        return calls(call("think", about="c")) if len(done) == 2 else say("; ".join(done))

    async def play() -> Any:
        expert = Agent("expert", config=scripted(stage, "expert", researcher), tools=[look_up])
        thinker = Agent("thinker", config=scripted(stage, "thinker", lambda m: say(f"thought of {asked(m)[0]}")))

        async def think(about: str) -> str:
            return (await thinker.ask(about)).body or ""

        agent = Agent(
            "lead",
            config=scripted(stage, "lead", lead),
            tools=[expert.as_tool(description="Asks the expert"), think],
            tasks=TaskConfig(config=scripted(stage, "subtask", researcher), extra_tools=[look_up]),
        )
        with made(stage, agent, policies={"think": "composite"}) as durable_lead:
            reply = await durable_lead.ask("Find all")
            return [reply.body, wire(list(await reply.history.get_events()))]

    return asyncio.run(play())


def answers(stage: Stage, question: dict[str, Any]) -> dict[str, Any]:
    if "Which colour" in str(question["question"]):
        return {"outcome": "approved", "value": "green"}
    return approved_or_by_effect(stage, question)


@scene(once=["charge"], at_once=2, answer=answers)
def people(stage: Stage) -> Any:
    """A tool that needs an approval, one that asks in its body, and a sub-agent that asks; beside one that does not."""

    @once
    @tool(middleware=[approval_required()])
    async def charge(amount: int) -> str:
        return effect(stage, "charge")

    @tool
    async def paint(thing: str, ctx: Context) -> str:
        colour = await ctx.input(f"Which colour for the {thing}?")
        return effect(stage, f"paint_{thing}") + f" {colour}"

    @tool
    async def weigh() -> str:
        return effect(stage, "weigh")

    def script(messages: list[Any]) -> Any:
        done = outputs(messages)
        if not done:
            return calls(call("charge", amount=1), call("paint", thing="lamp"), call("weigh"))
        return calls(call("task_painter", objective="the shade")) if len(done) == 3 else say("; ".join(done))

    def painter(messages: list[Any]) -> Any:
        return say(outputs(messages)[0]) if outputs(messages) else calls(call("paint", thing="shade"))

    async def play() -> Any:
        helper = Agent("painter", config=scripted(stage, "painter", painter), tools=[paint])
        tools = [charge, paint, weigh, helper.as_tool(description="Paints")]
        agent = Agent("clerk", config=scripted(stage, "clerk", script), tools=tools)
        with made(stage, agent) as clerk:
            reply = await clerk.ask("A green lamp")
            events = list(await reply.history.get_events())
            return [reply.body, wire(events), said(events)]

    return asyncio.run(play())


def sent(stage: Stage, sf: Stepfast) -> str:
    """Send an order; the same in each life."""
    intent = {"intent_type": "order.v1", "to_agent": f"agent://{stage.run_id}", "max_delivery_attempts": 20}
    return sf.send_intent({**intent, "payload": "Charge and weigh"}, idempotency_key=stage.run_id)


def deliveries(stage: Stage) -> list[str]:
    with Stepfast(stage.url) as sf:
        return [sent(stage, sf)]


@scene(once=["charge"], at_once=2, runs=deliveries)
def delivered(stage: Stage) -> Any:
    """An agent as a worker of an address: the process that is killed is the worker's."""

    @once
    @tool(middleware=[approval_required()])
    async def charge(amount: int) -> str:
        return effect(stage, "charge")

    @idempotent
    @tool
    def weigh() -> str:
        return effect(stage, "weigh")

    def script(messages: list[Any]) -> Any:
        done = outputs(messages)
        return say("; ".join(done)) if done else calls(call("charge", amount=1), call("weigh"))

    async def play(intent_id: str) -> Any:
        agent = Agent("clerk", config=scripted(stage, "clerk", script), tools=[charge, weigh])
        async with AsyncStepfast(stage.url) as sf:
            with durable(agent, store=sf) as clerk:
                worker = clerk.worker(sf, f"agent://{stage.run_id}")
                worker.start()
                async for event in sf.observe(intent_id):
                    if event["status"] == "WAITING":  # a person, meanwhile
                        for question in await sf.decisions(intent_id):
                            said = approved_or_by_effect(stage, question)
                            await sf.answer(intent_id, key=question["key"], **said)
                await worker.stop()
            return (await sf.get_intent(intent_id))["result"]["reply"]

    with Stepfast(stage.url) as sf:
        intent_id = sent(stage, sf)
    return asyncio.run(play(intent_id))


@scene(at_once=2)
def watched(stage: Stage) -> Any:
    """A turn that is watched, with a message from outside, and a hook that asks."""

    @idempotent
    @tool
    async def weigh(ctx: Context) -> str:
        return effect(stage, "weigh") + await ctx.input("How heavy?")

    def script(messages: list[Any]) -> Any:
        done, told = outputs(messages), asked(messages)
        if not done:
            return calls(call("weigh"))
        return say(f"{told} {done}")

    async def play() -> Any:
        def hook() -> str:
            return effect(stage, "human input")

        agent = Agent("clerk", config=scripted(stage, "clerk", script), tools=[weigh], hitl_hook=hook)
        with made(stage, agent) as clerk:
            async with clerk.run("Weigh it") as turn:
                turn.enqueue("Please")
                reply = await turn.result()
            return [reply.body, wire(list(await reply.history.get_events()))]

    return asyncio.run(play())

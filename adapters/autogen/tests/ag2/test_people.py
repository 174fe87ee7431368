"""Where AG2 agents ask people; observers, upkeep of histories, and agents in the background."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ag2 import Agent, Context, TaskConfig, observer, tool
from ag2.events import (
    HumanInputRequest,
    ModelMessageChunk,
    ModelResponse,
    ToolResultEvent,
    ToolResultsEvent,
)
from ag2.middleware import approval_required
from ag2.tools.subagents import background_agent_tool

from adapters.autogen.tests.ag2.kit import (
    Breaking,
    Broken,
    Scripted,
    answer,
    asked,
    call,
    outputs,
    say,
    tools_then_say,
    until_done,
    wire,
)
from stepfast import AsyncStepfast
from stepfast_autogen.ag2 import (
    DurableAgent,
    Suspended,
    Waiting,
    durable,
    idempotent,
    once,
)

# --- people ----------------------------------------------------------------------------------------


async def test_an_approval_waits_beside_tools_that_go_on_and_is_answered_from_elsewhere(url: str) -> None:
    done: list[str] = []

    @once
    @tool(middleware=[approval_required()])
    async def charge() -> str:
        done.append("charge")
        return "charged"

    @tool
    async def look() -> str:
        await asyncio.sleep(0.01)
        done.append("look")
        return "seen"

    model = Scripted(tools_then_say(call("charge"), call("look")))
    with durable(Agent("a", config=model, tools=[charge, look]), "talk", url) as talk:
        for _ in range(2):
            with pytest.raises(Suspended):
                await talk.ask("go")
        assert (done, model.calls) == (["look"], 1)
        async with AsyncStepfast(url) as sf:
            assert (await sf.get_intent("talk"))["status"] == "WAITING"
            [question] = await sf.decisions("talk")
            assert "`charge`" in str(question["question"])
            await sf.answer("talk", "approved")
        reply = await talk.ask("go")
    assert (reply.body, done, model.calls) == ("charged; seen", ["look", "charge"], 2)


async def test_a_refusal_and_an_answer_in_words_reach_the_agent(url: str) -> None:
    @once
    @tool(middleware=[approval_required()])
    async def charge() -> str:
        raise AssertionError("refused")

    @tool
    async def paint(ctx: Context) -> str:
        return await ctx.input("Which colour?", timeout=30)

    model = Scripted(tools_then_say(call("charge"), call("paint")))
    with durable(Agent("a", config=model, tools=[charge, paint]), "talk", url, on_wait="return") as talk:
        waiting = await talk.ask("go")
        assert isinstance(waiting, Waiting)
        assert len(waiting.decisions) == 2
        async with AsyncStepfast(url) as sf:
            for each in waiting.decisions:
                said = {"value": "green"} if "colour" in str(each["question"]) else {}
                await sf.answer("talk", "approved" if said else "rejected", key=each["key"], **said)
        reply = await talk.ask("go")
    assert reply.body == "User denied the tool call request; green"


async def test_a_tool_that_asks_is_entered_again_in_the_process_that_waited(url: str) -> None:
    entered: list[int] = []

    @once
    @tool
    async def paint(ctx: Context) -> str:
        entered.append(1)
        said = [await ctx.input("Which colour?"), await ctx.input("Which colour?")]
        return " and ".join(said)

    agent = Agent("a", config=Scripted(tools_then_say(call("paint"))), tools=[paint])
    async with AsyncStepfast(url) as sf:
        with durable(agent, "talk", url, on_wait="block") as talk:
            asking = asyncio.create_task(talk.ask("go"))
            await answer(sf, "talk", value="green")
            await answer(sf, "talk", value="blue")
            assert (await asyncio.wait_for(asking, 30)).body == "green and blue"
    assert len(entered) == 3


async def test_a_hook_of_the_agent_is_asked_once(url: str) -> None:
    told: list[str] = []

    def hook(event: HumanInputRequest) -> str:
        told.append(event.content)
        return "blue"

    @idempotent
    @tool
    async def paint(ctx: Context) -> str:
        return await ctx.input("Which colour?")

    breaking = Breaking(tools_then_say(call("paint")), 2)

    def agent() -> Agent[Any]:
        return Agent("a", config=Scripted(breaking), tools=[paint], hitl_hook=hook)

    assert (await until_done(agent, url, "go")).body == "blue"
    assert told == ["Which colour?"]


async def test_a_question_in_a_subtask_is_no_text_of_the_tool(url: str) -> None:
    seen: list[Any] = []

    @tool
    async def paint(ctx: Context) -> str:
        return await ctx.input("Which colour?")

    def script(messages: list[Any]) -> ModelResponse:
        seen.extend(outputs(messages))
        return tools_then_say(call("run_subtasks", tasks=["one", "two"]))(messages)

    worker = Scripted(tools_then_say(call("paint")))
    agent = Agent("a", config=Scripted(script), tasks=TaskConfig(config=worker, extra_tools=[paint]))
    with durable(agent, "talk", url, policies={"*": "ask"}) as talk:
        with pytest.raises(Suspended):
            await talk.ask("go")
        assert seen == []
        async with AsyncStepfast(url) as sf:
            questions = await sf.decisions("talk")
            assert len(questions) == 2
            for each in questions:
                await sf.answer("talk", "approved", key=each["key"], value="red")
        reply = await talk.ask("go")
    assert reply.body == "## one\n\nred\n\n---\n\n## two\n\nred"
    assert worker.calls == 4


async def test_a_tool_that_swallows_everything_gets_no_result_of_a_question(url: str) -> None:
    seen: list[str] = []

    @tool
    async def paint(ctx: Context) -> str:
        said = await asyncio.gather(ctx.input("Which colour?"), return_exceptions=True)
        return f"painted {said}"

    def script(messages: list[Any]) -> ModelResponse:
        seen.extend(outputs(messages))
        return tools_then_say(call("paint"))(messages)

    with durable(Agent("a", config=Scripted(script), tools=[paint]), "talk", url, policies={"*": "once"}) as talk:
        with pytest.raises(Suspended):
            await talk.ask("go")
        async with AsyncStepfast(url) as sf:
            await sf.answer("talk", "approved", value="green")
        assert (await talk.ask("go")).body == "painted ['green']"
    assert seen == ["painted ['green']"]


async def test_another_durable_agent_that_waits_is_no_error_of_the_tool_that_asked_it(url: str) -> None:
    seen: list[str] = []

    @tool(middleware=[approval_required()])
    async def charge() -> str:
        return "charged"

    @once
    @tool
    async def delegate() -> str:
        bank = Agent("bank", config=Scripted(tools_then_say(call("charge"))), tools=[charge])
        with durable(bank, "bank", url) as other:
            return str((await other.ask("charge")).body)

    def script(messages: list[Any]) -> ModelResponse:
        seen.extend(outputs(messages))
        return tools_then_say(call("delegate"))(messages)

    with durable(Agent("a", config=Scripted(script), tools=[delegate]), "talk", url) as talk:
        with pytest.raises(Suspended) as waits:
            await talk.ask("go")
        assert (waits.value.run_id, seen) == ("bank", [])
        async with AsyncStepfast(url) as sf:
            await sf.answer("bank", "approved")
        assert (await talk.ask("go")).body == "charged"


# --- observers, upkeep, background -----------------------------------------------------------------


async def test_observers_are_told_once_and_pieces_of_answers_only_live(url: str) -> None:
    told: list[str] = []
    pieces: list[str] = []

    def observe(event: ToolResultsEvent) -> None:
        told.append(outputs([event])[0])

    async def chunk(event: ModelMessageChunk, ctx: Context) -> None:
        pieces.append(event.content)

    @tool
    def look() -> str:
        return "seen"

    breaking = Breaking(tools_then_say(call("look")), 2)

    def agent() -> Agent[Any]:
        observers = [observer(ToolResultsEvent, observe), observer(ModelMessageChunk, chunk)]
        return Agent("a", config=Scripted(breaking), tools=[look], observers=observers)

    assert (await until_done(agent, url, "go", policies={"*": "ask"})).body == "seen"
    assert (told, pieces) == (["seen"], ["seen"])


async def test_a_subagent_in_the_background_is_heard_once(url: str) -> None:
    """Whether its message comes before or after a model call is a matter of moments; that it comes is not."""
    script = Breaking(tools_then_say(call("background_task_helper", objective="help")), 2, 3)
    helper = Scripted(lambda _: say("helped"))

    def agent() -> Agent[Any]:
        tools = [background_agent_tool(Agent("helper", config=helper), description="Helps")]
        return Agent("a", config=Scripted(script), tools=tools)

    reply = await until_done(agent, url, "go")
    history = [each for each in asked(list(await reply.history.get_events())) if "helped" in each]
    waiting = [each for each in asked(reply.context.pending_messages) if "helped" in each]
    assert (len(history + waiting), helper.calls) == (1, 1)
    [started] = [e for e in await reply.history.get_events() if isinstance(e, ToolResultEvent)]
    text: Any = started.result.parts[0]
    assert text.content.split()[-1] in (history + waiting)[0]


async def test_a_history_is_compacted_once(url: str) -> None:
    from ag2 import KnowledgeConfig
    from ag2.compact import CompactTrigger, SummarizeCompact
    from ag2.knowledge import MemoryKnowledgeStore

    model = Scripted(Breaking(lambda messages: say(f"said {len(asked(messages))}"), 3))
    summary = Scripted(lambda _: say("short"))

    def talk() -> DurableAgent:
        knowledge = KnowledgeConfig(
            store=MemoryKnowledgeStore(),
            compact=SummarizeCompact(target=2, config=summary),
            compact_trigger=CompactTrigger(max_events=3),
        )
        return durable(Agent("a", config=model, knowledge=knowledge), "talk", url)

    with talk() as made:
        reply = await (await made.ask("one")).ask("two")
        assert summary.calls == 1
        events = list(await reply.history.get_events())
        assert "CompactionSummary" in {type(each).__name__ for each in events}
        with pytest.raises(Broken):
            await reply.ask("three")
    with talk() as made:
        again = await made.reply()
        assert again is not None
        assert wire(list(await again.history.get_events())) == wire(events)
        await again.ask("three")
    assert summary.calls == 2

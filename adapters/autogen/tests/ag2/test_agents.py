"""Durable AG2 agents: conversations that go on in other processes; drift, cost, workers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from ag2 import Agent, MemoryStream, tool
from ag2.events import (
    ModelMessageChunk,
    ModelRequest,
    ModelResponse,
    TextInput,
)
from ag2.history import MemoryStorage
from ag2.middleware import approval_required
from pydantic import BaseModel

from adapters.autogen.tests.ag2.kit import (
    Breaking,
    Broken,
    Scripted,
    answer,
    asked,
    call,
    say,
    tools_then_say,
    until_done,
    wire,
)
from stepfast import AsyncStepfast, Conflict, Diverged, InvalidInput, NotFound, Stepfast
from stepfast.adapters import usage_of
from stepfast_autogen.ag2 import (
    DurableAgent,
    DurableReply,
    Price,
    durable,
    idempotent,
    once,
)

# --- conversations ---------------------------------------------------------------------------------


async def test_the_same_line_starts_resumes_and_returns_the_finished_reply(url: str) -> None:
    done: list[str] = []

    @tool
    async def buy(thing: str) -> str:
        done.append(thing)
        return f"one {thing}"

    script = Breaking(tools_then_say(call("buy", thing="lamp")), 2)
    model = Scripted(script)
    reply = await until_done(lambda: Agent("shop", "Sell.", config=model, tools=[buy]), url, "Sell me a lamp")
    assert reply.body == "one lamp"
    assert (done, model.calls) == (["lamp"], 3)  # the second call broke
    again = await until_done(lambda: Agent("shop", "Sell.", config=model, tools=[buy]), url, "Sell me a lamp")
    assert (again.body, again.run_id, model.calls) == ("one lamp", "talk", 3)
    assert wire(await again.history.get_events()) == wire(await reply.history.get_events())
    with Stepfast(url) as sf:
        intent = sf.get_intent("talk")
    assert intent["status"] == "COMPLETED"
    usage = {"requests": 2, "input_tokens": 10, "output_tokens": 2, "cached_tokens": 4}
    assert intent["result"] == {"reply": "one lamp", "agent": "shop", "turn": 1, "usage": usage}
    assert intent["labels"] == {"framework": "ag2", "agent": "shop", "conversation": "talk"}


async def test_another_input_under_the_same_name_is_a_conflict(url: str) -> None:
    with durable(Agent("a", config=Scripted(lambda _: say("yes"))), "talk", url) as made:
        await made.ask("one")
        with pytest.raises(Conflict):
            await made.ask("two")


async def test_turns_go_on_in_other_processes(url: str) -> None:
    def script(messages: list[Any]) -> ModelResponse:
        return say(" | ".join(asked(messages)))

    model = Scripted(script)

    def made() -> DurableAgent:
        return durable(Agent("a", config=model, variables={"n": 1}), "talk", url)

    with made() as talk:
        assert await talk.reply() is None
        with pytest.raises(NotFound, match="no conversation 'talk'"):
            await talk.resume()
        first = await talk.ask("one", variables={"who": "ada"})
        first.context.variables["n"] = 2
        assert (await first.ask("two")).body == "one | two"
    with made() as talk:  # the whole script again: nothing is called
        reply = await (await talk.ask("one", variables={"who": "ada"})).ask("two")
        assert (reply.body, reply.run_id, model.calls) == ("one | two", "talk#2", 2)
    with made() as talk:  # without the script: from the last reply
        reply = await talk.reply()
        assert isinstance(reply, DurableReply)
        assert reply.context.variables["who"] == "ada"
        third = await reply.ask("three", TextInput("four"))
        assert (third.body, third.turn, model.calls) == ("one | two | three | four", 3, 3)
        assert (await talk.resume()).body == third.body
        assert (await third.usage()).total.prompt_tokens == 30


async def test_a_turn_that_was_cut_short_is_resumed_without_its_input(url: str) -> None:
    script = Breaking(lambda messages: say(" | ".join(asked(messages))), 2)
    model = Scripted(script)
    with durable(Agent("a", config=model), "talk", url) as talk:
        first = await talk.ask("one")
        with pytest.raises(Broken):
            await first.ask("two")
    with durable(Agent("a", config=model), "talk", url) as talk:
        assert (await talk.resume()).body == "one | two"
    assert model.calls == 3


async def test_events_resume_a_turn_as_in_ag2(url: str) -> None:
    model = Scripted(Breaking(lambda messages: say(" | ".join(asked(messages))), 1))
    trajectory = [ModelRequest([TextInput("one")]), say("yes"), ModelRequest([TextInput("two")])]
    with durable(Agent("a", config=model), "talk", url) as talk, pytest.raises(Broken):
        await talk.resume(*trajectory)
    with durable(Agent("a", config=model), "talk", url) as talk:
        assert (await talk.resume()).body == "one | two"
        assert (await talk.resume(*trajectory)).body == "one | two"
    assert model.calls == 2


async def test_a_stream_of_the_users_own_keeps_its_history_once(url: str) -> None:
    class Shared(MemoryStorage):
        """Outlives the objects around it, as one on a disk does."""

    storage: Any = Shared.__new__(Shared)
    MemoryStorage.__init__(storage)
    script = Breaking(tools_then_say(call("look")), 2)
    stream = MemoryStream(storage)

    @idempotent
    @tool
    def look() -> str:
        return "seen"

    def agent() -> Agent[Any]:
        return Agent("a", config=Scripted(script), tools=[look])

    await stream.history.replace([ModelRequest([TextInput("before")]), say("yes")])
    for life in range(3):
        again = MemoryStream(storage, id=stream.id)
        with durable(agent(), "talk", url) as talk:
            if life == 0:
                with pytest.raises(Broken):
                    await talk.ask("now", stream=again)
            else:
                assert (await talk.ask("now", stream=again)).body == "seen"
        events = wire(list(await stream.history.get_events()))
        assert [each for each in events if each[0] == "asked"] == [["asked", "before"], ["asked", "now"]]


async def test_a_finished_turn_leaves_later_ones_in_the_users_stream_alone(url: str) -> None:
    model = Scripted(lambda messages: say(" | ".join(asked(messages))))
    for _ in range(2):  # the second time as a new process, with an empty stream
        stream = MemoryStream()
        with durable(Agent("a", config=model), store=url) as talk:
            for _ in range(2):
                first = await talk.ask("one", stream=stream, run_id="first")
                second = await talk.ask("two", stream=stream, run_id="second")
                assert (first.body, second.body) == ("one", "one | two")
                assert asked(list(await stream.history.get_events())) == ["one", "two"]
    assert model.calls == 2


async def test_a_schema_is_asked_for_again_as_a_turn_of_the_conversation(url: str) -> None:
    class Order(BaseModel):
        amount: int

    def script(messages: list[Any]) -> ModelResponse:
        return say('{"amount": 3}' if len(asked(messages)) == 2 else "three")

    model = Scripted(script)
    for _ in range(2):
        with durable(Agent("a", config=model, response_schema=Order), "talk", url) as talk:
            reply = await talk.ask("How many?")
            assert await reply.content(retries=1) == Order(amount=3)
    assert model.calls == 2


async def test_a_watched_turn_shows_its_pieces(url: str) -> None:
    pieces: list[str] = []
    with durable(Agent("a", config=Scripted(lambda m: say(" ".join(asked(m))))), "talk", url) as talk:
        async with talk.run("one") as turn:
            turn.stream.where(ModelMessageChunk).subscribe(lambda event: pieces.append(event.content))
            turn.enqueue("two")
            turn.start()
            reply = await turn.result()
        assert (reply.body, pieces) == ("two one", ["two", "one"])
        async with reply.run("three") as turn:
            assert (await turn.result()).body == "two one three"
        async with talk.run("not driven", run_id="other"):
            pass
        with pytest.raises(NotFound):
            await talk._client().get_intent("other")


# --- drift, cost, workers --------------------------------------------------------------------------


async def test_drift_is_warned_of_and_raised_for_the_strict(url: str, caplog: pytest.LogCaptureFixture) -> None:
    @idempotent
    @tool
    def look() -> str:
        return "seen"

    breaking = Breaking(tools_then_say(call("look")), 2, 3, 4)

    async def ask(prompt: str, **options: Any) -> Any:
        with durable(Agent("a", prompt, config=Scripted(breaking), tools=[look]), "talk", url, **options) as talk:
            return await talk.ask("go")

    with pytest.raises(Broken):
        await ask("Be brief.")
    with pytest.raises(Diverged, match=r"prompt: 'Be brief\.' → 'Be polite\.'"):
        await ask("Be polite.", on_drift="raise")
    with pytest.raises(Broken):
        await ask("Be brief.", on_drift="raise")
    with caplog.at_level(logging.WARNING, "stepfast"), pytest.raises(Broken):
        await ask("Be polite.")
    assert "model call model:0 of agent a was recorded for another request" in caplog.text
    with pytest.raises(InvalidInput, match="on_drift: must be one of"):
        await ask("", on_drift="acept")


async def test_usage_is_complete_and_priced(url: str) -> None:
    @idempotent
    @tool
    def look() -> str:
        return "seen"

    prices = {"scripted-*": Price(input=1_000_000, output=1_000_000)}
    expert = Agent("expert", config=Scripted(lambda _: say("known")))
    model = Scripted(tools_then_say(call("task_expert", objective="know"), call("look")))
    agent = Agent("a", config=model, tools=[expert.as_tool(description="Knows"), look])
    with durable(agent, "talk", url, prices=prices) as talk:
        await talk.ask("go")
    async with AsyncStepfast(url) as sf:
        used = (await sf.get_intent("talk"))["result"]["usage"]
        assert (await usage_of(sf, "talk")).as_dict() == used
    assert (used["requests"], used["input_tokens"], used["cost"]) == (3, 20, 24.0)


async def test_a_worker_carries_out_intents_and_waits_without_holding_one(url: str) -> None:
    @once
    @tool(middleware=[approval_required()])
    async def charge() -> str:
        return "charged"

    agent = Agent("a", config=Scripted(tools_then_say(call("charge"))), tools=[charge])
    async with AsyncStepfast(url) as sf:
        with durable(agent, store=sf) as talk:
            worker = talk.worker(sf, "agent://clerk")
            intents = [
                await sf.send_intent({"intent_type": "ask.v1", "to_agent": "agent://clerk", "payload": payload})
                for payload in ("go", {"input": ["go", "on"]}, {"input": 7})
            ]
            serving = asyncio.create_task(worker.run())
            try:
                for intent in intents[:2]:
                    await answer(sf, intent)
                    ended = await sf.wait_for(intent, timeout=30)
                    assert (ended["status"], ended["result"]["reply"]) == ("COMPLETED", "charged")
                assert (await sf.wait_for(intents[2], timeout=30))["status"] == "FAILED"
            finally:
                serving.cancel()
                await asyncio.wait([serving])


# --- checks ----------------------------------------------------------------------------------------


async def test_what_makes_no_sense_is_refused_before_anything_happens(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"agent: must be an ag2\.Agent, not str"):
        durable("agent")  # type: ignore[arg-type]
    with durable(Agent("a", config=Scripted(lambda _: say("x"))), store=url) as talk:
        with pytest.raises(InvalidInput, match="run_id: a durable run needs a name"):
            await talk.ask("go")
        with pytest.raises(TypeError, match="unexpected keyword argument 'strem'"):
            await talk.ask("go", run_id="talk", strem=None)
        async with AsyncStepfast(url) as sf:
            assert await sf.list_intents() == []

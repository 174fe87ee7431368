"""Tools of AG2 agents: what is recorded of a call, and what becomes of one in doubt."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ag2 import Agent, Context, DataInput, ToolResult, tool
from ag2.events import (
    BaseEvent,
    Field,
    ModelResponse,
    TextInput,
    ToolErrorEvent,
    ToolResultEvent,
)
from ag2.middleware import BaseMiddleware, Middleware
from ag2.tools.toolkits.mcp_server import MCPStdioServerConfig, MCPToolkit
from pydantic import BaseModel

from adapters.autogen.tests.ag2.kit import (
    Breaking,
    Broken,
    Gone,
    Scripted,
    asked,
    call,
    calls,
    outputs,
    say,
    tools_then_say,
    until_done,
)
from stepfast import AsyncStepfast, StoreError
from stepfast_autogen.ag2 import (
    DID_NOT_HAPPEN,
    Happened,
    Suspended,
    durable,
    idempotency_key,
    idempotent,
    once,
)


async def test_sync_and_async_tools_have_the_same_idempotency_key_on_each_attempt(url: str) -> None:
    keys: list[str] = []
    broken = [True, True]

    @idempotent
    @tool
    def look(n: int) -> str:
        keys.append(idempotency_key())
        if broken.pop() if broken else False:
            raise Gone
        return "seen"

    model = Scripted(tools_then_say(call("look", n=1), call("look", n=1)))
    reply = None
    while reply is None:
        with durable(Agent("a", config=model, tools=[look]), "talk", url) as talk, suppress(Gone):
            reply = await talk.ask("look")
    assert reply.body == "seen; seen"
    assert len(set(keys)) == 2


async def test_an_error_of_a_tool_is_recorded_as_the_model_saw_it(url: str) -> None:
    done: list[int] = []

    @tool
    def fail() -> str:
        done.append(1)
        raise LookupError("no such thing")

    script = Breaking(lambda m: say(outputs(m)[0]) if outputs(m) else calls(call("fail")), 2)
    errors: list[Any] = []

    def agent() -> Agent[Any]:
        return Agent("a", config=Scripted(script), tools=[fail])

    reply = await until_done(agent, url, "go")
    errors = [e.error for e in await reply.history.get_events() if isinstance(e, ToolErrorEvent)]
    assert "LookupError: no such thing" in reply.body
    assert (done, [type(each) for each in errors]) == ([1], [LookupError])


async def test_a_one_shot_tool_that_raises_is_in_doubt_and_a_person_decides(url: str) -> None:
    done: list[int] = []

    @once
    @tool
    def charge(amount: int) -> str:
        done.append(amount)
        raise TimeoutError("no answer from the bank")

    model = Scripted(tools_then_say(call("charge", amount=3)))
    with durable(Agent("a", config=model, tools=[charge]), "talk", url) as talk:
        with pytest.raises(Suspended):
            await talk.ask("go")
        async with AsyncStepfast(url) as sf:
            assert (await sf.get_intent("talk"))["status"] == "WAITING"
            [question] = await sf.decisions("talk")
            assert "Did charge happen?" in str(question["question"])
            await sf.answer("talk", "done", value="charged 3")
        reply = await talk.ask("go")
    assert (reply.body, done, model.calls) == ("charged 3", [3], 2)


async def test_arguments_that_do_not_fit_leave_no_doubt(url: str) -> None:
    @once
    @tool
    def charge(amount: int) -> str:
        return "charged"

    def script(messages: list[Any]) -> ModelResponse:
        done = outputs(messages)
        return say(done[-1]) if len(done) == 2 else calls(call("charge", amount=1 if done else "many"))

    with durable(Agent("a", config=Scripted(script), tools=[charge]), "talk", url) as talk:
        assert (await talk.ask("go")).body == "charged"


@pytest.mark.parametrize(
    ("policy", "said"), [("fail", "unknown"), (lambda amount: Happened(f"found {amount}"), "found 3"), ("retry", "ok")]
)
async def test_a_call_in_doubt_is_settled_by_its_policy(url: str, policy: Any, said: str) -> None:
    done: list[int] = []

    @tool
    async def charge(amount: int) -> str:
        done.append(amount)
        if len(done) == 1:
            raise KeyboardInterrupt
        return "ok"

    def agent() -> Agent[Any]:
        return Agent("a", config=Scripted(tools_then_say(call("charge", amount=3))), tools=[charge])

    def life() -> Any:
        async def play() -> Any:
            with durable(agent(), "talk", url, policies={"charge": policy}) as talk:
                return (await talk.ask("go")).body

        return asyncio.run(play())

    with pytest.raises(KeyboardInterrupt):
        await asyncio.to_thread(life)
    body = await asyncio.to_thread(life)
    assert said in body
    assert len(done) == (2 if policy == "retry" else 1)


async def test_a_probe_says_that_nothing_happened(url: str) -> None:
    done: list[int] = []

    @once(reconcile=lambda amount: DID_NOT_HAPPEN)
    @tool
    async def charge(amount: int) -> str:
        done.append(amount)
        if len(done) == 1:
            raise TimeoutError
        return "ok"

    with durable(Agent("a", config=Scripted(tools_then_say(call("charge", amount=3))), tools=[charge]), "t", url) as a:
        assert (await a.ask("go")).body == "ok"
    assert done == [3, 3]


class Noted(BaseEvent):
    """An event of the user's own."""

    text: str = Field(kw_only=False)


async def test_what_a_tool_does_to_its_context_is_kept_with_its_result(url: str) -> None:
    class Local:
        """Cannot be stored."""

        def __repr__(self) -> str:
            return "local"

    @tool
    async def work(ctx: Context) -> Any:
        ctx.variables["seen"] = ctx.variables.get("seen", 0) + 1
        ctx.enqueue("one more thing")
        await ctx.send(Noted("worked"))
        return ToolResult(DataInput({"n": 1}), TextInput("text"), metadata={"m": 1})

    def script(messages: list[Any]) -> ModelResponse:
        return say(str(asked(messages))) if outputs(messages) else calls(call("work"))

    breaking = Breaking(script, 2)

    def agent() -> Agent[Any]:
        return Agent("a", config=Scripted(breaking), tools=[work])

    reply = await until_done(agent, url, "go", policies={"*": "ask"})
    events = list(await reply.history.get_events())
    assert reply.body == "['go', 'one more thing']"
    assert reply.context.variables["seen"] == 1
    assert [each.text for each in events if isinstance(each, Noted)] == ["worked"]
    [result] = [each for each in events if isinstance(each, ToolResultEvent)]
    data: Any = result.result.parts[0]
    assert (data.data, result.result.metadata) == ({"n": 1}, {"m": 1})


async def test_a_result_that_cannot_be_stored_is_kept_as_the_model_sees_it(url: str) -> None:
    class Local(BaseModel):
        n: int

    @tool
    async def work() -> Any:
        return DataInput(Local(n=3))

    breaking = Breaking(tools_then_say(call("work")), 2)

    def agent() -> Agent[Any]:
        return Agent("a", config=Scripted(breaking), tools=[work])

    assert (await until_done(agent, url, "go", policies={"*": "ask"})).body == '{"n":3}'


async def test_a_store_that_goes_away_in_a_tool_ends_the_turn_with_its_error(url: str) -> None:
    @idempotent
    @tool
    async def close() -> str:
        talk.close()
        return "closed"

    @idempotent
    @tool
    async def look() -> str:
        return "seen"

    model = Scripted(tools_then_say(call("look"), call("close"), call("look")))
    talk = durable(Agent("a", config=model, tools=[close, look]), "talk", url)
    with pytest.raises(StoreError):
        await asyncio.wait_for(talk.ask("go"), 60)
    assert model.calls == 1


async def test_what_a_person_says_is_the_result_whatever_it_looks_like(url: str) -> None:
    @once
    @tool
    def charge() -> str:
        raise TimeoutError

    def script(messages: list[Any]) -> ModelResponse:
        return say(outputs(messages)[0]) if outputs(messages) else calls(call("charge"))

    with durable(Agent("a", config=Scripted(script), tools=[charge]), "talk", url) as talk:
        with pytest.raises(Suspended):
            await talk.ask("go")
        async with AsyncStepfast(url) as sf:
            await sf.answer("talk", "done", value={"result": "ok"})
        assert (await talk.ask("go")).body == "{'result': 'ok'}"


SERVER = """
import sys
from mcp.server import MCPServer

server = MCPServer("shop")

@server.tool()
def charge(amount: int) -> str:
    with open(sys.argv[1], "a") as effects:
        effects.write(f"{amount} ")
    return f"charged {amount}"

server.run("stdio")
"""


async def test_a_tool_of_an_mcp_server_is_called_once(url: str, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    config = MCPStdioServerConfig(command=sys.executable, args=[str(tmp_path / "server.py"), str(tmp_path / "effects")])
    breaking = Breaking(tools_then_say(call("charge", amount=3)), 2)

    def agent() -> Agent[Any]:
        return Agent("a", config=Scripted(breaking), tools=[MCPToolkit(config)])

    assert (await until_done(agent, url, "go", policies={"charge": "once"})).body == "charged 3"
    assert (tmp_path / "effects").read_text() == "3 "


async def test_a_final_result_ends_the_turn_and_an_unknown_tool_is_an_error_for_the_model(url: str) -> None:
    @idempotent
    @tool
    def finish() -> ToolResult:
        return ToolResult("finished", final=True)

    def script(messages: list[Any]) -> ModelResponse:
        return calls(call("finish")) if outputs(messages) else calls(call("no_such_tool"))

    model = Scripted(script)
    for _ in range(2):
        with durable(Agent("a", config=model, tools=[finish]), "talk", url) as talk:
            assert (await talk.ask("go")).body == "finished"
    assert model.calls == 2


async def test_a_hook_that_repeats_a_tool_makes_a_call_of_each(url: str) -> None:
    done: list[int] = []

    async def twice(call_next: Any, event: Any, context: Any) -> Any:
        await call_next(event, context)
        return await call_next(event, context)

    @tool(middleware=[twice])
    def count() -> str:
        done.append(1)
        return str(len(done))

    breaking = Breaking(tools_then_say(call("count")), 2)

    def agent() -> Agent[Any]:
        return Agent("a", config=Scripted(breaking), tools=[count])

    assert (await until_done(agent, url, "go", policies={"*": "ask"})).body == "2"


async def test_model_calls_that_a_middleware_repeats_are_recorded_each(url: str) -> None:
    class Again(BaseMiddleware):
        async def on_llm_call(self, call_next: Any, events: Any, context: Any) -> Any:
            try:
                return await call_next(events, context)
            except Broken:
                await call_next(events, context)
                return await call_next(events, context)

    model = Scripted(Breaking(lambda messages: say(f"said {model.calls}"), 1))
    for _ in range(2):
        with durable(Agent("a", config=model, middleware=[Middleware(Again)]), "talk", url) as talk:
            assert (await talk.ask("go")).body == "said 3"
    assert model.calls == 3

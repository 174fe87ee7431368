"""Tool calls: what is in doubt is asked about, repeated or told to the model; nothing hangs; keys reach sync tools."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ToolCallExecutionEvent, ToolCallSummaryMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.tools import FunctionTool, StaticWorkbench, TextResultContent, ToolResult, Workbench

from adapters.autogen.tests.kit import Log, Scripted, call, collect, in_turns, outputs
from stepfast import AsyncStepfast, Suspended, Waiting
from stepfast_autogen import DID_NOT_HAPPEN, Happened, durable, idempotency_key, idempotent, once


class Crash(BaseException):
    """Stands for the end of the process inside a tool."""


def team(*tools: Any, script: Any = None, **options: Any) -> RoundRobinGroupChat:
    client = Scripted(script or in_turns([call(getattr(tools[0], "name", tools[0].__name__))], "over"))
    return RoundRobinGroupChat([AssistantAgent("ann", client, tools=list(tools), **options)], max_turns=2)


def results(result: Any) -> list[str]:
    events = [m for m in result.messages if isinstance(m, ToolCallExecutionEvent)]
    return [each.content for event in events for each in event.content]


async def left_in_doubt(url: str, **options: Any) -> Log:
    """Begin a run that ends inside its tool, after the effect."""

    async def pay() -> str:
        """Pay."""
        raise Crash

    with pytest.raises(Crash):
        await asyncio.wait_for(durable(lambda: team(pay), "talk", url, **options).run(task="go"), 20)
    return Log(Path(url.removeprefix("sqlite:///")).with_name("log"))


def paying(log: Log) -> Any:
    async def pay() -> str:
        """Pay."""
        log.add(idempotency_key())
        return "paid"

    return pay


async def test_a_tool_that_says_nothing_is_asked_about(url: str) -> None:
    log = await left_in_doubt(url)
    talk = durable(lambda: team(paying(log)), "talk", url)
    with pytest.raises(Suspended):
        await talk.run(task="go")
    async with AsyncStepfast(url) as sf:
        assert (await sf.get_intent("talk"))["status"] == "WAITING"
        await sf.answer("talk", "done", value="paid yesterday")

    result = await talk.run(task="go")

    assert (results(result), log.lines) == (["paid yesterday"], [])


async def test_policies_decide_without_a_person(url: str) -> None:
    words: list[Any] = [("retry", "paid"), ("fail", None), (lambda: Happened("found"), "found")]
    for word, outcome in words:
        at = url.replace(".db", f"{outcome}.db")
        log = await left_in_doubt(at, policies={"pay": word})
        result = await durable(lambda log=log: team(paying(log)), "talk", at, policies={"p*": word}).run(task="go")
        shown = results(result)[0]
        assert shown == outcome if outcome is not None else "unknown" in shown, (word, shown)


async def test_a_probe_that_finds_nothing_lets_it_happen(url: str) -> None:
    policies: Any = {"pay": lambda: DID_NOT_HAPPEN}
    log = await left_in_doubt(url, policies=policies)

    result = await durable(lambda: team(paying(log)), "talk", url, policies=policies).run(task="go")

    assert (results(result), len(log.lines)) == (["paid"], 1)


async def test_a_one_shot_that_raises_is_in_doubt_and_a_wrong_argument_is_not(url: str) -> None:
    tries: list[str] = []

    @once(reconcile=lambda amount: DID_NOT_HAPPEN if len(tries) < 2 else Happened("paid after all"))
    async def pay(amount: int) -> str:
        """Pay."""
        tries.append("pay")
        raise ConnectionError("no answer")

    def script(messages: list[Any]) -> Any:
        done = outputs(messages)
        return [call("pay", amount="much")] if not done else [call("pay", amount=3)] if len(done) == 1 else "over"

    result = await durable(lambda: team(pay, script=script, max_tool_iterations=3), "talk", url).run(task="go")

    shown = results(result)
    assert "valid integer" in shown[0]
    assert (shown[1], tries) == ("paid after all", ["pay", "pay"])


async def test_an_error_of_a_tool_is_shown_to_the_model_and_not_repeated(url: str) -> None:
    log = Log(Path(url.removeprefix("sqlite:///")).with_name("log"))

    async def pay() -> str:
        """Pay."""
        log.add("called")
        raise ValueError("no funds")

    class Away(Exception):
        pass

    broken = [True]

    def script(messages: list[Any]) -> Any:
        if outputs(messages) and broken and broken.pop():
            raise Away
        return "over" if outputs(messages) else [call("pay")]

    def make() -> Any:
        return team(pay, script=script, reflect_on_tool_use=True)

    with pytest.raises(Away):
        await durable(make, "talk", url).run(task="go")
    result = await durable(make, "talk", url).run(task="go")

    assert (results(result), log.lines) == (["no funds"], ["called"])


class Failing(Workbench):
    """A workbench that raises, at which AgentChat hangs."""

    component_type = "workbench"

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    async def list_tools(self) -> Any:
        return [{"name": "pay", "description": "Pay."}]

    async def call_tool(self, name: str, *args: Any, **kwargs: Any) -> ToolResult:
        if self.error is not None:
            raise self.error
        return ToolResult(name=name, result=[TextResultContent(content="paid")])

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def reset(self) -> None: ...

    async def save_state(self) -> Any:
        return {}

    async def load_state(self, state: Any) -> None: ...


@pytest.mark.parametrize("error", [OSError("the server is gone"), asyncio.CancelledError(), Crash()], ids=repr)
async def test_an_error_at_the_tool_boundary_is_raised_and_does_not_hang(error: BaseException, url: str) -> None:
    def make(error: BaseException | None) -> Any:
        ann = AssistantAgent("ann", Scripted(in_turns([call("pay")], "over")), workbench=Failing(error))
        return RoundRobinGroupChat([ann], max_turns=2)

    told: list[Any] = []
    stream = durable(lambda: make(error), "talk", url, on_in_doubt="retry").run_stream(task="go")
    with pytest.raises(type(error)) as raised:
        await asyncio.wait_for(collect(stream, told), 60)
    result = await durable(lambda: make(None), "talk", url, on_in_doubt="retry").run(task="go")

    assert isinstance(error, asyncio.CancelledError) or raised.value is error
    assert not any(isinstance(item, ToolCallSummaryMessage) for item in told)  # no placeholder is ever delivered
    assert results(result) == ["paid"]


async def test_the_key_is_there_in_blocking_tools_and_the_same_on_every_attempt(url: str) -> None:
    keys: list[str] = []

    def weigh(thing: str) -> str:
        """Weigh a thing."""
        keys.append(idempotency_key())
        if len(keys) == 1:
            raise Crash
        return "3 kg"

    def make() -> Any:
        return team(weigh, script=in_turns([call("weigh", thing="lamp")], "over"))

    with pytest.raises(Crash):
        await durable(make, "talk", url, policies={"*": "retry"}).run(task="go")
    await durable(make, "talk", url, policies={"*": "retry"}).run(task="go")

    assert keys[0] == keys[1]


async def test_equal_parallel_calls_with_empty_ids_are_told_apart(url: str) -> None:
    seen: list[str] = []

    @idempotent
    async def roll() -> str:
        """Roll dice."""
        seen.append(idempotency_key())
        return f"rolled {len(seen)}"

    def make() -> Any:
        return team(roll, script=in_turns([call("roll"), call("roll"), call("roll")], "over"))

    result = await durable(make, "talk", url).run(task="go")

    assert sorted(results(result)) == ["rolled 1", "rolled 2", "rolled 3"]
    assert len(set(seen)) == 3


async def test_agents_that_share_a_workbench_have_calls_of_their_own(url: str) -> None:
    used: list[str] = []

    def tick() -> str:
        """Tick."""
        used.append(idempotency_key())
        return f"tick {len(used)}"

    def make() -> Any:
        shared = StaticWorkbench([FunctionTool(tick, description="Tick.")])
        agents = [
            AssistantAgent(name, Scripted(in_turns([call("tick")], "over")), workbench=shared)
            for name in ("ann", "bob")
        ]
        return RoundRobinGroupChat(agents, max_turns=2)

    result = await durable(make, "talk", url, on_in_doubt="retry").run(task="go")

    assert (results(result), len(set(used))) == (["tick 1", "tick 2"], 2)


async def test_what_is_waited_for_can_be_returned(url: str) -> None:
    log = await left_in_doubt(url)

    waiting = await durable(lambda: team(paying(log)), "talk", url, on_wait="return").run(task="go")

    assert isinstance(waiting, Waiting)
    assert [decision["key"] for decision in waiting.decisions]

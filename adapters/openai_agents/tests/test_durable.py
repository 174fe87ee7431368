"""`durable`, tools that say nothing, and usage: the words that all adapters share, spoken by this one."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, FunctionTool, function_tool

from adapters.openai_agents.tests.kit import Scripted, call, in_turns, outputs, text
from adapters.openai_agents.tests.test_tools import Files
from stepfast import AsyncStepfast, InvalidInput, Stepfast, Suspended, Waiting
from stepfast.adapters import policies
from stepfast_openai_agents import DurableRunner, Price, current_run, durable, idempotent, once, replayed


class Dead(BaseException):
    """Ends a tool as a crash would."""


class Boom(Exception):
    pass


def summing(items: list[Any]) -> list[Any]:
    return [text("Sum: " + ", ".join(outputs(items)))]


class Shop:
    """An agent with one tool; the first call of the tool dies inside it, or the second model call breaks."""

    def __init__(self, *, dies: bool = False, breaks: bool = False, mark: Any = None) -> None:
        self.sold: list[str] = []
        self.runs: list[Any] = []
        self.breaks = breaks

        def sell(thing: str) -> str:
            run = current_run()
            self.runs.append(None if run is None else run.run_id)
            self.sold.append(thing)
            if dies and len(self.sold) == 1:
                raise Dead
            return f"sold {thing}"

        def end(items: list[Any]) -> list[Any]:
            if self.breaks:
                self.breaks = False
                raise Boom
            return summing(items)

        tool = function_tool(sell)
        self.model = Scripted(in_turns([call("sell", thing="lamp")], end))
        self.agent = Agent(name="shop", model=self.model, tools=[tool if mark is None else mark(tool)])


async def test_a_durable_agent_runs_resumes_and_is_closed(tmp_path: Path) -> None:
    shop = Shop(breaks=True)
    with durable(shop.agent, lambda given: f"order {given}", tmp_path / "shop.db", labels={"team": "sales"}) as shops:
        with pytest.raises(Boom):
            await shops.run("4711")
        result = await shops.resume("order 4711")
        assert result.final_output == "Sum: sold lamp"
        assert (await shops.run("4711")).final_output == "Sum: sold lamp"
        assert (shop.sold, shop.model.calls, shop.runs) == (["lamp"], 3, ["order 4711"])
        events = [event async for event in shops.run_streamed("4711").stream_events()]
        assert events
        assert all(replayed(event) for event in events)
    with Stepfast(tmp_path / "shop.db") as sf:
        shown = sf.get_intent("order 4711")
        assert shown["labels"] == {"framework": "openai-agents", "agent": "shop", "team": "sales"}


def test_a_durable_agent_for_blocking_callers(url: str) -> None:
    loop = asyncio.new_event_loop()  # the SDK leaves the one it runs on open
    asyncio.set_event_loop(loop)
    try:
        with durable(Shop().agent, "order", url) as shops:
            assert shops.run_sync("go", max_turns=3).final_output == "Sum: sold lamp"
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def test_a_durable_agent_is_rewound(url: str) -> None:
    shop = Shop(breaks=True)
    with durable(shop.agent, "order", url) as shops:
        with pytest.raises(Boom):
            await shops.run("go")
        assert await shops.rewind("model:0") == 1
        await shops.run("go")
    assert shop.model.calls == 4


async def test_a_durable_agent_needs_a_name(url: str) -> None:
    with durable(Shop().agent, store=url) as shops, pytest.raises(InvalidInput, match="run_id: a durable run needs"):
        await shops.run("go")


@pytest.mark.parametrize("on_wait", ["suspend", "return"])
async def test_waiting_is_the_same_each_time(url: str, on_wait: Any) -> None:
    shop = Shop(dies=True)
    with durable(shop.agent, "order", url, on_wait=on_wait) as shops:
        with pytest.raises(Dead):
            await shops.run("go")
        for _ in range(2):
            if on_wait == "suspend":
                with pytest.raises(Suspended, match="Did sell happen"):
                    await shops.run("go")
            else:
                waits: Any = await shops.run("go")
                assert isinstance(waits, Waiting)
                assert [d["evidence"]["name"] for d in waits.decisions] == ["sell"]
        async with AsyncStepfast(url) as sf:
            await sf.answer("order", "done", value="sold it")
        assert (await shops.run("go")).final_output == "Sum: sold it"
    assert shop.sold == ["lamp"]


async def test_a_durable_agent_serves_an_address(url: str) -> None:
    async with AsyncStepfast(url) as sf:
        worker = durable(Shop().agent, policies={"*": "retry"}).worker(sf, "agent://acme/prod/shop", concurrency=2)
        running = asyncio.create_task(worker.run())
        about = {"intent_type": "order.v1", "to_agent": "agent://acme/prod/shop"}
        good = await sf.send_intent({**about, "payload": {"input": "go"}})
        bad = await sf.send_intent({**about, "payload": {"input": 5}})
        done = await sf.wait_for(good, timeout=30)
        assert done["result"]["final_output"] == "Sum: sold lamp"
        assert done["result"]["usage"]["requests"] == 2
        assert "payload: must be a text or a list of items" in (await sf.wait_for(bad, timeout=30))["reason"]
        await worker.stop()
        await running


# --- tools that say nothing ----------------------------------------------------------------------


@pytest.fixture
def _nothing_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "_announced", set())


@pytest.mark.usefixtures("_nothing_announced")
async def test_one_line_names_the_tools_without_a_policy(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "stepfast"):
        await DurableRunner.run(Shop(mark=once).agent, "go", run_id="1", store=url)
        await DurableRunner.run(Shop().agent, "go", run_id="2", store=url, policies={"se*": "retry"})
        assert not caplog.records
        await DurableRunner.run(Shop().agent, "go", run_id="3", store=url)
        await DurableRunner.run(Shop().agent, "go", run_id="4", store=url)
    [line] = caplog.records
    assert line.getMessage().startswith("tools without a policy: sell. ")


@pytest.mark.parametrize("policy", ["idempotent", "pattern", "hint"])
async def test_a_tool_that_is_said_to_be_harmless_is_called_again(url: str, policy: str) -> None:
    shop = Shop(dies=True, mark=idempotent if policy == "idempotent" else None)
    if policy == "hint":
        object.__setattr__(shop.agent.tools[0], "annotations", {"readOnlyHint": True})
    given: Any = {"s?ll": "retry"} if policy == "pattern" else None
    with durable(shop.agent, "order", url, policies=given) as shops:
        with pytest.raises(Dead):
            await shops.run("go")
        assert (await shops.run("go")).final_output == "Sum: sold lamp"
    assert shop.sold == ["lamp", "lamp"]


class HarmlessFiles(Files):
    """Says of its tool that it may be repeated, and dies in the first call."""

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[Any]:
        [tool] = await super().list_tools(run_context, agent)
        return [type(tool).model_validate({**tool.model_dump(by_alias=True), "annotations": {"idempotentHint": True}})]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
        if not self.deleted:
            self.deleted.append("died")
            raise Dead
        return await super().call_tool(tool_name, arguments, meta)


async def test_the_hints_of_an_mcp_server_count_where_the_sdk_keeps_them(url: str) -> None:
    server = HarmlessFiles()
    model = Scripted(in_turns([call("delete_file", path="a")], summing))
    agent = Agent(name="a", model=model, mcp_servers=[server])
    with durable(agent, "r", url) as files:
        with pytest.raises(Dead):
            await files.run("go")
        if hasattr(FunctionTool, "mcp_annotations"):
            assert "deleted" in (await files.run("go")).final_output
            assert server.deleted == ["died", "a"]
        else:
            with pytest.raises(Suspended):
                await files.run("go")


# --- usage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
async def test_usage_and_cost_are_complete_after_a_resume(url: str, streamed: bool) -> None:
    shop = Shop(breaks=True)

    async def play() -> None:
        if streamed:
            async for _ in shops.run_streamed("go").stream_events():
                pass
        else:
            await shops.run("go")

    prices = {"script*": Price(input=1_000_000.0, output=2_000_000.0)}
    with durable(shop.agent, "order", url, prices=prices) as shops:
        with pytest.raises(Boom):
            await play()
        await play()
    async with AsyncStepfast(url) as sf:
        result = (await sf.get_intent("order"))["result"]
    assert result["usage"] == {
        "requests": 2,
        "input_tokens": 20,
        "output_tokens": 10,
        "cached_tokens": 0,
        "cost": 40.0,
    }

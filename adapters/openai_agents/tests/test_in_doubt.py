"""One-shot tools: started and unconfirmed, they are not run again unless somebody says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import Agent, function_tool

from adapters.openai_agents.tests.kit import Scripted, answer_when_asked, call, in_turns, outputs, text
from stepfast import AsyncStepfast, Conflict, InvalidInput, RunFailed, Stepfast, Waiting
from stepfast_openai_agents import DID_NOT_HAPPEN, DurableRunner, Happened, Suspended, idempotency_key, idempotent, once


class Boom(Exception):
    """What a user's code raises."""


class Dead(BaseException):
    """Ends a tool as a crash would: without a word about what it did."""


def summing(items: list[Any]) -> list[Any]:
    return [text("Sum: " + ", ".join(outputs(items)))]


class Bank:
    """Charges cards; the first time it fails after the effect, in a chosen way."""

    def __init__(self, failure: BaseException | None, **policy: Any) -> None:
        self.charges: list[str] = []

        async def charge(amount: int) -> str:
            """Charge a card."""
            self.charges.append(idempotency_key())
            if failure is not None and len(self.charges) == 1:
                raise failure
            return f"charged {amount}"

        self.tool = function_tool(charge)
        self.model = Scripted(in_turns([call("charge", amount=5)], summing))
        self.agent = Agent(name="bank", model=self.model, tools=[once(self.tool, **policy)])


async def test_a_one_shot_tool_that_raised_leaves_the_run_waiting_and_the_model_unasked(url: str) -> None:
    bank = Bank(Boom())
    for _ in range(2):
        with pytest.raises(Suspended):
            await DurableRunner.run(bank.agent, "pay", run_id="r", store=url)
    assert (len(bank.charges), bank.model.calls) == (1, 1)
    async with AsyncStepfast(url) as sf:
        (asked,) = await sf.decisions("r")
        assert asked["kind"] == "in_doubt"
        assert asked["evidence"]["name"] == "charge"
        assert asked["evidence"]["idempotency_key"] == bank.charges[0]
        assert (await sf.get_intent("r"))["status"] == "WAITING"


async def test_where_it_is_wanted_each_call_returns_what_is_asked(url: str) -> None:
    bank = Bank(Boom())
    with Stepfast(url) as sf:
        for _ in range(3):
            waits: Any = await DurableRunner.run(bank.agent, "pay", run_id="r", store=url, on_wait="return")
            assert isinstance(waits, Waiting)
            assert not waits
            assert (waits.run_id, waits.decisions) == ("r", sf.decisions("r"))
            with pytest.raises(AttributeError, match=r"run r waits for in-doubt:.* and has no 'final_output'"):
                _ = waits.final_output
        assert (len(bank.charges), bank.model.calls) == (1, 1)
        sf.answer("r", "done", value="receipt 7")
    result = await DurableRunner.run(bank.agent, "pay", run_id="r", store=url, on_wait="return")
    assert result.final_output == "Sum: receipt 7"


@pytest.mark.parametrize(
    ("outcome", "value", "said", "times"), [("done", "receipt 7", "receipt 7", 1), ("retry", None, "charged 5", 2)]
)
async def test_somebody_decides_from_elsewhere_and_the_run_goes_on(
    url: str, outcome: str, value: Any, said: str, times: int
) -> None:
    bank = Bank(Boom())
    with pytest.raises(Suspended):
        await DurableRunner.run(bank.agent, "pay", run_id="r", store=url)
    with Stepfast(url) as sf:
        sf.answer("r", outcome, value=value)
    result = await DurableRunner.run(bank.agent, "pay", run_id="r", store=url)
    assert result.final_output == f"Sum: {said}"
    assert len(bank.charges) == times
    assert len(set(bank.charges)) == 1
    assert bank.model.calls == 2


async def test_the_decision_to_fail_ends_the_run(url: str) -> None:
    bank = Bank(Boom())
    with pytest.raises(Suspended):
        await DurableRunner.run(bank.agent, "pay", run_id="r", store=url)
    with Stepfast(url) as sf:
        sf.answer("r", "fail")
    with pytest.raises(RunFailed):
        await DurableRunner.run(bank.agent, "pay", run_id="r", store=url)


async def test_a_blocking_run_waits_in_its_process(url: str) -> None:
    bank = Bank(Boom())

    answering = asyncio.create_task(answer_when_asked(url, "r", "done", value="receipt 7"))
    result = await DurableRunner.run(bank.agent, "pay", run_id="r", store=url, on_wait="block")
    await answering
    assert result.final_output == "Sum: receipt 7"
    assert len(bank.charges) == 1


async def test_tools_beside_one_in_doubt_are_not_cancelled(url: str) -> None:
    bank = Bank(Boom())
    finished: list[str] = []

    @function_tool
    async def slow() -> str:
        await asyncio.sleep(0.1)
        finished.append("slow")
        return "slow"

    bank.model.script = in_turns([call("charge", amount=5), call("slow")], summing)
    bank.agent.tools.append(slow)
    with pytest.raises(Suspended):
        await DurableRunner.run(bank.agent, "pay", run_id="r", store=url)
    assert finished == ["slow"]
    with Stepfast(url) as sf:
        sf.answer("r", "done", value="paid")
    result = await DurableRunner.run(bank.agent, "pay", run_id="r", store=url)
    assert result.final_output == "Sum: paid, slow"
    assert finished == ["slow"]


async def test_one_in_doubt_inside_an_agent_as_a_tool_stops_the_whole_run(url: str) -> None:
    bank = Bank(Boom())
    outer_model = Scripted(in_turns([call("ask_bank", input="pay")], summing))
    outer = Agent(name="outer", model=outer_model, tools=[bank.agent.as_tool("ask_bank", "Ask")])
    with pytest.raises(Suspended):
        await DurableRunner.run(outer, "go", run_id="r", store=url)
    assert (outer_model.calls, bank.model.calls) == (1, 1)
    with Stepfast(url) as sf:
        sf.answer("r", "done", value="paid")
    result = await DurableRunner.run(outer, "go", run_id="r", store=url)
    assert result.final_output == "Sum: Sum: paid"
    assert (outer_model.calls, bank.model.calls, len(bank.charges)) == (2, 2, 1)


async def test_an_error_is_shown_to_the_model_where_that_is_wanted(url: str) -> None:
    bank = Bank(Boom(), on_error="show")
    result = await DurableRunner.run(bank.agent, "pay", run_id="r", store=url)
    assert "error occurred" in result.final_output


async def test_arguments_that_do_not_fit_are_shown_to_the_model(url: str) -> None:
    bank = Bank(None)
    bank.model.script = in_turns([call("charge", amount="many")], summing)
    result = await DurableRunner.run(bank.agent, "pay", run_id="r", store=url)
    assert "Sum: " in result.final_output
    assert bank.charges == []


async def test_a_time_out_of_a_one_shot_tool_is_in_doubt(url: str) -> None:
    @once
    @function_tool(timeout=0.05)
    async def charge() -> str:
        await asyncio.sleep(5)
        return "charged"

    agent = Agent(name="a", model=Scripted(in_turns([call("charge")], summing)), tools=[charge])
    with pytest.raises(Suspended):
        await DurableRunner.run(agent, "pay", run_id="r", store=url)


@pytest.mark.parametrize("asks_a_person", [False, True])
async def test_a_probe_tells_whether_it_happened(url: str, asks_a_person: bool) -> None:
    bank = Bank(Boom())

    def probe(amount: int) -> Any:
        assert idempotency_key() == bank.charges[0]
        if asks_a_person:
            return None
        return Happened(f"found {amount}") if bank.charges else DID_NOT_HAPPEN

    bank.agent.tools = [once(bank.tool, reconcile=probe)]
    if asks_a_person:
        with pytest.raises(Suspended):
            await DurableRunner.run(bank.agent, "pay", run_id="r", store=url)
        with Stepfast(url) as sf:
            sf.answer("r", "done", value="found 5")
    result = await DurableRunner.run(bank.agent, "pay", run_id="r", store=url)
    assert result.final_output == "Sum: found 5"
    assert len(bank.charges) == 1


async def test_a_probe_that_never_finds_it_and_a_tool_that_always_fails_come_to_an_end(url: str) -> None:
    tries: list[int] = []

    @function_tool
    async def charge(amount: int) -> str:
        tries.append(amount)
        raise Boom

    tool = once(charge, reconcile=lambda amount: DID_NOT_HAPPEN)
    agent = Agent(name="a", model=Scripted(in_turns([call("charge", amount=5)], summing)), tools=[tool])
    with pytest.raises(Boom):
        await DurableRunner.run(agent, "pay", run_id="r", store=url)
    assert 1 < len(tries) < 10


async def test_an_error_of_stepfasts_own_inside_a_one_shot_tool_is_in_doubt_too(url: str) -> None:
    bank = Bank(Conflict("of another run"))
    with pytest.raises(Suspended):
        await DurableRunner.run(bank.agent, "pay", run_id="r", store=url)
    assert len(bank.charges) == 1


async def test_a_tool_that_cancels_itself_is_shown_to_the_model_as_in_the_bare_sdk(url: str) -> None:
    tries: list[int] = []

    @function_tool
    async def fragile() -> str:
        tries.append(1)
        raise asyncio.CancelledError

    agent = Agent(name="a", model=Scripted(in_turns([call("fragile")], summing)), tools=[fragile])
    first = await DurableRunner.run(agent, "go", run_id="r", store=url)
    again = await DurableRunner.run(agent, "go", run_id="r", store=url)
    assert first.final_output == again.final_output
    assert tries == [1]


async def crash(agent: Any, url: str, **options: Any) -> None:
    """A tool that dies without a word, as in a crash: what was begun stays open."""
    with pytest.raises(Dead):
        await DurableRunner.run(agent, "pay", run_id="r", store=url, **options)


async def test_tools_that_say_nothing_are_asked_about_by_default(url: str) -> None:
    bank = Bank(Dead())
    bank.agent.tools = [bank.tool]
    await crash(bank.agent, url)
    with pytest.raises(Suspended):
        await DurableRunner.run(bank.agent, "pay", run_id="r", store=url)
    assert len(bank.charges) == 1


async def test_a_run_may_choose_to_repeat_them(url: str) -> None:
    bank = Bank(Dead())
    bank.agent.tools = [bank.tool]
    await crash(bank.agent, url, on_in_doubt="retry")
    result = await DurableRunner.run(bank.agent, "pay", run_id="r", store=url, on_in_doubt="retry")
    assert result.final_output == "Sum: charged 5"
    assert len(bank.charges) == 2
    assert len(set(bank.charges)) == 1


async def test_a_run_may_choose_to_tell_the_model_that_the_outcome_is_unknown(url: str) -> None:
    bank = Bank(Dead())
    bank.agent.tools = [bank.tool]
    await crash(bank.agent, url, on_in_doubt="fail")
    result = await DurableRunner.run(bank.agent, "pay", run_id="r", store=url, on_in_doubt="fail")
    assert "error" in result.final_output.lower()
    assert len(bank.charges) == 1


async def test_an_idempotent_tool_is_repeated_unasked(url: str) -> None:
    bank = Bank(Dead())
    bank.agent.tools = [idempotent(bank.tool)]
    await crash(bank.agent, url)
    assert (await DurableRunner.run(bank.agent, "pay", run_id="r", store=url)).final_output == "Sum: charged 5"
    assert len(set(bank.charges)) == 1


async def test_a_policy_by_name_counts_more_than_what_the_tool_says(url: str) -> None:
    bank = Bank(Boom())
    result = await DurableRunner.run(bank.agent, "pay", run_id="r", store=url, policies={"charge": "retry"})
    assert "error occurred" in result.final_output


async def test_a_policy_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"policies\['charge'\]"):
        await DurableRunner.run(None, "x", run_id="r", policies={"charge": "twice"})  # type: ignore[dict-item]


def test_a_policy_is_of_a_copy_and_the_tool_stays_as_it_was() -> None:
    @function_tool
    def charge() -> str:
        return ""

    copied = once(charge)
    assert copied is not charge
    assert not hasattr(charge, "_stepfast_policy")
    assert copied.name == "charge"

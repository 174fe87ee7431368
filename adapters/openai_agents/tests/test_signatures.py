"""The signatures that an editor shows: every option by its name, ours and the SDK's, and checked by type checkers."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from agents import Runner
from agents.run import RunOptions

from stepfast import InvalidInput
from stepfast_openai_agents import DurableRunner, durable
from tests.typing_kit import ROOT, check_program

METHODS = ("run", "run_sync", "run_streamed")
SHARED = ("on_in_doubt", "policies", "on_drift", "on_wait", "labels")


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


@pytest.mark.parametrize("method", METHODS)
def test_every_option_of_the_sdk_s_runner_is_spelled_out(method: str) -> None:
    ours, theirs = parameters(getattr(DurableRunner, method)), parameters(getattr(Runner, method))
    assert list(ours)[:2] == list(theirs)[:2] == ["starting_agent", "input"]
    for name in [each for each in theirs if each not in ("starting_agent", "input")]:
        assert ours[name].default == theirs[name].default, name
        assert ours[name].kind is inspect.Parameter.KEYWORD_ONLY
    assert all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in ours.values())
    # What the SDK's runner hands to the one beneath it, which we replace.
    assert set(RunOptions.__annotations__) <= set(ours)


def test_our_options_are_the_same_everywhere() -> None:
    theirs = parameters(Runner.run)

    def own(function: Any) -> dict[str, Any]:
        return {n: p.default for n, p in parameters(function).items() if n not in theirs}

    assert own(DurableRunner.run) == own(DurableRunner.run_sync) == own(DurableRunner.run_streamed)
    assert list(parameters(durable))[:8] == ["agent", "run_id", "store", *SHARED]
    differ = {"agent", "run", "on_wait", "error_handlers", "auto_previous_response_id", "conversation_id"}
    assert {n: d for n, d in own(durable).items() if n not in differ} == {
        n: d for n, d in own(DurableRunner.run).items() if n not in differ
    }


async def test_a_wrong_option_is_refused_before_anything_happens(url: str) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'on_drif'"):
        await DurableRunner.run(None, "x", run_id="r", store=url, on_drif="raise")
    for options in ({"on_drift": "acept"}, {"on_wait": "suspended"}, {"replay_hooks": "yes"}, {"prices": 5}):
        with pytest.raises(InvalidInput, match=f"{next(iter(options))}: must"):
            await DurableRunner.run(None, "x", run_id="r", store=url, **options)
        with pytest.raises(InvalidInput, match=f"{next(iter(options))}: must"):
            DurableRunner.run_sync(None, "x", run_id="r", store=url, **options)
    with pytest.raises(InvalidInput, match="agent: must be an Agent of the SDK, not str"):
        durable("agent")


PROGRAM = """
from dataclasses import dataclass

from agents import Agent, RunResult, function_tool

from stepfast_openai_agents import DID_NOT_HAPPEN, DurableRunner, Price, durable, idempotent, once


@dataclass
class Order:
    total: int = 0


@function_tool
def search(query: str) -> str:
    return query


def was_it_charged(amount: int) -> object:
    return None if amount else DID_NOT_HAPPEN


@once(reconcile=was_it_charged)
@function_tool
def charge(amount: int) -> str:
    return str(amount)


agent = Agent[Order](name="refunds", tools=[idempotent(search), charge])
prices = {"gpt-*": Price(input=1.25, output=10.0)}


async def main() -> RunResult:
    reveal_type(await DurableRunner.run(agent, "hello", run_id="r", context=Order(), max_turns=3))  # expect: RunResult
    reveal_type(DurableRunner.run_streamed(agent, "hello", run_id="r"))  # expect: RunResultStreaming
    refunds = durable(agent, store="sqlite:///runs.db", policies={"search_*": "retry"}, prices=prices)
    reveal_type(await refunds.run("hello", run_id="r", context=Order()))  # expect: RunResult
    reveal_type(await refunds.resume("r"))  # expect: RunResult
    await DurableRunner.run(agent, "hello", run_id=5)  # expect: run_id|int
    await DurableRunner.run(agent, "hello", run_id="r", context=5)  # expect: int|TContext
    await DurableRunner.run(agent, "hello", runid="r")  # expect: runid
    await DurableRunner.run(agent, "hello", run_id="r", on_drift="acept")  # expect: on_drift|acept
    await DurableRunner.run(agent, "hello", run_id="r", policies={"search": "rety"})  # expect: rety|policies
    durable(agent, on_wait="suspended")  # expect: on_wait|suspended
    await refunds.run("hello", max_turn=3)  # expect: max_turn
    return DurableRunner.run_sync(agent, run_id="r")
"""


@pytest.mark.timeout(600)
def test_type_checkers_know_every_option(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    check_program(program, [ROOT / "src", ROOT / "adapters" / "openai_agents" / "src"])

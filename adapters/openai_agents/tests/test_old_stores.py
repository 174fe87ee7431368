"""Runs and sessions that an older version wrote are read and resumed, and answered model calls are not made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adapters.openai_agents.tests import old_program as program
from stepfast import AsyncStepfast, Suspended
from stepfast_openai_agents import DurableRunner, StepfastSession, idempotent, once
from tests.old_stores import KINDS, OldStore, copy_of, missing

REFUNDED = "Refunded order 4711."


@pytest.fixture(params=KINDS)
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OldStore:
    return copy_of("openai_agents", request.param, tmp_path, monkeypatch, request)


@pytest.fixture
def done() -> list[str]:
    """The model calls and tools of now, not those of the old version."""
    return []


async def _refund(old: OldStore, done: list[str], run_id: str, **more: Any) -> Any:
    agent = program.refunds(done.append, once, idempotent)
    result = await DurableRunner.run(agent, "Refund order 4711", run_id=run_id, store=old.url, **more)
    return result.final_output


async def test_everything_reads_as_the_old_version_read_it(old: OldStore) -> None:
    sessions = {name: await StepfastSession(name, old.url).get_items() for name in old.expected["sessions"]}
    runs = {}
    async with AsyncStepfast(old.url) as sf:
        for intent in await sf.list_intents(limit=100):
            name = intent["run_id"]
            runs[name] = {
                "status": intent["status"],
                "result_kept": intent["result"] is not None,
                "steps": await sf.steps(name),
                "decisions": await sf.decisions(name, pending=False),
            }

    assert sessions == old.expected["sessions"]
    assert runs.keys() == old.expected["runs"].keys()
    assert missing(old.expected["runs"], runs) == []


async def test_a_session_goes_on(old: OldStore, done: list[str]) -> None:
    session = StepfastSession("user-123", old.url)
    before = await session.get_items()
    await DurableRunner.run(
        program.chat(done.append), "And now?", run_id="the-next-message", store=old.url, session=session
    )
    after = await session.get_items()

    assert after[: len(before)] == before
    assert [item.get("role") for item in after[len(before) :]] == ["user", "assistant"]
    assert await session.pop_item() == after[-1]
    assert await StepfastSession("cleared", old.url).get_items() == []


async def test_a_finished_run_has_its_result(old: OldStore, done: list[str]) -> None:
    assert await _refund(old, done, "done") == REFUNDED
    assert done == []


async def test_a_run_that_was_killed_goes_on_at_its_model_call(old: OldStore, done: list[str]) -> None:
    cart = program.Cart("ada")

    assert await _refund(old, done, "killed-at-model", context=cart) == REFUNDED
    assert done == ["clerk 2"]
    assert cart == program.Cart("ada", ["seen 4711", "refunded 4711"])


async def test_a_stream_that_was_killed_goes_on(old: OldStore, done: list[str]) -> None:
    agent = program.refunds(done.append, once, idempotent)
    stream = DurableRunner.run_streamed(agent, "Refund order 4711", run_id="killed-streaming", store=old.url)
    async for _ in stream.stream_events():
        pass

    assert stream.final_output == REFUNDED
    assert done == ["clerk 2"]


async def test_a_run_with_a_session_that_was_killed_goes_on_and_saves_each_item_once(
    old: OldStore, done: list[str]
) -> None:
    session = StepfastSession("shopper", old.url)

    assert await _refund(old, done, "killed-with-session", session=session) == REFUNDED
    assert done == ["clerk 2"]
    kinds = [item.get("type") or item["role"] for item in await session.get_items()]
    assert kinds == [
        "user",
        "function_call",
        "function_call_output",
        "function_call",
        "function_call_output",
        "message",
    ]


async def test_a_team_that_was_killed_goes_on_behind_its_handoff_and_its_agent_tool(
    old: OldStore, done: list[str]
) -> None:
    result = await DurableRunner.run(
        program.team(done.append), "Where is the lamp?", run_id="killed-team", store=old.url
    )

    assert result.final_output == "The lamp is in the attic."
    assert done == ["specialist 2"]


async def test_an_idempotent_tool_that_was_killed_is_called_again(old: OldStore, done: list[str]) -> None:
    assert await _refund(old, done, "killed-in-lookup") == REFUNDED
    assert done == ["look_up", "clerk 1", "refund", "clerk 2"]


@pytest.mark.parametrize("name", ["killed-in-once", "killed-in-once-2"])
async def test_a_one_shot_tool_in_doubt_is_asked_for_and_not_called_again(
    old: OldStore, done: list[str], name: str
) -> None:
    with pytest.raises(Suspended):
        await _refund(old, done, name)
    async with AsyncStepfast(old.url) as sf:
        [decision] = await sf.decisions(name)
        assert "4711" in str(decision["evidence"])
        await sf.answer(name, "done", value="42 EUR were paid", actor="maria")

    assert await _refund(old, done, name) == REFUNDED
    assert done == ["clerk 2"]


@pytest.mark.parametrize(
    ("name", "answered"), [("approval-open", None), ("approval-approved", True), ("approval-rejected", False)]
)
async def test_an_approval_is_found_or_given(old: OldStore, done: list[str], name: str, answered: bool | None) -> None:
    async def start() -> Any:
        agent = program.deletes(done.append)
        return await DurableRunner.run(agent, "Delete notes.txt", run_id=name, store=old.url, on_wait="return")

    if answered is None:
        assert [each.tool_name for each in (await start()).interruptions] == ["delete"]
        async with AsyncStepfast(old.url) as sf:
            await sf.answer(name, "approved", actor="maria")
    result = await start()

    assert result.final_output == "It is done."
    assert done == (["cleaner 1"] if answered is False else ["delete", "cleaner 1"])

"""Teams as workers: intents are carried out, workers are killed, people are asked while no worker is held."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.messages import BaseChatMessage

from adapters.autogen.tests.kit import Log
from adapters.autogen.tests.programs import team
from stepfast import AsyncStepfast, InvalidInput, Stepfast
from stepfast_autogen import durable, team_worker

ADDRESS = "agent://test/clerk"


@contextmanager
def worker(url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "adapters.autogen.tests.programs", url, str(folder)]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(true: Callable[[], Any]) -> Any:
    """Wait for something that another process does; the test's own time limit ends it."""
    while not (found := true()):
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("point", ["model", "look_up"])
def test_a_killed_worker_is_replaced_and_a_person_is_asked_meanwhile(point: str, url: str, tmp_path: Path) -> None:
    (tmp_path / f"die at {point}").touch()
    with Stepfast(url) as sf:
        intent = sf.send_intent({"intent_type": "talk", "to_agent": ADDRESS, "payload": {"task": "a lamp"}})
        with worker(url, tmp_path) as first:
            assert first.wait() != 0
        with worker(url, tmp_path):
            until(lambda: sf.get_intent(intent)["status"] == "WAITING")
            sf.answer(intent, "approved", value="you may")
            result = sf.wait_for(intent)

    assert result["status"] == "COMPLETED"
    said = result["result"]["messages"]
    assert [line["text"] for line in said] == ["a lamp", "may I?", "you may", "thank you"]
    lines = Log(tmp_path / "log").lines
    assert (lines.count("look_up"), lines.count("model")) == ((2, 3) if point == "look_up" else (1, 4))


async def test_a_worker_carries_a_conversation_on(url: str, tmp_path: Path) -> None:
    async with AsyncStepfast(url) as sf:
        serving = team_worker(sf, ADDRESS, lambda: team(tmp_path))
        serving.start()
        for task in ("one", "two"):
            payload = {"task": task, "conversation": "talk"}
            intent = await sf.send_intent({"intent_type": "talk", "to_agent": ADDRESS, "payload": payload})
            while (await sf.get_intent(intent))["status"] != "COMPLETED":
                for asked in await sf.decisions(intent):
                    await sf.answer(intent, "approved", asked["key"], value="fine")
                await asyncio.sleep(0.02)
        await serving.stop()
        talk = durable(lambda: team(tmp_path), "talk", url)
        told = [m.to_text() for m in await talk.messages() if isinstance(m, BaseChatMessage)]
        first = await talk.run(task="one")

    assert told == ["one", "may I?", "fine", "thank you", "two", "fine", "thank you", "fine"]
    assert [m.to_text() for m in first.messages if isinstance(m, BaseChatMessage)] == told[:4]


def test_a_team_object_is_no_worker(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="team: must be a function that makes the team"):
        team_worker(AsyncStepfast(url), ADDRESS, team(tmp_path))

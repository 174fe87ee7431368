"""A program for tests that need a process of its own: it serves an address with a team, or takes part in a talk."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from autogen_agentchat.agents import AssistantAgent, UserProxyAgent
from autogen_agentchat.teams import RoundRobinGroupChat

from adapters.autogen.tests.kit import Log, Scripted, call, in_turns
from stepfast import AsyncStepfast
from stepfast_autogen import idempotent, team_worker


def team(folder: Path) -> Any:
    """A clerk with a tool, and a person who has the last word. The process dies where a file says so."""
    log = Log(folder / "log")

    def note(line: str) -> None:
        log.add(line)
        fatal = folder / f"die at {line}"
        if fatal.exists():
            fatal.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    @idempotent
    async def look_up(topic: str) -> str:
        """Look something up."""
        note("look_up")
        return "it is blue"

    client = Scripted(
        in_turns(lambda _: [call("look_up", topic="lamp")], "may I?", "thank you"), lambda _: note("model")
    )
    clerk = AssistantAgent("clerk", client, tools=[look_up], max_tool_iterations=2)
    return RoundRobinGroupChat([clerk, UserProxyAgent("user")], max_turns=3)


async def serve(url: str, folder: Path) -> None:
    async with AsyncStepfast(url) as sf:
        team_worker(sf, "agent://test/clerk", lambda: team(folder))
        (folder / "ready").touch()
        await sf.run_workers()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2])))

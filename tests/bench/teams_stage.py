"""Teams of AgentChat with scripted models, in the environment of their adapter: what is timed.

``python -c "from tests.bench.teams_stage import main; main()"``: each line of standard input is a list, the name of a
function of ``CALLS`` and its arguments; each line of standard output is what it returned.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import count
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import FunctionCall
from autogen_core.models import ChatCompletionClient, CreateResult, ModelFamily, RequestUsage

from stepfast import AsyncStepfast
from stepfast_autogen import durable

_numbers = count(1)
_INFO = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "family": ModelFamily.UNKNOWN,
    "structured_output": True,
}


class Scripted(ChatCompletionClient):  # type: ignore[misc]
    """Takes no time; ``script`` makes the answer from the messages."""

    def __init__(self, script: Callable[[Sequence[Any]], Any]) -> None:
        self._script = script

    async def create(self, messages: Sequence[Any], **_: Any) -> CreateResult:
        content = self._script(messages)
        return CreateResult(finish_reason="stop", content=content, usage=RequestUsage(10, 5), cached=False)

    async def create_stream(self, messages: Sequence[Any], **_: Any) -> AsyncGenerator[Any, None]:
        yield await self.create(messages)

    async def close(self) -> None: ...

    def actual_usage(self) -> RequestUsage:
        return RequestUsage(0, 0)

    total_usage = actual_usage

    def count_tokens(self, messages: Sequence[Any], **_: Any) -> int:
        return 0

    remaining_tokens = count_tokens

    @property
    def capabilities(self) -> Any:
        return _INFO

    @property
    def model_info(self) -> Any:
        return _INFO


async def work(number: int) -> str:
    """Do the work of that number."""
    return f"{number} is done"


def worker_team(turns: int, tools: int) -> RoundRobinGroupChat:
    """One agent that calls so many tools at once, so often, and then says the end."""

    def script(messages: Sequence[Any]) -> Any:
        done = sum(message.type == "FunctionExecutionResultMessage" for message in messages)
        if done == turns:
            return "the end"
        return [FunctionCall(f"{done}.{n}", json.dumps({"number": done * tools + n}), "work") for n in range(tools)]

    agent = AssistantAgent("worker", Scripted(script), tools=[work], max_tool_iterations=turns + 1)
    return RoundRobinGroupChat([agent], max_turns=1)


def talking_team(messages: int, fails: list[bool]) -> RoundRobinGroupChat:
    """Three agents that talk; the last call fails as long as ``fails`` holds something."""

    def script(seen: Sequence[Any]) -> str:
        if len(seen) == messages and fails and fails.pop():
            raise ConnectionError("the model is away")
        return f"answer {len(seen)}: " + "x" * 200

    agents = [AssistantAgent(name, Scripted(script)) for name in ("ann", "bob", "cid")]
    return RoundRobinGroupChat(agents, termination_condition=MaxMessageTermination(messages))


_clients: dict[str, AsyncStepfast] = {}


def _client(url: str) -> AsyncStepfast:
    return _clients.setdefault(url, AsyncStepfast(url))


async def turn(contender: str, url: str, turns: int, tools: int) -> list[float]:
    """Seconds and processor seconds for a turn of a new team; the end is a turn too."""
    team: Any = worker_team(turns, tools)
    if contender != "bare":
        policy: Any = "once" if contender == "stepfast-once" else "retry"
        team = durable(team, f"run-{os.getpid()}-{next(_numbers)}", _client(url), policies={"work": policy})
    began, spent = time.perf_counter(), time.process_time()
    await team.run(task="Go.")
    taken = time.perf_counter() - began
    return [taken / (turns + 1), (time.process_time() - spent) / (turns + 1)]


async def replay(url: str, messages: int) -> list[float]:
    """Seconds of a bare run, and of a durable one that had stopped at its last call and goes on."""
    began = time.perf_counter()
    await talking_team(messages, []).run(task="Talk.")
    bare = time.perf_counter() - began
    run_id, fails = f"talk-{os.getpid()}-{next(_numbers)}", [True]
    try:
        await durable(lambda: talking_team(messages, fails), run_id, _client(url)).run(task="Talk.")
    except ConnectionError:
        pass
    again = durable(lambda: talking_team(messages, []), run_id, _client(url))
    began = time.perf_counter()
    await again.run(task="Talk.")
    return [bare, time.perf_counter() - began]


CALLS: dict[str, Callable[..., Any]] = {"turn": turn, "replay": replay}


async def serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    while line := await asyncio.to_thread(sys.stdin.readline):
        name, *arguments = json.loads(line)
        print(json.dumps(await CALLS[name](*arguments)), file=answers, flush=True)
    for client in _clients.values():
        await client.close()


def main() -> None:
    asyncio.run(serve())

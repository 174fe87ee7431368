"""The team: ``python team.py FOLDER [die]`` is one life of it.

Team, agents and tools are plain AgentChat; only ``durable`` is Stepfast's. The model is scripted: no key, no network.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import FunctionCall
from autogen_core.models import (
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResultMessage,
    ModelFamily,
    RequestUsage,
)

from stepfast_autogen import durable, idempotent, once

FOLDER = Path(sys.argv[1])
DIES = sys.argv[2:] == ["die"]


def note(line: str) -> None:
    """Keep what happened in the world, one line each."""
    with (FOLDER / "world.txt").open("a") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


@idempotent
async def look_up(order: int) -> str:
    """Look an order up."""
    note("order looked up")
    return f"order {order}: a lamp, 42"


@once
def refund(amount: int) -> str:
    """Refund an amount."""
    note("refunded")
    return f"refunded {amount}"


class ScriptedClient(ChatCompletionClient):
    """The clerk asks for one tool after the other and sums up; the reviewer approves."""

    def __init__(self, role: str) -> None:
        self.role = role

    async def create(self, messages: Sequence[Any], **_: Any) -> CreateResult:
        results = [m for m in messages if isinstance(m, FunctionExecutionResultMessage)]
        told = [each.content for message in results for each in message.content]
        note(f"model call of {self.role}, {len(told)} results seen")
        if DIES and len(told) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        calls = [("look_up", {"order": 4711}), ("refund", {"amount": 42})]
        content: Any = "; ".join(told)
        if self.role == "reviewer":
            content = "APPROVE"
        elif len(told) < len(calls):
            name, given = calls[len(told)]
            content = [FunctionCall(id=f"call_{name}", name=name, arguments=json.dumps(given))]
        return CreateResult(finish_reason="stop", content=content, usage=RequestUsage(10, 5), cached=False)

    async def create_stream(self, messages: Sequence[Any], **_: Any) -> AsyncGenerator[str | CreateResult, None]:
        yield await self.create(messages)

    async def close(self) -> None: ...

    def actual_usage(self) -> RequestUsage:
        return RequestUsage(0, 0)

    def total_usage(self) -> RequestUsage:
        return RequestUsage(0, 0)

    def count_tokens(self, messages: Sequence[Any], **_: Any) -> int:
        return 0

    def remaining_tokens(self, messages: Sequence[Any], **_: Any) -> int:
        return 1000

    @property
    def capabilities(self) -> Any:
        return self.model_info

    @property
    def model_info(self) -> Any:
        return {
            "vision": False,
            "function_calling": True,
            "json_output": True,
            "family": ModelFamily.UNKNOWN,
            "structured_output": True,
        }


def make_team() -> RoundRobinGroupChat:
    clerk = AssistantAgent("clerk", ScriptedClient("clerk"), tools=[look_up, refund], max_tool_iterations=3)
    reviewer = AssistantAgent("reviewer", ScriptedClient("reviewer"))
    return RoundRobinGroupChat([clerk, reviewer], termination_condition=TextMentionTermination("APPROVE"))


async def main() -> None:
    team = durable(make_team, run_id="support-4711", store=f"sqlite:///{FOLDER}/stepfast.db")
    result = await team.run(task="Refund order 4711.")
    print("answer:", result.messages[-2].to_text(), "·", result.messages[-1].to_text())


if __name__ == "__main__":
    asyncio.run(main())

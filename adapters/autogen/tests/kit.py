"""A scripted model client in place of the API, effects that are counted in a file, and short ways to write teams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

from autogen_core import FunctionCall
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResultMessage,
    ModelFamily,
    RequestUsage,
)

Answer = str | list[FunctionCall]
Script = Callable[[list[Any]], Answer]


def call(name: str, *, id: str = "", **arguments: Any) -> FunctionCall:  # noqa: A002 - AutoGen's name
    return FunctionCall(id=id, name=name, arguments=json.dumps(arguments))


def outputs(messages: Sequence[Any]) -> list[str]:
    """What tools have answered so far, in the order of the request."""
    found = [m for m in messages if isinstance(m, FunctionExecutionResultMessage)]
    return [result.content for message in found for result in message.content]


def turns(messages: Sequence[Any]) -> int:
    """How often the model has answered in this request's history."""
    return sum(isinstance(message, AssistantMessage) for message in messages)


def in_turns(*answers: Answer | Script) -> Script:
    """One answer after the other, by how many answers of the model the request holds; the last one for ever."""

    def script(messages: list[Any]) -> Answer:
        answer = answers[min(turns(messages), len(answers) - 1)]
        return answer(messages) if callable(answer) else answer

    return script


class Log:
    """Lines in a file, which survive the process that wrote them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line + "\n")

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


class Scripted(ChatCompletionClient):
    """Answers by a function of the request; every real call is counted."""

    component_type = "model"

    def __init__(self, script: Script, on_call: Callable[[list[Any]], Any] | None = None) -> None:
        self.script = script
        self.calls = 0
        self.on_call = on_call
        self.model = "scripted"

    def _answer(self, messages: Sequence[Any]) -> CreateResult:
        self.calls += 1
        if self.on_call is not None:
            self.on_call(list(messages))
        content = self.script(list(messages))
        return CreateResult(
            finish_reason="stop" if isinstance(content, str) else "function_calls",
            content=content,
            usage=RequestUsage(prompt_tokens=10, completion_tokens=5),
            cached=False,
        )

    async def create(self, messages: Sequence[Any], **_: Any) -> CreateResult:
        await asyncio.sleep(0)
        return self._answer(messages)

    async def create_stream(self, messages: Sequence[Any], **_: Any) -> AsyncGenerator[str | CreateResult, None]:
        result = self._answer(messages)
        if isinstance(result.content, str):
            for word in result.content.split(" "):
                await asyncio.sleep(0)
                yield word
        yield result

    async def close(self) -> None:
        pass

    def actual_usage(self) -> RequestUsage:
        return RequestUsage(prompt_tokens=0, completion_tokens=0)

    def total_usage(self) -> RequestUsage:
        return RequestUsage(prompt_tokens=0, completion_tokens=0)

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
            "multiple_system_messages": True,
        }


def ledger(done: bool) -> str:
    """What the orchestrator of MagenticOne wants to read: whether it is done, and who goes on."""
    answers = {
        "is_request_satisfied": done,
        "is_in_loop": False,
        "is_progress_being_made": True,
        "next_speaker": "worker",
        "instruction_or_question": "do it",
    }
    return json.dumps({name: {"reason": "r", "answer": answer} for name, answer in answers.items()})


async def collect(stream: Any, items: list[Any]) -> None:
    """Read a stream into a list, which keeps what came before an error."""
    async for item in stream:
        items.append(item)  # noqa: PERF401 - one by one


def said(result: Any) -> list[str]:
    """A result without what is new in each life."""
    return [f"{type(m).__name__} {m.source}: {m.to_text()}" for m in result.messages]

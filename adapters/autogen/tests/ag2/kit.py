"""Scripted models and small helpers for the tests of AG2 agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ag2 import Agent
from ag2.events import (
    HumanMessage,
    ModelMessage,
    ModelMessageChunk,
    ModelRequest,
    ModelResponse,
    ToolCallEvent,
    ToolCallsEvent,
    ToolResultsEvent,
    Usage,
)

from stepfast import AsyncStepfast, NotFound
from stepfast_autogen.ag2 import durable

Script = Callable[[list[Any]], ModelResponse]


class Scripted:
    """A model's config and client in one; the script is a function of what is sent to it."""

    provider = "scripted"

    def __init__(self, script: Script, model: str = "scripted-1") -> None:
        self.script = script
        self.model = model
        self.calls = 0

    def copy(self) -> Scripted:
        return self

    def create(self) -> Scripted:
        return self

    async def __call__(self, messages: Any, context: Any, **options: Any) -> ModelResponse:
        self.calls += 1
        answer = self.script(list(messages))
        if answer.message is not None:
            for word in answer.message.content.split(" "):
                await context.send(ModelMessageChunk(word))
            await context.send(answer.message)
        return answer


def say(text: str) -> ModelResponse:
    usage = Usage(prompt_tokens=10, completion_tokens=2, cache_read_input_tokens=4)
    return ModelResponse(ModelMessage(text), usage=usage, model="scripted-1", provider="scripted")


def call(name: str, call_id: str | None = None, **arguments: Any) -> ToolCallEvent:
    return ToolCallEvent(name, arguments=json.dumps(arguments), **({} if call_id is None else {"id": call_id}))


def calls(*made: ToolCallEvent) -> ModelResponse:
    return ModelResponse(tool_calls=ToolCallsEvent(list(made)))


def asked(messages: list[Any]) -> list[str]:
    """The texts that users and the inbox have sent."""
    return [_text(part) for each in messages if isinstance(each, ModelRequest) for part in each.parts]


def outputs(messages: list[Any]) -> list[str]:
    """What the tools returned, as a model sees it."""
    found = [r for each in messages if isinstance(each, ToolResultsEvent) for r in each.results]
    return [_text(part) for result in found for part in result.result.parts]


def _text(part: Any) -> str:
    return str(getattr(part, "content", None) or part.data)


def wire(messages: list[Any]) -> list[Any]:
    """The events of a history as a provider is sent them, without ids and times."""
    told: list[Any] = []
    for each in messages:
        if isinstance(each, ModelRequest):
            told.append(["asked", *map(_text, each.parts)])
        elif isinstance(each, ModelResponse):
            told.append(["answered", each.content, [[c.name, c.arguments] for c in each.tool_calls.calls]])
        elif isinstance(each, ToolResultsEvent):
            told.append(["results", *outputs([each])])
    return told


def said(messages: list[Any]) -> list[str]:
    """What people answered; side by side they answer in any order, and no provider is sent it."""
    return sorted(each.content for each in messages if isinstance(each, HumanMessage))


class Broken(Exception):
    """Stands for the end of a process."""


class Gone(BaseException):
    """Is no Exception, so that no framework shows it to a model."""


class Breaking:
    """A script that breaks at some of its calls, each once."""

    def __init__(self, script: Script, *at: int) -> None:
        self.script, self.at, self.calls = script, set(at), 0

    def __call__(self, messages: list[Any]) -> ModelResponse:
        self.calls += 1
        if self.calls in self.at:
            raise Broken
        return self.script(messages)


def tools_then_say(*made: Any) -> Script:
    return lambda messages: say("; ".join(outputs(messages))) if outputs(messages) else calls(*made)


async def until_done(agent: Callable[[], Agent[Any]], url: str, *msg: Any, **options: Any) -> Any:
    """Ask until the answer comes, each time with objects as a new process has them."""
    for _ in range(5):
        with durable(agent(), "talk", url, **options) as made:
            try:
                return await asyncio.wait_for(made.ask(*msg), 30)
            except Broken:
                continue
    raise AssertionError("it breaks each time")


async def answer(sf: AsyncStepfast, run_id: str, **said: Any) -> None:
    """Answer the first question of a run that is under way."""
    while True:
        with suppress(NotFound):
            questions = await sf.decisions(run_id)
            if questions:
                break
        await asyncio.sleep(0.01)
    await sf.answer(run_id, "approved", key=questions[0]["key"], **said)

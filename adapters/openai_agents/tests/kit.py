"""A scripted model in place of the API, effects that are counted in a file, and short ways to write agents."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from agents import Model, ModelResponse, Usage
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from stepfast import AsyncStepfast

Script = Callable[[list[Any], str | None], list[Any]]


def text(words: str) -> ResponseOutputMessage:
    """An answer in words, with an id of its own as the API would give."""
    part = ResponseOutputText(type="output_text", text=words, annotations=[], logprobs=[])
    return ResponseOutputMessage(
        id=f"msg_{uuid.uuid4().hex}", type="message", role="assistant", status="completed", content=[part]
    )


def call(name: str, **arguments: Any) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        id=f"fc_{uuid.uuid4().hex}",
        call_id=f"call_{uuid.uuid4().hex}",
        type="function_call",
        name=name,
        arguments=json.dumps(arguments),
        status="completed",
    )


def outputs(items: list[Any]) -> list[str]:
    """What tools have answered so far, in the order of the request."""
    return [str(i["output"]) for i in items if isinstance(i, dict) and i.get("type") == "function_call_output"]


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


class Scripted(Model):
    """Answers by a function of the request; every real call is counted and gets new ids."""

    def __init__(self, script: Script, log: Callable[[str], None] | None = None, model: str = "scripted") -> None:
        self.script = script
        self.model = model
        self.calls = 0
        self.log = log or (lambda _line: None)
        self.requests: list[Any] = []

    def _answer(self, instructions: str | None, given: Any) -> list[Any]:
        self.calls += 1
        items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
        self.requests.append(items)
        self.log(f"model {instructions or ''}")
        return self.script(items, instructions)

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:  # noqa: A002
        output = self._answer(system_instructions, input)
        self.log("model.return")
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        return ModelResponse(output=output, usage=usage, response_id=f"resp_{uuid.uuid4().hex}")

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        output = self._answer(args[0], args[1])  # the SDK passes these by position
        number = 0

        def event(kind: Any, event_type: str, **fields: Any) -> Any:
            nonlocal number
            number += 1
            return kind(type=event_type, sequence_number=number, **fields)

        response = _response([])
        yield event(ResponseCreatedEvent, "response.created", response=response)
        for index, item in enumerate(output):
            if item.type == "message":
                for word in item.content[0].text.split(" "):
                    self.log("model.delta")
                    yield event(
                        ResponseTextDeltaEvent,
                        "response.output_text.delta",
                        delta=word,
                        item_id=item.id,
                        output_index=index,
                        content_index=0,
                        logprobs=[],
                    )
            yield event(ResponseOutputItemDoneEvent, "response.output_item.done", item=item, output_index=index)
        self.log("model.return")
        yield event(ResponseCompletedEvent, "response.completed", response=_response(output))


def _response(output: list[Any]) -> Response:
    details = InputTokensDetails.model_validate({"cached_tokens": 0, "cache_write_tokens": 0})
    usage = ResponseUsage(
        input_tokens=10,
        output_tokens=5,
        total_tokens=15,
        input_tokens_details=details,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
    )
    return Response(
        id=f"resp_{uuid.uuid4().hex}",
        created_at=0,
        model="scripted",
        object="response",
        output=output,
        tool_choice="auto",
        tools=[],
        parallel_tool_calls=True,
        usage=usage if output else None,
    )


def in_turns(*answers: list[Any] | Callable[[list[Any]], list[Any]]) -> Script:
    """One answer after the other, by how many answers of the assistant the request holds."""

    def script(items: list[Any], _instructions: str | None) -> list[Any]:
        answer = answers[turns_of(items)]
        return answer(items) if callable(answer) else [fresh(item) for item in answer]

    return script


def turns_of(items: list[Any]) -> int:
    """How often a model has answered in this request's history: a batch of calls counts once."""
    turns, in_batch = 0, False
    for item in items:
        kind = item.get("type") if isinstance(item, dict) else None
        if kind == "function_call":
            turns += not in_batch
            in_batch = True
        else:
            in_batch = False
            turns += isinstance(item, dict) and item.get("role") == "assistant"
    return turns


def fresh(item: Any) -> Any:
    """The same item under new ids, as each real call gives."""
    if isinstance(item, ResponseFunctionToolCall):
        return call(item.name, **json.loads(item.arguments))
    return text(item.content[0].text)


def disable_tracing() -> None:
    os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    from agents import set_tracing_disabled

    set_tracing_disabled(True)


async def answer_when_asked(url: str, run_id: str, outcome: str, **answer: Any) -> None:
    """Be the person who answers as soon as a run asks something."""
    async with AsyncStepfast(url) as sf:
        while not (await sf.list_intents() and await sf.decisions(run_id)):  # noqa: ASYNC110 - in another process, as it were
            await asyncio.sleep(0.02)
        await sf.answer(run_id, outcome, **answer)

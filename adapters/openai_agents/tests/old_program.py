"""Agents of a user's program whose runs and sessions lie in the stored fixtures; ``effect`` counts what they do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from agents import Agent, Model, ModelResponse, RunContextWrapper, Usage, function_tool, handoff, set_tracing_disabled
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

set_tracing_disabled(True)
Effect = Callable[[str], None]
Script = Callable[[int], list[Any]]


@dataclass
class Cart:
    """The context of a run: tools change it."""

    owner: str
    items: list[str] = field(default_factory=list)


def text(words: str) -> ResponseOutputMessage:
    part = ResponseOutputText(type="output_text", text=words, annotations=[], logprobs=[])
    return ResponseOutputMessage(
        id=f"msg_{len(words)}", type="message", role="assistant", status="completed", content=[part]
    )


def call(name: str, number: int, **arguments: Any) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        id=f"fc_{name}_{number}",
        call_id=f"call_{name}_{number}",
        type="function_call",
        name=name,
        arguments=json.dumps(arguments),
        status="completed",
    )


class Scripted(Model):
    """Answers by the number of tool outputs that it is shown."""

    def __init__(self, name: str, script: Script, effect: Effect) -> None:
        self.model = name
        self.script = script
        self.effect = effect

    def _answer(self, given: Any) -> list[Any]:
        items = [] if isinstance(given, str) else given
        shown = sum(1 for item in items if isinstance(item, dict) and item.get("type") == "function_call_output")
        self.effect(f"{self.model} {shown}")
        return self.script(shown)

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:  # noqa: A002
        usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        return ModelResponse(output=self._answer(input), usage=usage, response_id=None)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        output = self._answer(args[1])
        yield ResponseCreatedEvent(type="response.created", sequence_number=0, response=_response([]))
        for index, item in enumerate(output):
            if item.type == "message":
                yield ResponseTextDeltaEvent(
                    type="response.output_text.delta",
                    sequence_number=1,
                    delta=item.content[0].text,
                    item_id=item.id,
                    output_index=index,
                    content_index=0,
                    logprobs=[],
                )
            yield ResponseOutputItemDoneEvent(
                type="response.output_item.done", sequence_number=2, item=item, output_index=index
            )
        yield ResponseCompletedEvent(type="response.completed", sequence_number=3, response=_response(output))


def _response(output: list[Any]) -> Response:
    return Response(
        id="resp_1",
        created_at=0,
        model="scripted",
        object="response",
        output=output,
        tool_choice="auto",
        tools=[],
        parallel_tool_calls=True,
    )


def refunds(effect: Effect, once: Any, idempotent: Any) -> Any:
    """Looks an order up, refunds it, says so."""

    @function_tool
    def look_up(context: RunContextWrapper[Any], order: int) -> str:
        """Look an order up."""
        effect("look_up")
        if context.context is not None:
            context.context.items.append(f"seen {order}")
        return "a lamp, 42 EUR"

    @function_tool
    def refund(context: RunContextWrapper[Any], order: int) -> str:
        """Refund an order."""
        effect("refund")
        if context.context is not None:
            context.context.items.append(f"refunded {order}")
        return "42 EUR are on their way"

    def script(shown: int) -> list[Any]:
        if shown < 2:
            return [call(["look_up", "refund"][shown], shown, order=4711)]
        return [text("Refunded order 4711.")]

    tools = [idempotent(look_up), once(refund)]
    model = Scripted("clerk", script, effect)
    return Agent(name="refunds", instructions="Refund what is asked.", model=model, tools=tools)


def deletes(effect: Effect) -> Any:
    """Asks for approval before its tool."""

    @function_tool(needs_approval=True)
    def delete(file: str) -> str:
        """Delete a file."""
        effect("delete")
        return f"{file} is gone"

    def script(shown: int) -> list[Any]:
        return [call("delete", 0, file="notes.txt")] if shown == 0 else [text("It is done.")]

    model = Scripted("cleaner", script, effect)
    return Agent(name="cleaner", instructions="Delete what is asked.", model=model, tools=[delete])


def team(effect: Effect) -> Any:
    """Hands over to a specialist, who has an agent as a tool."""

    def finder_script(shown: int) -> list[Any]:
        return [text("It is in the attic.")]

    finder = Agent(name="finder", instructions="Find it.", model=Scripted("finder", finder_script, effect))
    ask = finder.as_tool(tool_name="ask_finder", tool_description="Ask the finder.")

    def specialist_script(shown: int) -> list[Any]:
        return (
            [call("ask_finder", 1, input="Where is the lamp?")] if shown == 1 else [text("The lamp is in the attic.")]
        )

    specialist_model = Scripted("specialist", specialist_script, effect)
    specialist = Agent(name="specialist", instructions="Find lamps.", model=specialist_model, tools=[ask])

    def triage_script(shown: int) -> list[Any]:
        return [call("transfer_to_specialist", 0)]

    triage = Scripted("triage", triage_script, effect)
    return Agent(name="triage", instructions="Hand over.", model=triage, handoffs=[handoff(specialist)])


def chat(effect: Effect) -> Any:
    def script(shown: int) -> list[Any]:
        return [text("Good day.")]

    return Agent(name="chat", instructions="Be polite.", model=Scripted("chat", script, effect))

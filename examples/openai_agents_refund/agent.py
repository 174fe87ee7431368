"""The refund agent: ``python agent.py FOLDER [die]`` is one life of it.

The agent and its tools are plain OpenAI Agents SDK; only the runner is Stepfast's. The model is scripted: no key, no
network.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

from agents import Agent, Model, ModelResponse, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from stepfast import Suspended
from stepfast_openai_agents import DurableRunner

RUN = "refund-4711"
CALLS = [("look_up_order", {"order": "4711"}), ("refund_card", {"cents": 4200}), ("write_mail", {"to": "ada"})]


class Book:
    """What happened in the world, one line each."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "world.txt"

    def note(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())


class ScriptedModel(Model):
    """Asks for one tool after the other, and then sums up what they said."""

    def __init__(self, book: Book) -> None:
        self.book = book

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        given = kwargs["input"]
        told = [item["output"] for item in given if item.get("type") == "function_call_output"]
        self.book.note(f"model call {len(told) + 1}")
        output: Any
        if len(told) < len(CALLS):
            name, arguments = CALLS[len(told)]
            output = ResponseFunctionToolCall(
                type="function_call", call_id=f"call-{len(told)}", name=name, arguments=json.dumps(arguments)
            )
        else:
            words = ResponseOutputText(type="output_text", text="; ".join(told), annotations=[])
            output = ResponseOutputMessage(
                id="answer", type="message", role="assistant", status="completed", content=[words]
            )
        return ModelResponse(output=[output], usage=Usage(requests=1), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("this agent does not stream")


def refund_agent(book: Book, *, die: bool) -> Agent[Any]:
    @function_tool
    def look_up_order(order: str) -> str:
        """Find an order."""
        book.note("order looked up")
        return f"order {order}: a lamp for 42.00"

    @function_tool
    def refund_card(cents: int) -> str:
        """Give money back."""
        book.note("money moved")
        if die:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        return f"refunded {cents}"

    @function_tool
    def write_mail(to: str) -> str:
        """Write to the customer."""
        book.note("mail written")
        return f"wrote to {to}"

    return Agent(name="refunds", model=ScriptedModel(book), tools=[look_up_order, refund_card, write_mail])


async def life(folder: Path, *, die: bool) -> str:
    agent = refund_agent(Book(folder), die=die)
    try:
        result = await DurableRunner.run(
            agent,
            "Refund order 4711",
            run_id=RUN,
            store=f"sqlite:///{folder}/runs.db",
            policies={"refund_card": "once"},
        )
    except Suspended as waits:
        return f"waits: {waits}"
    return f"answer: {result.final_output}"


if __name__ == "__main__":
    print(asyncio.run(life(Path(sys.argv[1]), die="die" in sys.argv)), flush=True)

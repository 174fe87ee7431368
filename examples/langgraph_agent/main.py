"""A LangGraph agent is killed in its third tool call, started again, and repeats nothing that was finished.

The agent is plain LangChain: a model, three tools, a checkpointer. Stepfast is the checkpointer, and the three tools
are wrapped. The model is scripted, so there is no key and no network.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["LANGSMITH_TRACING"] = "false"

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from stepfast_langgraph import StepfastSaver, durable_tool

CONFIG: Any = {"configurable": {"thread_id": "order-4711"}, "max_concurrency": 1}
CALLS = [
    {"name": "charge_card", "args": {"order": "4711"}, "id": "call-1"},
    {"name": "send_mail", "args": {"to": "ada"}, "id": "call-2"},
    {"name": "book_courier", "args": {"order": "4711"}, "id": "call-3"},
]


class Book:
    """What happened in the world, one line each."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "world.txt"

    def note(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def counts(self) -> Counter[str]:
        return Counter(self.path.read_text().splitlines()) if self.path.exists() else Counter()


class ScriptedModel(BaseChatModel):
    """Asks for three tools at once, and then sums up what they said."""

    folder: str

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        told = [str(message.content) for message in messages if message.type == "tool"]
        Book(Path(self.folder)).note("model call: sum up" if told else "model call: plan")
        answer = AIMessage("; ".join(told)) if told else AIMessage("", tool_calls=CALLS)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def agent(folder: Path, *, die: bool) -> None:
    book = Book(folder)

    @tool
    def charge_card(order: str) -> str:
        """Charge the card of an order."""
        book.note("card charged")
        return f"charged {order}"

    @tool
    def send_mail(to: str) -> str:
        """Send a mail."""
        book.note("mail sent")
        return f"wrote to {to}"

    @tool
    def book_courier(order: str) -> str:
        """Book a courier."""
        if die:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        book.note("courier booked")
        return "courier at noon"

    tools = [durable_tool(charge_card, once=True), durable_tool(send_mail, once=True), durable_tool(book_courier)]
    with StepfastSaver(f"sqlite:///{folder}/threads.db") as saver:
        graph = create_agent(ScriptedModel(folder=str(folder)), tools, checkpointer=saver)
        begun = graph.get_state(CONFIG).created_at is not None
        given: Any = None if begun else {"messages": [("human", "ship order 4711")]}
        state = graph.invoke(given, CONFIG)
        print(f"answer: {state['messages'][-1].content}", flush=True)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="stepfast-langgraph-") as name:
        book = Book(Path(name))
        first = subprocess.run([sys.executable, __file__, name, "die"], check=False)
        print(f"first life:  exit code {first.returncode} in the third tool; so far: {dict(book.counts())}")
        second = subprocess.run([sys.executable, __file__, name], check=True, capture_output=True, text=True)
        print(f"second life: {second.stdout.strip()}")
        counts = book.counts()
        for what, times in counts.items():
            print(f"  {times} x {what}")
        return 0 if first.returncode != 0 and len(counts) == 5 and set(counts.values()) == {1} else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        agent(Path(sys.argv[1]), die="die" in sys.argv)
    else:
        sys.exit(main())

"""The order: ``python order.py FOLDER crew|flow [die]`` is one life of it.

Crew, flow and tools are plain CrewAI; only ``durable`` is Stepfast's. The LLM is scripted: no key, no network.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"
os.environ["CREWAI_TRACING_ENABLED"] = "false"
os.environ["CREWAI_STORAGE_DIR"] = str(Path(sys.argv[1]) / "crewai")

from crewai import Agent, Crew, Task
from crewai.flow.flow import Flow, listen, start
from crewai.llms.base_llm import BaseLLM
from crewai.tools import tool

from stepfast_crewai import durable, idempotent

FOLDER, KIND = Path(sys.argv[1]), sys.argv[2]
DIES = sys.argv[3:] == ["die"]


def note(line: str) -> None:
    """Keep what happened in the world, one line each."""
    with (FOLDER / "world.txt").open("a") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


@idempotent
@tool
def look_up(item: str) -> str:
    """Look the price of an item up."""
    note("price looked up")
    return f"{item}: 42"


@tool
def charge(amount: int) -> str:
    """Charge the card."""
    note("card charged")
    return f"charged {amount}"


class ScriptedLLM(BaseLLM):
    """Asks for one tool after the other, and then sums up what they said."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        told = [str(message["content"]) for message in messages if message.get("role") == "tool"]
        note(f"model call {len(told) + 1}")
        if DIES and len(told) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        calls = [("look_up", {"item": "lamp"}), ("charge", {"amount": 42})]
        if len(told) == len(calls):
            return "; ".join(told)
        name, given = calls[len(told)]
        return [{"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}]

    def supports_function_calling(self) -> bool:
        return True


def order_crew() -> Crew:
    clerk = Agent(
        role="clerk", goal="order", backstory="orders", llm=ScriptedLLM(model="scripted"), tools=[look_up, charge]
    )
    return Crew(agents=[clerk], tasks=[Task(description="Order a {item}.", expected_output="a receipt", agent=clerk)])


class OrderFlow(Flow):  # type: ignore[type-arg]
    _skip_auto_memory: bool = True
    suppress_flow_events: bool = True

    @start()
    def begin(self) -> str:
        note("flow begun")
        return "lamp"

    @listen(begin)
    def order(self, item: str) -> str:
        return str(order_crew().kickoff(inputs={"item": item}))


if __name__ == "__main__":
    store = f"sqlite:///{FOLDER}/stepfast.db"
    if KIND == "crew":
        print("answer:", durable(order_crew(), "order-1", store).kickoff({"item": "lamp"}).raw)
    else:
        print("answer:", durable(OrderFlow(), "order-2", store).kickoff())

"""What lives do: crews and flows that ask people, and workers that can be killed."""

import os
import time
from pathlib import Path
from typing import Any

from crewai import Agent, Crew, Task
from crewai.flow.flow import Flow, listen, or_, start
from crewai.flow.human_feedback import human_feedback
from crewai.tools import tool

from adapters.crewai.tests.kit import ScriptedLLM, call, outputs, text
from stepfast import Stepfast
from stepfast.testing import Effects
from stepfast_crewai import crew_worker, durable, idempotent

ADDRESS = "agent://acme/prod/orders"


def reviewed_crew(url: str, folder: str) -> Any:
    """A crew whose task has ``human_input=True``."""
    effects = Effects(Path(folder))

    def script(messages: list[dict[str, Any]]) -> str:
        effects.record("model call")
        return "short text" if "Make it shorter" in text(messages) else "very long text"

    agent = Agent(role="writer", goal="write", backstory="writes", llm=ScriptedLLM(script))
    task = Task(description="Write.", expected_output="a text", agent=agent, human_input=True)
    with durable(Crew(agents=[agent], tasks=[task]), "reviewed", url) as crew:
        return crew.kickoff().raw


def reviewed_flow(url: str, folder: str) -> Any:
    """A flow that asks a question and has its text reviewed, in a loop."""
    effects = Effects(Path(folder))

    class Review(Flow):  # type: ignore[type-arg]
        _skip_auto_memory: bool = True
        suppress_flow_events: bool = True

        @start()
        def whom(self) -> str:
            effects.record("whom")
            self.state["name"] = self.ask("Whom is it for?")
            return "known"

        @human_feedback(message="Publish it?", emit=["approved", "rejected"], llm=ScriptedLLM(lambda _: "approved"))
        @listen(or_(whom, "rejected"))
        def write(self) -> str:
            effects.record("write")
            kind = "kind " if self.state.get("rounds") else ""
            self.state["rounds"] = self.state.get("rounds", 0) + 1
            return f"{kind}text for {self.state['name']}"

        @listen("approved")
        def publish(self, result: Any) -> str:
            effects.record("publish")
            return f"published: {result.output}"

    with durable(Review(), "reviewed", url) as flow:
        return flow.kickoff()


# --- workers -----------------------------------------------------------------------------------------


def held(folder: Path, where: str) -> None:
    """Go on once the file that holds work up is gone; a test deletes it, or kills this process."""
    while (folder / f"hold {where}").exists():
        time.sleep(0.005)


def order_crew(folder: Path) -> Crew:
    """Two tasks of two agents, with a look-up and a one-shot charge."""
    effects = Effects(folder)

    @idempotent
    @tool
    def look_up(item: str) -> str:
        """Look a price up."""
        effects.record("look_up")
        held(folder, "look_up")
        return f"{item}: 42"

    @tool
    def charge(amount: int) -> str:
        """Charge a card."""
        effects.record("charge")
        return f"charged {amount}"

    def ask(name: str, tool_name: str, given: dict[str, Any]) -> Any:
        def script(messages: list[dict[str, Any]]) -> Any:
            seen = outputs(messages)
            number = len(seen) + 1
            effects.record(f"{name} asked {number}")
            held(folder, f"{name} {number}")
            return f"{name} got {seen[-1]}" if seen else call((tool_name, given))

        return ScriptedLLM(script)

    buyer = Agent(
        role="buyer",
        goal="find",
        backstory="finds",
        llm=ask("buyer", "look_up", {"item": "lamp"}),
        tools=[look_up],
    )
    clerk = Agent(
        role="clerk", goal="pay", backstory="pays", llm=ask("clerk", "charge", {"amount": 42}), tools=[charge]
    )
    tasks = [
        Task(name="find", description="Find what {item} costs.", expected_output="a price", agent=buyer),
        Task(name="pay", description="Pay for {item}.", expected_output="a receipt", agent=clerk),
    ]
    return Crew(agents=[buyer, clerk], tasks=tasks)


def order(url: str, folder: str) -> Any:
    """The crew as a run of its own."""
    with durable(order_crew(Path(folder)), "order", url) as crew:
        return crew.kickoff({"item": "lamp"}).raw


def worker(url: str, folder: str, intent_id: str) -> Any:
    """A worker for the address, until an intent has ended."""
    os.environ["CREWAI_STORAGE_DIR"] = str(Path(folder) / "crewai")
    with Stepfast(url) as sf:
        serving = crew_worker(sf, ADDRESS, lambda payload: order_crew(Path(folder)))
        serving.start()
        ended = sf.wait_for(intent_id)
        serving.stop()
    return ended["status"]

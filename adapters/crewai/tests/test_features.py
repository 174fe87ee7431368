"""CrewAI's features one by one: each broken off in the middle, and gone on with nothing recorded done again."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from crewai import Agent, Crew, Process, Task
from crewai.agent.planning_config import PlanningConfig
from crewai.knowledge.knowledge import Knowledge
from crewai.mcp import MCPServerStdio

from adapters.crewai.tests.kit import ScriptedLLM, call, make_crew, outputs, text
from adapters.crewai.tests.test_crews import Crash, Desk
from stepfast import Diverged, Stepfast
from stepfast_crewai import durable


class Breaking:
    """A script that raises `Crash` in place of its answer number ``at``, until it is mended; real calls are counted."""

    def __init__(self, script: Any, at: int) -> None:
        self.script = script
        self.at = at
        self.seen: list[str] = []

    def __call__(self, messages: list[dict[str, Any]]) -> Any:
        self.seen.append(text(messages))
        if len(self.seen) == self.at:
            self.at = 0
            raise Crash
        return self.script(messages)


def broken_then_whole(url: str, make: Any, **options: Any) -> Any:
    """Kick a crew off until it breaks, and a new one after that; returns the result."""
    with pytest.raises(Crash), durable(make(), "r", url, **options) as runs:
        runs.kickoff()
    with durable(make(), "r", url, **options) as runs:
        return runs.kickoff()


def plans(messages: list[dict[str, Any]]) -> str:
    return json.dumps(
        {"list_of_plans_per_task": [{"task_number": n, "task": "it", "plan": f" PLAN {n}"} for n in (1, 2)]}
    )


def test_a_crew_is_planned_once(url: str) -> None:
    planner = ScriptedLLM(plans)
    work = Breaking(lambda messages: "done", at=2)
    found = broken_then_whole(
        url, lambda: make_crew(ScriptedLLM(work), [], ("One.", "Two."), planning=True, planning_llm=planner)
    )
    assert found.raw == "done"
    assert planner.calls == 1
    assert len(work.seen) == 3
    assert [each.count("PLAN 2") for each in work.seen] == [0, 1, 1]  # and not appended twice


def test_a_crew_that_was_planned_can_be_kicked_off_again(url: str) -> None:
    planner = ScriptedLLM(plans)
    crew = make_crew(
        ScriptedLLM(lambda messages: "done"), [], ("One {x}.", "Two."), planning=True, planning_llm=planner
    )
    with durable(crew, "r", url) as runs:
        assert runs.kickoff({"x": "a"}).raw == runs.kickoff({"x": "a"}).raw == "done"
    assert planner.calls == 1


def test_an_agent_reasons_once(url: str) -> None:
    def script(messages: list[dict[str, Any]]) -> Any:
        planning = "Create an execution plan" in text(messages)
        return json.dumps({"plan": "work on it", "steps": [], "ready": True}) if planning else "done"

    work = Breaking(script, at=2)

    def make() -> Crew:
        agent = Agent(
            role="worker",
            goal="work",
            backstory="works",
            llm=ScriptedLLM(work),
            planning_config=PlanningConfig(max_attempts=1),
        )
        return Crew(agents=[agent], tasks=[Task(description="Do it.", expected_output="a word", agent=agent)])

    found = broken_then_whole(url, make)
    assert found.raw == "done"
    assert len(set(work.seen)) == len(work.seen) - 1  # only the call that broke was made again


def test_work_is_delegated_once(url: str) -> None:
    desk = Desk()

    def manage(messages: list[dict[str, Any]]) -> Any:
        if outputs(messages):
            return f"managed: {outputs(messages)[-1]}"
        return call(("delegate_work_to_coworker", {"task": "Charge.", "context": "3", "coworker": "clerk"}))

    managing, working = Breaking(manage, at=2), Breaking(desk.script, at=0)

    def make() -> Crew:
        clerk = Agent(role="clerk", goal="pay", backstory="pays", llm=ScriptedLLM(working), tools=[desk.tool])
        head = Agent(role="head", goal="lead", backstory="leads", llm=ScriptedLLM(managing), allow_delegation=True)
        return Crew(
            agents=[head, clerk],
            tasks=[Task(description="See to it.", expected_output="a word", agent=head)],
            process=Process.sequential,
        )

    found = broken_then_whole(url, make)
    assert found.raw == "managed: paid: charged 3"
    assert (len(managing.seen), len(working.seen), len(desk.calls)) == (3, 2, 1)


class Library:
    """A storage of knowledge that counts its searches, and finds something else each time."""

    def __init__(self) -> None:
        self.searches = 0

    def search(self, query: Any, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        self.searches += 1
        return [{"id": "1", "content": f"fact {self.searches}", "metadata": {}, "score": 0.9}]

    async def asearch(self, query: Any, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        return self.search(query)


@pytest.mark.parametrize("way", ["kickoff", "akickoff"])
def test_what_was_found_in_knowledge_stays_the_same(url: str, way: str) -> None:
    library = Library()
    desk = Desk()

    def script(messages: list[dict[str, Any]]) -> Any:
        if len(work.seen) == 1:
            return "what is asked of the library"
        return "done" if outputs(messages) else call(("charge", {"amount": 3}))

    work = Breaking(script, at=3)

    def make() -> Crew:
        crew = make_crew(ScriptedLLM(work), [desk.tool])
        knowledge = Knowledge.model_construct(sources=[], storage=library, embedder=None, collection_name=None)
        crew.agents[0].knowledge = knowledge
        return crew

    def go() -> Any:
        with durable(make(), "r", url) as runs:
            return runs.kickoff() if way == "kickoff" else asyncio.run(runs.akickoff())

    with pytest.raises(Crash):
        go()
    assert go().raw == "done"
    assert library.searches == 1
    assert all("fact 1" in each for each in work.seen[1:])
    assert len(desk.calls) == 1


@pytest.mark.timeout(120)
def test_a_tool_of_an_mcp_server_is_called_once(url: str, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    work = Breaking(
        lambda messages: outputs(messages)[-1] if outputs(messages) else call((named[0], {"thing": "lamp"})), at=2
    )
    named: list[str] = []

    class Naming(ScriptedLLM):
        """Calls the tool by the name that CrewAI gave it."""

        def call(self, messages: Any, tools: Any = None, *args: Any, **kwargs: Any) -> Any:
            named[:] = [each["function"]["name"] for each in tools or ()]
            return super().call(messages, tools, *args, **kwargs)

    def make() -> Crew:
        server = MCPServerStdio(
            command=sys.executable, args=[str(Path(__file__).with_name("mcp_server.py")), str(calls)]
        )
        agent = Agent(role="buyer", goal="buy", backstory="buys", llm=Naming(work), mcps=[server])
        return Crew(agents=[agent], tasks=[Task(description="What is it?", expected_output="a price", agent=agent)])

    found = broken_then_whole(url, make)
    assert "lamp: 42" in found.raw
    assert calls.read_text() == "lamp\n"


@pytest.mark.parametrize("way", ["kickoff_for_each", "kickoff_for_each_async", "akickoff_for_each"])
def test_finished_inputs_of_several_are_not_worked_on_again(url: str, way: str) -> None:
    desk = Desk()
    broken = [True]
    seen: list[str] = []

    def script(messages: list[dict[str, Any]]) -> Any:
        said = text(messages)
        seen.append("lamp" if "Buy lamp" in said else "chair")
        if outputs(messages) and "Buy chair" in said and broken:
            raise Crash
        return desk.script(messages)

    def go(inputs: Any = None) -> Any:
        with durable(make_crew(ScriptedLLM(script), [desk.tool], ("Buy {thing}.",)), "r", url) as runs:
            found = getattr(runs, way)(inputs or [{"thing": "lamp"}, {"thing": "chair"}])
            return found if way == "kickoff_for_each" else asyncio.run(found)

    with pytest.raises(Crash):
        go()
    broken.clear()
    before = len(desk.calls), seen.count("lamp"), seen.count("chair")
    results = go()
    assert [each.raw for each in results] == ["paid: charged 3"] * 2
    assert len(desk.calls) == 2
    assert (before[0], before[2]) == (2, 2) if way == "kickoff_for_each" else before[2] == 2
    assert seen.count("chair") == 3  # the one that broke
    assert seen.count("lamp") == 2
    with pytest.raises(Diverged, match="the inputs have changed"):
        go([{"thing": "lamp"}])
    with Stepfast(url) as sf:
        kept = sf.get_intent("r")["result"]
    assert [each["raw"] for each in kept["results"]] == ["paid: charged 3"] * 2
    assert kept["usage"]["requests"] == 4


@pytest.mark.filterwarnings("ignore:function callbacks cannot be serialized")
@pytest.mark.parametrize("of", ["crew", "agent"])
def test_a_step_callback_is_not_repeated(url: str, of: str) -> None:
    desk, told = Desk(), []
    work = Breaking(desk.script, at=2)

    def tell(step: Any) -> None:
        told.append(type(step).__name__)

    def make() -> Crew:
        crew = make_crew(ScriptedLLM(work), [desk.tool], **({"step_callback": tell} if of == "crew" else {}))
        if of == "agent":
            crew.agents[0].step_callback = tell  # type: ignore[attr-defined]
        return crew

    with durable(make(), "whole", url) as runs:
        work.at = 0
        runs.kickoff()
    expected, told[:], work.at = list(told), [], len(work.seen) + 2
    assert expected
    broken_then_whole(url, make)
    assert told == expected


@pytest.mark.parametrize("way", ["kickoff", "akickoff"])
def test_usage_is_complete_after_a_resume(url: str, way: str) -> None:
    desk = Desk()
    work = Breaking(desk.script, at=4)

    def make() -> Crew:
        agents = [
            Agent(role=role, goal="work", backstory="works", llm=ScriptedLLM(work, model=role), tools=[desk.tool])
            for role in ("first", "second")
        ]
        tasks = [Task(description=f"{each.role}.", expected_output="a word", agent=each) for each in agents]
        return Crew(agents=agents, tasks=tasks)

    def go() -> tuple[Any, Crew]:
        crew = make()
        with durable(crew, "r", url) as runs:
            return (runs.kickoff() if way == "kickoff" else asyncio.run(runs.akickoff())), crew

    with pytest.raises(Crash):
        go()
    for _ in range(2):  # gone on with, and read once more
        result, crew = go()
        for usage in (result.token_usage, crew.usage_metrics):
            assert usage is not None
            assert (usage.successful_requests, usage.prompt_tokens, usage.completion_tokens) == (4, 40, 20)
    assert len(work.seen) == 5
    with Stepfast(url) as sf:
        assert sf.get_intent("r")["result"]["usage"] == {
            "requests": 4,
            "input_tokens": 40,
            "output_tokens": 20,
            "cached_tokens": 0,
        }

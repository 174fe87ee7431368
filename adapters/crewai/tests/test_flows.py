"""Flows: finished methods are answered from the journal with the state they left; people are asked by decisions."""

from typing import Any

import pytest
from crewai.flow.flow import Flow, listen, start
from pydantic import BaseModel

from adapters.crewai.tests.kit import ScriptedLLM, make_crew
from stepfast import InvalidInput, Stepfast, Suspended
from stepfast_crewai import crew_worker, durable


class Crash(BaseException):
    """Ends a run in the middle as a kill would, as far as one process can."""


class Counter(BaseModel):
    id: str = ""
    total: int = 0


class Bill(BaseModel):
    amount: int


def flow_of(done: list[str], dies: bool) -> Any:
    class Adding(Flow[Counter]):
        _skip_auto_memory: bool = True
        suppress_flow_events: bool = True

        @start()
        def first(self) -> Bill:
            done.append("first")
            self.state.total += 1
            return Bill(amount=5)

        @listen(first)
        async def second(self, bill: Bill) -> int:
            done.append("second")
            if dies:
                raise Crash
            self.state.total += bill.amount
            return self.state.total

    return Adding()


def test_a_flow_goes_on_at_the_method_that_had_not_finished(url: str) -> None:
    done: list[str] = []
    dying = flow_of(done, dies=True)
    with pytest.raises(Crash), durable(dying, "f", url) as runs:
        runs.kickoff()
    for _ in range(2):
        flow = flow_of(done, dies=False)
        with durable(flow, "f", url) as runs:
            assert runs.kickoff() == 6
        assert flow.state.total == 6
        assert flow.state.id == dying.state.id
    assert done == ["first", "second", "second"]


def test_a_question_of_a_flow_outlives_the_process(url: str) -> None:
    class Asking(Flow):  # type: ignore[type-arg]
        _skip_auto_memory: bool = True
        suppress_flow_events: bool = True

        @start()
        def hello(self) -> str:
            return f"Hello {self.ask('Who is there?')}"

    with durable(Asking(), "f", url) as runs, pytest.raises(Suspended):
        runs.kickoff()
    with Stepfast(url) as sf:
        [question] = sf.decisions("f")
        assert question["question"] == "Who is there?"
        sf.answer("f", "answered", value="Ada")
    with durable(Asking(), "f", url) as runs:
        assert runs.kickoff() == "Hello Ada"


def test_the_id_of_a_state_is_the_runs_business(url: str) -> None:
    with durable(flow_of([], dies=False), "f", url) as runs, pytest.raises(InvalidInput, match="leave the id out"):
        runs.kickoff({"id": "mine"})


def test_a_worker_carries_out_intents_with_a_crew(url: str) -> None:
    with Stepfast(url) as sf:
        llm = ScriptedLLM(lambda messages: "written")
        worker = crew_worker(sf, "agent://writers", lambda payload: make_crew(llm, [], ("Write on {topic}.",)))
        intent = sf.send_intent(
            {"intent_type": "write.v1", "to_agent": "agent://writers", "payload": {"inputs": {"topic": "lamps"}}}
        )
        worker.start()
        try:
            assert sf.wait_for(intent, timeout=60)["result"] == {"raw": "written", "tasks": 1}
        finally:
            worker.stop()
        with pytest.raises(InvalidInput, match="crew: must be a function"):
            crew_worker(sf, "agent://writers", make_crew(llm, []))

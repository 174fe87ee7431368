"""Crews in one process after another: starting, going on, returning the finished result; tools, retries, drift."""

from __future__ import annotations

import re
import socket
from typing import Any

import pytest
from crewai import Agent, Crew, Task
from crewai.tools import BaseTool, tool
from pydantic import BaseModel

from adapters.crewai.tests.kit import ScriptedLLM, call, done, make_crew, outputs, react, text
from stepfast import DID_NOT_HAPPEN, Diverged, Happened, InvalidInput, Stepfast, Suspended, Waiting, idempotency_key
from stepfast_crewai import durable, idempotent, once


class Crash(BaseException):
    """Ends a run in the middle as a kill would, as far as one process can."""


class Desk:
    """A tool that counts its calls, and a script that uses it once for each task."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.broken: BaseException | None = None

        @tool
        def charge(amount: int) -> str:
            """Charge a card."""
            self.calls.append(idempotency_key())
            if self.broken is not None:
                raise self.broken
            return f"charged {amount}"

        self.tool = charge

    def script(self, messages: list[dict[str, Any]]) -> Any:
        seen = outputs(messages)
        return f"paid: {seen[-1]}" if seen else call(("charge", {"amount": 3}))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_the_same_call_starts_a_run_and_returns_its_finished_result(url: str, desk: Desk) -> None:
    llm = ScriptedLLM(desk.script)
    with durable(make_crew(llm, [desk.tool], ("Pay {x}.",)), "r", url, policies={"*": "ask"}) as crew:
        first = crew.kickoff({"x": "it"})
        again = crew.kickoff({"x": "it"})
    assert first.raw == again.raw == "paid: charged 3"
    assert (llm.calls, len(desk.calls)) == (2, 1)
    assert again.token_usage == first.token_usage
    assert first.token_usage.total_tokens == 30
    assert again.tasks_output[0].model_dump() == first.tasks_output[0].model_dump()


def test_a_run_goes_on_at_the_first_call_that_had_not_finished(url: str, desk: Desk) -> None:
    asked: list[str] = []

    def script(messages: list[dict[str, Any]]) -> Any:
        asked.append(text(messages)[-20:])
        if len(asked) == 4:
            raise Crash
        return desk.script(messages)

    with pytest.raises(Crash), durable(make_crew(ScriptedLLM(script), [desk.tool], ("One.", "Two.")), "r", url) as crew:
        crew.kickoff()
    llm = ScriptedLLM(desk.script)
    with durable(make_crew(llm, [desk.tool], ("One.", "Two.")), "r", url) as crew:
        result = crew.kickoff()
    assert (llm.calls, len(desk.calls)) == (1, 2)
    assert [each.raw for each in result.tasks_output] == ["paid: charged 3"] * 2
    assert result.token_usage.total_tokens == 60  # complete, although three of four calls were made before
    with Stepfast(url) as sf:
        assert sf.get_intent("r")["result"]["usage"]["requests"] == 4


def test_the_inputs_of_a_run_are_recorded(url: str, desk: Desk) -> None:
    def script(messages: list[dict[str, Any]]) -> Any:
        raise Crash

    with pytest.raises(Crash), durable(make_crew(ScriptedLLM(script), [], ("Say {x}.",)), "r", url) as crew:
        crew.kickoff({"x": "lamp"})
    llm = ScriptedLLM(lambda messages: "lamp" if "Say lamp." in text(messages) else "what?")
    with durable(make_crew(llm, [], ("Say {x}.",)), "r", url) as crew:
        assert crew.kickoff().raw == "lamp"
    with durable(make_crew(llm, [], ("Say {x}.",)), "r", url) as crew, pytest.raises(Diverged, match="the inputs have"):
        crew.kickoff({"x": "table"})


def test_an_agent_that_begins_again_does_not_call_its_tools_again(url: str, desk: Desk) -> None:
    """CrewAI issue 5802: one failing model call after a tool made CrewAI call the tool twice."""
    failures = [RuntimeError("provider is down")]

    def script(messages: list[dict[str, Any]]) -> Any:
        if outputs(messages) and failures:
            return failures.pop()
        return desk.script(messages)

    with durable(make_crew(ScriptedLLM(script), [desk.tool]), "r", url) as crew:
        assert crew.kickoff().raw == "paid: charged 3"
    assert len(desk.calls) == 1


def test_an_answer_on_which_the_agent_failed_is_asked_for_again(url: str) -> None:
    answers = ["", "", "fine"]
    llm = ScriptedLLM(lambda messages: answers.pop(0))
    with durable(make_crew(llm, []), "r", url) as crew:
        assert crew.kickoff().raw == "fine"


def test_a_tool_in_doubt_waits_for_a_person(url: str, desk: Desk) -> None:
    desk.broken = Crash()
    with pytest.raises(Crash), durable(make_crew(ScriptedLLM(desk.script), [desk.tool]), "r", url) as crew:
        crew.kickoff()
    desk.broken = None
    llm = ScriptedLLM(desk.script)
    with durable(make_crew(llm, [desk.tool]), "r", url) as crew:
        with pytest.raises(Suspended):
            crew.kickoff()
        with durable(make_crew(llm, [desk.tool]), "r", url, on_wait="return") as returning:
            waits = returning.kickoff()
        assert isinstance(waits, Waiting)
        with Stepfast(url) as sf:
            sf.answer("r", "done", value="charged 4")
        assert crew.kickoff().raw == "paid: charged 4"
    assert len(desk.calls) == 1


def test_a_probe_settles_a_tool_in_doubt(url: str, desk: Desk) -> None:
    desk.broken = Crash()
    said = iter([DID_NOT_HAPPEN, Happened("charged by then")])

    def probe(amount: int) -> Any:
        assert amount == 3
        return next(said)

    probed = once(desk.tool, reconcile=probe)
    for _ in range(2):
        with pytest.raises(Crash), durable(make_crew(ScriptedLLM(desk.script), [probed]), "r", url) as crew:
            crew.kickoff()
    with durable(make_crew(ScriptedLLM(desk.script), [probed]), "r", url) as crew:
        assert crew.kickoff().raw == "paid: charged by then"
    assert len(desk.calls) == 2


def test_a_repeatable_tool_is_called_again_with_the_same_idempotency_key(url: str, desk: Desk) -> None:
    desk.broken = Crash()
    marked = idempotent(desk.tool)
    with pytest.raises(Crash), durable(make_crew(ScriptedLLM(desk.script), [marked]), "r", url) as crew:
        crew.kickoff()
    desk.broken = None
    with durable(make_crew(ScriptedLLM(desk.script), [marked]), "r", url) as crew:
        assert crew.kickoff().raw == "paid: charged 3"
    assert len(desk.calls) == 2
    assert len(set(desk.calls)) == 1


def test_a_tool_that_raises_is_called_once_for_one_request_of_the_model(url: str, desk: Desk) -> None:
    """CrewAI itself calls a tool that raised up to six times where calls are in the text of an answer."""
    desk.broken = ValueError("no such card")

    def script(messages: list[dict[str, Any]]) -> Any:
        return done("gave up") if "no such card" in text(messages) else react("charge", {"amount": 3})

    with durable(make_crew(ScriptedLLM(script, native=False), [desk.tool]), "r", url) as crew:
        assert crew.kickoff().raw == "gave up"
    assert len(desk.calls) == 1


def test_what_a_tool_raised_is_shown_to_the_model_again_in_the_same_words(url: str, desk: Desk) -> None:
    desk.broken = ValueError("no such card")
    seen: list[Any] = []

    def script(messages: list[dict[str, Any]]) -> Any:
        seen.append(outputs(messages))
        if not seen[-1]:
            return call(("charge", {"amount": 3}))
        if len(seen) == 2:
            raise Crash
        return "gave up"

    with pytest.raises(Crash), durable(make_crew(ScriptedLLM(script), [desk.tool]), "r", url) as crew:
        crew.kickoff()
    with durable(make_crew(ScriptedLLM(script), [desk.tool]), "r", url) as crew:
        assert crew.kickoff().raw == "gave up"
    assert seen[1] == seen[2]
    assert len(desk.calls) == 1


class Reading(BaseModel):
    degrees: int


class Thermometer(BaseTool):
    name: str = "thermometer"
    description: str = "Reads the temperature."
    result_schema: Any = Reading
    readings: int = 0

    def _run(self) -> Reading:
        self.readings += 1
        return Reading(degrees=20 + self.readings)


def test_a_tool_may_return_a_model(url: str) -> None:
    seen: list[Any] = []

    def script(messages: list[dict[str, Any]]) -> Any:
        seen.append(outputs(messages))
        if len(seen) == 2:
            raise Crash
        return "warm" if seen[-1] else call(("thermometer", {}))

    device = Thermometer()
    with pytest.raises(Crash), durable(make_crew(ScriptedLLM(script), [device]), "r", url) as crew:
        crew.kickoff()
    with durable(make_crew(ScriptedLLM(script), [device]), "r", url) as crew:
        assert crew.kickoff().raw == "warm"
    assert seen[1] == seen[2]
    assert device.readings == 1


def test_a_changed_crew_is_named(url: str, desk: Desk) -> None:
    def script(messages: list[dict[str, Any]]) -> Any:
        if outputs(messages):
            raise Crash
        return desk.script(messages)

    with pytest.raises(Crash), durable(make_crew(ScriptedLLM(script), [desk.tool], ("Pay.",)), "r", url) as crew:
        crew.kickoff()
    changed = make_crew(ScriptedLLM(desk.script), [desk.tool], ("Pay twice.",))
    with durable(changed, "r", url) as crew, pytest.raises(Diverged, match=r"task 1 \(Pay\.\) has changed"):
        crew.kickoff()
    changed = make_crew(ScriptedLLM(desk.script), [desk.tool], ("Pay twice.",))
    with durable(changed, "r", url, on_drift="accept") as crew:
        assert crew.kickoff().raw == "paid: charged 3"
    assert len(desk.calls) == 1


def test_a_changed_prompt_is_explained(url: str, desk: Desk) -> None:
    noise = iter(["first", "second", "third", "third"])

    class Noisy(Agent):
        def _finalize_task_prompt(self, task_prompt: str, *args: Any, **kwargs: Any) -> Any:
            return super()._finalize_task_prompt(task_prompt, *args, **kwargs) + f"\nlucky word: {next(noise)}"

    def crew_of(script: Any) -> Crew:
        agent = Noisy(role="worker", goal="work", backstory="works", llm=ScriptedLLM(script), tools=[desk.tool])
        return Crew(agents=[agent], tasks=[Task(description="Pay.", expected_output="a word", agent=agent)])

    def dying(messages: list[dict[str, Any]]) -> Any:
        if outputs(messages):
            raise Crash
        return desk.script(messages)

    with pytest.raises(Crash), durable(crew_of(dying), "r", url) as crew:
        crew.kickoff()
    with durable(crew_of(desk.script), "r", url) as crew, pytest.raises(Diverged) as caught:
        crew.kickoff()
    assert "-lucky word: first" in str(caught.value)
    assert "+lucky word: second" in str(caught.value)
    with durable(crew_of(desk.script), "r", url, on_drift="warn") as crew:
        assert crew.kickoff().raw == "paid: charged 3"


def test_dates_ids_and_what_the_user_names_do_not_count_as_changes(url: str, desk: Desk) -> None:
    def crew_of(script: Any, day: str, unique: str, ticket: int) -> Crew:
        class Dated(Agent):
            def _finalize_task_prompt(self, task_prompt: str, *args: Any, **kwargs: Any) -> Any:
                words = f"\nToday is {day}, at {day}T10:00:00Z. Request {unique}. Ticket {ticket}."
                return super()._finalize_task_prompt(task_prompt, *args, **kwargs) + words

        agent = Dated(role="worker", goal="work", backstory="works", llm=ScriptedLLM(script), tools=[desk.tool])
        return Crew(agents=[agent], tasks=[Task(description="Pay.", expected_output="a word", agent=agent)])

    def dying(messages: list[dict[str, Any]]) -> Any:
        if outputs(messages):
            raise Crash
        return desk.script(messages)

    def without_tickets(words: str) -> str:
        return re.sub(r"Ticket \d+", "Ticket", words)

    first = crew_of(dying, "2026-11-18", "0b5c2f0e-7f0e-4c6e-9d43-0123456789ab", 17)
    with pytest.raises(Crash), durable(first, "r", url, normalise=without_tickets) as crew:
        crew.kickoff()
    later = ("2027-01-02", "1b5c2f0e-7f0e-4c6e-9d43-0123456789ab", 18)
    with durable(crew_of(desk.script, *later), "r", url) as crew, pytest.raises(Diverged, match="Ticket 18"):
        crew.kickoff()
    with durable(crew_of(desk.script, *later), "r", url, normalise=without_tickets) as crew:
        assert crew.kickoff().raw == "paid: charged 3"
    assert len(desk.calls) == 1


def test_a_crew_that_is_told_the_date_goes_on_the_next_day(url: str) -> None:
    desk, seen = Desk(), []

    def script(messages: list[dict[str, Any]]) -> Any:
        seen.append(text(messages))
        if len(seen) == 2:
            raise Crash
        return desk.script(messages)

    def go(day: str) -> Any:
        agent = Agent(
            role="worker",
            goal="work",
            backstory="works",
            llm=ScriptedLLM(script),
            tools=[desk.tool],
            inject_date=True,
            date_format=f"the {day} of %B",
        )
        crew = Crew(agents=[agent], tasks=[Task(description="Pay.", expected_output="a word", agent=agent)])
        with durable(crew, "r", url) as runs:
            return runs.kickoff()

    with pytest.raises(Crash):
        go("first")
    assert go("second").raw == "paid: charged 3"
    assert "the first of" in seen[1]
    assert "the second of" in seen[2]
    assert len(desk.calls) == 1


def test_no_socket_is_opened(url: str, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    connect = socket.socket.connect

    def watched(self: Any, address: Any) -> Any:
        opened.append(address)
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", watched)
    with durable(make_crew(ScriptedLLM(desk.script), [desk.tool]), "r", url) as crew:
        crew.kickoff()
    assert opened == []


def test_what_cannot_be_used_is_refused_with_the_remedy(url: str) -> None:
    crew = make_crew(ScriptedLLM(lambda messages: "done"), [])
    with pytest.raises(InvalidInput, match="crew: must be a Crew or a Flow"):
        durable("crew", "r", url)
    with pytest.raises(InvalidInput, match="on_drift: must be one of"):
        durable(crew, "r", url, on_drift="acept")
    with pytest.raises(InvalidInput, match="run_id: a durable run needs a name"):
        durable(crew, store=url).kickoff()
    with pytest.raises(InvalidInput, match="inputs: must be a dictionary"):
        durable(crew, "r", url).kickoff("it")
    with pytest.raises(InvalidInput, match="normalise: must be a function"):
        durable(crew, "r", url, normalise="dates")

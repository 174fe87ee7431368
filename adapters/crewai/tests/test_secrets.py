"""Secrets: of LLM configurations nothing is stored, and redact= takes the rest out; the run says what it cannot do."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from crewai.flow.flow import Flow, listen, start
from crewai.tools import tool

from adapters.crewai.tests.kit import ScriptedLLM, call, make_crew, outputs, text
from adapters.crewai.tests.test_crews import Crash, Desk
from stepfast import Diverged, InvalidInput, Stepfast, Suspended, idempotency_key
from stepfast_crewai import durable

CARD = "4111-2222-3333"


def redact(words: str) -> str:
    return re.sub(r"\d{4}-\d{4}-\d{4}", "<card>", words)


def stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file())


class Till:
    """A crew that charges a card whose number is in its inputs, its model's answers and its tool's output."""

    def __init__(self) -> None:
        self.charged: list[str] = []
        self.calls = 0
        self.breaks_at = 0
        self.tool_breaks = False

        @tool
        def charge(card: str) -> str:
            """Charge a card."""
            idempotency_key()
            self.charged.append(card)
            if self.tool_breaks:
                raise Crash
            return f"charged {card}"

        self.tool = charge

    def script(self, messages: list[dict[str, Any]]) -> Any:
        self.calls += 1
        if self.calls == self.breaks_at:
            raise Crash
        if outputs(messages):
            return f"paid with {CARD}: {outputs(messages)[-1]}"
        return call(("charge", {"card": CARD}))

    def crew(self) -> Any:
        return make_crew(ScriptedLLM(self.script), [self.tool], ("Charge {card}.",))


@pytest.fixture
def till() -> Till:
    return Till()


@pytest.mark.parametrize("way", ["kickoff", "akickoff"])
def test_a_redacted_text_is_nowhere_in_the_store_and_the_run_goes_on(tmp_path: Path, till: Till, way: str) -> None:
    url = f"sqlite:///{tmp_path}/s.db"

    def go(inputs: Any) -> Any:
        with durable(till.crew(), "r", url, redact=redact) as runs:
            return runs.kickoff(inputs) if way == "kickoff" else asyncio.run(runs.akickoff(inputs))

    till.breaks_at = 2
    with pytest.raises(Crash):
        go({"card": CARD})
    assert CARD.encode() not in stored(tmp_path)
    with pytest.raises(InvalidInput, match="inputs: redact= has taken a part"):
        go(None)
    with pytest.raises(Diverged, match="the inputs have changed"):
        go({"card": "none"})
    assert go({"card": CARD}).raw == f"paid with {CARD}: charged <card>"  # the tool's output came from the journal
    assert go({"card": CARD}).raw == "paid with <card>: charged <card>"  # and now all of it
    assert till.charged == [CARD]
    assert till.calls == 3
    assert CARD.encode() not in stored(tmp_path)
    assert b"<card>" in stored(tmp_path)


def test_no_tool_is_called_with_a_redacted_argument(tmp_path: Path, till: Till) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    till.tool_breaks = True
    with pytest.raises(Crash), durable(till.crew(), "r", url, redact=redact) as runs:
        runs.kickoff({"card": CARD})
    till.tool_breaks = False
    with durable(till.crew(), "r", url, redact=redact) as runs:
        with pytest.raises(Suspended):
            runs.kickoff({"card": CARD})
        with Stepfast(url) as sf:
            [question] = sf.decisions("r")
            assert CARD not in str(question)
            sf.answer("r", "retry")
        with pytest.raises(Diverged, match="tool charge was to be called with what a model had answered"):
            runs.kickoff({"card": CARD})
    with durable(till.crew(), "r", url, redact=redact) as runs:  # the model is asked again
        assert runs.kickoff({"card": CARD}).raw.startswith("paid with")
    assert till.charged == [CARD, CARD]
    assert CARD.encode() not in stored(tmp_path)


def test_the_state_of_a_flow_is_redacted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    broken = [True]

    class Paying(Flow):  # type: ignore[type-arg]
        _skip_auto_memory: bool = True
        suppress_flow_events: bool = True

        @start()
        def first(self) -> str:
            self.state["card"] = CARD
            return f"card {CARD}"

        @listen(first)
        def second(self, said: str) -> str:
            if broken:
                raise Crash
            return f"{said}, {self.state['card']}, {self.state['given']}"

    def go() -> Any:
        with durable(Paying(), "f", url, redact=redact) as runs:
            return runs.kickoff({"given": CARD})

    with pytest.raises(Crash):
        go()
    broken.clear()
    assert go() == "card <card>, <card>, <card>"
    assert CARD.encode() not in stored(tmp_path)


def test_nothing_of_an_llms_configuration_is_stored(tmp_path: Path) -> None:
    desk = Desk()

    def crew_of(script: Any) -> Any:
        llm = ScriptedLLM(script)
        llm.api_key, llm.base_url = "sk-very-secret", "https://secret.example"
        return make_crew(llm, [desk.tool], ("One.", "Two."), planning_llm=llm)

    def dying(messages: list[dict[str, Any]]) -> Any:
        if "Two." in text(messages):
            raise Crash
        return desk.script(messages)

    url = f"sqlite:///{tmp_path}/s.db"
    with pytest.raises(Crash), durable(crew_of(dying), "r", url) as runs:
        runs.kickoff()
    with durable(crew_of(desk.script), "r", url) as runs:
        runs.kickoff()
    assert b"charged 3" in stored(tmp_path)
    assert b"secret" not in stored(tmp_path)


def test_what_redact_must_be(url: str, till: Till) -> None:
    with pytest.raises(InvalidInput, match="redact: must be a function"):
        durable(till.crew(), "r", url, redact="cards")  # type: ignore[call-overload]

"""Options of the adapter's public calls are checked where they are given."""

from __future__ import annotations

from pathlib import Path

from crewai import Crew

import stepfast_crewai
from adapters.crewai.tests.kit import ScriptedLLM, make_crew
from stepfast import Stepfast
from stepfast_crewai import StepfastFlowPersistence, crew_worker, durable, once
from tests.option_walk import offers_the_shared_words, refuses_wrong_options


def crew(_payload: object = None) -> Crew:
    return make_crew(ScriptedLLM(lambda messages: ""), [])


def test_the_words_that_all_adapters_share() -> None:
    offers_the_shared_words(stepfast_crewai)


def test_of_durable(tmp_path: Path) -> None:
    right = {"crew": crew(), "run_id": "r", "store": tmp_path / "s.db"}
    wrong = {"crew": "a crew", "normalise": "a function", "redact": "a function", "mirror": "yes"}
    refuses_wrong_options(durable, right, wrong=wrong)


def test_of_a_worker(tmp_path: Path) -> None:
    with Stepfast(tmp_path / "s.db") as sf:
        right = {"client": sf, "address": "agent://crew", "crew": crew}
        refuses_wrong_options(crew_worker, right, wrong={"client": "sf", "crew": "a crew"})


def test_of_a_persistence() -> None:
    refuses_wrong_options(StepfastFlowPersistence, {}, anything={"persistence_type"})


def test_of_a_policy() -> None:
    refuses_wrong_options(once, {}, wrong={"reconcile": "a probe"}, anything={"tool"})

"""Options of the adapter's public calls are checked where they are given."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agents import Agent

import stepfast_openai_agents
from stepfast import AsyncStepfast
from stepfast_openai_agents import StepfastSession, agent_worker, durable, durable_agents, once
from tests.option_walk import offers_the_shared_words, refuses_wrong_options

AGENT: Agent[None] = Agent("helper")


def test_the_words_that_all_adapters_share() -> None:
    offers_the_shared_words(stepfast_openai_agents)


def test_of_durable() -> None:
    wrong = {"agent": "helper", "restore_context": "yes", "replay_hooks": "yes"}
    refuses_wrong_options(durable, {"agent": AGENT, "run_id": "r"}, wrong=wrong)
    refuses_wrong_options(durable_agents, {"run_id": "r"})


def test_of_a_durable_agent(tmp_path: Path) -> None:
    made = durable(AGENT, "r", tmp_path / "s.db")
    refuses_wrong_options(made.rewind, {"step": "a#1"})
    made.close()


def test_of_a_worker(tmp_path: Path) -> None:
    sf = AsyncStepfast(tmp_path / "s.db")
    try:
        right = {"client": sf, "address": "agent://helper", "agent": AGENT}
        refuses_wrong_options(
            agent_worker, right, wrong={"client": "sf", "agent": 5, "runner": "options", "worker": "options"}
        )
    finally:
        asyncio.run(sf.close())


def test_of_a_session() -> None:
    refuses_wrong_options(StepfastSession, {"session_id": "s"}, wrong={"session_id": ""}, anything={"session_settings"})


def test_of_a_policy() -> None:
    refuses_wrong_options(once, {}, wrong={"reconcile": "a probe"}, anything={"tool"})

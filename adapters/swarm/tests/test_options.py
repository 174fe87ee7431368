"""Options of the adapter's public calls are checked where they are given."""

from __future__ import annotations

from pathlib import Path

from swarm import Agent

import stepfast_swarm
from stepfast_swarm import DurableSwarm, durable, once
from tests.option_walk import offers_the_shared_words, refuses_wrong_options

AGENT = Agent(name="helper")


def test_the_words_that_all_adapters_share() -> None:
    offers_the_shared_words(stepfast_swarm)


def test_of_durable(tmp_path: Path) -> None:
    right = {"agent": AGENT, "run_id": "r", "store": tmp_path / "s.db", "client": object()}
    wrong = {"agent": "helper", "agents": "helper"}
    refuses_wrong_options(durable, right, wrong=wrong, anything={"client"})
    refuses_wrong_options(DurableSwarm, {"client": object()}, wrong=wrong, anything={"client"})


def test_of_a_durable_agent(tmp_path: Path) -> None:
    made = durable(AGENT, "r", tmp_path / "s.db", client=object())
    theirs = {"messages", "context_variables", "model_override", "stream", "debug", "max_turns", "execute_tools"}
    refuses_wrong_options(made.run, {"messages": []}, anything=theirs)
    refuses_wrong_options(made.rewind, {"step": "a#1"})
    made.close()


def test_of_a_policy() -> None:
    refuses_wrong_options(once, {}, wrong={"reconcile": "a probe"}, anything={"tool"})

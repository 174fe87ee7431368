"""Options of the adapter's public calls are checked where they are given."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.replay import ReplayChatCompletionClient

import stepfast_autogen
from stepfast import AsyncStepfast
from stepfast_autogen import durable, once, team_worker
from tests.option_walk import offers_the_shared_words, refuses_wrong_options


def team() -> Any:
    return AssistantAgent("helper", ReplayChatCompletionClient([]))


def test_the_words_that_all_adapters_share() -> None:
    offers_the_shared_words(stepfast_autogen)


def test_of_durable(tmp_path: Path) -> None:
    right = {"team": team, "run_id": "r", "store": tmp_path / "s.db"}
    refuses_wrong_options(durable, right, wrong={"team": "a team", "on_input": "shout", "append": "yes"})


def test_of_a_durable_team(tmp_path: Path) -> None:
    made = durable(team, "r", tmp_path / "s.db")
    refuses_wrong_options(made.rewind, {"step": "a#1"})
    made.close()


def test_of_a_worker(tmp_path: Path) -> None:
    sf = AsyncStepfast(tmp_path / "s.db")
    right = {"client": sf, "address": "agent://team", "team": team}
    refuses_wrong_options(team_worker, right, wrong={"client": "sf", "team": "a team"})
    asyncio.run(sf.close())


def test_of_a_policy() -> None:
    refuses_wrong_options(once, {}, wrong={"reconcile": "a probe"}, anything={"tool"})

"""Options of the adapter's public calls are checked where they are given."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ag2 import Agent

import stepfast_autogen.ag2 as adapter
from stepfast import AsyncStepfast
from stepfast_autogen.ag2 import durable, once
from tests.option_walk import offers_the_shared_words, refuses_wrong_options


def test_the_words_that_all_adapters_share() -> None:
    offers_the_shared_words(adapter)


def test_of_durable(tmp_path: Path) -> None:
    right = {"agent": Agent("helper"), "run_id": "r", "store": tmp_path / "s.db"}
    refuses_wrong_options(durable, right, wrong={"agent": "an agent"})


def test_of_a_durable_agent(tmp_path: Path) -> None:
    made: Any = durable(Agent("helper"), "r", tmp_path / "s.db")
    refuses_wrong_options(made.rewind, {"step": "a#1"})
    sf = AsyncStepfast(tmp_path / "s.db")
    refuses_wrong_options(made.worker, {"client": sf, "address": "agent://helper"}, wrong={"client": "sf"})
    asyncio.run(sf.close())
    made.close()


def test_of_a_policy() -> None:
    refuses_wrong_options(once, {}, wrong={"reconcile": "a probe"}, anything={"tool"})

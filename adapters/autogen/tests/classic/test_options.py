"""Options of the adapter's public calls are checked where they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autogen import ConversableAgent

from stepfast import Stepfast
from stepfast_autogen import classic
from stepfast_autogen.classic import chat_worker, durable, once
from tests.option_walk import offers_the_shared_words, refuses_wrong_options


def agent(_payload: Any = None) -> Any:
    return ConversableAgent("helper", llm_config=False)


def test_the_words_that_all_adapters_share() -> None:
    offers_the_shared_words(classic)


def test_of_durable(tmp_path: Path) -> None:
    right = {"agents": agent(), "run_id": "r", "store": tmp_path / "s.db"}
    refuses_wrong_options(durable, right, wrong={"agents": "an agent"})


def test_of_a_worker(tmp_path: Path) -> None:
    with Stepfast(tmp_path / "s.db") as sf:
        right = {"client": sf, "address": "agent://chat", "agents": agent}
        refuses_wrong_options(chat_worker, right, wrong={"client": "sf", "agents": "an agent", "chat": "options"})


def test_of_a_policy() -> None:
    refuses_wrong_options(once, {}, wrong={"reconcile": "a probe"}, anything={"tool"})

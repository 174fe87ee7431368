"""Options of the adapter's public calls are checked where they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

from langgraph.graph import StateGraph

import stepfast_langgraph
from stepfast import Stepfast
from stepfast_langgraph import StepfastCache, StepfastSaver, StepfastStore, durable, durable_tool, once
from tests.option_walk import offers_the_shared_words, refuses_wrong_options


class State(TypedDict):
    text: str


def graph() -> Any:
    built = StateGraph(State)
    built.add_node("only", lambda state: state)
    built.set_entry_point("only")
    return built.compile()


def test_the_words_that_all_adapters_share() -> None:
    offers_the_shared_words(stepfast_langgraph)


def test_of_durable(tmp_path: Path) -> None:
    right = {"graph": graph(), "run_id": "r", "store": tmp_path / "s.db"}
    wrong = {
        "graph": "a graph",
        "on_failed": "forget",
        "durability": "now",
        "config": "a thread",
        "result": "a function",
        "ttl_seconds": 0,
        "lease_seconds": 0.5,
    }
    refuses_wrong_options(durable, right, wrong=wrong)


def test_of_a_durable_graph(tmp_path: Path) -> None:
    made = durable(graph(), "r", tmp_path / "s.db")
    theirs = {
        "input",
        "context",
        "interrupt_before",
        "interrupt_after",
        "output_keys",
        "print_mode",
        "debug",
        "control",
        "stream_mode",
        "subgraphs",
        "version",
    }
    wrong = {"durability": "now", "config": "a thread"}
    refuses_wrong_options(made.run, {"input": {"text": ""}}, wrong=wrong, anything=theirs)
    refuses_wrong_options(made.arun, {"input": {"text": ""}}, wrong=wrong, anything=theirs)
    with Stepfast(tmp_path / "s.db") as sf:
        worse: Any = {"client": "sf", "retry_seconds": "soon", "retry_max_seconds": -1, "drain_seconds": -1}
        refuses_wrong_options(made.worker, {"client": sf, "address": "agent://graph"}, wrong=worse)
    made.close()


def test_of_savers_stores_and_caches(tmp_path: Path) -> None:
    right = {"store": tmp_path / "s.db"}
    wrong = {"ttl": "long", "on_conflict": "shrug", "wait_seconds": -1, "gather_seconds": "soon", "allow_metadata": 5}
    refuses_wrong_options(StepfastSaver, right, wrong=wrong)
    refuses_wrong_options(StepfastStore, right, wrong={"index": "all", "ttl": "long"})
    refuses_wrong_options(StepfastCache, right)


def test_of_tools() -> None:
    def tool(text: str) -> str:
        """Return the text."""
        return text

    wrong = {"tool": 5, "once": "yes", "retry": "often", "retry_on": ("Boom",), "record_errors": "yes"}
    refuses_wrong_options(durable_tool, {"tool": tool, "once": True}, wrong=wrong)
    refuses_wrong_options(once, {}, wrong={"reconcile": "a probe"}, anything={"tool"})

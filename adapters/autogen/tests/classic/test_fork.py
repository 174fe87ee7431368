"""What only the fork has, autogen 0.14: context variables, and hooks that guard tools, models and people."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from autogen.agentchat.group import ContextVariables

from adapters.autogen.tests.classic import kit
from adapters.autogen.tests.classic.kit import call, pair, text
from stepfast_autogen.classic import durable, idempotent


@pytest.mark.parametrize("way", ["initiate_chat", "a_initiate_chat"])
def test_context_variables_and_guards_of_a_finished_call_are_not_lost_and_not_repeated(way: str, url: str) -> None:
    kit.requests.clear()
    away = [ConnectionError("away")]
    guarded: list[str] = []

    @idempotent
    def find(topic: str) -> str:
        """Find."""
        variables["found"] = [*variables.get("found", []), topic]
        return f"{topic} found"

    def script(messages: kit.Messages) -> Any:
        if "found" not in text(messages):
            return call(("find", {"topic": "a"}))
        return away.pop() if away else "done TERMINATE"

    def guard(kind: str) -> Any:
        def hook(value: Any) -> Any:
            guarded.append(kind)
            return value

        hook.__name__ = f"guard_{kind}"
        return hook

    for attempt in range(2):
        variables = ContextVariables({"kept": 1})
        user, assistant = pair(script, (find,))
        user.context_variables = variables
        user.register_hook("safeguard_tool_inputs", guard("tool_inputs"))
        assistant.register_hook("safeguard_llm_outputs", guard("llm_outputs"))
        with durable([user, assistant], "r", url) as chats:
            try:
                found = getattr(chats, way)(message="Go.", silent=True)
                assert (asyncio.run(found) if way == "a_initiate_chat" else found).summary == "done "
                assert attempt == 1
            except ConnectionError:
                assert attempt == 0
        assert variables.data == {"kept": 1, "found": ["a"]}
    # AutoGen's own async way calls no guard for the inputs of tools.
    assert guarded == (["llm_outputs"] if way == "a_initiate_chat" else ["llm_outputs", "tool_inputs"]) + [
        "llm_outputs"
    ]
    assert kit.requests == ["assistant"] * 3

"""A chat as a program of its own: ``python -m adapters.autogen.tests.classic.programs URL FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from adapters.autogen.tests.classic.kit import AssistantAgent, Messages, UserProxyAgent, ends, llm, text
from stepfast import Suspended
from stepfast.testing import Effects
from stepfast_autogen.classic import durable


def reviewed(url: str, folder: str) -> Any:
    """Have a text reviewed by a person, who is asked before the chat ends."""

    def script(messages: Messages) -> str:
        Effects(Path(folder)).record("model call")
        return "short text TERMINATE" if "shorter" in text(messages) else "long text TERMINATE"

    author = AssistantAgent("author", llm_config=llm("author", script))
    user = UserProxyAgent("user", human_input_mode="TERMINATE", code_execution_config=False, is_termination_msg=ends)
    with durable([user, author], "review", url) as chats:
        return chats.initiate_chat(message="Write.", silent=True).summary


if __name__ == "__main__":
    try:
        print(reviewed(*sys.argv[1:]))
    except Suspended as waits:
        print(f"waits: {waits}")

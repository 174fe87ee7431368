"""Scripted models in place of a provider, and agents made of them. Runs with autogen 0.14 and with pyautogen 0.2."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

os.environ["AUTOGEN_USE_DOCKER"] = "0"

with warnings.catch_warnings():  # of AutoGen's own imports
    warnings.simplefilter("ignore")
    from autogen import AssistantAgent, ConversableAgent, GroupChat, GroupChatManager, UserProxyAgent
    from autogen.io import IOStream
    from autogen.oai.client import OpenAIClient
    from openai.types.chat import ChatCompletion

__all__ = ["AssistantAgent", "ConversableAgent", "GroupChat", "GroupChatManager", "UserProxyAgent"]

logging.getLogger("autogen.oai.client").setLevel(logging.ERROR)  # says that the key is not one of a provider


class Quiet:
    """AutoGen's console, without the console: a person at a terminal would block a test."""

    def send(self, *args: Any, **kwargs: Any) -> None:
        """Show nothing."""

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Show nothing."""

    def input(self, *args: Any, **kwargs: Any) -> str:
        raise AssertionError("AutoGen asks in the terminal")


IOStream.set_global_default(Quiet())

Messages = list[dict[str, Any]]
Script = Callable[[Messages], Any]
_scripts: dict[str, Script] = {}
requests: list[str] = []
"""The models that were really called, in order."""


def _create(client: Any, params: dict[str, Any]) -> Any:
    model = params["model"]
    requests.append(model)
    answer = _scripts[model](params["messages"])
    if isinstance(answer, BaseException):
        raise answer
    message = {"role": "assistant", **(answer if isinstance(answer, dict) else {"content": answer})}
    return ChatCompletion.model_validate(
        {
            "id": "answer",
            "created": 0,
            "model": model,
            "object": "chat.completion",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }
    )


setattr(OpenAIClient, "create", _create)  # noqa: B010 - it has no other place for a model of ours


def llm(name: str, script: Script, **settings: Any) -> dict[str, Any]:
    """Return an llm_config whose model is a script: a function of the messages."""
    _scripts[name] = script
    return {"config_list": [{"model": name, "api_key": "sk-none", "price": [0.001, 0.002]}], **settings}


def call(*calls: tuple[str, dict[str, Any]], receipt: str = "call") -> dict[str, Any]:
    """Return an answer that calls tools."""
    return {
        "content": None,
        "tool_calls": [
            {
                "id": f"{receipt}_{number}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for number, (name, arguments) in enumerate(calls)
        ],
    }


def function_call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return an answer that calls a function in the older way."""
    return {"content": None, "function_call": {"name": name, "arguments": json.dumps(arguments)}}


def text(messages: Messages) -> str:
    return "\n".join(str(message.get("content")) for message in messages)


def register(tool: Any, caller: ConversableAgent, executor: ConversableAgent, **options: Any) -> None:
    """Register a tool for the model of one agent, to be executed by another."""
    description = {"description": tool.__doc__, **options}
    caller.register_for_llm(**description)(tool)
    executor.register_for_execution(**({"name": options["name"]} if "name" in options else {}))(tool)


def pair(script: Script, tools: tuple[Any, ...] = (), **options: Any) -> tuple[UserProxyAgent, AssistantAgent]:
    """Return a user and an assistant whose model is a script; the user executes the tools."""
    assistant = AssistantAgent("assistant", llm_config=llm("assistant", script))
    options = {"human_input_mode": "NEVER", "code_execution_config": False, **options}
    user = UserProxyAgent("user", is_termination_msg=ends, **options)
    for tool in tools:
        register(tool, assistant, user)
    return user, assistant


def ends(message: dict[str, Any]) -> bool:
    return "TERMINATE" in str(message.get("content"))

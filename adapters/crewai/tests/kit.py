"""Scripted LLMs in place of a provider, and crews made of them."""

from __future__ import annotations

import atexit
import ipaddress
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

from pydantic import PrivateAttr

os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"
os.environ["CREWAI_TRACING_ENABLED"] = "false"
os.environ["CREWAI_DISABLE_VERSION_CHECK"] = "true"
os.environ["CREWAI_TESTING"] = "true"
os.environ["OTEL_SDK_DISABLED"] = "true"
# CrewAI keeps the outputs of the last kickoff in a file that all processes in a folder of the same name share.
os.environ["CREWAI_STORAGE_DIR"] = tempfile.mkdtemp(prefix="stepfast-crewai-")
atexit.register(shutil.rmtree, os.environ["CREWAI_STORAGE_DIR"], ignore_errors=True)

refused: list[str] = []
"""Hosts beyond this machine that something in this process wanted to reach."""


def only_loopback(event: str, args: tuple[Any, ...]) -> None:
    """Refuse names and addresses beyond this machine, for all that Python does in this process."""
    if event == "socket.getaddrinfo":
        host = args[0]
    elif event in ("socket.connect", "socket.sendto", "socket.sendmsg") and isinstance(args[1], tuple):
        host = args[1][0]
    else:
        return
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "", "localhost"):
        return
    try:
        local = ipaddress.ip_address(name).is_loopback
    except ValueError:
        local = False
    if not local:
        refused.append(str(name))
        raise ConnectionRefusedError(f"{name}: tests reach this machine only")


sys.addaudithook(only_loopback)

with warnings.catch_warnings():  # of CrewAI's own imports
    warnings.simplefilter("ignore")
    from crewai import Agent, Crew, Task
    from crewai.llms.base_llm import BaseLLM

Script = Callable[[list[dict[str, Any]]], Any]


class ScriptedLLM(BaseLLM):
    """Answers by a function of the messages; every real call is counted."""

    _script: Script = PrivateAttr()
    _native: bool = PrivateAttr(default=True)
    _requests: list[Any] = PrivateAttr(default_factory=list)

    def __init__(self, script: Script, *, native: bool = True, model: str = "scripted") -> None:
        super().__init__(model=model)
        self._script = script
        self._native = native

    @property
    def calls(self) -> int:
        return len(self._requests)

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        listed = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        self._requests.append(list(listed))
        answer = self._script(listed)
        if isinstance(answer, BaseException):
            raise answer
        self._track_token_usage_internal({"prompt_tokens": 10, "completion_tokens": 5})
        return answer

    def supports_function_calling(self) -> bool:
        return self._native

    def supports_stop_words(self) -> bool:
        return False

    def get_context_window_size(self) -> int:
        return 100_000

    def __deepcopy__(self, memo: Any) -> ScriptedLLM:
        return self

    def __copy__(self) -> ScriptedLLM:
        return self


def call(*calls: tuple[str, dict[str, Any]], receipt: str = "call") -> list[dict[str, Any]]:
    """Native tool calls."""
    return [
        {
            "id": f"{receipt}_{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(calls)
    ]


def react(name: str, arguments: dict[str, Any]) -> str:
    """A tool call in the text of an answer."""
    return f"Thought: I need it.\nAction: {name}\nAction Input: {json.dumps(arguments)}"


def done(words: str) -> str:
    return f"Thought: I know.\nFinal Answer: {words}"


def outputs(messages: list[dict[str, Any]]) -> list[str]:
    """What tools have returned in native calls."""
    return [str(message["content"]) for message in messages if message.get("role") == "tool"]


def text(messages: list[dict[str, Any]]) -> str:
    return "\n".join(str(message.get("content")) for message in messages)


def make_crew(llm: BaseLLM, tools: list[Any], descriptions: tuple[str, ...] = ("Do it.",), **options: Any) -> Crew:
    """One agent, and a task for each description."""
    agent = Agent(role="worker", goal="work", backstory="works", llm=llm, tools=tools)
    tasks = [Task(description=each, expected_output="a word", agent=agent) for each in descriptions]
    return Crew(agents=[agent], tasks=tasks, **options)

"""A scripted client in place of the API."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk

Script = Callable[[list[dict[str, Any]]], dict[str, Any]]


def say(words: str) -> dict[str, Any]:
    return {"content": words}


def call(*calls: tuple[str, dict[str, Any]], ids: list[str] | None = None) -> dict[str, Any]:
    """Tool calls, with ids of their own as the API would give on each call."""
    numbered = [
        {
            "id": f"call_{uuid.uuid4().hex}" if ids is None else ids[number],
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(calls)
    ]
    return {"content": None, "tool_calls": numbered}


def outputs(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


class FakeClient:
    """Answers by a function of the messages; every real call is counted."""

    def __init__(self, script: Script, log: Callable[[str], None] = lambda _line: None) -> None:
        self.script = script
        self.log = log
        self.requests: list[dict[str, Any]] = []
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    @property
    def calls(self) -> int:
        return len(self.requests)

    def create(self, **params: Any) -> Any:
        self.requests.append(params)
        self.log("model")
        answer = self.script(params["messages"])
        if params["stream"]:
            return self._pieces(answer)
        self.log("model.return")
        message = {"role": "assistant", **answer}
        finish = "tool_calls" if answer.get("tool_calls") else "stop"
        return ChatCompletion.model_validate(
            {
                "id": f"chatcmpl-{uuid.uuid4().hex}",
                "object": "chat.completion",
                "created": 0,
                "model": params["model"],
                "choices": [{"index": 0, "finish_reason": finish, "message": message}],
            }
        )

    def _pieces(self, answer: dict[str, Any]) -> Iterator[Any]:
        name = f"chatcmpl-{uuid.uuid4().hex}"
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        if answer["content"] is not None:
            deltas += [{"content": word} for word in answer["content"].split(" ")]
        for index, one in enumerate(answer.get("tool_calls", [])):
            begun, rest = one["function"]["arguments"][:3], one["function"]["arguments"][3:]
            first = {**one, "index": index, "function": {"name": one["function"]["name"], "arguments": begun}}
            deltas += [{"tool_calls": [first]}, {"tool_calls": [{"index": index, "function": {"arguments": rest}}]}]
        for number, delta in enumerate(deltas):
            self.log("model.piece")
            last = number == len(deltas) - 1
            yield ChatCompletionChunk.model_validate(
                {
                    "id": name,
                    "object": "chat.completion.chunk",
                    "created": 0,
                    "model": "scripted",
                    "choices": [{"index": 0, "delta": delta, "finish_reason": "stop" if last else None}],
                }
            )

"""Swarm's model calls: what was asked, in short, and what came back, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pydantic

from stepfast import InvalidInput

from ._plain import plain
from ._request import Known, Request, digest, shorten

_IDS = frozenset({"id", "tool_call_id"})
_APART = frozenset({"model", "messages", "tools", "stream"})


class ChatRequest(Request):
    """A request for a chat completion; ids of calls are left out, since a new answer brings new ones."""

    def __init__(self, params: Mapping[str, Any], known: Known) -> None:
        messages = list(params["messages"])
        system = plain(messages.pop(0)) if messages and _role(messages[0]) == "system" else {}
        tools = [plain(tool) for tool in params.get("tools") or ()]
        self.sections = {
            "model": str(params.get("model")),
            "instructions": shorten(system.get("content")),
            "settings": {n: plain(v) for n, v in params.items() if n not in _APART and v is not None},
            "tools": {str(tool.get("function", {}).get("name")): digest(tool) for tool in tools},
            "stream": bool(params.get("stream")),
        }
        self.items = known.digests(messages)


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else getattr(message, "role", None)


def tell_message(message: Any) -> str:
    """What a message is, in short."""
    found = plain(message)
    if not isinstance(found, dict):
        return f"message {digest(found)}"
    told = {name: value for name, value in found.items() if name not in _IDS}
    if isinstance(calls := told.get("tool_calls"), list):
        told["tool_calls"] = [{n: v for n, v in call.items() if n not in _IDS} for call in calls]
    return f"message of {found.get('role')} {digest(told)}"


def pack(answer: Any) -> dict[str, Any]:
    """A completion, or one piece of a stream of it."""
    if not isinstance(answer, pydantic.BaseModel):
        raise InvalidInput(
            f"client: gave a {type(answer).__name__}, not a completion as the openai package has it; "
            "only such answers can be recorded."
        )
    return answer.model_dump(mode="json", exclude_unset=True, warnings=False)


def unpack(packed: dict[str, Any]) -> Any:
    return _unpack(_completion(), packed)


def unpack_piece(packed: dict[str, Any]) -> Any:
    return _unpack(_piece(), packed)


def _unpack(kind: type[pydantic.BaseModel], packed: dict[str, Any]) -> Any:
    try:
        return kind.model_validate(packed)
    except (
        pydantic.ValidationError
    ):  # of a provider or a version that differs in something; the package takes it so too
        return kind.model_construct(**packed)


@cache
def _completion() -> type[pydantic.BaseModel]:
    from openai.types.chat import ChatCompletion

    return ChatCompletion


@cache
def _piece() -> type[pydantic.BaseModel]:
    from openai.types.chat import ChatCompletionChunk

    return ChatCompletionChunk


class Layer:
    """An object with some attributes of our own in front of it."""

    def __init__(self, inner: Any, **ours: Any) -> None:
        self._inner = inner
        self.__dict__.update(ours)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def client_with(client: Any, create: Callable[..., Any]) -> Any:
    """The caller's client, whose chat completions are made by ``create``."""
    chat = client.chat
    return Layer(client, chat=Layer(chat, completions=Layer(chat.completions, create=create)))

"""Swarm's model calls: the request in short, and the answer as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pydantic
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from stepfast import InvalidInput
from stepfast.adapters import Digests, Request, Usage, digest, plain, shorten

_IDS = frozenset({"id", "tool_call_id"})
_APART = frozenset({"model", "messages", "tools", "stream"})


def request_of(params: Mapping[str, Any], digests: Digests) -> Request:
    """Return a request for a chat completion; ids of calls are left out, since a new answer brings new ones."""
    messages = list(params["messages"])
    system = plain(messages.pop(0)) if messages and _role(messages[0]) == "system" else {}
    tools = [plain(tool) for tool in params.get("tools") or ()]
    sections = {
        "model": str(params.get("model")),
        "instructions": shorten(system.get("content")),
        "settings": {n: plain(v) for n, v in params.items() if n not in _APART and v is not None},
        "tools": {str(tool.get("function", {}).get("name")): digest(tool) for tool in tools},
        "stream": bool(params.get("stream")),
    }
    return Request(sections, digests.of(messages))


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else getattr(message, "role", None)


def describe_message(message: Any) -> str:
    found = plain(message)
    if not isinstance(found, dict):
        return f"message {digest(found)}"
    shown = dict(found)
    if isinstance(calls := shown.get("tool_calls"), list):
        shown["tool_calls"] = [{n: v for n, v in call.items() if n not in _IDS} for call in calls]
    return f"message of {found.get('role')} {digest(shown, without=_IDS)}"


def pack(answer: Any) -> dict[str, Any]:
    """Return a completion, or one piece of a stream of it, as plain data."""
    if not isinstance(answer, pydantic.BaseModel):
        raise InvalidInput(
            f"client: returned a {type(answer).__name__}, not a completion as the openai package has it; "
            "only such answers can be recorded."
        )
    return answer.model_dump(mode="json", exclude_unset=True, warnings=False)


def unpack(recorded: dict[str, Any]) -> Any:
    """Return the answer of a record: a completion, or an iterator over the pieces of a stream."""
    if "pieces" in recorded:
        return (_unpack(ChatCompletionChunk, piece) for piece in recorded["pieces"])
    return _unpack(ChatCompletion, recorded["response"])


def _unpack(kind: type[pydantic.BaseModel], packed: dict[str, Any]) -> Any:
    try:
        return kind.model_validate(packed)
    except pydantic.ValidationError:  # another provider's, or another version's; the openai package takes it so too
        return kind.model_construct(**packed)


def usage_of(recorded: dict[str, Any]) -> Usage:
    """Return what a recorded answer used; a stream has that in its last piece, where it was asked for."""
    parts = recorded["pieces"] if "pieces" in recorded else [recorded["response"]]
    used: dict[str, Any] = next((part["usage"] for part in reversed(parts) if isinstance(part.get("usage"), dict)), {})
    details = used.get("prompt_tokens_details")
    return Usage(
        requests=1,
        input_tokens=used.get("prompt_tokens") or 0,
        output_tokens=used.get("completion_tokens") or 0,
        cached_tokens=(details.get("cached_tokens") or 0) if isinstance(details, dict) else 0,
    )


class Layer:
    """An object with some attributes of our own in front of it."""

    def __init__(self, inner: Any, **ours: Any) -> None:
        self._inner = inner
        self.__dict__.update(ours)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def client_with(client: Any, create: Callable[..., Any]) -> Any:
    """Return the caller's client, with chat completions that are made by ``create``."""
    chat = client.chat
    return Layer(client, chat=Layer(chat, completions=Layer(chat.completions, create=create)))

"""CrewAI's model calls: the request in short, and the answer as plain data."""

from __future__ import annotations

import difflib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from crewai.utilities.agent_utils import extract_tool_call_info
from pydantic import BaseModel

from stepfast.adapters import Digests, Request, Usage, differences, digest, items_of, plain, shorten

Normaliser = Callable[[str], str]

_IDS = frozenset({"id", "tool_call_id", "call_id", "raw_tool_call_parts", "files"})
_NOISE = (
    (re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.I), "<uuid>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"), "<date>"),
    (re.compile(r"(?<=Current Date: )[^\n]+"), "<date>"),
    (re.compile(r"\b[0-9a-f]{32}\b", re.I), "<id>"),
)


def normalised(text: str, user: Normaliser | None) -> str:
    """Return a prompt without what changes by itself: dates, uuids, ids of stored results."""
    for pattern, word in _NOISE:
        text = pattern.sub(word, text)
    return text if user is None else user(text)


class Requests:
    """Successive requests in short: messages and tools that the request before had are not digested again."""

    def __init__(self, user: Normaliser | None) -> None:
        self._user = user
        self._messages = Digests(lambda message: _described(message, user))
        self._tools = Digests(lambda tool: digest(plain(tool)))
        self._lock = threading.Lock()

    def of(self, llm: Any, messages: Any, tools: Any, model: Any, whole: bool) -> Request:
        """Return a request in short. The texts of its first two messages are kept where it is ``whole``."""
        listed = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages or ())
        given = list(tools or ())
        with self._lock:
            items, digests = list(self._messages.of(listed)), list(self._tools.of(given))
        sections: dict[str, Any] = {
            "model": str(getattr(llm, "model", type(llm).__name__)),
            "tools": dict(zip(map(_tool_name, given), digests, strict=True)),
            "answers": getattr(model, "__name__", None),
        }
        if whole:
            sections["prompt"] = {
                f"{number} {_role(each)}": shorten(normalised(_text(each), self._user))
                for number, each in enumerate(listed[:2])
            }
        return Request(sections, items)


def key_of(request: Request) -> str:
    """Return what a request is known by in its scope."""
    sections = request.sections
    return digest([sections["model"], sorted(sections["tools"]), sections["answers"], request.items])


def _described(message: Any, user: Normaliser | None) -> str:
    found = {name: item for name, item in plain(message).items() if name not in _IDS}
    calls = found.get("tool_calls")
    if isinstance(calls, list):
        found["tool_calls"] = [{n: v for n, v in call.items() if n not in _IDS} for call in calls]
    return f"message of {_role(message)} {digest(normalised(json.dumps(found, sort_keys=True, default=str), user))}"


def _role(message: Any) -> str:
    return str(message.get("role", "user")) if isinstance(message, Mapping) else "user"


def _text(message: Any) -> str:
    content = message.get("content") if isinstance(message, Mapping) else message
    return content if isinstance(content, str) else json.dumps(plain(content), sort_keys=True)


def _tool_name(tool: Any) -> str:
    found = tool.get("function", tool) if isinstance(tool, Mapping) else tool
    return str(found.get("name") if isinstance(found, Mapping) else getattr(found, "name", found))


def explain(recorded: dict[str, Any], request: Request) -> list[str]:
    """Return what differs between a recorded request and one that would be made now, with the changed lines."""
    before, now = recorded.get("prompt"), request.sections.get("prompt")
    found = differences({**recorded, "prompt": now}, items_of(recorded, []), request)
    if isinstance(before, dict) and isinstance(now, dict):
        for name, text in now.items():
            if before.get(name) != text:
                found += [f"message {name}: {line}" for line in _changed_lines(str(before.get(name)), str(text))]
    return found or ["the same request, made more often than before"]


def _changed_lines(before: str, now: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), now.splitlines(), lineterm="", n=0)
    shown = [line[:200] for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return shown[:6] + ([f"and {len(shown) - 6} more lines"] if len(shown) > 6 else [])


# --- answers -----------------------------------------------------------------------------------------


def pack(answer: Any) -> dict[str, Any]:
    """Return an answer as plain data: a text, tool calls, or the data of a response model."""
    if isinstance(answer, str):
        return {"text": str(answer)}
    if isinstance(answer, BaseModel):
        return {"data": answer.model_dump(mode="json")}
    calls = [extract_tool_call_info(each) for each in answer] if isinstance(answer, list) and answer else []
    if calls and all(call is not None and call[1] for call in calls):
        return {"calls": [[str(call[0]), call[1], plain(call[2])] for call in calls if call is not None]}
    return {"value": plain(answer)}


def unpack(packed: dict[str, Any], model: type[BaseModel] | None) -> Any:
    """Return a recorded answer as CrewAI takes it; tool calls in the form that all of its providers share."""
    if "text" in packed:
        return packed["text"]
    if "data" in packed:
        return json.dumps(packed["data"]) if model is None else model.model_validate(packed["data"])
    if "calls" in packed:
        return [
            {
                "id": number,
                "type": "function",
                "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
            }
            for number, name, given in packed["calls"]
        ]
    return packed["value"]


def usage_of(packed: dict[str, Any]) -> Usage:
    tokens: Mapping[str, int] = packed.get("tokens") or {}
    return Usage(
        requests=1,
        input_tokens=tokens.get("prompt_tokens", 0),
        output_tokens=tokens.get("completion_tokens", 0),
        cached_tokens=tokens.get("cached_prompt_tokens", 0),
    )


def add_tokens(llm: Any, tokens: Mapping[str, int]) -> None:
    """Count tokens of an earlier attempt for an LLM object, as if it had just used them."""
    counted = getattr(llm, "_token_usage", None)
    if isinstance(counted, dict):
        for name, count in tokens.items():
            counted[name] = counted.get(name, 0) + count


def tokens_between(before: Mapping[str, int], after: Mapping[str, int]) -> Counter[str]:
    return Counter({name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)})

"""Model calls: recorded before the agent sees the answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from ag2.utils import MODEL_CONFIG_CONTEXT_DEPENDENCY_KEY

from stepfast.adapters import Request, digest, model_call, plain, shorten

from ._events import pack, sent_of, unpack, usage_of
from ._place import Loop, Recording


class DurableClient:
    """An agent's model client, whose calls in one turn are steps of the run."""

    def __init__(self, inner: Any, loop: Loop) -> None:
        self.inner = inner
        self.loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def __call__(self, messages: Sequence[Any], context: Any, **options: Any) -> Any:
        loop = self.loop
        loop.attempt.check()
        await loop.record_inbox()
        stream = Recording(context.stream, hold=True)
        flow = model_call(
            loop.attempt,
            loop.scope,
            key=loop.talk.key,
            agent=loop.agent,
            request=request_of(loop, messages, context, options),
            ask=lambda: self.inner(messages, dataclasses.replace(context, stream=stream), **options),
            pack=lambda answer: {"response": pack([answer]), "sent": pack(stream.sent)},
            unpack=lambda recorded: (unpack(recorded["response"])[0], unpack(recorded["sent"])),
            measure=usage_of,
            conversation=loop.talk,
        )
        (answer, sent), _ = await loop.scope.drive(flow)
        await loop.next_inbox()
        for event in sent:
            await context.send(event)
        return answer


def request_of(loop: Loop, messages: Iterable[Any], context: Any, options: dict[str, Any]) -> Request:
    """Return a request in short: what is sent to the model, without what changes by itself."""
    config = context.dependencies.get(MODEL_CONFIG_CONTEXT_DEPENDENCY_KEY)
    tools = {_name(tool): digest(plain(tool)) for tool in options.get("tools") or ()}
    schema = options.get("response_schema")
    sections = {
        "model": _model_name(config),
        "prompt": shorten("\n\n".join(context.prompt)),
        "tools": tools,
        "response_schema": None if schema is None else str(getattr(schema, "name", None) or type(schema).__name__),
    }
    return Request(sections, loop.talk.digests.of(sent_of(messages)))


def _model_name(config: Any) -> str:
    try:
        return str(config.model)
    except (AttributeError, NotImplementedError):  # a config may have none
        return type(config).__name__


def _name(tool: Any) -> str:
    function = getattr(tool, "function", None)
    return str(getattr(function, "name", None) or tool.type)

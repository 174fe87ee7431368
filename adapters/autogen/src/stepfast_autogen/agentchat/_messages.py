"""Messages as plain data, for tasks and results in the store; and ids that are the same on every pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    MessageFactory,
    ModelClientStreamingChunkEvent,
    StructuredMessage,
    TextMessage,
)

from stepfast import InvalidInput

Item = BaseAgentEvent | BaseChatMessage
Task = str | BaseChatMessage | Sequence[BaseChatMessage] | None

_OF_ITS_TIME = ("id", "created_at")  # made anew for each message object


def messages_of(task: Task) -> list[BaseChatMessage] | None:
    """Return a task as messages, as a team would make them of it; None where there is no task."""
    if task is None:
        return None
    if isinstance(task, str):
        return [TextMessage(content=task, source="user")]
    given: Any = [task] if isinstance(task, BaseChatMessage) else task
    if not isinstance(given, Sequence) or not given or not all(isinstance(each, BaseChatMessage) for each in given):
        raise InvalidInput(f"task: must be a text, a chat message, or a list of at least one of these, not {task!r}.")
    return list(given)


def pack_task(task: Task) -> list[dict[str, Any]] | None:
    """Return a task as it is recorded; equal tasks are equal data, whenever they were made."""
    messages = messages_of(task)
    if messages is None:
        return None
    return [{name: value for name, value in each.dump().items() if name not in _OF_ITS_TIME} for each in messages]


def factory_of(thing: Any) -> MessageFactory:
    """Return the factory that makes the messages of a team or an agent from data."""
    factory = getattr(thing, "_message_factory", None)
    if isinstance(factory, MessageFactory):
        return factory
    factory = MessageFactory()
    made = getattr(thing, "_structured_message_factory", None)
    content = getattr(made, "ContentModel", None)
    if content is not None:
        factory.register(StructuredMessage[content])  # type: ignore[valid-type]
    return factory


def unpack(factory: MessageFactory, recorded: Iterable[dict[str, Any]]) -> list[Any]:
    """Return messages from recorded data."""
    return [factory.create(data) for data in recorded]


def pack_result(result: TaskResult) -> dict[str, Any]:
    """Return a result as it is recorded."""
    return {"messages": [each.dump() for each in result.messages], "stop_reason": result.stop_reason}


def unpack_result(factory: MessageFactory, recorded: dict[str, Any]) -> TaskResult:
    """Return a recorded result."""
    return TaskResult(messages=unpack(factory, recorded["messages"]), stop_reason=recorded["stop_reason"])


class Naming:
    """Gives the messages of a run ids that are the same on every pass, by their source and their order there."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._counts: Counter[str] = Counter()

    def name(self, item: Item) -> None:
        """Set the id of a message; a chunk of a stream gets that of the message which will follow it."""
        number = self._counts[item.source]
        made = blake2b(f"{self._run}/{item.source}/{number}".encode(), digest_size=16).hexdigest()
        if isinstance(item, ModelClientStreamingChunkEvent):
            item.full_message_id = made
        else:
            item.id = made
            self._counts[item.source] += 1

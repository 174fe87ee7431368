"""Agents of the user's own classes, whose turns are recorded as a whole, and memories, whose hits are recorded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextvars import ContextVar
from typing import Any

from autogen_agentchat.base import Response
from autogen_core.memory import Memory, UpdateContextResult
from autogen_core.models import LLMMessage
from pydantic import TypeAdapter

from stepfast import StepFailed
from stepfast.adapters import RETRY, STOPPED, Conversation, digest

from ._attempt import Actor, Halt, halting
from ._messages import unpack
from ._requests import describe
from ._tools import perform

_MESSAGES: TypeAdapter[list[LLMMessage]] = TypeAdapter(list[LLMMessage])


def durable_turns(agent: Any, actor: Actor, *, repeatable: bool) -> None:
    """Record each turn of an agent with the state it leaves, which ``load_state`` brings back.

    A turn that was cut short is in doubt, by the name of the agent. With ``repeatable`` (the agent asks a model) it is
    taken again, and what the model had answered comes from the journal.
    """
    original, whole = agent.on_messages_stream, agent.on_messages
    inside: ContextVar[bool] = ContextVar("stepfast_turn", default=False)  # one of the two methods calls the other

    async def on_messages_stream(messages: Sequence[Any], cancellation_token: Any) -> AsyncGenerator[Any, None]:
        attempt = actor.attempt
        if attempt is None or inside.get():
            async for item in original(messages, cancellation_token):
                yield item
            return
        with halting():
            attempt.check()
        live: list[Any] = []

        async def effect() -> dict[str, Any]:
            response: Any = None
            inside.set(True)
            actor.talk = Conversation(
                describe
            )  # a turn has a scope of its own: its calls are counted from its beginning
            async for item in original(messages, cancellation_token):
                if isinstance(item, Response):
                    response = item
                else:
                    live.append(item)
            if response is None:
                raise RuntimeError(f"agent {agent.name} ended its turn without a response")
            live.append(response)
            return {
                "items": [item.dump() for item in live[:-1]],
                "inner": [item.dump() for item in response.inner_messages or ()],
                "message": response.chat_message.dump(),
                "state": dict(await agent.save_state()),
            }

        try:
            output = await perform(
                actor,
                attempt,
                key=actor.ordinals.key("turn"),
                name=agent.name,
                policy=attempt.settings.policies.of(agent.name, agent, RETRY if repeatable else None),
                arguments={"messages": digest([_said(each) for each in messages])},
                effect=effect,
            )
        except StepFailed as error:
            raise RuntimeError(str(error)) from error
        if output is STOPPED or attempt.stopping:
            raise Halt("the durable run has stopped here")
        if not live:
            factory = actor.stage.factory
            live += unpack(factory, output["items"])
            message, inner = factory.create(output["message"]), unpack(factory, output["inner"])
            live.append(Response(chat_message=message, inner_messages=inner))  # type: ignore[arg-type]
            await agent.load_state(output["state"])
        for item in live:
            yield item

    async def on_messages(messages: Sequence[Any], cancellation_token: Any) -> Response:
        if actor.attempt is None or inside.get():
            return await whole(messages, cancellation_token)  # type: ignore[no-any-return]
        async for item in on_messages_stream(messages, cancellation_token):
            if isinstance(item, Response):
                return item
        raise AssertionError("a turn ends with a response")

    agent.on_messages_stream = on_messages_stream
    agent.on_messages = on_messages


def _said(message: Any) -> Any:
    return {name: value for name, value in message.dump().items() if name not in ("id", "created_at")}


# --- memory --------------------------------------------------------------------------------------


class _Watched:
    """A model context that notes what is added to it."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.added: list[Any] = []

    async def add_message(self, message: Any) -> None:
        self.added.append(message)
        await self._context.add_message(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class DurableMemory(Memory):
    """A memory in front of the user's own: what it adds to a context is recorded, and added again on replay."""

    component_type = "memory"

    def __init__(self, memory: Memory, actor: Actor) -> None:
        self.stepfast_memory = memory
        self._actor = actor

    async def update_context(self, model_context: Any) -> UpdateContextResult:
        actor, attempt = self._actor, self._actor.attempt
        if attempt is None:
            return await self.stepfast_memory.update_context(model_context)
        with halting():
            attempt.check()
        found: list[UpdateContextResult] = []

        async def effect() -> dict[str, Any]:
            watched = _Watched(model_context)
            result = await self.stepfast_memory.update_context(watched)  # type: ignore[arg-type]
            found.append(result)
            return {
                "result": result.model_dump(mode="json"),
                "added": _MESSAGES.dump_python(watched.added, mode="json"),
            }

        output = await perform(
            actor,
            attempt,
            key=actor.ordinals.key("memory"),
            name=type(self.stepfast_memory).__name__,
            policy=RETRY,
            arguments={},
            effect=effect,
        )
        if output is STOPPED or attempt.stopping:
            raise Halt("the durable run has stopped here")
        if found:
            return found[0]
        for message in _MESSAGES.validate_python(output["added"]):
            await model_context.add_message(message)
        return UpdateContextResult.model_validate(output["result"])

    async def query(self, *args: Any, **kwargs: Any) -> Any:
        return await self.stepfast_memory.query(*args, **kwargs)

    async def add(self, *args: Any, **kwargs: Any) -> None:
        await self.stepfast_memory.add(*args, **kwargs)

    async def clear(self) -> None:
        await self.stepfast_memory.clear()

    async def close(self) -> None:
        await self.stepfast_memory.close()

    def dump_component(self) -> Any:
        return self.stepfast_memory.dump_component()

    def _to_config(self) -> Any:
        return self.stepfast_memory._to_config()


def durable_memory(memory: Memory, actor: Actor) -> Memory:
    return memory if isinstance(memory, DurableMemory) else DurableMemory(memory, actor)

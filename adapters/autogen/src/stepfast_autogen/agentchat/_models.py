"""Model calls: recorded before AgentChat sees the answer, and answered from the journal ever after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any

from autogen_core.models import ChatCompletionClient, CreateResult

from stepfast.adapters import Request, Usage, model_call

from ._attempt import Actor, Halt, TeamAttempt, halting
from ._requests import request_of

_END = object()


class DurableClient(ChatCompletionClient):
    """A model client in front of the user's own, for one actor. Outside of a durable run it only passes calls on.

    The class is not a component of its own: what asks for the configuration gets that of the client behind it.
    """

    component_type = "model"

    def __init__(self, client: ChatCompletionClient, actor: Actor) -> None:
        self.stepfast_client = client
        self._actor = actor

    async def create(self, messages: Sequence[Any], **options: Any) -> CreateResult:
        actor, attempt = self._actor, self._actor.attempt
        if attempt is None:
            return await self.stepfast_client.create(messages, **options)
        request = request_of(self.stepfast_client, messages, options, actor.talk)
        return await _ask(actor, attempt, request, lambda: self.stepfast_client.create(messages, **options))

    async def create_stream(self, messages: Sequence[Any], **options: Any) -> AsyncGenerator[str | CreateResult, None]:
        actor, attempt = self._actor, self._actor.attempt
        if attempt is None:
            async for chunk in self.stepfast_client.create_stream(messages, **options):
                yield chunk
            return
        request = request_of(self.stepfast_client, messages, options, actor.talk)
        with halting():
            attempt.check()
        if actor.scope.recorded(actor.talk.key) is not None:
            yield await _ask(actor, attempt, request, _not_asked)
            return
        await actor.scope.drive(attempt.reporting(actor.name, "model call", actor.talk.turn + 1))
        attempt.live = True
        chunks: asyncio.Queue[Any] = asyncio.Queue()

        async def produce() -> None:
            # One task from the first chunk to the last: clients keep their connection's scopes in it.
            try:
                async for chunk in self.stepfast_client.create_stream(messages, **options):
                    if isinstance(chunk, CreateResult):
                        chunk = await _ask(actor, attempt, request, partial(_same, chunk))
                    chunks.put_nowait(chunk)
            finally:
                chunks.put_nowait(_END)

        producing = asyncio.ensure_future(_attempted(attempt, produce()))
        while (chunk := await chunks.get()) is not _END:
            yield chunk
        await producing

    # --- the rest is the user's client -------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name == "stepfast_client":  # asked for before there is one, by a copy
            raise AttributeError(name)
        return getattr(self.stepfast_client, name)

    async def close(self) -> None:
        await self.stepfast_client.close()

    def actual_usage(self) -> Any:
        return self.stepfast_client.actual_usage()

    def total_usage(self) -> Any:
        return self.stepfast_client.total_usage()

    def count_tokens(self, messages: Sequence[Any], **options: Any) -> int:
        return self.stepfast_client.count_tokens(messages, **options)

    def remaining_tokens(self, messages: Sequence[Any], **options: Any) -> int:
        return self.stepfast_client.remaining_tokens(messages, **options)

    @property
    def capabilities(self) -> Any:
        return self.stepfast_client.capabilities

    @property
    def model_info(self) -> Any:
        return self.stepfast_client.model_info

    def dump_component(self) -> Any:
        return self.stepfast_client.dump_component()

    def _to_config(self) -> Any:
        return self.stepfast_client._to_config()


async def _ask(actor: Actor, attempt: TeamAttempt, request: Request, ask: Callable[[], Any]) -> CreateResult:
    flow = model_call(
        attempt,
        actor.scope,
        key=actor.talk.key,
        agent=actor.name,
        request=request,
        ask=ask,
        pack=lambda result: {"response": result.model_dump(mode="json", exclude_none=True)},
        unpack=lambda recorded: CreateResult.model_validate(recorded["response"]),
        measure=_usage,
        conversation=actor.talk,
    )
    with halting():
        result: CreateResult
        if actor.scope.recorded(actor.talk.key) is not None:  # there is nothing to wait for, and nothing to cancel
            result, _ = await actor.scope.drive(flow)
        else:
            result, _ = await _attempted(attempt, actor.scope.drive(flow))
    return result


async def _attempted(attempt: TeamAttempt, call: Any) -> Any:
    """Await a call of a model; a cancelled pass ends in `Halt`, since AgentChat hangs where it is cancelled."""
    try:
        return await attempt.calling(call)
    except asyncio.CancelledError:
        if attempt.stopping:
            raise Halt("the durable run was left") from None
        raise
    except Halt:
        raise
    except Exception as error:
        attempt.errors.append(error)
        raise


def _usage(recorded: dict[str, Any]) -> Usage | None:
    used = recorded["response"].get("usage")
    return used and Usage(requests=1, input_tokens=used["prompt_tokens"], output_tokens=used["completion_tokens"])


def _same(result: CreateResult) -> CreateResult:
    return result


def _not_asked() -> Any:
    raise AssertionError("a recorded model call was made again")

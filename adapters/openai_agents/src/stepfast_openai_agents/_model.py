"""Model calls: recorded before the SDK sees the answer, and answered from the journal ever after."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from agents import Model, ModelProvider, ModelResponse
from agents.items import TResponseStreamEvent

from stepfast.adapters import Request, model_call

from ._attempt import Here, place, show_replay
from ._request import request_of
from ._stream import events_of, pack_completed
from ._values import pack_response, unpack_items, unpack_response, usage_of


class _Inner:
    """Something of the caller's, with methods of ours in front."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # asked for before there is one, by a copy
            raise AttributeError(name)
        return getattr(self.inner, name)


async def _ask(at: Here, request: Request, ask: Callable[[], Any], pack: Callable[[Any], dict[str, Any]]) -> Any:
    """Make a model call or answer it from the journal; returns the answer as it is recorded."""
    loop, attempt, key = at.loop, at.attempt, at.loop.talk.key
    flow = model_call(
        attempt,
        loop.scope,
        key=key,
        agent=loop.agent,
        request=request,
        ask=ask,
        pack=lambda answer: {"response": pack(answer)},
        unpack=lambda recorded: recorded["response"],
        measure=usage_of,
        conversation=loop.talk,
    )
    response, replayed = await loop.scope.drive(flow)
    if replayed:
        show_replay(key)
        ids = (item.get(name) for item in response["output"] for name in ("id", "call_id"))
        attempt.old_ids.update(i for i in ids if isinstance(i, str))
    return response


class DurableModel(_Inner, Model):
    """A model whose calls are steps of the durable run they are made in. Outside of one it is the model itself."""

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        at = place.here()
        if at is None:
            return await self.inner.get_response(*args, **kwargs)  # type: ignore[no-any-return]
        request = request_of(self.inner, args, kwargs, at.loop.talk.digests)
        recorded = await _ask(at, request, lambda: self.inner.get_response(*args, **kwargs), pack_response)
        return unpack_response(recorded)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        at = place.here()
        if at is None:
            async for event in self.inner.stream_response(*args, **kwargs):
                yield event
            return
        attempt, loop = at.attempt, at.loop
        attempt.check()
        request = request_of(self.inner, args, kwargs, loop.talk.digests)
        if loop.scope.recorded(loop.talk.key) is not None:
            for event in events_of(await _ask(at, request, _not_asked, pack_completed)):
                yield event
            return
        await loop.scope.drive(attempt.reporting(loop.agent, "model call", loop.talk.turn + 1))
        done: list[Any] = []
        async for event in self.inner.stream_response(*args, **kwargs):
            if event.type == "response.output_item.done":
                done.append(event.item)
            elif event.type == "response.completed":
                response = event.response
                if not response.output and done:  # some providers send the items only one by one
                    response.output = list(done)
                recorded = await _ask(at, request, partial(_same, response), pack_completed)
                response.output = unpack_items(recorded["output"])
            yield event

    def get_retry_advice(self, request: Any) -> Any:
        """What the model itself advises; a failed call is not recorded, so the SDK may try again."""
        advise = getattr(self.inner, "get_retry_advice", None)
        return None if advise is None else advise(request)

    async def close(self) -> None:
        """The model is the caller's."""
        await _if_there(self.inner, "close")

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await _if_there(self.inner, "_cleanup_on_run_end", owner)


def _same(response: Any) -> Any:
    return response


def _not_asked() -> Any:
    raise AssertionError("a recorded model call was made again")


async def _if_there(inner: Any, name: str, *args: Any) -> None:
    method = getattr(inner, name, None)
    if method is not None:
        await method(*args)


class DurableProvider(_Inner, ModelProvider):
    """The user's provider, whose models are durable."""

    def get_model(self, model_name: str | None) -> Model:
        return durable_model(self.inner.get_model(model_name))

    async def aclose(self) -> None:
        """The provider is the caller's."""
        await _if_there(self.inner, "aclose")


def durable_model(model: Model) -> Model:
    return model if isinstance(model, DurableModel) else DurableModel(model)


def durable_provider(provider: ModelProvider) -> ModelProvider:
    return provider if isinstance(provider, DurableProvider) else DurableProvider(provider)

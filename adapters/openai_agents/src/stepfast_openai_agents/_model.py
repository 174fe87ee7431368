"""Model calls: recorded before the SDK sees the answer, and answered from the journal ever after."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from agents import Model, ModelProvider, ModelResponse
from agents.items import TResponseStreamEvent

from stepfast import Diverged

from ._current import Here, here
from ._request import Request, differences, input_of
from ._spans import mark_replayed
from ._stream import events_of, pack_completed
from ._values import pack_response, unpack_items, unpack_response

log = logging.getLogger("stepfast")

_POSITIONAL = ("system_instructions", "input", "model_settings", "tools", "output_schema", "handoffs", "tracing")


class _Call(NamedTuple):
    """One model call and its place in the journal."""

    at: Here
    key: str
    request: Request
    packed: dict[str, Any]

    async def record(self, function: Any) -> dict[str, Any]:
        loop = self.at.loop
        with self.at.drive.guarded():
            recorded: dict[str, Any] = await loop.scope.options(
                key=self.key, name=loop.agent, kind="model", inputs=self.request.summary, on_drift="accept"
            ).step(function)
        return recorded

    def accept(self, recorded: dict[str, Any], *, live: bool) -> None:
        """Compare what was recorded with what would be asked now, and go on to the next turn."""
        drive, loop = self.at.drive, self.at.loop
        items = input_of(recorded["request"], loop.recorded)
        if not live:
            with drive.guarded():
                self._compare(recorded["request"], items)
        loop.recorded, loop.sent = items, self.request.items
        loop.turn += 1
        loop.replayed = not live
        if live:
            drive.live = True
        else:
            ids = (item.get(name) for item in recorded["response"]["output"] for name in ("id", "call_id"))
            drive.old_ids.update(i for i in ids if isinstance(i, str))

    def _compare(self, recorded: dict[str, Any], items: list[str]) -> None:
        policy = self.at.drive.settings.on_drift
        found = differences(recorded, items, self.request) if policy != "accept" else []
        if not found:
            return
        told = "\n  ".join(found)
        text = f"model call {self.key} of agent {self.at.loop.agent} was recorded for another request:\n  {told}"
        if policy == "warn":
            log.warning("%s", text)
            return
        raise Diverged(
            f"{text}\nPut the agent back as it was, pass on_drift='warn' or 'accept' to go on by the recorded answer, "
            f"or rewind the run to {self.key}.",
            key=self.key,
            differences=found,
        )


class DurableModel(Model):
    """A model whose calls are steps of the durable run they are made in. Outside of one it is the model itself."""

    def __init__(self, inner: Model) -> None:
        self.inner = inner

    def _plan(self, at: Here, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        at.drive.check()
        loop = at.loop
        given = {**dict(zip(_POSITIONAL, args, strict=False)), **kwargs}
        request = Request(
            self.inner,
            given["system_instructions"],
            given["input"],
            given["model_settings"],
            given["tools"],
            given["output_schema"],
            given["handoffs"],
            given.get("prompt"),
            loop.known,
        )
        return _Call(at, f"model:{loop.turn}", request, request.pack(loop.sent))

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        at = here()
        if at is None:
            return await self.inner.get_response(*args, **kwargs)
        call = self._plan(at, args, kwargs)
        live = False

        async def ask() -> dict[str, Any]:
            nonlocal live
            live = True
            await at.drive.report(at.loop, "model call")
            response = await self.inner.get_response(*args, **kwargs)
            return {"request": call.packed, "response": pack_response(response)}

        recorded = await call.record(ask)
        if not live:
            mark_replayed(call.key)
        call.accept(recorded, live=live)
        return unpack_response(recorded["response"])

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        at = here()
        if at is None:
            async for event in self.inner.stream_response(*args, **kwargs):
                yield event
            return
        call = self._plan(at, args, kwargs)
        if at.loop.scope.recorded(call.key) is not None:
            recorded = await call.record(_not_asked)
            mark_replayed(call.key)
            call.accept(recorded, live=False)
            for event in events_of(recorded["response"]):
                yield event
            return
        await at.drive.report(at.loop, "model call")
        done: list[Any] = []
        async for event in self.inner.stream_response(*args, **kwargs):
            if event.type == "response.output_item.done":
                done.append(event.item)
            elif event.type == "response.completed":
                response = event.response
                if not response.output and done:  # some providers send the items only one by one
                    response.output = list(done)
                packed = {"request": call.packed, "response": pack_completed(response)}
                recorded = await call.record(lambda packed=packed: packed)
                call.accept(recorded, live=True)
                response.output = unpack_items(recorded["response"]["output"])
            yield event

    def get_retry_advice(self, request: Any) -> Any:
        """What the model itself advises; a failed call is not recorded, so the SDK may try again."""
        advise = getattr(self.inner, "get_retry_advice", None)
        return None if advise is None else advise(request)

    async def close(self) -> None:
        """The model is the caller's."""
        close = getattr(self.inner, "close", None)
        if close is not None:
            await close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        cleanup = getattr(self.inner, "_cleanup_on_run_end", None)
        if cleanup is not None:
            await cleanup(owner)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # asked for before there is one, by a copy
            raise AttributeError(name)
        return getattr(self.inner, name)


def _not_asked() -> dict[str, Any]:
    raise AssertionError("a recorded model call was made again")


class DurableProvider(ModelProvider):
    """The user's provider, whose models are durable."""

    def __init__(self, inner: ModelProvider) -> None:
        self.inner = inner

    def get_model(self, model_name: str | None) -> Model:
        return durable_model(self.inner.get_model(model_name))

    async def aclose(self) -> None:
        """The provider is the caller's."""
        close = getattr(self.inner, "aclose", None)
        if close is not None:
            await close()

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


def durable_model(model: Model) -> Model:
    return model if isinstance(model, DurableModel) else DurableModel(model)


def durable_provider(provider: ModelProvider) -> ModelProvider:
    return provider if isinstance(provider, DurableProvider) else DurableProvider(provider)

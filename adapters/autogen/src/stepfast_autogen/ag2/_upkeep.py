"""Compaction and aggregation of a history: model calls and writes of AG2's own, as steps of the run."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from ._events import pack, unpack
from ._place import Recording, place


def at_upkeep(original: Any) -> Any:
    """Wrap the making of a middleware that looks after the history."""

    @functools.wraps(original)
    def make(self: Any, *args: Any, strategy: Any, **options: Any) -> None:
        original(self, *args, strategy=strategy if place.here() is None else Upkeep(strategy), **options)

    return make


class Upkeep:
    """A strategy whose work is done once: its result and the events that it sends are kept."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    async def compact(self, events: list[Any], context: Any, store: Any) -> Any:
        return await self._perform(self._strategy.compact, events, context, store)

    async def aggregate(self, events: list[Any], context: Any, store: Any) -> Any:
        return await self._perform(self._strategy.aggregate, events, context, store)

    async def _perform(self, method: Any, events: list[Any], context: Any, store: Any) -> Any:
        here = place.here()
        if here is None:
            return await method(events, context, store)
        attempt, scope, name = here.attempt, here.scope, type(self._strategy).__name__
        stream = Recording(context.stream, hold=True)

        async def call() -> dict[str, Any]:
            result = await method(events, dataclasses.replace(context, stream=stream), store)
            return {"events": None if result is None else pack(result), "sent": pack(stream.sent)}

        attempt.check()
        key = attempt.key(scope, "upkeep", name)
        with attempt.guarded():
            found = await scope.drive(scope.performing(call, key=key, name=name, kind="upkeep", inputs=""))
        for event in unpack(found["sent"]):
            await context.send(event)
        return None if found["events"] is None else unpack(found["events"])

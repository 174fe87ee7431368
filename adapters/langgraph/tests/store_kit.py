"""What the tests of the store share: how to look at its rows, and an embedding that needs no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepfast.flow import Flow
from stepfast.threads import ListRecords
from stepfast_langgraph import StepfastStore

KINDS = ("langgraph.store", "langgraph.store.vectors", "langgraph.store.ttl")


def rows_of(store: StepfastStore, kind: str) -> list[str]:
    place = store._place
    return [record.record_id for record in place.store.one(ListRecords(kind=kind), tenant=place.tenant)]


def perform(store: StepfastStore, command: Any) -> Any:
    """One command of a flow that a test drives by hand."""

    def only() -> Flow[Any]:
        return (yield command)

    return store._place.drive(only())


def embed(texts: Sequence[str]) -> list[list[float]]:
    """How often each letter occurs: enough meaning for a test."""
    return [[float(text.lower().count(chr(97 + n))) for n in range(26)] for text in texts]


async def aembed(texts: Sequence[str]) -> list[list[float]]:
    return embed(texts)


INDEX: Any = {"embed": embed, "dims": 26, "fields": ["text"]}


def with_index(**changes: Any) -> Any:
    return {**INDEX, **changes}

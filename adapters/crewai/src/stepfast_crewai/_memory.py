"""The seams around memory and knowledge: what was recalled is recorded, and a memory is written once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from crewai.memory.types import MemoryMatch, MemoryRecord
from pydantic import BaseModel

from stepfast.adapters import digest, plain

from ._place import Place
from ._requests import normalised

_IDS = "ids"


def recall(place: Place, original: Callable[..., Any], memory: Any, query: str, *args: Any, **kwargs: Any) -> Any:
    """Take the place of ``Memory.recall``: what is recalled goes into prompts, so each attempt gets the same."""
    inner = _place(place, "recall", [normalised(query, place.attempt.normalise), args, kwargs])
    return inner.memo(
        lambda: original(memory, query, *args, **kwargs), _dumped, _loading(MemoryMatch), name="recall", kind="memory"
    )


def submit_save(place: Place, original: Callable[..., Any], memory: Any, *args: Any, **kwargs: Any) -> Future[Any]:
    """Take the place of ``Memory._submit_save``: nothing is recorded as finished before its memories are written."""
    return place.saving(original(memory, *args, **kwargs))


def encode_batch(
    place: Place, original: Callable[..., Any], memory: Any, contents: list[str], *args: Any, **kwargs: Any
) -> Any:
    """Take the place of ``Memory._encode_batch``, by which all memories are written, in the memory's own thread."""
    inner = _place(place, "remember", contents)
    if inner.finished(_IDS):
        with place.attempt.guarded():
            ids = inner.drive(inner.recalling(_IDS))
        found = [memory._storage.get_record(each) for each in ids]
        if None not in found:  # written, and the process died before that was recorded
            return inner.memo(lambda: found, _dumped, _loading(MemoryRecord), name="remember", kind="memory")
    writing = copy.copy(memory)
    writing._storage = _Storage(memory._storage, inner)
    with place.attempt.flying():
        return inner.memo(
            lambda: original(writing, contents, *args, **kwargs),
            _dumped,
            _loading(MemoryRecord),
            name="remember",
            kind="memory",
        )


class _Storage:
    """A memory's storage, in which new records have the same ids on every attempt."""

    def __init__(self, storage: Any, place: Place) -> None:
        self._storage = storage
        self._place = place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def save(self, records: list[MemoryRecord]) -> None:
        scope, run = self._place.scope, self._place.attempt.run
        for number, record in enumerate(records):
            record.id = str(uuid5(NAMESPACE_OID, f"{run.intent.journal_id}/{scope.full_key(str(number))}"))
        with self._place.attempt.guarded():
            scope.record([record.id for record in records], key=_IDS)
        missing = [record for record in records if self._storage.get_record(record.id) is None]
        if missing:
            self._storage.save(missing)


def query(place: Place, original: Callable[..., Any], knowledge: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of ``Knowledge.query``."""
    inner = _place(place, "knowledge", [args, kwargs])
    return inner.memo(lambda: original(knowledge, *args, **kwargs), plain, _same, name="knowledge", kind="knowledge")


async def aquery(place: Place, original: Callable[..., Any], knowledge: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the place of ``Knowledge.aquery``."""
    inner = _place(place, "knowledge", [args, kwargs])
    return await inner.amemo(
        lambda: original(knowledge, *args, **kwargs), plain, _same, name="knowledge", kind="knowledge"
    )


def _place(place: Place, kind: str, asked: Any) -> Place:
    # What a memory asks its LLM depends on what other runs have stored there since: that is not the crew's drift.
    place.attempt.check()
    return place.inner(place.occurrences.key(kind, digest(place.attempt.redacted(plain(asked)))), shifting=True)


def _dumped(found: list[BaseModel]) -> list[dict[str, Any]]:
    return [each.model_dump(mode="json") for each in found]


def _loading(model: type[BaseModel]) -> Callable[[Any], list[Any]]:
    return lambda recorded: [model.model_validate(each) for each in recorded]


def _same(recorded: Any) -> Any:
    return recorded

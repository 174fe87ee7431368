"""The two faces of one place in a run: for callers that may block, and for callers on an event loop.

An adapter needs both where a framework runs plain functions in threads and coroutines on a loop, in one run.
"""

from __future__ import annotations

from stepfast.run import AsyncScope, Scope
from stepfast.stores.base import AsyncStore

__all__ = ["awaited", "blocking"]


def blocking(place: Scope | AsyncScope) -> Scope:
    """The same place for a thread that may wait."""
    if isinstance(place, Scope):
        return place
    return Scope(place._session, place._store.store, place._checks, place._path)


def awaited(place: Scope | AsyncScope) -> AsyncScope:
    """The same place for the event loop."""
    if isinstance(place, AsyncScope):
        return place
    return AsyncScope(place._session, AsyncStore(place._store), place._checks, place._path)

"""Whether a new checkpoint may follow its parent: how a lost update is told from a fork that somebody asked for.

LangGraph hands the id that a read gave it back to ``put`` as the parent, as the very same object. So a read is
remembered by that object: no mark is put on the config, and a config that was stored or sent elsewhere is a plain one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from enum import Enum
from typing import Any

from langchain_core.runnables import RunnableConfig

from stepfast import Conflict, InvalidInput

_REMEMBERED = 16_384
_FORKS = ("fork", "update")


class LostUpdate(Conflict):
    """Another run advanced the thread since this one read it; nothing was written."""

    code = "lost_update"


class Read(Enum):
    HEAD = "head"  # it was the newest of its namespace: it must still be when something follows it
    OLDER = "older"  # somebody addressed it although the thread had moved past it: a fork


class Reads:
    """Which checkpoints were read, and how. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: OrderedDict[int, tuple[str, Read]] = OrderedDict()
        self._listed: OrderedDict[int, tuple[str, Read]] = OrderedDict()
        self._empty: OrderedDict[tuple[str, str], int] = OrderedDict()

    def remember(self, checkpoint_id: str, how: Read, *, listed: bool = False) -> str:
        """The id as an object of its own, by which this read is known again."""
        own = checkpoint_id.encode().decode()
        kept = self._listed if listed else self._read  # a long history does not push out the reads of runs
        with self._lock:
            kept[id(own)] = (own, how)
            if len(kept) > _REMEMBERED:
                kept.popitem(last=False)
        return own

    def found_nothing(self, thread_id: str, ns: str) -> None:
        """Somebody read a namespace that is empty, and may be about to write its first checkpoint."""
        with self._lock:
            self._empty[thread_id, ns] = self._empty.get((thread_id, ns), 0) + 1
            if len(self._empty) > _REMEMBERED:
                self._empty.popitem(last=False)

    def forget(self, thread_id: str) -> None:
        with self._lock:
            for key in [key for key in self._empty if key[0] == thread_id]:
                del self._empty[key]

    def may_fork(self, thread_id: str, ns: str, parent: str | None, source: Any) -> bool:
        """Whether a checkpoint with this parent is written although the parent is not the head."""
        if parent is None:
            with self._lock:
                reads = self._empty.pop((thread_id, ns), 0)
                if reads > 1:
                    self._empty[thread_id, ns] = reads - 1
            return not reads or source == "fork"
        found = self._read.get(id(parent)) or self._listed.get(id(parent))
        if found is not None and found[0] is parent:
            return found[1] is Read.OLDER or source == "fork"
        return source in _FORKS


class _AnyParent(dict[str, Any]):
    """The ``configurable`` of a put that may follow any checkpoint."""


def any_parent(config: RunnableConfig) -> RunnableConfig:
    """A config for ``put`` whose parent need not be the head: for histories that are copied from elsewhere."""
    return {**config, "configurable": _AnyParent(config["configurable"])}


def follows_any(config: RunnableConfig) -> bool:
    return type(config["configurable"]) is _AnyParent


def place_of(config: RunnableConfig) -> tuple[str, str, str | None]:
    """Thread, namespace and checkpoint id (or None) that a config names."""
    configurable = config.get("configurable") or {}
    thread_id = configurable.get("thread_id")
    if thread_id is None or thread_id == "":
        raise InvalidInput(
            'config["configurable"]["thread_id"]: missing. Say which thread it is: '
            '{"configurable": {"thread_id": "1"}}. Nothing was written.'
        )
    ns = configurable.get("checkpoint_ns") or ""
    return str(thread_id), str(ns), configurable.get("checkpoint_id") or None


def lost_update(thread_id: str, ns: str, parent: str | None, error: Conflict) -> LostUpdate:
    where = f"thread {thread_id!r}" + (f", namespace {ns!r}" if ns else "")
    what = f"was read at checkpoint {parent}" if parent else "was empty when it was read"
    return LostUpdate(
        f"{where} {what}, and another run (or update_state, or a deletion) has changed it since: going on would lose "
        "that update. Nothing was written. Run it again on the new state, run one at a time on a thread, or use "
        'StepfastSaver(..., on_conflict="wait").',
        thread_id=thread_id,
        checkpoint_ns=ns,
        parent_id=parent,
        **{name: value for name, value in error.details.items() if name in ("head", "stale")},
    )

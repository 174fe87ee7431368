"""What this process remembers of the threads it works on, so that a step costs one commit and no read.

A *line* is one namespace of a thread. All of it may be forgotten at any time: the store has it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import uuid4

from stepfast import Codec
from stepfast.threads import Checkpoint, View

from ._heads import Head, Place, decode_head
from ._values import Lanes, Ref

_LINES = 256
_ELEMENTS = 100_000  # of lists, which is what takes room
_BYTES = 1 << 27  # of elements kept to be read again, about; those of one line are bounded by themselves (_shelf)
_LOOK = 64  # calls between two looks at those bytes
_HOMES = 8192
_CHECKPOINTS = 8


class Known(NamedTuple):
    """Where the values of a checkpoint are, and which versions of their channels they are."""

    refs: Mapping[str, Ref]
    versions: Mapping[str, Any]


class Line:
    """One namespace of a thread as this process knows it. Whoever touches its lanes holds its lock."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.lock = threading.Lock()
        self.born = 0  # when the thread was begun whose elements are known; 0: none are known
        self.delta: frozenset[str] = frozenset()  # channels that are rebuilt from their writes
        self.elements = 0
        self._known: OrderedDict[str, Known] = OrderedDict()

    def learn_tips(self, tips: Mapping[str, int]) -> None:
        ours = self.lanes.tips
        for lane, tip in tips.items():
            if tip > ours.get(lane, 0):
                ours[lane] = tip

    def remember(self, checkpoint_id: str, refs: Mapping[str, Ref], versions: Mapping[str, Any]) -> None:
        self._known[checkpoint_id] = Known(refs, dict(versions))
        self.elements = sum(ref[-1] - ref[0] for ref in refs.values() if type(ref) is list and ref)
        self._known.move_to_end(checkpoint_id)
        if len(self._known) > _CHECKPOINTS:
            self._known.popitem(last=False)

    def known(self, checkpoint_id: str) -> Known | None:
        return self._known.get(checkpoint_id)

    def learn_delta(self, metadata: Mapping[str, Any]) -> None:
        counters = metadata.get("counters_since_delta_snapshot")
        if counters and not self.delta.issuperset(counters):
            self.delta = self.delta.union(counters)


class Lines:
    """The lines that were used last. Safe to share between threads."""

    def __init__(self, codec: Codec, tenant: str) -> None:
        self.codec = codec
        self.tenant = tenant
        self._lock = threading.Lock()
        self._lines: OrderedDict[tuple[str, str], Line] = OrderedDict()
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._calls = 0

    def home(self, thread_id: str) -> str | None:
        return self._homes.get(thread_id)

    def new_home(self, thread_id: str) -> str:
        """The home of a thread that is not there yet; everybody in this process gives it the same."""
        with self._lock:
            return self._keep_home(thread_id, self._homes.get(thread_id) or uuid4().hex)

    def _keep_home(self, thread_id: str, home: str) -> str:
        if self._homes.get(thread_id, home) != home:
            self._drop(thread_id)
        self._homes[thread_id] = home
        self._homes.move_to_end(thread_id)
        if len(self._homes) > _HOMES:
            self._homes.popitem(last=False)
        return home

    def line(
        self, thread_id: str, ns: str, home: str, tips: Mapping[str, int] | None = None, born: int | None = None
    ) -> Line:
        """The line of a namespace, made anew if none is remembered of the thread that was begun then."""
        with self._lock:
            self._keep_home(thread_id, home)
            line = self._lines.get((thread_id, ns))
            if line is not None and born is not None and line.born not in (0, born):
                self._drop(thread_id)
                line = None
            if line is None:
                line = self._lines[thread_id, ns] = Line(Lanes(self.codec, self.tenant, home, ns, tips or {}))
                self._make_room()
            else:
                self._lines.move_to_end((thread_id, ns))
            self._calls += 1
            if self._calls % _LOOK == 0:
                self._make_room()
            line.born = born or line.born
        if tips:
            with line.lock:
                line.learn_tips(tips)
        return line

    def _make_room(self) -> None:
        elements = sum(line.elements for line in self._lines.values())
        size = sum(line.lanes.size for line in self._lines.values())
        while len(self._lines) > 1 and (len(self._lines) > _LINES or elements > _ELEMENTS or size > _BYTES):
            line = self._lines.popitem(last=False)[1]
            elements -= line.elements
            size -= line.lanes.size

    def find(self, thread_id: str, ns: str) -> Line | None:
        with self._lock:
            line = self._lines.get((thread_id, ns))
            if line is not None:
                self._lines.move_to_end((thread_id, ns))
        return line

    def forget_line(self, thread_id: str, ns: str) -> None:
        with self._lock:
            self._lines.pop((thread_id, ns), None)

    def forget(self, thread_id: str) -> None:
        with self._lock:
            self._drop(thread_id)
            self._homes.pop(thread_id, None)

    def _drop(self, thread_id: str) -> None:
        for key in [key for key in self._lines if key[0] == thread_id]:
            del self._lines[key]

    def place(self, home: str, ns: str, checkpoint_id: str, parent_id: str | None = None) -> Place:
        return Place(self.tenant, home, ns, checkpoint_id, parent_id)

    def open_head(self, home: str, checkpoint: Checkpoint) -> Head:
        """What a stored checkpoint says; Damaged if it is not what was written there."""
        place = self.place(home, checkpoint.ns, checkpoint.checkpoint_id, checkpoint.parent_id)
        return decode_head(self.codec, place, checkpoint.head)

    def learn(self, thread_id: str, ns: str, view: View) -> Line:
        return self.line(thread_id, ns, view.home, view.tips, view.born)

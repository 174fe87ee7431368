"""Where a scenario can be cut: at every executed line, and at every named failpoint.

Boundaries add up with ``|``, and are counted in the order in which the scenario meets them: each meeting is
a point.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import os
import random
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from stepfast import _failpoints

__all__ = ["Boundaries", "Injected", "Point", "every_failpoint", "every_line", "on_failpoint"]

Action = Literal["kill", "raise", "pause"]
Hit = Callable[[str], None]

_HARNESS = str(Path(__file__).parent)


class Boundaries(ABC):
    """A kind of place to cut. Between start and stop, ``hit(label)`` is called at each one."""

    @abstractmethod
    def start(self, hit: Hit) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    def __or__(self, other: Boundaries) -> Boundaries:
        return _Both(self, other)


class _Both(Boundaries):
    def __init__(self, first: Boundaries, second: Boundaries) -> None:
        self.first, self.second = first, second

    def start(self, hit: Hit) -> None:
        self.first.start(hit)
        self.second.start(hit)

    def stop(self) -> None:
        self.second.stop()
        self.first.stop()


class _Failpoints(Boundaries):
    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.patterns = patterns

    def start(self, hit: Hit) -> None:
        if not self.patterns:
            _failpoints.install(hit)
            return

        def chosen(name: str) -> None:
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns):
                hit(name)

        _failpoints.install(chosen)

    def stop(self) -> None:
        _failpoints.uninstall()


class _Lines(Boundaries):
    def __init__(self, roots: tuple[Path, ...]) -> None:
        self.roots = roots
        self.labels: dict[str, str | None] = {}

    def start(self, hit: Hit) -> None:
        def in_frame(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "line":
                hit(f"{self.labels[frame.f_code.co_filename]}:{frame.f_lineno}")
            return in_frame

        def at_call(frame: FrameType, event: str, arg: Any) -> Any:
            return in_frame if self.label(frame.f_code.co_filename) is not None else None

        # Only threads started from now on can be traced; a freshly forked child has no others.
        threading.settrace(at_call)
        sys.settrace(at_call)

    def stop(self) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def label(self, filename: str) -> str | None:
        """The file's name in reports, without the machine's own folders; None for a file not watched."""
        try:
            return self.labels[filename]
        except KeyError:
            label = self.labels[filename] = self._label(filename)
            return label

    def _label(self, filename: str) -> str | None:
        if filename.startswith("<") or filename == _failpoints.__file__:
            return None
        path = Path(filename).resolve()
        for root in self.roots:
            if path == root:
                return path.name
            if path.is_relative_to(root) and not filename.startswith(_HARNESS):
                return path.relative_to(root.parent).as_posix()
        return None


def every_failpoint(*patterns: str) -> Boundaries:
    """Cut at each failpoint met, or only at those whose name matches one of the patterns (``store.*``)."""
    return _Failpoints(patterns)


def every_line(*where: str | Path) -> Boundaries:
    """Cut before each executed line of these packages or modules (by name) or files and folders (by path).

    The harness itself is left out. C code, SQLite's among it, has no lines: see ``syscalls`` for that.
    """
    if not where:
        raise ValueError('every_line() wants a package name or a path, such as every_line("stepfast")')
    return _Lines(tuple(root for place in where for root in _roots(place)))


def _roots(place: str | Path) -> list[Path]:
    if isinstance(place, Path):
        if not place.exists():
            raise ValueError(f"every_line: there is no {place}")
        return [place.resolve()]
    spec = importlib.util.find_spec(place)
    if spec is None:
        raise ValueError(f"every_line: no package or module is called {place!r}")
    if spec.submodule_search_locations:
        return [Path(folder).resolve() for folder in spec.submodule_search_locations]
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise ValueError(f"every_line: {place!r} has no Python source to trace")
    return [Path(spec.origin).resolve()]


@contextmanager
def on_failpoint(name: str, action: Callable[[], object], hit: int = 1) -> Iterator[None]:
    """In this very process, call ``action`` at the ``hit``-th meeting of ``name``: to raise, wait or look."""
    if name not in _failpoints.declared():
        raise LookupError(f"no module declared a failpoint {name!r}")
    met = 0
    lock = threading.Lock()

    def hook(seen: str) -> None:
        nonlocal met
        if seen != name:
            return
        with lock:
            met += 1
            due = met == hit
        if due:
            action()

    _failpoints.install(hook)
    try:
        yield
    finally:
        _failpoints.uninstall()


# Points


class Injected(Exception):
    """What ``action="raise"`` raises inside the scenario."""


@dataclass(frozen=True)
class Point:
    """One place in time: the ``hit``-th meeting of a label, and its number in the whole scenario."""

    number: int
    label: str
    hit: int

    def __str__(self) -> str:
        return f"{self.label} (hit {self.hit}, point {self.number})"


class Trigger:
    """Counts boundaries; at the chosen one it says so and acts. With none chosen it only takes notes."""

    def __init__(self, number: int | None, action: Action, note: Callable[[Any], None]) -> None:
        self.number, self.action, self.note = number, action, note
        self.labels: list[str] = []
        self.lock = threading.RLock()  # a finaliser may meet a boundary while its thread is in here

    def hit(self, label: str) -> None:
        with self.lock:
            self.labels.append(label)
            if len(self.labels) != self.number:
                return
            self.note({"at": str(Point(self.number, label, self.labels.count(label)))})
            if self.action == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        if self.action == "pause":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.action == "raise":
            raise Injected(f"injected at {label}")

    @contextmanager
    def on(self, at: Boundaries) -> Iterator[None]:
        at.start(self.hit)
        try:
            yield
        finally:
            at.stop()


def points_of(labels: Sequence[str]) -> list[Point]:
    hits: Counter[str] = Counter()
    points = []
    for number, label in enumerate(labels, 1):
        hits[label] += 1
        points.append(Point(number, label, hits[label]))
    return points


def choose(
    labels: Sequence[str], stride: int, max_points: int | None, only: Sequence[int] | None, seed: int
) -> list[int]:
    """The numbers of the points to try; under ``max_points`` each place once before any twice."""
    if only is not None:
        if not only or min(only) < 1 or max(only) > len(labels):
            raise ValueError(f"only={list(only)}: the points are numbered 1 to {len(labels)}")
        return sorted(set(only))
    numbers = list(range(1, len(labels) + 1, stride))
    if max_points is None or len(numbers) <= max_points:
        return numbers
    random.Random(seed).shuffle(numbers)
    seen: Counter[str] = Counter()
    turns: list[tuple[int, int, int]] = []
    for number in numbers:
        turns.append((seen[labels[number - 1]], len(turns), number))
        seen[labels[number - 1]] += 1
    return sorted(number for _, _, number in sorted(turns)[:max_points])

"""Keys of calls: by their order where one actor makes them, by their input where several do."""

from __future__ import annotations

import threading
from collections import Counter

__all__ = ["Occurrences", "Ordinals"]


class Ordinals:
    """Numbers the calls of one actor, which come in the same order on every pass."""

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def number(self, kind: str) -> int:
        """Return the next number of a kind of call."""
        with self._lock:
            self._counts[kind] += 1
            return self._counts[kind] - 1 + self._first

    def key(self, kind: str) -> str:
        """Return the key of the next call of a kind, such as ``model:3``."""
        return f"{kind}:{self.number(kind)}"


class Occurrences:
    """Names calls that several threads or tasks make in any order: by what they ask, and how often it was asked."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._given: set[str] = set()
        self._lock = threading.Lock()

    def number(self, key: str) -> int:
        """Return how often a key has been asked for, this time included."""
        with self._lock:
            self._counts[key] += 1
            return self._counts[key]

    def asked(self, key: str) -> bool:
        """Whether `key` has returned this key."""
        return key in self._given

    def key(self, kind: str, name: str, fingerprint: str = "") -> str:
        """Return the key of a call, such as ``tool:search.3f2a…``; a repeated one ends in ``.2``, ``.3`` and so on."""
        key = f"{kind}:{name}.{fingerprint}" if fingerprint else f"{kind}:{name}"
        number = self.number(key)
        given = key if number == 1 else f"{key}.{number}"
        self._given.add(given)
        return given

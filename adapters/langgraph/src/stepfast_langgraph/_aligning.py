"""Which elements of a list are in the store already.

A *cast* is a list as this process last wrote or read it: the very objects, and where the elements that they
stand for are in the lane. An element of a new list is known again because it is one of those objects and has
not changed since (see _snapshots), or because it packs to the same bytes. Most lists only grow: then the whole
old list is checked in one go, and only what was appended is packed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import is_
from typing import Any

from ._snapshots import NOTHING, Part, part_of

Pack = Callable[[list[int]], list[tuple[bytes, bytes]]]
"""From places in the list to the packed elements and their keys."""


def expanded(ref: list[int]) -> Iterator[int]:
    """The numbers of a list's elements."""
    for i in range(0, len(ref), 2):
        yield from range(ref[i], ref[i + 1])


class Cast:
    """The objects of a list, and what they were made of when they were stored."""

    __slots__ = ("_whole", "base", "items", "parts", "ref", "written")

    def __init__(self, ref: list[int], items: list[Any], parts: list[Part | None], base: Cast | None = None) -> None:
        self.ref = ref
        self.items = items
        self.parts = parts  # None: not known yet, or of a type that cannot be followed
        self.base = base  # the cast that this one only adds to
        self.written = False
        self._whole: Part | None = None

    def settle(self) -> None:
        """This cast takes the place of its base."""
        base, self.base = self.base, None
        if base is not None and base._whole is not None:
            self._whole, base._whole = base._whole, None
            for part in self.parts[len(base.parts) :]:
                if part is not None and part is not NOTHING:
                    self._whole.merge(part)

    def holds(self) -> bool:
        """Whether the elements whose parts are known are all as they were."""
        if self._whole is None:
            self._whole = Part.joined([part for part in self.parts if part is not None])
        return self._whole.holds()

    def know(self, parts: dict[int, Part | None]) -> None:
        """These elements are as they were stored, and made of this."""
        for index, part in parts.items():
            self.parts[index] = part
        self._whole = None


class Matches:
    """How the elements of a list are found: those of ``head`` as its ref says, the others one by one."""

    def __init__(self, items: list[Any], head: Cast | None) -> None:
        self._items = items
        self._head = head
        self._first = 0 if head is None else len(head.items)
        self._numbers: list[int | None] = []  # of those after the head; None for a new one
        self._parts: list[Part | None] = []
        self.new: dict[int, tuple[bytes, bytes]] = {}

    def found(self, number: int, part: Part | None) -> None:
        self._numbers.append(number)
        self._parts.append(part)

    def add(self, index: int, part: Part | None, packed: tuple[bytes, bytes]) -> None:
        self._numbers.append(None)
        self._parts.append(part)
        self.new[index] = packed

    def runs(self, tip: int) -> Iterator[tuple[int, int]]:
        """The elements' numbers in order, as (start, end); new ones are numbered from the tip on."""
        if self._head is not None:
            ref = self._head.ref
            yield from zip(ref[::2], ref[1::2], strict=True)
        for number in self._numbers:
            if number is None:
                number = tip
                tip += 1
            yield number, number + 1

    def cast(self, ref: list[int]) -> Cast:
        before = [] if self._head is None else self._head.parts
        return Cast(ref, list(self._items), before + self._parts, self._head)


def align(items: list[Any], shared: list[int], keys: Mapping[int, bytes], casts: list[Cast], pack: Pack) -> Matches:
    """Find the elements of a list among those of its parent, which ``shared`` numbers."""
    if not shared:
        return written_anew(items, pack)
    usable = []
    for cast in casts:
        if cast.ref == shared:
            begins = len(cast.items) <= len(items) and all(map(is_, cast.items, items))
            if begins and cast.holds() and _known(cast, keys, pack):
                return _added(items, cast, pack)
        usable.append(cast)
    return _Search(items, shared, keys, usable).run(pack)


def written_anew(items: list[Any], pack: Pack) -> Matches:
    """The list with none of its elements shared."""
    return _added(items, None, pack)


def _added(items: list[Any], head: Cast | None, pack: Pack) -> Matches:
    matches = Matches(items, head)
    rest = range(0 if head is None else len(head.items), len(items))
    parts = [part_of(items[index]) for index in rest]  # first: what changes after this will be noticed
    for index, part, packed in zip(rest, parts, pack(list(rest)), strict=True):
        matches.add(index, part, packed)
    return matches


def _known(cast: Cast, keys: Mapping[int, bytes], pack: Pack) -> bool:
    """Whether the elements whose parts are not known pack to what was stored."""
    if None not in cast.parts:
        return True
    numbers = list(expanded(cast.ref))
    loose = [index for index, part in enumerate(cast.parts) if part is None]
    parts = {index: part_of(cast.items[index]) for index in loose}
    if any(key != keys.get(numbers[index]) for index, (_, key) in zip(loose, pack(loose), strict=True)):
        return False
    if any(part is not None for part in parts.values()):
        cast.know(parts)
    return True


class _Search:
    """Elements wherever they are now. Each stored one is used once, so that runs stay long."""

    def __init__(self, items: list[Any], shared: list[int], keys: Mapping[int, bytes], casts: list[Cast]) -> None:
        self._items = items
        self._keys = keys
        self._numbers = list(expanded(shared))
        self._places = {number: place for place, number in enumerate(self._numbers)}
        self._used: set[int] = set()
        self._objects: dict[int, list[tuple[int, Part | None, Cast]]] = {}
        self._at: dict[int, list[tuple[Any, Part | None, Cast]]] = {}
        self._sound = {id(cast): cast.holds() for cast in casts}
        self._by_key: dict[bytes, list[int]] | None = None
        for cast in casts:
            for number, item, part in zip(expanded(cast.ref), cast.items, cast.parts, strict=True):
                if number in self._places:
                    self._objects.setdefault(id(item), []).append((number, part, cast))
                    self._at.setdefault(number, []).append((item, part, cast))
        for candidates in self._objects.values():
            candidates.reverse()

    def run(self, pack: Pack) -> Matches:
        matches = Matches(self._items, None)
        place = 0  # where in the parent the next element is expected
        for index, item in enumerate(self._items):
            hoped = self._numbers[place] if place < len(self._numbers) else None
            number, part, was = self._by_identity(item, hoped)
            if number is None:
                part = part_of(item)
                packed = pack([index])[0]
                number = self._by_bytes(packed[1], was if was is not None else hoped)
                if number is None:
                    matches.add(index, part, packed)
                    if was is not None:  # changed in place: what follows it follows still
                        place = self._places[was] + 1
                    continue
            matches.found(number, part)
            self._used.add(number)
            place = self._places[number] + 1
        return matches

    def _by_identity(self, item: Any, hoped: int | None) -> tuple[int | None, Part | None, int | None]:
        """The number and part of an unchanged element, or the number that a changed one had."""
        if hoped is not None and hoped not in self._used:
            for there, part, cast in self._at.get(hoped, ()):
                if there is item:
                    return (hoped, part, None) if self._unchanged(part, cast) else (None, None, hoped)
        candidates = self._objects.get(id(item), [])
        while candidates:
            number, part, cast = candidates.pop()
            if number not in self._used:
                return (number, part, None) if self._unchanged(part, cast) else (None, None, number)
        return None, None, None

    def _unchanged(self, part: Part | None, cast: Cast) -> bool:
        return part is not None and (self._sound[id(cast)] or part.holds())

    def _by_bytes(self, key: bytes, hoped: int | None) -> int | None:
        if hoped is not None and hoped not in self._used and self._keys.get(hoped) == key:
            return hoped
        if self._by_key is None:
            self._by_key = {}
            for number in reversed(self._numbers):
                known = self._keys.get(number)
                if known is not None:
                    self._by_key.setdefault(known, []).append(number)
        candidates = self._by_key.get(key, [])
        while candidates:
            number = candidates.pop()
            if number not in self._used:
                return number
        return None

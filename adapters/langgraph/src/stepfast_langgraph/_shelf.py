"""Elements that this process has written or read before, ready to be handed out again.

An element is kept as the bytes that are stored, and becomes a recipe (see _cloning) when it is asked for again: to
copy it then costs a fraction of decoding it, and the store need not send it. A recipe is always made of stored
bytes, never of an object that somebody has in hand, and each asking gives new objects: nothing that is done to them
comes back here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from stepfast import Codec

from ._cloning import Recipe, Unclonable, recipe

# What the objects around an element's bytes take, about; so the room counts for recipes as well.
_AROUND: Final = 2048
ROOM: Final = 1 << 25
"""Elements of a namespace are kept until they take about this many bytes; others are read from the store each time."""


class Shelf:
    """Elements of one lane by number. To ask while another thread adds is safe."""

    __slots__ = ("_codec", "_makers", "_origin", "_packed", "size")

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._packed: dict[int, bytes] = {}
        self._makers: dict[int, Recipe] = {}
        self._origin: Shelf | None = None
        self.size = 0

    def shared(self) -> Shelf:
        """Another with the same elements, to which more can be added. Recipes that it makes of those are for both."""
        other = Shelf(self._codec)
        # In this order: what becomes a recipe meanwhile is in one of them at least.
        other._packed, other._makers = self._packed.copy(), self._makers.copy()
        other._origin = self
        return other

    def __len__(self) -> int:
        return len(self._makers) + len(self._packed)

    def __contains__(self, number: int) -> bool:
        return number in self._makers or number in self._packed

    def has_all(self, numbers: Collection[int]) -> bool:
        return all(map(self._makers.__contains__, numbers)) or all(map(self.__contains__, numbers))

    def keep(self, elements: Mapping[int, bytes], room: int) -> None:
        """Keep these, as far as there is room."""
        if self.size > room:
            return
        makers, packed = self._makers, self._packed
        if not makers and not packed:
            packed.update(elements)
            self.size += sum(map(len, elements.values())) + _AROUND * len(elements)
            return
        for number, one in elements.items():
            if number not in makers and number not in packed:
                packed[number] = one
                self.size += len(one) + _AROUND

    def made(self, numbers: Collection[int]) -> list[Any]:
        """These elements, as new objects; KeyError for the first that is not here."""
        makers = self._makers
        try:
            return [makers[number]() for number in numbers]
        except KeyError:
            self._prepare(numbers)
            return [makers[number]() for number in numbers]

    def _prepare(self, numbers: Iterable[int]) -> None:
        makers, packed, unpack = self._makers, self._packed, self._codec.unpack_all
        missing = [number for number in dict.fromkeys(numbers) if number not in makers]
        found = [packed[number] for number in missing]
        for number, one, value in zip(missing, found, unpack(found), strict=True):
            try:
                makers[number] = recipe(value)
            except Unclonable:
                makers[number] = _Decoding(self._codec, one)
            packed.pop(number, None)
            if self._origin is not None:
                self._origin._take(number, makers[number])

    def _take(self, number: int, make: Recipe) -> None:
        if self._packed.pop(number, None) is not None:
            self._makers[number] = make

    def only(self, live: Collection[int]) -> None:
        """Let go of all others."""
        before = len(self)
        # New dicts, as somebody may be asking the old ones.
        packed, makers = self._packed.copy(), self._makers.copy()
        self._packed = {number: one for number, one in packed.items() if number in live}
        self._makers = {number: make for number, make in makers.items() if number in live}
        self.size = self.size * len(self) // max(before, 1)


class _Decoding:
    """The recipe of an element that can only be decoded again."""

    __slots__ = ("_codec", "_packed")

    def __init__(self, codec: Codec, packed: bytes) -> None:
        self._codec = codec
        self._packed = packed

    def __call__(self) -> Any:
        return self._codec.unpack(self._packed)

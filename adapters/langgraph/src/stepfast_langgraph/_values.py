"""Channel values to rows of a thread, and back. Nothing here does I/O.

A checkpoint's head says for each channel where its value is: a *ref*, which is one of

* ``bytes``: the packed value itself, where it is short;
* ``int``: the number of the one element in the channel's lane that is the whole value;
* ``list[int]``: a list whose elements are in the channel's lane, as ``[start, end, start, end, …]``.

A lane has the name of its channel, and a piece of it holds some packed elements. Elements are never written
twice: a list that grew, lost or changed an element costs that element, and a checkpoint that shares all
others with its parent says so with a few numbers (see _aligning). Only elements that the parent refers to are
shared, because no others are sure to be there still.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

from msgspec.msgpack import encode as _msgpack

from stepfast import Codec, Damaged, Unencodable
from stepfast.threads import Piece, Span

from ._aligning import Cast, Matches, align, expanded, written_anew
from ._shelf import ROOM, Shelf

Ref = bytes | int | list[int]

INLINE: Final = 128
"""A value of at most this many packed bytes stands in the head."""

_BYTES: Final = frozenset((bytes,))
_MOST_SPANS: Final = 64
_PIECE_COUNT: Final = 64
_PIECE_BYTES: Final = 1 << 16
# A list of more elements is not worth packing only to see that it is too long for the head.
_FEW: Final = 32
_WHOLE_VALUES: Final = 16
_ALL: Final = 1 << 62


def spans_of(refs: Mapping[str, Ref]) -> list[Span]:
    """What of the lanes a checkpoint with these refs needs."""
    spans = []
    for channel, ref in refs.items():
        if type(ref) is int:
            spans.append(Span(channel, ref, ref + 1))
        elif type(ref) is list:
            spans += [Span(channel, ref[i], ref[i + 1]) for i in range(0, len(ref), 2)]
    return spans


class Written:
    """What a checkpoint's values became: refs for its head, new pieces, and the spans that it needs."""

    __slots__ = ("casts", "new", "pieces", "refs", "spans")

    def __init__(self) -> None:
        self.refs: dict[str, Ref] = {}
        self.pieces: list[Piece] = []
        self.spans: list[Span] = []
        self.new: dict[str, dict[int, tuple[bytes, bytes]]] = {}  # elements and their keys
        self.casts: dict[str, Cast] = {}


class Lanes:
    """What this process knows of one namespace of a thread: how far the lanes go, and what is in them.

    Not for two threads at once. What is remembered is bounded by the values last read and last written.
    """

    def __init__(self, codec: Codec, tenant: str, home: str, ns: str, tips: Mapping[str, int] | None = None) -> None:
        self.home = home
        self.ns = ns
        self.tips: dict[str, int] = dict(tips or {})
        self._codec = codec
        self._bound = _Bound(codec, tenant, home, ns)
        self._lanes: dict[str, _Lane] = {}

    def write(
        self, values: Mapping[str, Any], changed: Collection[str], parent_refs: Mapping[str, Ref] | None = None
    ) -> Written:
        """Refs for these values, and the pieces to write for them. Nothing is remembered until accept().

        A channel that is not in ``changed`` keeps the parent's ref, where the parent has one. Unencodable
        names the channel and the type of what cannot be stored.
        """
        parents: Mapping[str, Ref] = parent_refs or {}
        written = Written()
        for channel, value in values.items():
            parent = parents.get(channel)
            if parent is not None and channel not in changed:
                written.refs[channel] = parent
            elif type(value) is list and value:
                written.refs[channel] = self._list(channel, value, parent, written)
            else:
                written.refs[channel] = self._whole(channel, value, parent, written)
        written.spans = spans_of(written.refs)
        return written

    def accept(self, written: Written) -> None:
        """The store has these pieces now: count on them."""
        for piece in written.pieces:
            self.tips[piece.lane] = max(self.tips.get(piece.lane, 0), piece.n + piece.count)
        room = self._room()
        for channel, new in written.new.items():
            lane = self._lane(channel)
            lane.keys.update((n, key) for n, (_, key) in new.items())
            lane.shelf.keep({n: packed for n, (packed, _) in new.items()}, room)
            if channel not in written.casts:
                lane.forget_older()
        for channel, cast in written.casts.items():
            cast.settle()
            self._lane(channel).cast(cast, written=True)

    def unknown(self, refs: Mapping[str, Ref], channels: Collection[str]) -> list[Span]:
        """The elements of these channels that this process has not seen.

        Read their pieces and give them to learn() before the next write(); else what is in them is written
        again.
        """
        spans = []
        for channel in channels:
            ref = refs.get(channel)
            if ref is not None and type(ref) is not bytes:
                lane = self._lane(channel)
                if any(cast.ref == ref for cast in lane.casts):
                    continue
                lane.settle()
                known = lane.keys.__contains__
                found = spans_of({channel: ref})
                spans += [span for span in found if not all(map(known, range(span.start, span.end)))]
        return spans

    def learn(self, pieces: Iterable[Piece]) -> None:
        """Know these elements, so that equal ones are not written again."""
        room = self._room()
        for piece in pieces:
            lane = self._lane(piece.lane)
            found = dict(enumerate(self._bound.opened(piece), piece.n))
            lane.keys.update(zip(found, map(_key, found.values()), strict=True))
            lane.shelf.keep(found, room)

    def missing(self, refs: Mapping[str, Ref]) -> list[Span]:
        """What read() must be given the pieces of; what it has seen before it knows."""
        return [
            span
            for span in spans_of(refs)
            if span.lane not in self._lanes or not self._lanes[span.lane].shelf.has_all(range(span.start, span.end))
        ]

    @property
    def size(self) -> int:
        """About how many bytes the elements take that are kept to be read again."""
        return sum([lane.shelf.size for lane in list(self._lanes.values())])  # asked without the lock, too

    def _room(self) -> int:
        return ROOM if self.size <= ROOM else -1

    def shelf(self, channel: str) -> Shelf | None:
        """The elements of a lane that are kept, for others that read it."""
        lane = self._lanes.get(channel)
        return None if lane is None else lane.shelf

    def read(self, refs: Mapping[str, Ref], pieces: Iterable[Piece]) -> dict[str, Any]:
        """The values behind refs, from pieces that cover what of them is missing(); fresh objects each time.

        The elements are remembered, so that the next write() knows them again.
        """
        shelves = self._bound.all_opened(pieces)
        values: dict[str, Any] = {}
        room = self._room()
        for channel, ref in refs.items():
            if isinstance(ref, bytes):
                values[channel] = self._codec.unpack(ref)
                continue
            lane = self._lane(channel)
            come = shelves.get(channel, {})
            try:
                numbers = [ref] if isinstance(ref, int) else _numbers(channel, ref, come, lane.shelf)
                items = self._items(lane, numbers, come)
            except KeyError as error:
                raise _missing(channel, error.args[0]) from None
            lane.fresh.update(come if not lane.keys else {n: one for n, one in come.items() if n not in lane.keys})
            lane.shelf.keep(come, room)
            if isinstance(ref, int):
                values[channel] = items[0]
                lane.forget_older()
            else:
                values[channel] = items
                lane.cast(Cast(ref, list(items), [None] * len(items)), written=False)
        return values

    def _items(self, lane: _Lane, numbers: list[int], come: Mapping[int, bytes]) -> list[Any]:
        """Elements: decoded if they have come just now, and else copied."""
        if not come:
            return lane.shelf.made(numbers)
        old = [n for n in numbers if n not in come]
        if not old:
            return self._codec.unpack_all([come[n] for n in numbers])
        copied = iter(lane.shelf.made(old))
        decoded = iter(self._codec.unpack_all([come[n] for n in numbers if n in come]))
        return [next(decoded) if n in come else next(copied) for n in numbers]

    def _lane(self, channel: str) -> _Lane:
        lane = self._lanes.get(channel)
        if lane is None:
            lane = self._lanes[channel] = _Lane(Shelf(self._codec))
        return lane

    def _whole(self, channel: str, value: Any, parent: Ref | None, written: Written) -> Ref:
        packed = self._codec.pack(value, label=f'channel "{channel}"')
        if len(packed) <= INLINE:
            return packed
        key = _key(packed)
        lane = self._lane(channel)
        lane.settle()
        if type(parent) is int and lane.keys.get(parent) == key:
            return parent
        n = self.tips.get(channel, 0)
        written.pieces.append(self._bound.piece(channel, n, [packed]))
        written.new[channel] = {n: (packed, key)}
        return n

    def _list(self, channel: str, items: list[Any], parent: Ref | None, written: Written) -> Ref:
        lane = self._lane(channel)
        shared = parent if type(parent) is list else []
        if shared and max(shared) > self.tips.get(channel, 0):
            raise _missing(channel, max(shared) - 1)
        if not shared and len(items) <= _FEW:
            packed = self._codec.pack(items, label=f'channel "{channel}"')
            if len(packed) <= INLINE:
                return packed

        lane.settle()
        pack = _Packing(self._codec, channel, items)
        matches = align(items, shared, lane.keys, lane.casts, pack)
        tip = self.tips.get(channel, 0)
        ref = _joined(matches, tip)
        if len(ref) > 2 * _MOST_SPANS:
            matches = written_anew(items, pack)
            ref = [tip, tip + len(items)]
        new = list(matches.new.values())
        written.new[channel] = dict(enumerate(new, tip))
        for start, group in _grouped([packed for packed, _ in new]):
            written.pieces.append(self._bound.piece(channel, tip + start, group))
        written.casts[channel] = matches.cast(ref)
        return ref


class _Packing:
    """Elements of one list, each packed at most once."""

    __slots__ = ("_channel", "_codec", "_done", "_items")

    def __init__(self, codec: Codec, channel: str, items: list[Any]) -> None:
        self._codec = codec
        self._channel = channel
        self._items = items
        self._done: dict[int, tuple[bytes, bytes]] = {}

    def __call__(self, places: list[int]) -> list[tuple[bytes, bytes]]:
        done = self._done
        missing = [place for place in places if place not in done] if done else places
        try:
            packed = self._codec.pack_all([self._items[place] for place in missing])
        except Unencodable:
            for place in missing:  # one of them fails again, and says where it stands
                self._codec.pack(self._items[place], label=f'channel "{self._channel}"[{place}]')
            raise
        done.update(zip(missing, zip(packed, map(_key, packed), strict=True), strict=True))
        return [done[place] for place in places]


class History:
    """Values of many checkpoints of one namespace: what several share is decoded once, and then copied."""

    def __init__(self, codec: Codec, tenant: str, home: str, ns: str, lanes: Lanes | None = None) -> None:
        self._codec = codec
        self._bound = _Bound(codec, tenant, home, ns)
        self._lanes = lanes  # what the process knows already
        self._shelves: dict[str, Shelf] = {}

    def add(self, pieces: Iterable[Piece]) -> None:
        """Make these pieces readable; those that are known already cost nothing."""
        for piece in pieces:
            shelf = self._shelf(piece.lane)
            if not shelf.has_all(range(piece.n, piece.n + piece.count)):
                shelf.keep(dict(enumerate(self._bound.opened(piece), piece.n)), _ALL)

    def _shelf(self, channel: str) -> Shelf:
        shelf = self._shelves.get(channel)
        if shelf is None:
            known = None if self._lanes is None else self._lanes.shelf(channel)
            shelf = self._shelves[channel] = Shelf(self._codec) if known is None else known.shared()
        return shelf

    def values(self, refs: Mapping[str, Ref]) -> dict[str, Any]:
        """The values behind refs: fresh objects on each call."""
        found: dict[str, Any] = {}
        for channel, ref in refs.items():
            if isinstance(ref, bytes):
                found[channel] = self._codec.unpack(ref)
                continue
            shelf = self._shelf(channel)
            try:
                items = shelf.made([ref] if isinstance(ref, int) else _numbers(channel, ref, {}, shelf))
            except KeyError as error:
                raise _missing(channel, error.args[0]) from None
            found[channel] = items[0] if isinstance(ref, int) else items
        return found


class _Lane:
    """What is known of one lane: keys of elements by number, and the objects that stand for them."""

    __slots__ = ("casts", "fresh", "keys", "shelf")

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.keys: dict[int, bytes] = {}
        self.fresh: dict[int, bytes] = {}  # read, and not needed as keys yet
        self.casts: list[Cast] = []  # the last written and the last read

    def settle(self) -> None:
        if self.fresh:
            self.keys.update(zip(self.fresh, map(_key, self.fresh.values()), strict=True))
            self.fresh = {}

    def cast(self, cast: Cast, *, written: bool) -> None:
        self.casts = [cast, *(kept for kept in self.casts if kept.written is not written)]
        cast.written = written
        kept_size = sum(len(kept.items) for kept in self.casts)
        if max(len(self.keys), len(self.fresh)) > 2 * kept_size + 256:
            self._only({n for kept in self.casts for n in expanded(kept.ref)})

    def forget_older(self) -> None:
        """Of whole values only the newest are needed again."""
        if len(self.keys) + len(self.fresh) > _WHOLE_VALUES and not self.casts:
            self.settle()
            self._only(set(sorted(self.keys)[-_WHOLE_VALUES // 2 :]))

    def _only(self, live: set[int]) -> None:
        self.keys = {n: key for n, key in self.keys.items() if n in live}
        self.fresh = {n: packed for n, packed in self.fresh.items() if n in live}
        self.shelf.only(live)


class _Bound:
    """Pieces of one namespace: sealed to their place."""

    __slots__ = ("_binds", "_codec", "_place")

    def __init__(self, codec: Codec, tenant: str, home: str, ns: str) -> None:
        self._codec = codec
        self._place = ("piece", tenant, home, ns)
        self._binds: dict[str, bytes] = {}

    def _bind(self, lane: str, n: int) -> bytes:
        bind = self._binds.get(lane)
        if bind is None:
            bind = self._binds[lane] = _msgpack((*self._place, lane))
        return bind + n.to_bytes(8, "big")

    def piece(self, lane: str, n: int, packed: list[bytes]) -> Piece:
        try:
            data = self._codec.encode(packed, bind=self._bind(lane, n))
        except Unencodable as error:
            raise Unencodable(f'channel "{lane}" cannot be stored: {error}') from error
        return Piece(lane, n, len(packed), data)

    def opened(self, piece: Piece) -> list[bytes]:
        """The packed elements of a piece."""
        try:
            packed = self._codec.decode(piece.data, bind=self._bind(piece.lane, piece.n))
        except OverflowError:
            packed = None
        if type(packed) is not list or len(packed) != piece.count or not _BYTES.issuperset(map(type, packed)):
            raise Damaged(f'A piece of channel "{piece.lane}" holds no elements that this saver wrote.')
        return packed

    def all_opened(self, pieces: Iterable[Piece]) -> dict[str, dict[int, bytes]]:
        """The packed elements of many pieces, by lane and number."""
        decode = self._codec.decode
        shelves: dict[str, dict[int, bytes]] = {}
        at, shelf, bind = "", {}, b""
        for piece in pieces:
            lane, n = piece.lane, piece.n
            if lane != at or not bind:
                at, shelf, bind = lane, shelves.setdefault(lane, {}), self._bind(lane, 0)[:-8]
            if piece.count == 1 and 0 <= n < _ALL:  # most of them are
                packed = decode(piece.data, bind=bind + n.to_bytes(8, "big"))
                if type(packed) is list and len(packed) == 1 and type(packed[0]) is bytes:
                    shelf[n] = packed[0]
                    continue
            shelf.update(enumerate(self.opened(piece), n))
        return shelves


def _key(packed: bytes) -> bytes:
    # A short one stands for itself; no digest is as short.
    return packed if len(packed) < 32 else blake2b(packed, digest_size=32).digest()


def _numbers(channel: str, ref: list[int], come: Mapping[int, bytes], shelf: Shelf) -> list[int]:
    """The numbers of a list's elements; no more than there can be are counted out."""
    most = len(come) + len(shelf)
    for i in range(0, len(ref), 2):
        if ref[i + 1] - ref[i] > most:
            raise _missing(channel, next(n for n in range(ref[i], ref[i + 1]) if n not in come and n not in shelf))
    return list(expanded(ref))


def _missing(channel: str, n: int) -> Damaged:
    return Damaged(f'Element {n} of channel "{channel}" is missing from the store, and a checkpoint needs it.')


def _joined(matches: Matches, tip: int) -> list[int]:
    """The ref of a list whose new elements will be numbered from the tip on."""
    ref: list[int] = []
    for start, end in matches.runs(tip):
        if ref and ref[-1] == start:
            ref[-1] = end
        else:
            ref += (start, end)
    return ref


def _grouped(packed: list[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Elements in pieces that are neither many nor large."""
    start, size = 0, 0
    for index, one in enumerate(packed):
        if index > start and (index - start >= _PIECE_COUNT or size + len(one) > _PIECE_BYTES):
            yield start, packed[start:index]
            start, size = index, 0
        size += len(one)
    if packed:
        yield start, packed[start:]

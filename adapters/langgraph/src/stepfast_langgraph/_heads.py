"""A checkpoint's head and the values of its writes, as bytes that belong to one place.

A head is everything of a checkpoint but its values, which it refers to: mostly names of channels and versions
that occur again and again. Each name and each version stands once in a table, and a version in the stock
format is a number and a fraction; so the head of an ordinary step has a few hundred bytes, however long the
thread is. What is not of the ordinary form is kept as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec.msgpack import encode as _msgpack

from stepfast import Codec, Damaged, Unencodable

from ._values import Ref

_FORMAT = 1
_VERSIONS = "channel_versions"
_SEEN = "versions_seen"
_UPDATED = "updated_channels"
_VALUES = "channel_values"


class Place(NamedTuple):
    """Where a head or a write belongs. Its bytes can be read in no other place."""

    tenant: str
    home: str
    ns: str
    checkpoint_id: str
    parent_id: str | None = None


class Head(NamedTuple):
    checkpoint: dict[str, Any]  # with no channel_values yet
    metadata: dict[str, Any]
    refs: dict[str, Ref]


def encode_head(
    codec: Codec, place: Place, checkpoint: Mapping[str, Any], metadata: Mapping[str, Any], refs: Mapping[str, Ref]
) -> bytes:
    """The head's bytes; Unencodable if something in the checkpoint or its metadata cannot be stored exactly."""
    rest = {key: value for key, value in checkpoint.items() if key != _VALUES}
    names = _Table()
    versions = _Table()
    compact: list[Any] = [None, None, None]
    found = rest.get(_VERSIONS)
    if _are_versions(found):
        compact[0] = _pairs(rest.pop(_VERSIONS), names, versions)
    found = rest.get(_SEEN)
    if type(found) is dict and all(type(node) is str and _are_versions(seen) for node, seen in found.items()):
        flat: list[Any] = []
        compact[1] = flat
        for node, seen in rest.pop(_SEEN).items():
            flat += (names.of(node), _pairs(seen, names, versions))
    found = rest.get(_UPDATED)
    if type(found) is list and all(type(name) is str for name in found):
        compact[2] = [names.of(name) for name in rest.pop(_UPDATED)]
    if rest.get("id") == place.checkpoint_id and type(rest["id"]) is str:
        del rest["id"]
    referred: list[Any] = []
    for channel, ref in refs.items():
        referred += (names.of(channel), ref)
    head = [_FORMAT, names.items, [_short(v) for v in versions.items], *compact, referred, dict(metadata), rest]
    try:
        return codec.encode(head, bind=_bind("head", *place), label="checkpoint")
    except Unencodable:
        codec.pack(dict(metadata), label="metadata")  # says better where the trouble is
        codec.pack(rest, label="checkpoint")
        raise


def decode_head(codec: Codec, place: Place, head: bytes) -> Head:
    """What encode_head() was given for the same place."""
    found = codec.decode(head, bind=_bind("head", *place))
    try:
        version, names, shorts, own, seen, updated, referred, metadata, checkpoint = found
        if version != _FORMAT:
            raise ValueError(f"format {version}")
        versions = [_long(short) for short in shorts]
        checkpoint.setdefault("id", place.checkpoint_id)
        checkpoint[_VALUES] = {}
        if own is not None:
            checkpoint[_VERSIONS] = _unpaired(own, names, versions)
        if seen is not None:
            checkpoint[_SEEN] = {
                names[node]: _unpaired(pairs, names, versions)
                for node, pairs in zip(seen[::2], seen[1::2], strict=True)
            }
        if updated is not None:
            checkpoint[_UPDATED] = [names[name] for name in updated]
        refs = {names[name]: _checked(ref) for name, ref in zip(referred[::2], referred[1::2], strict=True)}
        if type(checkpoint) is not dict or type(metadata) is not dict:
            raise TypeError("no checkpoint")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Damaged(
            f"The head of checkpoint {place.checkpoint_id} passes its checksum but is not one that this saver "
            f"wrote ({type(error).__name__}: {error})."
        ) from error
    return Head(checkpoint, metadata, refs)


def encode_write(codec: Codec, place: Place, task_id: str, idx: int, channel: str, value: Any) -> bytes:
    """The bytes of one write; Unencodable names the channel and the type of what cannot be stored exactly.

    An exception that cannot be stored is stored as its repr, as other savers do with all: a graph that fails
    must be able to say so.
    """
    bind = _write_bind(place, task_id, idx, channel)
    try:
        return codec.encode(value, bind=bind, label=f'write to "{channel}"')
    except Unencodable:
        if not isinstance(value, BaseException):
            raise
        return codec.encode(_told(value), bind=bind)


def _told(error: BaseException) -> str:
    try:
        return repr(error)
    except Exception:
        return f"{type(error).__qualname__}(…)"


def decode_write(codec: Codec, place: Place, task_id: str, idx: int, channel: str, data: bytes) -> Any:
    """The value of one write, in the place that it was written for."""
    return codec.decode(data, bind=_write_bind(place, task_id, idx, channel))


def _write_bind(place: Place, task_id: str, idx: int, channel: str) -> bytes:
    return _bind("write", *place[:4], task_id, idx, channel)


def _bind(*parts: Any) -> bytes:
    return _msgpack(parts)


class _Table:
    """Each thing once, in the order in which they came."""

    __slots__ = ("_places", "items")

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._places: dict[Any, int] = {}

    def of(self, item: Any) -> int:
        key = item if type(item) is str else (type(item), item)  # 1 is not 1.0 here
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self.items)
            self.items.append(item)
        return place


def _are_versions(found: Any) -> bool:
    return type(found) is dict and all(
        type(name) is str and type(version) in (str, int, float) for name, version in found.items()
    )


def _pairs(versions: dict[str, Any], names: _Table, table: _Table) -> list[int]:
    flat: list[int] = []
    for name, version in versions.items():
        flat += (names.of(name), table.of(version))
    return flat


def _unpaired(flat: list[int], names: list[str], versions: list[Any]) -> dict[str, Any]:
    return {names[name]: versions[version] for name, version in zip(flat[::2], flat[1::2], strict=True)}


def _short(version: Any) -> Any:
    """A version of the stock form as its two numbers."""
    if type(version) is str and version[32:33] == ".":
        try:
            short = [int(version[:32]), float(version[33:])]
            if _long(short) == version:
                return short
        except (ValueError, OverflowError):
            pass
    return version


def _long(short: Any) -> Any:
    if type(short) is not list:
        return short
    number, fraction = short
    if type(number) is not int or type(fraction) is not float:
        raise TypeError("no version")
    return f"{number:032}.{fraction:016}"


def _checked(ref: Any) -> Ref:
    if type(ref) is list:
        rising: Callable[[int], bool] = lambda i: 0 <= ref[i] < ref[i + 1]  # noqa: E731
        if len(ref) % 2 or not all(type(n) is int for n in ref) or not all(map(rising, range(0, len(ref), 2))):
            raise ValueError("spans out of order")
    elif type(ref) is not bytes and (type(ref) is not int or ref < 0):
        raise TypeError("no ref")
    return ref  # type: ignore[no-any-return]

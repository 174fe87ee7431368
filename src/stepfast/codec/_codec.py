"""The codec: one object that turns values into bytes that last, and back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from hmac import compare_digest
from struct import pack
from typing import Any, TypeVar

from stepfast.errors import CodecError, Damaged, InvalidInput, KeyUnavailable, Unencodable, UnknownFormat
from stepfast.stored_names import SEAL_PERSON

from . import _envelope, _fingerprint, _read, _registry, _text, _write
from ._keyring import KeyRing
from ._registry import TypeRegistry

R = TypeVar("R")

# The first byte of a packed value.
_PLAIN = b"\x00"
_TYPED = b"\x01"
_UNKEYED = blake2b(digest_size=16, person=SEAL_PERSON)


class Codec:
    """Values to bytes and back, exactly: equal and of the same types, or a clear error.

    ``registry`` holds the known classes (by default the one that ``register`` fills). With ``keyring`` every
    value is encrypted. Values longer than ``compress_above`` bytes are compressed where it helps. A
    ``strict`` codec knows registered classes only. No value may be longer than ``max_size`` bytes, before
    or after compression.

    One codec may be used by many threads at once.
    """

    def __init__(
        self,
        *,
        registry: TypeRegistry | None = None,
        keyring: KeyRing | None = None,
        compress_above: int = 4096,
        strict: bool = False,
        max_size: int = 1 << 30,
    ) -> None:
        self._registry = _registry.DEFAULT if registry is None else registry
        self._keyring = keyring
        self._compress_above = compress_above
        self._strict = strict
        self._max_size = max_size

    @property
    def encrypts(self) -> bool:
        """Whether what encode() gives is encrypted."""
        return self._keyring is not None

    def __repr__(self) -> str:
        return f"Codec(strict={self._strict}, keyring={self._keyring!r})"

    def encode(self, value: Any, *, bind: bytes = b"", label: str = "value") -> bytes:
        """The bytes of a value, or Unencodable with the place and type of what cannot be stored.

        ``bind`` says where the value belongs; decode() must be given the same. ``label`` is what messages
        call the value.
        """
        try:
            payload, typed = _write.to_msgpack(value, self._registry, self._strict, label)
        except RecursionError:
            payload, typed = _on_fresh_stack(
                lambda: _write.to_msgpack(value, self._registry, self._strict, label), Unencodable
            )
        return _envelope.wrap(payload, typed, bind, self._keyring, self._max_size, self._compress_above)

    def decode(self, data: bytes, *, bind: bytes = b"", earlier: bytes | None = None) -> Any:
        """The value that encode() was given with the same ``bind``. Raises CodecError and its kinds only.

        ``earlier`` is what values of that place were bound to in an older format; it is tried if ``bind`` does not fit.
        """
        if type(data) is not bytes:
            data = _as_bytes(data)
        if earlier is None:
            payload, typed = _envelope.unwrap(data, bind, self._keyring, self._max_size)
        else:
            payload, typed = self._unwrap(data, bind, earlier)
        try:
            return _read.from_msgpack(payload, typed, self._registry, self._strict)
        except RecursionError:
            return _on_fresh_stack(lambda: _read.from_msgpack(payload, typed, self._registry, self._strict), CodecError)

    def rebind(self, data: bytes, *, bind: bytes, to: bytes, earlier: bytes | None = None) -> bytes:
        """The same value bound to another place; no class is built, so that none need be known here."""
        payload, typed = self._unwrap(_as_bytes(data), bind, earlier)
        return _envelope.wrap(bytes(payload), typed, to, self._keyring, self._max_size, self._compress_above)

    def _unwrap(self, data: bytes, bind: bytes, earlier: bytes | None) -> tuple[bytes | memoryview, bool]:
        try:
            return _envelope.unwrap(data, bind, self._keyring, self._max_size)
        except Damaged:
            if earlier is None:
                raise
            with suppress(Damaged):
                return _envelope.unwrap(data, earlier, self._keyring, self._max_size)
            raise

    def pack(self, value: Any, *, label: str = "value") -> bytes:
        """A value as bytes that are equal for equal values, with no checksum and in clear: for comparing,
        and for storing several values as one with encode(). unpack() is the way back."""
        return self.pack_all((value,), label=label)[0]

    def pack_all(self, values: Iterable[Any], *, label: str = "value") -> list[bytes]:
        """Each value packed; quicker than as many calls of pack()."""
        write = _write.writer(self._registry, self._strict, label)
        packed = []
        for value in values:
            try:
                payload, typed = write(value)
            except RecursionError:
                payload, typed = _on_fresh_stack(partial(write, value), Unencodable)
            packed.append(_TYPED + payload if typed else _PLAIN + payload)
        return packed

    def unpack(self, packed: bytes) -> Any:
        """The value that pack() was given. Raises CodecError and its kinds only."""
        return self.unpack_all((packed,))[0]

    def unpack_all(self, packed: Iterable[bytes]) -> list[Any]:
        """The values that pack() was given one by one; quicker than as many calls of unpack()."""
        read = _read.reader(self._registry, self._strict)
        values = []
        for one in packed:
            form = one[:1]
            if form != _TYPED and form != _PLAIN:
                raise UnknownFormat("These bytes are not a value that Stepfast packed.")
            try:
                values.append(read(one[1:], form == _TYPED))
            except RecursionError:
                values.append(_on_fresh_stack(partial(read, one[1:], form == _TYPED), CodecError))
        return values

    def fingerprint(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, bytes]:
        """A 16-byte hash of a call's arguments, and a UTF-8 text of at most 1 KiB that tells what they were.

        Never raises: what cannot be stored counts as its type's name. The text is not encrypted; encode() it
        before it is stored where values are.
        """
        try:
            return _fingerprint.fingerprint(args, kwargs, self._registry)
        except RecursionError:
            pass
        try:
            return _on_fresh_stack(lambda: _fingerprint.fingerprint(args, kwargs, self._registry), CodecError)
        except CodecError:  # a registered function that never ends
            return _fingerprint.of_types(args, kwargs)

    def describe(self, data: bytes, *, bind: bytes = b"", earlier: bytes | None = None, limit: int = 2000) -> str:
        """A stored value as text for people, at most ``limit`` characters long.

        Builds no user types and never raises: what cannot be read is said in angle brackets.
        """
        try:
            payload, typed = self._unwrap(_as_bytes(data), bind, earlier)
            try:
                return _text.text_of(_read.to_shown(payload, typed), limit)
            except RecursionError:
                return _on_fresh_stack(lambda: _text.text_of(_read.to_shown(payload, typed), limit), CodecError)
        except KeyUnavailable as error:
            found = f"<encrypted: {error}>"
        except UnknownFormat as error:
            found = f"<unknown format: {error}>"
        except Exception as error:
            found = f"<damaged: {error}>"
        return found if len(found) <= limit else found[: limit - 2] + "…>"

    def seal(self, *parts: bytes) -> bytes:
        """A digest of these parts in this order: 16 bytes, and after them the key's id if a ring is set."""
        if self._keyring is None:
            return _digest(_UNKEYED, parts)
        key = self._keyring.active_key()
        return _digest(key.sealer, parts) + key.id

    def verify_seal(self, seal: bytes, *parts: bytes) -> bool:
        """Whether a seal is the one of these parts.

        KeyUnavailable, and not False, where this codec cannot tell: it lacks the key, or has a ring and meets
        a seal made without one. To take such a row for a damaged one would be to throw it away.
        """
        digest, key_id = seal[:16], seal[16:]
        if not key_id:
            if self._keyring is not None and not self._keyring.accept_plain:
                raise KeyUnavailable(
                    "A key ring is set, but this row was sealed without a key: it was written before there "
                    "was one, or planted. If the first, KeyRing(..., accept_plain=True) accepts it."
                )
            return compare_digest(digest, _digest(_UNKEYED, parts))
        key = self._keyring.find(key_id) if self._keyring is not None else None
        if key is None:
            name = key_id.decode("ascii", "backslashreplace")
            raise KeyUnavailable(
                f"This row is sealed with the key {name!r}, which the codec has not. Add it to the ring.",
                key_id=name,
            )
        return compare_digest(digest, _digest(key.sealer, parts))


def _digest(hasher: Any, parts: tuple[bytes, ...]) -> bytes:
    digest = hasher.copy()
    # All lengths before all parts: no two lists of parts give the same bytes.
    digest.update(b"".join((pack(f">{len(parts) + 1}Q", len(parts), *map(len, parts)), *parts)))
    sealed: bytes = digest.digest()
    return sealed


def _as_bytes(data: Any) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidInput(f"decode() takes bytes, not {type(data).__name__}.")
    return bytes(data)


def _on_fresh_stack(work: Callable[[], R], error: type[CodecError] | type[Unencodable]) -> R:
    """Do this in a thread of its own, whose stack is empty.

    A caller deep in recursion has no room left for a value 200 levels deep, and sound bytes would look
    damaged to it.
    """
    results: list[R] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run, name="stepfast-codec")
    thread.start()
    thread.join()
    if not failures:
        return results[0]
    if isinstance(failures[0], RecursionError):
        raise error("The value is nested too deeply to be read or written.") from failures[0]
    raise failures[0]

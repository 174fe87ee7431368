"""The envelope around every stored value: what it is, how long, whole, compressed, encrypted.

::

    0   2  magic  C1 48   (C1 begins neither MessagePack nor UTF-8 text)
    2   1  format version
    3   1  flags: 1 zstd, 2 encrypted, 4 typed (see _marks)
    4   8  length of the body
    12 16  checksum: BLAKE2b over the 12 bytes before it, the caller's *bind*, and the body
    28     body

The body is the MessagePack, compressed or not. Encrypted, it is: length of the key id (1 byte), key id,
nonce (12 bytes), AES-256-GCM ciphertext with its tag; header, key id and *bind* are authenticated with it.
*bind* says where the value belongs (tenant, run, step). It is not stored, so bytes that are moved to another
row do not verify there.

Magic, length and checksum have the same place in every future version and are checked first: so a flipped bit
is always Damaged, and UnknownFormat really means that another program wrote the bytes.
"""

from __future__ import annotations

import os
import threading
from hashlib import blake2b
from struct import Struct
from typing import Any, Final

from stepfast.errors import CodecError, Damaged, KeyUnavailable, Unencodable, UnknownFormat
from stepfast.stored_names import MAGIC

from ._keyring import KeyRing

VERSION: Final = 1
ZSTD: Final = 1
ENCRYPTED: Final = 2
TYPED: Final = 4
KNOWN_FLAGS: Final = ZSTD | ENCRYPTED | TYPED

_HEAD = Struct(">2sBBQ")
_HEAD_SIZE: Final = _HEAD.size
_START: Final = _HEAD_SIZE + 16
_NONCE: Final = 12
_TAG: Final = 16
# Up to here joining the hashed parts costs less than a second call; beyond, a copy costs more.
_SMALL: Final = 1 << 16

_local = threading.local()  # zstd contexts may not be shared between threads


def wrap(payload: bytes, typed: bool, bind: bytes, ring: KeyRing | None, limit: int, compress_above: int) -> bytes:
    """The stored form of a payload."""
    size = len(payload)
    if size > limit:
        raise Unencodable(
            f"The value is {size:,} bytes long, and the codec stores at most {limit:,} (max_size). Keep "
            "large data in files or object storage, and store where it is.",
            size=size,
        )
    flags = TYPED if typed else 0
    if size > compress_above:
        smaller = _compressed(payload)
        if smaller is not None:
            payload = smaller
            flags |= ZSTD
    if ring is None:
        head = _HEAD.pack(MAGIC, VERSION, flags, len(payload))
        return b"".join((head, _checksum(head, bind, payload), payload))
    key = ring.active_key()
    intro = bytes((len(key.id),)) + key.id
    head = _HEAD.pack(MAGIC, VERSION, flags | ENCRYPTED, len(intro) + _NONCE + len(payload) + _TAG)
    nonce = os.urandom(_NONCE)
    try:
        sealed = key.encrypt(nonce, payload, head + intro + bind)
    except OverflowError as error:
        raise Unencodable(f"A value of {len(payload):,} bytes is too long to encrypt.", size=size) from error
    intro += nonce
    return b"".join((head, _checksum(head, bind, intro, sealed), intro, sealed))


def unwrap(data: bytes, bind: bytes, ring: KeyRing | None, limit: int) -> tuple[bytes | memoryview, bool]:
    """The payload and whether it is typed. Raises only CodecError and its kinds."""
    size = len(data) - _START
    if data[:2] != MAGIC or size < 0:
        raise _no_value(data)
    _, version, flags, length = _HEAD.unpack_from(data)
    if length != size:
        raise Damaged(f"Stored bytes are damaged: {size:,} bytes follow the header, which says {length:,}.")
    body: bytes | memoryview
    if size <= _SMALL:
        body = data[_START:]
        checksum = blake2b(b"".join((data[:_HEAD_SIZE], bind, body)), digest_size=16).digest()
    else:
        body = memoryview(data)[_START:]
        checksum = _checksum(data[:_HEAD_SIZE], bind, body)
    if checksum != data[_HEAD_SIZE:_START]:
        raise Damaged("Stored bytes are damaged, or belong to another row: their checksum does not match.")
    if version != VERSION or flags & ~KNOWN_FLAGS:
        raise UnknownFormat(
            f"Stored bytes are in format {version} (flags {flags:#04x}); this version of Stepfast reads "
            f"format {VERSION}. Upgrade Stepfast to read them.",
            version=version,
        )
    if flags & ENCRYPTED:
        body = _decrypted(data[:_HEAD_SIZE], body, bind, ring)
    elif ring is not None and not ring.accept_plain:
        raise KeyUnavailable(
            "A key ring is set, but this row is not encrypted: it was written before there was one, or "
            "planted. If the first, read it with KeyRing(..., accept_plain=True) and store it again.",
        )
    if flags & ZSTD:
        body = _decompressed(body, limit)
    elif size > limit and len(body) > limit:
        raise _too_long(len(body), limit)
    return body, flags & TYPED != 0


def _checksum(head: bytes, bind: bytes, *body: bytes | memoryview) -> bytes:
    # The header has the body's length, so where bind ends and the body begins cannot be shifted.
    if len(body) == 1 and len(body[0]) <= _SMALL:
        return blake2b(b"".join((head, bind, body[0])), digest_size=16).digest()
    digest = blake2b(head + bind, digest_size=16)
    for part in body:
        digest.update(part)
    return digest.digest()


def _no_value(data: bytes) -> CodecError:
    if not data:
        return Damaged("Stored bytes are missing: the row is empty.")
    if data[:2] == MAGIC:
        return Damaged(f"Stored bytes are cut off: {len(data)} bytes are less than a header.")
    if len(data) >= _START and _HEAD.unpack_from(data)[3] == len(data) - _START:
        return Damaged("Stored bytes are damaged: their first two bytes are wrong.")
    return UnknownFormat("These bytes are not a value that Stepfast stored.")


def _decrypted(head: bytes, body: bytes | memoryview, bind: bytes, ring: KeyRing | None) -> bytes:
    end = 1 + body[0] if len(body) else 1
    if len(body) < end + _NONCE + _TAG:
        raise Damaged("Stored bytes are damaged: the encrypted part is cut off.")
    intro = bytes(body[:end])
    key = ring.find(intro[1:]) if ring is not None else None
    if key is None:
        name = intro[1:].decode("ascii", "backslashreplace")
        have = f"only {', '.join(ring.ids)}" if ring is not None else "none"
        raise KeyUnavailable(
            f"This row is encrypted with the key {name!r}, and the codec has {have}. Add the key to the "
            f"ring (STEPFAST_ENCRYPTION_KEYS={name}:…).",
            key_id=name,
        )
    plain = key.decrypt(bytes(body[end : end + _NONCE]), body[end + _NONCE :], head + intro + bind)
    if plain is None:
        raise Damaged(
            f"Stored bytes are not what the holder of key {key.id.decode()!r} wrote: they were changed, "
            "moved from another row, or another key has this id now."
        )
    return plain


def _zstd() -> Any:
    """This thread's compressor and decompressor; None where zstandard is not installed."""
    try:
        return _local.zstd
    except AttributeError:
        pass
    try:
        import zstandard
    except ImportError:
        _local.zstd = None
    else:
        _local.zstd = (zstandard.ZstdCompressor(level=3), zstandard.ZstdDecompressor(), zstandard)
    return _local.zstd


def _compressed(payload: bytes) -> bytes | None:
    """The payload compressed, or None where that does not save at least a tenth."""
    zstd = _zstd()
    if zstd is None:
        return None
    smaller: bytes = zstd[0].compress(payload)
    return smaller if len(smaller) < len(payload) * 0.9 else None


def _decompressed(body: bytes | memoryview, limit: int) -> bytes:
    zstd = _zstd()
    if zstd is None:
        raise CodecError("This row is compressed, and the zstandard package is not installed. Install it.")
    _, decompressor, zstandard = zstd
    try:
        # We always write the size. Without it, or with a lie in it, the bytes are not ours.
        size = zstandard.frame_content_size(body)
    except zstandard.ZstdError as error:
        raise Damaged(f"Stored bytes are damaged: {error}.") from error
    if size < 0:
        raise Damaged("Stored bytes are damaged: the compressed part does not tell its size.")
    if size > limit:
        raise _too_long(size, limit)
    try:
        plain: bytes = decompressor.decompress(body, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Damaged(f"Stored bytes are damaged: {error}.") from error
    except MemoryError as error:
        raise CodecError(f"There is not enough memory to read a stored value of {size:,} bytes.") from error
    return plain


def _too_long(size: int, limit: int) -> CodecError:
    return CodecError(
        f"A stored value is {size:,} bytes long, and the codec reads at most {limit:,}. Raise max_size.",
        size=size,
    )

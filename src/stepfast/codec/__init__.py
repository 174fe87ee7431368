"""Values to bytes that last, and back: types, checksum, compression, encryption.

``Codec`` is the only thing the rest of Stepfast needs. Inside, a value passes through three rooms and back:

* ``_write`` makes MessagePack of it, exactly (``_marks`` is the vocabulary, ``_leaves`` and ``_shapes`` know
  single values and classes, ``_registry`` which classes there are);
* ``_envelope`` compresses, encrypts (``_keyring``) and checksums it;
* ``_read`` is the way back, on which nothing runs that the bytes could choose.

``_fingerprint`` hashes a call's arguments; ``_text`` shows values to people.
"""

from __future__ import annotations

from ._codec import Codec
from ._keyring import KeyRing
from ._registry import TypeRegistry, register

__all__ = ["Codec", "KeyRing", "TypeRegistry", "register"]

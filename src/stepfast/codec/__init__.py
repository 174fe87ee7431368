"""Values to bytes that last, and back: types, checksum, compression, encryption.

``Codec`` is the only thing the rest of Stepfast needs. Inside, a value passes through three rooms and back:

* ``_write`` makes MessagePack of it, exactly (``_marks`` is the vocabulary, ``_leaves`` and ``_shapes`` know
  single values and classes, ``_registry`` which classes there are, ``_library`` those of other libraries);
* ``_envelope`` compresses, encrypts (``_keyring``) and checksums it;
* ``_read`` is the way back, on which nothing runs that the bytes could choose.

``_fingerprint`` hashes a call's arguments; ``_text`` shows values to people.
"""

from __future__ import annotations

from ._codec import Codec
from ._keyring import KeyRing
from ._registry import TypeRegistry, register

__all__ = ["Codec", "KeyRing", "TypeRegistry", "register", "register_standard"]


def register_standard(registry: TypeRegistry) -> None:
    """Register the classes of the standard library that every codec can store (`fractions.Fraction`, `re.Pattern`, …).

    They are stored without it too. Registered, they also count by their contents in fingerprints of arguments.
    """
    from ._library import STANDARD

    for cls, (to, build) in STANDARD.items():
        registry.register(cls, to=to, build=build)

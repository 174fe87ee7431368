"""Keys by name, one of them active: new values are encrypted with it, old ones are read with any."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from hashlib import blake2b
from re import compile as regex
from typing import Any, NoReturn

from stepfast.errors import InvalidInput, KeyUnavailable
from stepfast.stored_names import SEAL_KEY_PERSON, SEAL_PERSON, VALUE_KEY_PERSON

_KEY_ID = regex(r"[A-Za-z0-9._-]{1,64}")
_KEY_SIZE = 32


class Key:
    """One key. Each use has a key of its own derived from it, so that no use can help against another."""

    __slots__ = ("_cipher_key", "_loaded", "id", "sealer")

    def __init__(self, key_id: str, secret: bytes) -> None:
        self.id = key_id.encode()
        self._cipher_key = _derived(secret, VALUE_KEY_PERSON)
        self._loaded: tuple[Any, type[Exception]] | None = None
        self.sealer = blake2b(key=_derived(secret, SEAL_KEY_PERSON), digest_size=16, person=SEAL_PERSON)

    def encrypt(self, nonce: bytes, plain: bytes, bound: bytes) -> bytes:
        """AES-256-GCM ciphertext and tag, which also vouches for ``bound``."""
        sealed: bytes = self._cipher()[0].encrypt(nonce, plain, bound)
        return sealed

    def decrypt(self, nonce: bytes, sealed: bytes | memoryview, bound: bytes) -> bytes | None:
        """What encrypt() was given, or None if any of this is not what it was."""
        cipher, invalid = self._cipher()
        try:
            plain: bytes = cipher.decrypt(nonce, sealed, bound)
        except invalid:
            return None
        return plain

    def _cipher(self) -> tuple[Any, type[Exception]]:
        if self._loaded is None:
            try:
                from cryptography.exceptions import InvalidTag
                from cryptography.hazmat.primitives.ciphers.aead import AESGCM
            except ImportError as error:
                raise KeyUnavailable(
                    "A key ring is set, but encryption needs the cryptography package. "
                    'Do: pip install "stepfast[encryption]"'
                ) from error
            self._loaded = AESGCM(self._cipher_key), InvalidTag
        return self._loaded


def _derived(secret: bytes, use: bytes) -> bytes:
    return blake2b(key=secret, digest_size=_KEY_SIZE, person=use).digest()


class KeyRing:
    """Encryption keys: ``KeyRing({"k1": 32 bytes})``.

    New values are encrypted with the active key (the first unless ``active`` says another); a value written
    with any key on the ring can be read. To rotate, add a key and make it active; drop the old one once no
    row uses it. With ``accept_plain`` rows that were written before there was a ring are still read, which
    also lets whoever can write to the store plant some: turn it off when the old rows are rewritten.
    """

    def __init__(self, keys: Mapping[str, bytes], *, active: str | None = None, accept_plain: bool = False) -> None:
        if not keys:
            raise InvalidInput("A key ring needs at least one key.")
        self._keys: dict[bytes, Key] = {}
        for key_id, secret in keys.items():
            self.add(key_id, secret)
        self._active = self._keys[next(iter(keys)).encode()]
        if active is not None:
            self.activate(active)
        self.accept_plain = accept_plain

    @classmethod
    def from_env(cls, variable: str = "STEPFAST_ENCRYPTION_KEYS", *, accept_plain: bool = False) -> KeyRing | None:
        """The ring that an environment variable holds as ``k2:base64,k1:base64``, the first active.

        None if the variable is not set; a variable that is set to something else is an error.
        """
        text = os.environ.get(variable)
        if text is None:
            return None
        keys: dict[str, bytes] = {}
        for number, item in enumerate(text.split(","), 1):
            key_id, colon, encoded = item.strip().partition(":")
            # The text is not quoted in the error: it may be the secret.
            if not colon:
                raise InvalidInput(f"Entry {number} of {variable} is not of the form id:base64.")
            try:
                secret = base64.b64decode(encoded.replace("-", "+").replace("_", "/"), validate=True)
            except (binascii.Error, ValueError):
                raise InvalidInput(f"The key in entry {number} of {variable} is not base64.") from None
            if key_id in keys:
                raise InvalidInput(f"Entry {number} of {variable} repeats a key id.")
            keys[key_id] = secret
        return cls(keys, accept_plain=accept_plain)

    @staticmethod
    def new_key() -> bytes:
        """A fresh random key."""
        return os.urandom(_KEY_SIZE)

    def add(self, key_id: str, key: bytes, *, active: bool = False) -> None:
        """Put a key on the ring. An id stands for one key for ever: another key under it is refused."""
        if type(key_id) is not str or not _KEY_ID.fullmatch(key_id):
            raise InvalidInput("A key id is 1 to 64 letters, digits, dots, dashes and underscores.")
        if type(key) is not bytes or len(key) != _KEY_SIZE:
            raise InvalidInput(f"Key {key_id!r} must be {_KEY_SIZE} bytes; make one with KeyRing.new_key().")
        made = Key(key_id, key)
        known = self._keys.setdefault(made.id, made)
        if known.sealer.digest() != made.sealer.digest():
            raise InvalidInput(f"Another key is on the ring as {key_id!r}; give the new one a new id.")
        if active:
            self.activate(key_id)

    def activate(self, key_id: str) -> None:
        """Encrypt with this key from now on."""
        key = self._keys.get(key_id.encode())
        if key is None:
            raise InvalidInput(f"No key {key_id!r} is on the ring.")
        self._active = key

    @property
    def active(self) -> str:
        """The id of the key that new values are encrypted with."""
        return self._active.id.decode()

    @property
    def ids(self) -> list[str]:
        """The ids of all keys on the ring."""
        return sorted(key_id.decode() for key_id in self._keys)

    def active_key(self) -> Key:
        return self._active

    def find(self, key_id: bytes) -> Key | None:
        return self._keys.get(key_id)

    def __repr__(self) -> str:
        return f"KeyRing(active={self.active!r}, ids={self.ids})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A KeyRing cannot be pickled or copied: it holds secrets.")

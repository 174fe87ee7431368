"""With a key ring nothing is readable, and nothing is believed, without the key."""

from __future__ import annotations

import base64
import copy
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from stepfast.codec import Codec, KeyRing, _envelope
from stepfast.errors import CodecError, Damaged, InvalidInput, KeyUnavailable
from tests.codec import zoo
from tests.codec.zoo import difference

ONE, TWO = bytes(range(32)), bytes(range(32, 64))
plain = Codec()
keyed = Codec(keyring=KeyRing({"k1": ONE}))


@pytest.mark.parametrize(
    "value", [1, "secret word", {"a": (1, 2)}, [zoo.User(id=1)], "secret word " * 3000, b"\0" * 10**6]
)
def test_an_encrypted_value_comes_back_and_cannot_be_seen(value: Any) -> None:
    data = keyed.encode(value, bind=b"row")
    assert difference(keyed.decode(data, bind=b"row"), value) is None
    assert b"secret word" not in data
    assert b"tests.codec.zoo" not in data


def test_the_same_value_never_gives_the_same_bytes() -> None:
    assert len({keyed.encode("same") for _ in range(1000)}) == 1000


def test_rotation_reads_old_rows_and_writes_with_the_new_key() -> None:
    ring = KeyRing({"k1": ONE})
    codec = Codec(keyring=ring)
    old = codec.encode("old")
    ring.add("k2", TWO, active=True)
    new = codec.encode("new")
    assert (codec.decode(old), codec.decode(new)) == ("old", "new")
    assert (ring.active, ring.ids) == ("k2", ["k1", "k2"])
    # A process that was not told of the new key says which it lacks; so does one that dropped the old.
    with pytest.raises(KeyUnavailable, match="key 'k2'") as caught:
        keyed.decode(new)
    assert caught.value.details == {"key_id": "k2"}
    with pytest.raises(KeyUnavailable, match="STEPFAST_ENCRYPTION_KEYS=k1"):
        Codec(keyring=KeyRing({"k2": TWO})).decode(old)


def test_another_key_under_the_same_id_is_refused() -> None:
    with pytest.raises(Damaged, match="another key has this id now"):
        Codec(keyring=KeyRing({"k1": TWO})).decode(keyed.encode(1))


def test_without_a_ring_an_encrypted_row_names_its_key() -> None:
    with pytest.raises(KeyUnavailable, match="encrypted with the key 'k1', and the codec has none"):
        plain.decode(keyed.encode(1))


def test_once_a_ring_is_set_plain_rows_are_refused_with_the_remedy() -> None:
    row = plain.encode({"admin": True})
    with pytest.raises(KeyUnavailable, match=r"accept_plain=True\) and store it again"):
        keyed.decode(row)
    moving = Codec(keyring=KeyRing({"k1": ONE}, accept_plain=True))
    assert keyed.decode(moving.encode(moving.decode(row))) == {"admin": True}


def resealed(data: bytes, bind: bytes = b"") -> bytes:
    """The bytes with a new checksum, as anyone can compute it."""
    head, body = data[:12], data[28:]
    head = head[:4] + len(body).to_bytes(8, "big")
    return head + _envelope._checksum(head, bind, body) + body


def flip(position: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


TAMPERING: dict[str, Callable[[bytes], bytes]] = {
    "first byte of the text": flip(28 + 3 + 12),
    "last byte of the tag": flip(-1 % 1000),
    "nonce": flip(28 + 3),
    "typed flag": lambda data: data[:3] + bytes([data[3] ^ 4]) + data[4:],
    "zstd flag": lambda data: data[:3] + bytes([data[3] ^ 1]) + data[4:],
    "cut": lambda data: data[:-1],
    "cut to nothing": lambda data: data[:28],
    "cut to the key id": lambda data: data[:31],
    "longer": lambda data: data + b"\0",
    "key id of no length": lambda data: data[:28] + b"\0" + data[29:],
    "key id too long": lambda data: data[:28] + b"\xff" + data[29:],
    "another key id": lambda data: data[:28] + b"\x02k9" + data[31:],
    "flag taken off": lambda data: data[:3] + bytes([data[3] & ~2]) + data[4:],
}


@pytest.mark.parametrize("change", TAMPERING.values(), ids=TAMPERING.keys())
def test_tampering_with_a_new_checksum_but_without_the_key_is_seen(change: Callable[[bytes], bytes]) -> None:
    data = keyed.encode({"amount": 100}, bind=b"row")
    assert keyed.decode(resealed(data, b"row"), bind=b"row") == {"amount": 100}
    if change is TAMPERING["last byte of the tag"]:
        change = flip(len(data) - 1)
    with pytest.raises(CodecError):
        keyed.decode(resealed(change(data), b"row"), bind=b"row")


def test_two_encrypted_rows_cannot_be_swapped_even_with_new_checksums() -> None:
    data = keyed.encode("approved", bind=b"run 1")
    with pytest.raises(Damaged, match="moved from another row"):
        keyed.decode(resealed(data, b"run 2"), bind=b"run 2")


def test_a_plain_row_with_a_sound_checksum_cannot_be_planted() -> None:
    with pytest.raises(KeyUnavailable):
        keyed.decode(resealed(plain.encode("planted")))


def test_a_ring_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPFAST_ENCRYPTION_KEYS", raising=False)
    assert KeyRing.from_env() is None
    one, two = base64.b64encode(ONE).decode(), base64.urlsafe_b64encode(bytes([255] * 32)).decode()
    monkeypatch.setenv("STEPFAST_ENCRYPTION_KEYS", f"k2:{two}, k1:{one}")
    ring = KeyRing.from_env()
    assert ring is not None
    assert (ring.active, ring.ids) == ("k2", ["k1", "k2"])
    assert Codec(keyring=ring).decode(keyed.encode(1)) == 1
    monkeypatch.setenv("OTHER", f"k1:{one}")
    other = KeyRing.from_env("OTHER")
    assert other is not None
    assert other.active == "k1"


@pytest.mark.parametrize(
    "text",
    [
        "", "nonsense", "k1:", "k1:AAAA", "k1:!!!!", ":" + "A" * 44, "k 1:" + "A" * 43 + "=", f"k1:{'A' * 43}=,",
        f"k1:{'A' * 43}=,k1:{'B' * 42}A=",
    ],
)  # fmt: skip
def test_a_wrong_environment_is_an_error_that_quotes_nothing(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("STEPFAST_ENCRYPTION_KEYS", text)
    with pytest.raises(InvalidInput) as caught:
        KeyRing.from_env()
    for part in text.replace(",", ":").split(":"):
        assert len(part) < 4 or part not in caught.value.message


def test_a_ring_refuses_wrong_keys() -> None:
    for keys in ({}, {"k1": b"short"}, {"k1": "x" * 32}, {"": ONE}, {"a b": ONE}, {"x" * 65: ONE}, {5: ONE}):
        with pytest.raises(InvalidInput):
            KeyRing(keys)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        KeyRing({"k1": ONE}, active="k2")
    ring = KeyRing({"k1": ONE})
    ring.add("k1", ONE)
    with pytest.raises(InvalidInput, match="new id"):
        ring.add("k1", TWO)
    with pytest.raises(InvalidInput):
        ring.activate("k2")


def test_a_ring_shows_no_secret_and_cannot_be_copied_or_pickled() -> None:
    secret = b"very secret key material 0123456"
    ring = KeyRing({"k1": secret})
    for text in (repr(ring), str(ring), f"{ring}", repr(vars(ring)), repr(Codec(keyring=ring))):
        assert "secret" not in text
        assert secret.hex() not in text
    for how in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="secrets"):
            how(ring)
    assert len({KeyRing.new_key() for _ in range(10)}) == 10


def test_a_missing_cryptography_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(KeyUnavailable, match="cryptography package"):
        Codec(keyring=KeyRing({"k1": ONE})).encode(1)


def test_many_threads_encrypt_with_one_ring() -> None:
    failures: list[Any] = []

    def work() -> None:
        rows = [[number] * 100 for number in range(200)]
        failures.extend(row for row in rows if keyed.decode(keyed.encode(row)) != row)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


PARTS = [(), (b"",), (b"", b""), (b"a", b"bc"), (b"ab", b"c"), (b"abc",), (b"abc", b""), (b"c", b"ab")]


@pytest.mark.parametrize("codec", [plain, keyed], ids=["plain", "keyed"])
def test_a_seal_fits_its_parts_and_no_others(codec: Codec) -> None:
    assert len({codec.seal(*parts) for parts in PARTS}) == len(PARTS)
    for parts in PARTS:
        seal = codec.seal(*parts)
        assert seal == codec.seal(*parts)
        for others in PARTS:
            assert codec.verify_seal(seal, *others) == (parts == others)
        for position in range(16):
            assert not codec.verify_seal(flip(position)(seal), *parts)
        assert not codec.verify_seal(seal[:5], *parts) if codec is plain else True


def test_a_seal_has_sixteen_bytes_and_the_id_of_its_key() -> None:
    assert len(plain.seal(b"x")) == 16
    assert keyed.seal(b"x")[16:] == b"k1"
    assert keyed.seal(b"x")[:16] != plain.seal(b"x")
    assert Codec(keyring=KeyRing({"k1": TWO})).verify_seal(keyed.seal(b"x"), b"x") is False


def test_a_seal_survives_rotation() -> None:
    ring = KeyRing({"k1": ONE})
    codec = Codec(keyring=ring)
    seal = codec.seal(b"row")
    ring.add("k2", TWO, active=True)
    assert codec.verify_seal(seal, b"row")
    assert codec.seal(b"row")[16:] == b"k2"


def test_a_seal_that_this_codec_cannot_judge_is_an_error_and_not_a_no() -> None:
    with pytest.raises(KeyUnavailable, match="'k1'"):
        plain.verify_seal(keyed.seal(b"x"), b"x")
    with pytest.raises(KeyUnavailable, match="accept_plain"):
        keyed.verify_seal(plain.seal(b"x"), b"x")
    moving = Codec(keyring=KeyRing({"k1": ONE}, accept_plain=True))
    assert moving.verify_seal(plain.seal(b"x"), b"x")
    assert not moving.verify_seal(plain.seal(b"x"), b"y")


def test_the_format_of_seals_is_the_one_that_stores_hold() -> None:
    assert plain.seal(b"a", b"b").hex() == "d215a22c1606d51a8e41f2bf2b07cd1e"
    assert keyed.seal(b"a", b"b").hex() == "0dc8f2e4c32e04b554dd1c3f4655c6256b31"


def test_an_encrypted_row_of_an_earlier_version_is_still_read() -> None:
    assert keyed.decode(bytes.fromhex(GOLDEN), bind=b"row") == {"a": (1, "b")}


GOLDEN = (
    "c148010600000000000000291cbc90cbe634a4d3e440804328868f54026b319c9bdfb031ec626120f9e6577a728f7c95"
    "44a428bbdd6ea6f9d39754db108646c451095160a1"
)

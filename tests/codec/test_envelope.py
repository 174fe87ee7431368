"""Stored bytes: every flipped bit is seen, no bytes raise anything but a CodecError, nothing blows up."""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack

from stepfast.codec import Codec, KeyRing, TypeRegistry, _envelope
from stepfast.errors import CodecError, Damaged, InvalidInput, Unencodable, UnknownFormat
from stepfast.stored_names import MAGIC
from tests.codec import zoo

codec = Codec()
encrypted = Codec(keyring=KeyRing({"k1": bytes(range(32))}))

SAMPLES: list[Any] = [
    None,
    {"a": 1, "b": [1, 2, "three"]},
    (1, {2}, Decimal("1.5")),
    [zoo.Point(1, zoo.User(id=2)), zoo.Mood.GOOD, datetime(2024, 5, 6, tzinfo=UTC)],
    "compress me " * 500,
]


@pytest.mark.parametrize("using", [codec, encrypted], ids=["plain", "encrypted"])
@pytest.mark.parametrize("value", SAMPLES, ids=lambda v: type(v).__name__)
def test_every_single_flipped_bit_is_damage(value: Any, using: Codec) -> None:
    data = using.encode(value, bind=b"row 1")
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises(Damaged):
                using.decode(bytes(flipped), bind=b"row 1")


@pytest.mark.parametrize("using", [codec, encrypted], ids=["plain", "encrypted"])
def test_every_cut_and_every_addition_is_an_error(using: Codec) -> None:
    data = using.encode({"a": [1, 2, 3]})
    for end in range(len(data)):
        with pytest.raises(CodecError):
            using.decode(data[:end])
    for extra in (b"\0", b"\xff", data):
        with pytest.raises(Damaged):
            using.decode(data + extra)
        with pytest.raises(CodecError):
            using.decode(extra + data)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_never_a_value(data: bytes) -> None:
    with pytest.raises(CodecError):
        codec.decode(data)
    with pytest.raises(CodecError):
        encrypted.decode(data)


def sealed_again(payload: bytes, flags: int) -> bytes:
    head = _envelope._HEAD.pack(MAGIC, 1, flags, len(payload))
    return head + _envelope._checksum(head, b"", payload) + payload


@settings(max_examples=600, deadline=None)
@given(st.binary(max_size=120), st.integers(0, 7))
def test_random_payloads_with_a_sound_checksum_raise_only_codec_errors(payload: bytes, flags: int) -> None:
    data = sealed_again(payload, flags)
    try:
        codec.decode(data)
    except CodecError:
        pass
    assert isinstance(codec.describe(data), str)


def test_mutated_payloads_with_a_sound_checksum_raise_only_codec_errors() -> None:
    rng = random.Random(7)
    payloads = [(codec.encode(value)[28:], codec.encode(value)[3]) for value in SAMPLES[:4]]
    outcomes = set()
    for _ in range(6000):
        payload, flags = rng.choice(payloads)
        changed = bytearray(payload)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        try:
            codec.decode(sealed_again(bytes(changed), flags))
            outcomes.add("read")
        except CodecError as error:
            outcomes.add(type(error).__name__)
    assert outcomes >= {"read", "Damaged", "UnknownType"}


def test_a_claim_of_four_billion_items_costs_nothing() -> None:
    for payload in (
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff" * 9,
    ):
        with pytest.raises(Damaged):
            codec.decode(sealed_again(payload, 0))
        with pytest.raises(Damaged):
            codec.decode(sealed_again(payload, _envelope.TYPED))


def test_a_value_that_is_moved_to_another_row_is_refused() -> None:
    for using in (codec, encrypted):
        one, two = using.encode(1, bind=b"run|step 1"), using.encode(2, bind=b"run|step 2")
        assert using.decode(one, bind=b"run|step 1") == 1
        with pytest.raises(Damaged, match="another row"):
            using.decode(two, bind=b"run|step 1")
        with pytest.raises(Damaged):
            using.decode(one)


def test_bytes_of_another_program_are_an_unknown_format() -> None:
    for data in (b"\x80\x04\x95pickle.", b'{"json": true}', b"x" * 100, msgpack.encode({"a": 1})):
        with pytest.raises(UnknownFormat):
            codec.decode(data)


def test_bytes_of_a_newer_format_say_so() -> None:
    for version, flags in ((2, 0), (1, 8), (1, 128)):
        head = _envelope._HEAD.pack(MAGIC, version, flags, 1)
        with pytest.raises(UnknownFormat, match="Upgrade"):
            codec.decode(head + _envelope._checksum(head, b"", b"\xc0") + b"\xc0")


def test_an_empty_row_is_damage() -> None:
    with pytest.raises(Damaged, match="empty"):
        codec.decode(b"")


def test_any_buffer_can_be_read_and_nothing_else() -> None:
    data = codec.encode([1])
    assert codec.decode(bytearray(data)) == codec.decode(memoryview(data)) == [1]  # type: ignore[arg-type]
    for wrong in ("text", None, 5, [1]):
        with pytest.raises(InvalidInput):
            codec.decode(wrong)  # type: ignore[arg-type]


def test_the_format_is_the_one_that_stores_hold() -> None:
    """These bytes are in people's stores. If this test fails, the change is wrong, not the test."""
    golden = {
        "c14801000000000000000003": [1, 2],
        "c14801040000000000000005": (1,),
    }
    for head, value in golden.items():
        data = codec.encode(value)
        assert data[:12].hex() == head
        assert codec.decode(data) == value
    typed = [
        (1, "a"), {1}, {(1,): 2}, Decimal("1.50"), zoo.Point(1, None), zoo.Colour.RED, zoo.Rights.READ, 2**70,
        datetime(2024, 5, 6, tzinfo=UTC), "\ud800", range(3),
    ]  # fmt: skip
    assert codec.encode(typed, bind=b"row").hex() == GOLDEN
    assert codec.decode(bytes.fromhex(GOLDEN), bind=b"row") == typed


GOLDEN = (
    "c148010400000000000000b726d354d9d349784b8d381b420cddebb19b93c7002001a16192c700210193c7002392c700"
    "200102d605312e353094c70024b574657374732e636f6465632e7a6f6f3a506f696e740182a17801a179c093c70025b6"
    "74657374732e636f6465632e7a6f6f3a436f6c6f7572a352454494c70026b674657374732e636f6465632e7a6f6f3a52"
    "696768747300a452454144c70901400000000000000000c7150907e8050600000000000000006f0000000000000000c7"
    "0302eda08096c70028a572616e6765c0000301"
)


def test_large_values_are_compressed_where_it_helps() -> None:
    text = "the same words again and again " * 1000
    data = codec.encode(text)
    assert len(data) < len(text) / 20
    assert codec.decode(data) == text
    noise = random.Random(1).randbytes(100_000)
    assert len(codec.encode(noise)) < len(noise) + 50
    assert codec.decode(codec.encode(noise)) == noise
    assert len(Codec(compress_above=1 << 40).encode(text)) > len(text)
    assert len(codec.encode("x" * 4000)) > 4000


def test_a_decompression_bomb_is_refused_before_it_unfolds() -> None:
    small = Codec(max_size=1 << 20)
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    with pytest.raises(CodecError, match="max_size"):
        small.decode(sealed_again(bomb, _envelope.ZSTD))
    # The same without the size, and with a size that lies.
    streamed = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 26))
    with pytest.raises(Damaged, match="size"):
        small.decode(sealed_again(streamed, _envelope.ZSTD))
    honest = zstandard.ZstdCompressor().compress(bytes(1000))
    assert honest[4] & 0xC0 == 0x40
    lying = honest[:5] + (100).to_bytes(2, "little") + honest[7:]
    with pytest.raises(Damaged):
        small.decode(sealed_again(lying, _envelope.ZSTD))
    value = zstandard.ZstdCompressor().compress(msgpack.encode("x" * 1000))
    assert small.decode(sealed_again(value, _envelope.ZSTD)) == "x" * 1000
    with pytest.raises(Damaged):
        small.decode(sealed_again(value + b"\0", _envelope.ZSTD))


def test_what_is_too_long_to_be_read_is_not_written() -> None:
    small = Codec(max_size=1000)
    with pytest.raises(Unencodable, match="max_size"):
        small.encode("x" * 1000)
    with pytest.raises(CodecError, match="max_size"):
        small.decode(codec.encode(random.Random(1).randbytes(1000)))
    assert small.decode(small.encode("x" * 990)) == "x" * 990


def test_without_zstandard_values_are_stored_whole_and_compressed_ones_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "again " * 2000
    compressed = codec.encode(text)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.delattr(_envelope._local, "zstd", raising=False)
    whole = codec.encode(text)
    assert len(whole) > len(text)
    assert codec.decode(whole) == text
    with pytest.raises(CodecError, match="zstandard package is not installed"):
        codec.decode(compressed)
    monkeypatch.undo()
    monkeypatch.delattr(_envelope._local, "zstd", raising=False)
    assert codec.decode(compressed) == text


def test_a_value_costs_twenty_eight_bytes_of_envelope() -> None:
    assert len(codec.encode(7)) == 29


def test_a_codec_shows_nothing_secret() -> None:
    assert repr(Codec(registry=TypeRegistry())) == "Codec(strict=False, keyring=None)"
    assert repr(encrypted) == "Codec(strict=False, keyring=KeyRing(active='k1', ids=['k1']))"

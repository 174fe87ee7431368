"""Rows that this saver did not write for this place are refused, and reading them runs nothing."""

from __future__ import annotations

import builtins
import os
import subprocess
from typing import Any, ClassVar

import msgspec
import pytest

from adapters.langgraph.tests.lanes_kit import Rows
from stepfast import Codec, CodecError, Damaged, KeyRing, KeyUnavailable, UnknownType
from stepfast.threads import Piece
from stepfast_langgraph._heads import Place, decode_head, decode_write, encode_head, encode_write
from stepfast_langgraph._types import make_codec

OBJECT, ENUM, CUSTOM = (msgspec.msgpack.Ext(code, b"") for code in (36, 37, 39))
PLACE = Place("tenant", "home", "ns", "c1", "c0")
LONG = "x" * 500


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(*_args: Any, **_kwargs: Any) -> Any:
        raise AssertionError("a stored row ran code")

    for module, name in ((os, "system"), (subprocess, "Popen"), (builtins, "eval")):
        monkeypatch.setattr(module, name, ran)


def forged(tree: Any) -> bytes:
    """A packed value with sound form and any content."""
    return b"\x01" + msgspec.msgpack.encode(tree)


@pytest.mark.parametrize(
    "tree",
    [
        [CUSTOM, "os:system", 1, "echo owned"],
        [OBJECT, "os:system", 1, {"command": "x"}],
        [CUSTOM, "builtins:eval", 1, "1"],
        [CUSTOM, "builtins:exec", 1, "1"],
        [OBJECT, "builtins:object", 1, {}],
        [OBJECT, "builtins:type", 1, {"name": "X"}],
        [CUSTOM, "subprocess:Popen", 1, ["true"]],
        [OBJECT, "subprocess:Popen", 1, {"args": ["true"]}],
        [CUSTOM, "subprocess:CompletedProcess", 1, []],
        [OBJECT, "nowhere.at.all:Thing", 1, {}],
        [OBJECT, "langchain_core.messages.ai:Nothing", 1, {}],
        [CUSTOM, "langchain_core.messages.ai:AIMessage", 1, {"content": "x"}],
        [OBJECT, "langchain_core.messages.ai:AIMessage", 1, {"no such field": 1}],
        [OBJECT, "langchain_core.messages.ai:AIMessage", 99, {}],
        [CUSTOM, "numpy:ndarray", 1, ["|O", [1], "C", b"12345678"]],
        [CUSTOM, "numpy:ndarray", 1, ["<f8", [1 << 40], "C", b""]],
        [CUSTOM, "numpy:ndarray", 1, ["<f8", [-1], "C", b"12345678"]],
        [CUSTOM, "numpy:float64", 1, ["|O", b"12345678"]],
        [CUSTOM, "pickle:Unpickler", 1, b""],
        [ENUM, "os:environ", "PATH"],
        [CUSTOM, "builtins:ValueError", 1, "not what an exception is stored as"],
        [CUSTOM, "asyncio:AbstractEventLoop", 1, [[], {}]],
        [OBJECT],
        [CUSTOM, ["a list"], 1, 1],
    ],
)
def test_a_forged_type_is_refused(tree: Any) -> None:
    with pytest.raises(CodecError):
        make_codec().unpack(forged(tree))
    with pytest.raises(CodecError):
        decode_write(make_codec(), PLACE, "t", 0, "x", _enveloped(forged(tree)))


def _enveloped(packed: bytes) -> bytes:
    """A forged value in an envelope whose checksum is right for its place, as one who knows the format would."""
    from hashlib import blake2b

    body = packed[1:]
    head = b"\xc1H\x01\x04" + len(body).to_bytes(8, "big")
    bind = msgspec.msgpack.encode(("write", "tenant", "home", "ns", "c1", "t", 0, "x"))
    return head + blake2b(head + bind + body, digest_size=16).digest() + body


def test_the_forger_above_knows_the_format() -> None:
    assert decode_write(make_codec(), PLACE, "t", 0, "x", _enveloped(forged([1, 2]))) == [1, 2]


class Armed(Exception):
    """Would show that its code ran."""

    ran: ClassVar[list[str]] = []

    def __init__(self, *args: Any) -> None:
        self.ran.append("init")
        super().__init__(*args)

    def __setattr__(self, name: str, value: Any) -> None:
        self.ran.append("setattr")
        super().__setattr__(name, value)


class Disarmed(Armed):
    def __new__(cls, *args: Any) -> Any:
        cls.ran.append("new")
        return super().__new__(cls, *args)


def test_an_exception_is_put_together_without_its_code() -> None:
    codec = make_codec()
    data = codec.pack(Armed("x", 1))
    Armed.ran.clear()
    error = codec.unpack(data)
    assert (type(error), error.args, Armed.ran) == (Armed, ("x", 1), [])
    with pytest.raises(UnknownType):
        codec.unpack(forged([CUSTOM, f"{__name__}:Disarmed", 1, [["x"], {}]]))
    assert Armed.ran == []


def test_a_changed_bit_is_noticed() -> None:
    rows = Rows()
    written = rows.put({"table": {"k": LONG}})
    (piece,) = written.pieces
    for at in range(0, len(piece.data), 7):
        bent = bytearray(piece.data)
        bent[at] ^= 4
        with pytest.raises(CodecError):
            rows.process().read(written.refs, [Piece(piece.lane, piece.n, piece.count, bytes(bent))])


def test_a_piece_moved_to_another_lane_number_thread_namespace_or_tenant_is_refused() -> None:
    rows = Rows()
    written = rows.put({"table": {"k": LONG}})
    (piece,) = written.pieces
    with pytest.raises(Damaged):
        rows.process().read({"other": 0}, [Piece("other", 0, 1, piece.data)])
    with pytest.raises(Damaged):
        rows.process().read({"table": 5}, [Piece("table", 5, 1, piece.data)])
    with pytest.raises(Damaged):
        rows.process().read(written.refs, [Piece("table", 0, 2, piece.data)])
    with pytest.raises(Damaged):
        Rows(home="another").process().read(written.refs, [piece])
    from stepfast_langgraph._values import Lanes

    for tenant, ns in (("other", ""), ("tenant", "sub")):
        with pytest.raises(Damaged):
            Lanes(rows.codec, tenant, "home", ns).read(written.refs, [piece])


@pytest.mark.parametrize("field", Place._fields)
def test_a_head_moved_to_another_place_is_refused(field: str) -> None:
    codec = make_codec()
    head = encode_head(codec, PLACE, {"v": 4, "id": "c1"}, {}, {})
    assert decode_head(codec, PLACE, head).checkpoint["id"] == "c1"
    with pytest.raises(Damaged):
        decode_head(codec, PLACE._replace(**{field: "other"}), head)


def test_a_write_moved_to_another_place_is_refused() -> None:
    codec = make_codec()
    data = encode_write(codec, PLACE, "task", 0, "messages", "x")
    assert decode_write(codec, PLACE, "task", 0, "messages", data) == "x"
    places = [
        (PLACE._replace(home="other"), "task", 0, "messages"),
        (PLACE._replace(checkpoint_id="c2"), "task", 0, "messages"),
        (PLACE, "other", 0, "messages"),
        (PLACE, "task", 1, "messages"),
        (PLACE, "task", 0, "other"),
    ]
    for place, task, idx, channel in places:
        with pytest.raises(Damaged):
            decode_write(codec, place, task, idx, channel, data)


def test_a_row_that_is_not_encrypted_is_refused_where_a_key_is_set() -> None:
    plain, keyed = Rows(), Rows(make_codec(KeyRing({"k1": b"k" * 32})))
    written = plain.put({"table": {"k": LONG}})
    with pytest.raises(KeyUnavailable):
        keyed.process().read(written.refs, written.pieces)
    head = encode_head(plain.codec, PLACE, {"v": 4, "id": "c1"}, {}, {})
    with pytest.raises(KeyUnavailable):
        decode_head(keyed.codec, PLACE, head)
    with pytest.raises(KeyUnavailable):
        decode_write(keyed.codec, PLACE, "t", 0, "x", encode_write(plain.codec, PLACE, "t", 0, "x", 1))


def test_everything_is_encrypted_where_a_key_is_set() -> None:
    rows = Rows(make_codec(KeyRing({"k1": b"k" * 32})))
    secret = "sk-0123456789"
    written = rows.put({"short": secret, "long": [secret + LONG] * 3, "table": {secret: LONG}})
    head = encode_head(rows.codec, PLACE, {"v": 4, "id": "c1", "note": secret}, {"user": secret}, written.refs)
    value = encode_write(rows.codec, PLACE, "t", 0, "x", secret)
    for data in (head, value, *(piece.data for piece in written.pieces)):
        assert secret.encode() not in data
    assert rows.get(written)["short"] == secret


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        [2, [], [], None, None, None, [], {}, {}],
        [1, [], [], [0, 0], None, None, [], {}, {}],
        [1, ["a"], [], None, None, None, [0, [5, 3]], {}, {}],
        [1, ["a"], [], None, None, None, [0, [1, 2, 3]], {}, {}],
        [1, ["a"], [], None, None, None, [0, -1], {}, {}],
        [1, ["a"], [], None, None, None, [0, True], {}, {}],
        [1, ["a"], [], None, None, None, [0, "x"], {}, {}],
        [1, ["a"], [["x", 1]], None, None, None, [], {}, {}],
        [1, [], [], None, None, None, [], [], {}],
        [1, [], [], None, None, None, [], {}, []],
    ],
)
def test_a_head_of_another_form_is_damaged(content: Any) -> None:
    codec = make_codec()
    bind = msgspec.msgpack.encode(("head", *PLACE))
    with pytest.raises(Damaged):
        decode_head(codec, PLACE, codec.encode(content, bind=bind))


@pytest.mark.parametrize("content", [None, "text", [1], [b"\x00\xc0", "x"], [], [b"\x00\xc0"] * 3, [b"\x07\xc0"]])
def test_a_piece_of_another_form_is_refused(content: Any) -> None:
    rows = Rows()
    bind = msgspec.msgpack.encode(("piece", "tenant", "home", "", "table")) + (0).to_bytes(8, "big")
    with pytest.raises(CodecError):
        rows.process().read({"table": 0}, [Piece("table", 0, 1, rows.codec.encode(content, bind=bind))])


def test_a_list_that_claims_a_billion_elements_is_refused_at_once() -> None:
    rows = Rows()
    with pytest.raises(Damaged):
        rows.process().read({"table": [0, 1 << 60]}, [])
    with pytest.raises(Damaged):
        rows.history().values({"table": [0, 1 << 60]})


def test_strict_codecs_know_no_class_that_was_not_registered() -> None:
    assert Codec(strict=True).encode([1, "a"])
    with pytest.raises(UnknownType):
        Codec(strict=True).unpack(forged([OBJECT, "langchain_core.messages.ai:AIMessage", 1, {}]))

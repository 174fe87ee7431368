"""Exceptions and standard values: stored by functions of ours, by every codec that is not strict."""

from __future__ import annotations

import ipaddress
import re
import subprocess
import sys
import threading
import types
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from stepfast import Codec, TypeRegistry, Unencodable, UnknownType
from stepfast.codec import _library, register_standard
from stepfast.errors import CodecError

VALUES: list[Any] = [
    *(Fraction(-1, 3), re.compile("a+", re.I | re.M), re.compile(b"a"), SimpleNamespace(a=[1, (2,)])),
    *(ipaddress.ip_address("::1"), ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_interface("10.0.0.1/8")),
]


class Refused(Exception):
    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"refused with {code}")
        self.code = code
        self.hint = hint


@dataclass
class Failure(Exception):
    code: int


class Slotted(Exception):
    __slots__ = ("code",)


ERRORS: list[BaseException] = [
    *(ValueError("x", {"a": (1,)}), KeyError(1), KeyboardInterrupt(), StopIteration(5), Failure(3)),
    *(FileNotFoundError(2, "gone", "/x"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")),
    *(Refused(7, hint="later"), ExceptionGroup("many", [ValueError(1), Refused(8, hint="no")])),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_standard_value_comes_back_as_it_was(value: Any) -> None:
    codec = Codec()
    found = codec.decode(codec.encode({"it": [value]}))["it"][0]
    assert type(found) is type(value)
    assert found == value


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_comes_back_as_what_it_was(error: BaseException) -> None:
    error.add_note("seen")
    found = Codec().decode(Codec().encode(error))
    assert type(found) is type(error)
    assert (repr(found), str(found), found.__notes__) == (repr(error), str(error), ["seen"])
    assert vars(found) == vars(error)
    for name in ("errno", "filename", "object", "value"):
        assert getattr(found, name, None) == getattr(error, name, None)


def test_an_exception_that_could_not_be_found_again_is_refused() -> None:
    class Local(Exception):
        pass

    for error in (Local("x"), Slotted("x"), ValueError(object())):
        with pytest.raises(Unencodable):
            Codec().encode(error)


@pytest.mark.parametrize("value", [*VALUES, ValueError("x")], ids=lambda value: type(value).__name__)
def test_a_strict_codec_knows_registered_classes_only(value: Any) -> None:
    strict = Codec(registry=TypeRegistry(), strict=True)
    with pytest.raises(Unencodable, match="strict"):
        strict.encode(value)
    with pytest.raises(UnknownType, match="strict"):
        strict.decode(Codec().encode(value))


def test_your_own_registration_counts_first() -> None:
    registry = TypeRegistry()
    registry.register(Fraction, name="ratio", to=str, build=Fraction)
    codec = Codec(registry=registry)
    data = codec.encode(Fraction(1, 2))
    assert codec.describe(data).startswith("ratio(")
    assert codec.decode(data) == Fraction(1, 2)


def test_fingerprints_of_arguments_stay_as_they_were() -> None:
    """They count only what is registered, whether or not a value of the class was stored before."""
    codec = Codec()
    before = [codec.fingerprint((value,), {})[0] for value in (*VALUES, ValueError("x"))]
    for value in (*VALUES, ValueError("x")):
        codec.encode(value)
    assert [codec.fingerprint((value,), {})[0] for value in (*VALUES, ValueError("x"))] == before
    # Made by the first version that stored arguments: the class's name, and nothing more.
    assert codec.fingerprint((Fraction(1, 2),), {})[0] == codec.fingerprint((Fraction(1, 3),), {})[0]
    registry = TypeRegistry()
    register_standard(registry)
    by_content = Codec(registry=registry)
    assert by_content.fingerprint((Fraction(1, 2),), {})[0] != by_content.fingerprint((Fraction(1, 3),), {})[0]


def test_a_library_is_met_whole_by_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("numpy")
    kind = type("ndarray", (), {"__module__": "numpy"})
    module.ndarray = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "numpy", module)
    library = _library._Library()
    begun, meanwhile = threading.Event(), threading.Event()

    def add(registry: TypeRegistry) -> None:
        begun.set()
        meanwhile.wait(0.2)
        registry.register(kind, to=lambda value: None, build=lambda given: kind())

    library._late["numpy"] = add
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(library.of_class(kind))) for _ in range(4)]
    for thread in threads:
        thread.start()
    begun.wait(5)
    for thread in threads:
        thread.join()
    assert [entry.cls for entry in found] == [kind] * 4


def test_nothing_of_this_is_loaded_until_it_is_needed() -> None:
    code = (
        "import sys, stepfast; from stepfast import Codec\n"
        "codec = Codec(); codec.decode(codec.encode({'a': [1, (2,)]}))\n"
        "assert 'stepfast.codec._library' not in sys.modules and 'ipaddress' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_bytes_that_fit_no_function_are_an_error_of_ours() -> None:
    from stepfast.codec import _marks as m
    from tests.codec.test_reading_runs_no_code import node, read, typed

    for name in ("types:SimpleNamespace", "builtins:ValueError", "fractions:Fraction"):
        with pytest.raises(CodecError):
            read(typed(node(m.CUSTOM, name, 1, "x")))

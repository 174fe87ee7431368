"""Seams: patched once, inert outside of a run, refused loudly where they are missing."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any

import pytest

from stepfast import InvalidInput
from stepfast.adapters import Seam, Standing, install, uninstall, within

place: Standing[list[str]] = Standing("test_seams")


class Model:
    def call(self, text: str) -> str:
        return f"model {text}"

    async def acall(self, text: str) -> str:
        return f"model {text}"

    async def stream(self, text: str) -> AsyncIterator[str]:
        yield f"model {text}"

    @staticmethod
    def fixed() -> str:
        return "fixed"

    @classmethod
    def named(cls) -> str:
        return cls.__name__


class Loud(Model):
    def call(self, text: str) -> str:
        return super().call(text).upper()


class Quiet(Model):
    pass


def note(at: list[str], original: Any, *args: Any, **kwargs: Any) -> Any:
    at.append(original.__name__)
    return original(*args, **kwargs)


async def note_async(at: list[str], original: Any, *args: Any, **kwargs: Any) -> Any:
    at.append(original.__name__)
    return await original(*args, **kwargs)


async def note_stream(at: list[str], original: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
    at.append(original.__name__)
    async for value in original(*args, **kwargs):
        yield value


SEAMS = [
    Seam(Model, "call", within(place.here, note), subclasses=True),
    Seam(Model, "acall", within(place.here, note_async)),
    Seam("tests_seams_framework:Model", "stream", within(place.here, note_stream)),
    Seam(Model, "fixed", within(place.here, note)),
    Seam(Model, "named", within(place.here, note)),
]
# A distribution that is always installed with the tests.
PACKAGE, VERSIONS = "msgspec", ("0.1", None)


@pytest.fixture
def _installed() -> Iterator[None]:
    module = ModuleType("tests_seams_framework")
    module.Model = Model  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    install(PACKAGE, VERSIONS, SEAMS)
    yield
    uninstall(PACKAGE)
    del sys.modules[module.__name__]


@pytest.mark.usefixtures("_installed")
async def test_a_seam_is_inert_outside_of_a_run() -> None:
    seen: list[str] = []
    assert (Model().call("a"), await Model().acall("a"), Model.fixed(), Loud.named()) == (
        "model a",
        "model a",
        "fixed",
        "Loud",
    )
    assert [value async for value in Model().stream("a")] == ["model a"]
    with place.standing(seen):
        assert (Model().call("a"), await Model().acall("a"), Model.fixed(), Loud.named()) == (
            "model a",
            "model a",
            "fixed",
            "Loud",
        )
        assert [value async for value in Model().stream("a")] == ["model a"]
    assert seen == ["call", "acall", "fixed", "named", "stream"]
    assert inspect.iscoroutinefunction(Model.acall)
    assert inspect.isasyncgenfunction(Model.stream)


@pytest.mark.usefixtures("_installed")
def test_a_method_that_a_subclass_overrides_is_seen_once() -> None:
    class Late(Loud):
        def call(self, text: str) -> str:
            return f"{super().call(text)}!"

    seen: list[str] = []
    with place.standing(seen):
        assert Loud().call("a") == "MODEL A"
        assert Quiet().call("a") == "model a"
        assert Late().call("a") == "MODEL A!"
    assert len(seen) == 3


def test_a_nested_seam_sees_calls_that_the_wrapped_one_makes_of_the_same_object() -> None:
    class Agent:
        def reply(self, depth: int) -> int:
            return depth if depth == 3 else self.reply(depth + 1)

    for nested, calls in ((False, 1), (True, 4)):
        install(PACKAGE, VERSIONS, [Seam(Agent, "reply", within(place.here, note, nested=nested))])
        seen: list[str] = []
        try:
            with place.standing(seen):
                assert Agent().reply(0) == 3
        finally:
            uninstall(PACKAGE)
        assert len(seen) == calls


def test_uninstalling_puts_everything_back() -> None:
    before = {name: vars(Model).get(name) for name in ("call", "fixed", "__init_subclass__")}
    install(PACKAGE, VERSIONS, [seam for seam in SEAMS if seam.owner is Model])
    install(PACKAGE, VERSIONS, [Seam(Model, "not looked at again", lambda original: original)])
    assert vars(Model)["call"] is not before["call"]
    uninstall(PACKAGE)
    assert {name: vars(Model).get(name) for name in before} == before
    uninstall(PACKAGE)


def test_a_missing_seam_refuses_and_leaves_nothing_patched() -> None:
    call = vars(Model)["call"]
    for owner, shown in (
        (Model, "Model.gone"),
        ("json:JSONDecoder", "json:JSONDecoder.gone"),
        ("nowhere:X", "nowhere:X.gone"),
    ):
        seams = [Seam(Model, "call", within(place.here, note)), Seam(owner, "gone", within(place.here, note))]
        with pytest.raises(InvalidInput, match=rf"^msgspec \d[\d.]* has no {shown}, which its adapter rests on"):
            install(PACKAGE, VERSIONS, seams)
    assert vars(Model)["call"] is call


def test_versions(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidInput, match=r"msgspec .* is too old for this adapter; install msgspec>=99"):
        install(PACKAGE, ("99", None), [])
    with pytest.raises(InvalidInput, match="no-such-distribution: is not installed"):
        install("no-such-distribution", ("1", None), [])
    install(PACKAGE, ("0.1", "0.2"), [])
    assert "is newer than what this adapter was tested with (below 0.2)" in caplog.text
    uninstall(PACKAGE)

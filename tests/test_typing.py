"""A user's program as mypy and pyright see it: arguments are those of the user's functions, and so are results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.typing_kit import ROOT, check_program

BLOCKING = """
from stepfast import Stepfast


def create_user(mail: str, *, name: str, key: int) -> dict[str, str]:
    return {mail: name * key}


def square(number: int) -> int:
    return number * number


with Stepfast("file.db") as sf, sf.run("r", on_drift="raise") as run:
    reveal_type(run.step(create_user, "a", name="b", key=1))  # expect: dict\\[str, str\\]
    reveal_type(run.once(square, 2))  # expect: int
    reveal_type(run.options(key="k", retry=3).step(square, 2))  # expect: int
    reveal_type(run.scope("s").options(on_in_doubt="retry").once(square, 2))  # expect: int
    reveal_type(list(run.map(square, [1, 2])))  # expect: list\\[int\\]
    reveal_type(run.patched("p"))  # expect: bool
    run.step(square, "2")  # expect: "str"|Literal
    run.step(create_user, "a", name="b", kee=1)  # expect: kee|key
    run.options(retri=3).step(square, 2)  # expect: retri
    run.options(on_drift="acept").step(square, 2)  # expect: on_drift|acept
    sf.run("r", on_wait="suspended")  # expect: on_wait|suspended
"""

WAITING = """

from stepfast import AsyncStepfast


async def fetch(url: str, *, name: str = "") -> bytes:
    return url.encode()


def square(number: int) -> int:
    return number * number


async def main() -> None:
    async with AsyncStepfast("file.db") as sf, sf.run("r") as run:
        reveal_type(await run.step(fetch, "u", name="n"))  # expect: bytes
        reveal_type(await run.step(square, 2))  # expect: int
        reveal_type(await run.once(fetch, "u"))  # expect: bytes
        reveal_type(await run.options(key="k").once(fetch, "u"))  # expect: bytes
        reveal_type([row async for row in run.map(fetch, ["u"])])  # expect: list\\[bytes\\]
        reveal_type([row async for row in run.map(square, [1])])  # expect: list\\[int\\]
        await run.step(fetch, 5)  # expect: "int"|Literal
        await run.step(fetch, "u", nam="n")  # expect: nam
"""


@pytest.mark.parametrize("text", [BLOCKING, WAITING], ids=["blocking", "async"])
def test_type_checkers_see_the_arguments_and_results_of_the_user_s_functions(text: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(text)
    check_program(program, [ROOT / "src"])

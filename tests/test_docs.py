"""The documentation is true: its code runs, its links lead somewhere, and what it names exists.

Each Python block is executed. The blocks of a page run one after another in one process, like a session, with a
store of the page's own as STEPFAST_URL. What a page may say to this test, in a comment above a block:

    <!-- no-run: why -->          not executed
    <!-- run: killed, finished -->   a script that dies by SIGKILL when started first, and finishes when started again
    <!-- run: postgres -->        executed with the address of a real server in place of the one written there

A comment that begins with "setup:" holds code that is executed and not shown.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import stepfast
from tests import hygiene

ROOT = hygiene.ROOT
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLE_PAGES = sorted((ROOT / "examples").rglob("README.md"))

_FENCE = re.compile(
    r"(?P<mark><!-- (?:no-run|run): [^\n]*? -->\n+)?^```(?P<language>\w+)\n(?P<code>.*?)^```$"
    r"|^<!-- setup:\n(?P<setup>.*?)^-->$",
    re.DOTALL | re.MULTILINE,
)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")

RUNNER = """
import json, sys, types
page = types.ModuleType("page")
sys.modules["page"] = page
for name, line, code in json.load(sys.stdin):
    exec(compile("\\n" * line + code, name, "exec"), page.__dict__)
"""


class Block(NamedTuple):
    page: str
    line: int
    language: str
    code: str
    mark: str


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    found = []
    for match in _FENCE.finditer(text):
        language, code = ("setup", match["setup"]) if match["setup"] is not None else (match["language"], match["code"])
        start = match.start("setup") if match["setup"] is not None else match.start("code")
        found.append(Block(name, text[:start].count("\n"), language, code, (match["mark"] or "").strip()))
    return found


def short(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def environment(folder: Path) -> dict[str, str]:
    """A clean place: the page's own store, home and data folder, and nothing of the developer's."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STEPFAST_")}
    clean["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    return {
        **clean,
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder),
        "STEPFAST_URL": f"sqlite:///{folder}/page.db",
    }


def python(folder: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(folder),
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def with_python(pages: list[Path]) -> list[Path]:
    return [page for page in pages if any(b.language in ("python", "setup") for b in blocks_of(page))]


@pytest.mark.parametrize("page", with_python(PAGES), ids=short)
def test_every_python_block_of_a_page_runs(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    session: list[tuple[str, int, str]] = []
    for block in blocks_of(page):
        if block.language not in ("python", "setup") or block.mark.startswith("<!-- no-run: "):
            continue
        if block.mark == "<!-- run: killed, finished -->":
            continue  # a test of its own, below
        code = block.code
        if block.mark == "<!-- run: postgres -->":
            server: Any = request.getfixturevalue("postgres_url")
            code = re.sub(r'"postgresql://[^"]*"', repr(server), code)
        else:
            assert block.mark == "", f"{block.page}:{block.line}: {block.mark} means nothing here"
        session.append((block.page, block.line, code))

    ended = python(tmp_path, "-c", RUNNER, stdin=json.dumps(session))

    assert ended.returncode == 0, ended.stdout + ended.stderr


def scripts_that_die() -> list[Block]:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    return [block for block in blocks if block.mark == "<!-- run: killed, finished -->"]


@pytest.mark.parametrize("script", scripts_that_die(), ids=lambda block: f"{block.page}:{block.line}")
def test_a_script_that_dies_goes_on_when_it_is_started_again(script: Block, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(script.code, encoding="utf-8")

    first = python(tmp_path, str(file))
    second = python(tmp_path, str(file))

    assert first.returncode == -signal.SIGKILL, first.stdout + first.stderr
    assert second.returncode == 0, second.stderr
    repeated = set(first.stdout.splitlines()) & set(second.stdout.splitlines())
    assert first.stdout
    assert second.stdout
    assert repeated == set(), "a step was executed in both lives"


def test_a_newcomer_meets_a_script_that_dies_in_the_readme() -> None:
    assert any(script.page == "README.md" for script in scripts_that_die())


def test_the_first_two_commands_of_the_readme_need_no_set_up() -> None:
    shell = [block for block in blocks_of(ROOT / "README.md") if block.language == "sh"]
    commands = [line.partition("#")[0].strip() for block in shell for line in block.code.splitlines()]

    assert commands[:2] == ["make demo", "make test"]


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLE_PAGES, ROOT / "CHANGELOG.md"], ids=short)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for match in _LINK.finditer(page.read_text(encoding="utf-8")):
        target, _, anchor = match["target"].partition("#")
        if "://" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists():
            broken.append(f"{match['target']}: no such file")
        elif anchor and anchor not in anchors(file):
            broken.append(f"{match['target']}: no such heading")

    assert broken == []


def anchors(page: Path) -> set[str]:
    """The names by which a heading is linked to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLE_PAGES], ids=short)
def test_every_make_target_and_script_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shell = "\n".join(block.code for block in blocks_of(page) if block.language == "sh")

    assert set(re.findall(r"^make ([a-z]+)", shell, re.MULTILINE)) - targets == set()
    assert [path for path in re.findall(r"\bpython (examples/\S+)", shell) if not (ROOT / path).exists()] == []


def test_every_public_name_is_explained() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)

    names = [name for name in stepfast.__all__ if name != "__version__"]
    missing = [name for name in names if not re.search(rf"\b{re.escape(name)}\b", text)]

    assert missing == []


def test_the_page_of_errors_names_every_error() -> None:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    errors = [
        name
        for name in stepfast.__all__
        if isinstance(getattr(stepfast, name), type) and issubclass(getattr(stepfast, name), BaseException)
    ]

    assert errors
    assert [name for name in errors if f"`{name}`" not in text] == []


def named_tests(page: Path) -> set[str]:
    """Names of tests, and beginnings of names marked by a star."""
    return set(re.findall(r"`(test_\w+\*?)`", page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", [page for page in PAGES if named_tests(page)], ids=short)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    sources = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "src" / "stepfast" / "testing").rglob("*.py")]
    defined = re.compile(r"def (test_\w+)\(")
    there = {name for file in sources for name in defined.findall(file.read_text(encoding="utf-8"))}

    missing = [name for name in sorted(named_tests(page)) if not fnmatch.filter(there, name)]
    assert missing == []


def test_the_guarantees_name_a_test_for_each_property_of_the_core() -> None:
    named = named_tests(ROOT / "docs" / "guarantees.md")

    assert {name for name in named if name.startswith("test_property_")} == {
        f"test_property_{number}_*" for number in range(1, 10)
    }


def test_decisions_are_numbered_without_a_gap_and_all_listed() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    listed = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")

    assert [page.name[:4] for page in pages] == [f"{n:04d}" for n in range(1, len(pages) + 1)]
    assert [page.name for page in pages if f"({page.name})" not in listed] == []


def test_the_readme_gives_a_reason_for_each_dependency() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = table["tool"]["hatch"]["metadata"]["hooks"]["custom"]["optional-dependencies"]
    extras = [d for name, group in groups.items() if name != "all" for d in group]
    direct = table["project"]["dependencies"]
    needed = {re.split(r"[\[><=]", dependency)[0] for dependency in [*direct, *extras]} - {"stepfast"}
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Dependencies")[2].partition("## ")[0]

    assert set(re.findall(r"`([a-z][a-z-]*)`", text)) == needed

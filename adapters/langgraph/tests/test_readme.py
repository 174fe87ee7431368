"""The adapter's page is true: its code runs, its links lead somewhere, and every command and option is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer

import stepfast_langgraph
from stepfast_langgraph._cli import group
from tests.cli.test_docs import commands
from tests.test_docs import RUNNER, anchors, blocks_of, python

PAGE = Path(__file__).parents[1] / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_every_python_block_runs(tmp_path: Path) -> None:
    session = [
        (block.page, block.line, block.code)
        for block in blocks_of(PAGE)
        if block.language in ("python", "setup") and not block.mark.startswith("<!-- no-run: ")
    ]
    assert len(session) > 5

    ended = python(tmp_path, "-c", RUNNER, stdin=json.dumps(session))

    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    broken = []
    for target, anchor in re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s#]*)#?([^)\s]*)\)", TEXT):
        if "://" in target:
            continue
        file = (PAGE.parent / target).resolve() if target else PAGE
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(f"{target}#{anchor}")

    assert broken == []


def test_every_public_name_is_explained() -> None:
    names = [name for name in stepfast_langgraph.__all__ if name != "__version__"]

    assert [name for name in names if not re.search(rf"\b{name}\b", TEXT)] == []
    assert [name for name in names if not hasattr(stepfast_langgraph, name)] == []


@pytest.mark.parametrize("name", sorted(commands(typer.main.get_command(group), "stepfast langgraph")))
def test_every_command_has_its_section_with_every_option(name: str) -> None:
    parts = re.split(r"^### `(stepfast [a-z ]+)`$", TEXT, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))

    section = sections[name]
    options = commands(typer.main.get_command(group), "stepfast langgraph")[name]
    assert [option for option in options if f"`{option}`" not in section] == []

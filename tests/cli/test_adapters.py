"""Commands that installed adapters add."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.kit import Cli, clean_env

SHOUTING = """
import typer
from stepfast.cli.plugin import Setup, command, say, show_json

group = typer.Typer(help="Shouts.", no_args_is_help=True)


@command(group, "say")
def shout(at: Setup, word: str) -> None:
    show_json({"word": word.upper(), "url": at.place}) if at.as_json else say(word.upper())


@group.callback()
def nothing() -> None:
    pass
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a distribution that offers a command, as an installer would leave it."""
    about = tmp_path / "site" / "shouting-1.0.dist-info"
    about.mkdir(parents=True)
    about.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    about.joinpath("entry_points.txt").write_text(
        "[stepfast.commands]\nshout = shouting:group\ntasks = shouting:group\n"
    )
    about.parent.joinpath("shouting.py").write_text(SHOUTING)
    return about.parent


def run(site: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        [sys.executable, "-m", "stepfast", *arguments],
        env=clean_env(site, PYTHONPATH=paths),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended


def test_an_adapters_command_is_called_by_its_name_with_the_common_options(site: Path) -> None:
    assert run(site, "shout", "say", "hello").stdout == "HELLO\n"
    assert '"url": "sqlite:///x.db"' in run(site, "--url", "sqlite:///x.db", "shout", "say", "hello", "--json").stdout


def test_it_is_in_the_help_and_looks_like_the_others(site: Path) -> None:
    assert "  shout      Shouts.\n" in run(site, "--help").stdout
    told = run(site, "shout", "--help").stdout
    assert told.startswith("Usage: stepfast shout [OPTIONS] COMMAND [ARGS]...\n")
    assert "--install-completion" not in told


def test_it_cannot_take_the_place_of_a_command_of_ours(site: Path) -> None:
    assert "What waits for a person" in run(site, "tasks", "--help").stdout


@pytest.mark.parametrize("broken", ["raise RuntimeError('no')", "import a_module_that_is_not_there", "group = 3"])
def test_one_that_cannot_be_loaded_breaks_no_other_and_says_why(site: Path, broken: str) -> None:
    (site / "shouting.py").write_text(broken)

    assert run(site, "version").stdout.startswith("stepfast ")
    assert "shout      (cannot be loaded: " in run(site, "--help").stdout
    told = run(site, "shout", "say", "hello", code=1).stderr
    assert told.startswith("error: the commands of shouting cannot be loaded: ")


def test_another_command_does_not_load_it(site: Path) -> None:
    (site / "shouting.py").write_text("import pathlib\npathlib.Path(__file__).with_name('loaded').touch()\n" + SHOUTING)

    run(site, "version")
    assert not (site / "loaded").exists()
    run(site, "shout", "say", "hello")
    assert (site / "loaded").exists()


def test_a_known_adapter_that_is_not_installed_is_named(tmp_path: Path) -> None:
    told = Cli("sqlite:///:memory:", tmp_path).error("langgraph", "import", "--from", "x", code=1)

    assert told["code"] == "not_installed"
    assert 'pip install "stepfast[langgraph]"' in told["message"]


def test_any_other_name_is_no_command(tmp_path: Path) -> None:
    assert "No such command 'langchain'" in Cli("sqlite:///:memory:", tmp_path)("langchain", code=2).stderr

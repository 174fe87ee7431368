"""How the command line behaves as a program: options, exit codes, errors, completion, start-up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepfast import __version__
from stepfast.cli.app import run
from stepfast.cli.failures import describe, exit_code
from stepfast.errors import (
    AccessDenied,
    AlreadyFinished,
    InvalidInput,
    InvalidTransition,
    NotFound,
    StepfastError,
    StoreFull,
    StoreUnavailable,
)
from tests.cli.kit import Cli, clean_env


def test_common_options_may_stand_before_and_behind_the_command(embedded: Cli) -> None:
    other = f"sqlite:///{embedded.home / 'other.db'}"
    intent_id = embedded("--url", other, "intents", "send", "--to", "a", "--type", "t").stdout.strip()
    embedded("intents", "get", intent_id, code=3)
    shown = embedded("--json", "intents", "get", intent_id, "--url", other).stdout
    assert json.loads(shown)["intent_id"] == intent_id
    embedded("--url", embedded.url, "intents", "get", intent_id, "--url", other)


def test_the_store_comes_from_the_environment_or_is_the_embedded_one(tmp_path: Path) -> None:
    cli = Cli("", tmp_path)
    intent_id = cli.send("a")
    assert (tmp_path / "stepfast" / "stepfast.db").exists()
    named = f"sqlite:///{tmp_path / 'stepfast' / 'stepfast.db'}"
    assert cli.json("intents", "get", intent_id, AXME_BASE_URL=named)["intent_id"] == intent_id
    cli("intents", "get", intent_id, code=3, STEPFAST_URL=f"sqlite:///{tmp_path / 'x.db'}", AXME_BASE_URL=named)


ERRORS: list[tuple[BaseException, int]] = [
    (StepfastError("x"), 1),
    (AlreadyFinished("x"), 1),
    (InvalidTransition("x"), 1),
    (InvalidInput("x"), 2),
    (NotFound("x"), 3),
    (AccessDenied("x"), 4),
    (StoreUnavailable("x"), 5),
    (StoreFull("x"), 5),
    (TimeoutError("x"), 1),
]


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=[type(error).__name__ for error, _ in ERRORS])
def test_each_kind_of_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


def test_errors_are_one_line_and_hold_no_sequences() -> None:
    line = describe(StoreUnavailable("gone\nwith \x1b[31mthe\u202e wind?"))
    assert line == "gone with the<U+202E> wind? Try `stepfast doctor`."


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["intents", "nonsense"], ["intents", "get"], ["intents", "list", "--nonsense"],
     ["intents", "list", "--limit", "many"], ["worker", "x:y"], ["serve", "--port", "99999"],
     ["serve", "--log-format", "xml"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_is_exit_code_2_and_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert "--help" in told.err
    assert run([*arguments, "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "usage"


def test_a_group_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["intents"], ["tasks"]):
        assert run(arguments) == 2
        told = capsys.readouterr()
        assert "Usage: stepfast" in told.err + told.out
    assert run(["intents", "send", "--help"]) == 0
    assert "--idempotency-key" in capsys.readouterr().out


def test_a_store_that_is_not_there_is_exit_code_5(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}", "http://127.0.0.1:9", "postgresql://127.0.0.1:9/none?connect_timeout=1"):
        cli = Cli(url, tmp_path)
        told = cli("intents", "list", code=5)
        assert told.stderr.startswith("error: ")
        assert told.stderr.count("\n") == 1
    assert Cli("ftp://x", tmp_path).error("intents", "list", code=2)["code"] == "invalid_input"
    assert Cli("http://127.0.0.1:9", tmp_path).error("agents", "list", code=5)["code"] == "store_unavailable"


def test_debug_shows_the_traceback(embedded: Cli) -> None:
    quiet = embedded.run("intents", "get", "nobody")
    assert (quiet.returncode, quiet.stderr.count("\n")) == (3, 1)
    with pytest.raises(NotFound):
        run(["--debug", "--url", embedded.url, "intents", "get", "nobody"])


def test_the_version_is_told(embedded: Cli) -> None:
    assert embedded("version").stdout.startswith(f"stepfast {__version__}")
    assert embedded.json("version")["stepfast"] == __version__


def test_no_color_is_no_color(embedded: Cli) -> None:
    embedded.send("a")
    colored = embedded("intents", "list", FORCE_COLOR="1", TERM="xterm").stdout
    assert "\x1b[" in colored
    for plain in (
        embedded("intents", "list", FORCE_COLOR="1", TERM="xterm", NO_COLOR="1"),
        embedded("--no-color", "intents", "list", FORCE_COLOR="1", TERM="xterm"),
    ):
        assert "\x1b[3" not in plain.stdout


def test_a_reader_that_goes_away_is_no_traceback(embedded: Cli) -> None:
    for _ in range(3):
        embedded.send("a", {"long": "x" * 100_000})
    process = embedded.process("intents", "list", "--json")
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait(30)


def test_it_says_what_to_install(tmp_path: Path) -> None:
    program = "import sys; sys.modules['typer'] = None; from stepfast.cli import main; main(['version'])"
    told = subprocess.run([sys.executable, "-c", program], env=clean_env(tmp_path), capture_output=True, text=True)
    assert told.returncode == 1
    assert told.stderr == 'error: the command line needs typer. Do: pip install "stepfast[cli]"\n'


def test_it_says_which_part_is_not_installed(embedded: Cli) -> None:
    program = """
import sys
sys.modules["starlette"] = None
from stepfast.cli import main
main(sys.argv[1:])
"""
    for arguments in (["serve"], ["tasks", "list"], ["agents", "list"]):
        told = subprocess.run(
            [sys.executable, "-c", program, *arguments], env=embedded.env, capture_output=True, text=True, timeout=60
        )
        assert (told.returncode, told.stdout) == (1, "")
        assert told.stderr == 'error: this needs starlette. Do: pip install "stepfast[server]"\n'


def test_a_package_that_is_no_part_of_stepfast_is_not_taken_for_an_extra() -> None:
    from stepfast.cli.setup import _known

    assert str(_known(ModuleNotFoundError("No module named 'numpy'", name="numpy"))) == (
        "this needs numpy. It is not one of Stepfast's: install it."
    )


def test_a_terminal_that_cannot_show_a_character_is_no_error(embedded: Cli) -> None:
    intent_id = embedded.send("a", {"text": "é→"})
    embedded("intents", "cancel", intent_id)
    shown = embedded.run("intents", "watch", intent_id, env={"PYTHONIOENCODING": "ascii"})
    assert shown.returncode == 1
    assert "Final status: CANCELED" in shown.stdout
    assert shown.stderr == ""


def test_an_interrupt_ends_it_quietly(embedded: Cli) -> None:
    # What runs in the background of a script ignores SIGINT, and so do its children unless told otherwise.
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = embedded.process("intents", "watch", embedded.send("nobody"), preexec_fn=heeding)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")


def test_completion_is_generated_for_a_shell(embedded: Cli) -> None:
    env = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = embedded.run("--show-completion", "bash", env=env)
    assert shown.returncode == 0, shown.stderr
    assert "_STEPFAST_COMPLETE=complete_bash" in shown.stdout
    done = embedded.run(
        env={"_STEPFAST_COMPLETE": "complete_bash", "COMP_WORDS": "stepfast intents ca", "COMP_CWORD": "2"}
    )
    assert "cancel" in done.stdout


def test_it_starts_without_the_heavy_parts(tmp_path: Path) -> None:
    program = "import sys, stepfast.cli.app; print(*sys.modules)"
    env = {**clean_env(tmp_path), "PYTHONDONTWRITEBYTECODE": os.environ.get("PYTHONDONTWRITEBYTECODE", "")}
    shown = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    loaded = set(shown.stdout.split())
    heavy: set[Any] = {"httpx", "starlette", "uvicorn", "sqlite3", "psycopg", "stepfast.client", "rich.table"}
    assert not loaded & heavy
